"""The page of a pool, and browsers that have it open: two kinds of processes of :mod:`benchmarks.page`.

``serve SOCKET`` serves the page of the pool behind a socket, prints its link for many, and goes on. ``open LINK N``
opens the page N times and reads what it is sent, except for every tenth, which stops reading; a line on its standard
input ends it, and it prints what was read.
"""

from __future__ import annotations

import asyncio
import json
import sys
from http.cookies import SimpleCookie
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

# Of so many pages one stops reading once it is open.
STALLED = 10


class Read(NamedTuple):
    """What open pages have read."""

    events: int
    """Changes, of all pages that read."""
    megabytes: float
    """Of all pages that read."""
    closed: int
    """Streams that the server has ended."""


class OpenPages:
    """Pages that are open at the same time.

    Args:
        link: Link that lets any number of browsers in.
    """

    def __init__(self, link: str) -> None:
        address = urlsplit(link)
        self._host, self._enter = address.netloc, f"{address.path}?{address.query}"
        self._events = self._bytes = self._closed = 0

    async def enter(self) -> str:
        """Come in by the link; return the cookie."""
        head, _ = await self._get(self._enter, "")
        lines = [line for line in head.split("\r\n") if line.lower().startswith("set-cookie:")]
        cookie = SimpleCookie(lines[0].partition(":")[2].strip())
        return "; ".join(f"{name}={morsel.value}" for name, morsel in cookie.items())

    async def open(self, cookie: str, stalled: bool) -> None:
        """Load the page, then read its stream until the task is cancelled."""
        await self._get("/", cookie)
        reader, writer = await self._ask("/events", cookie, "keep-alive")
        try:
            await reader.readuntil(b"\r\n\r\n")
            if stalled:
                await asyncio.Event().wait()
            while data := await reader.read(65536):
                self._bytes += len(data)
                self._events += data.count(b"event: update")
            self._closed += 1
        finally:
            writer.close()

    def read(self) -> Read:
        """Return what all have read so far."""
        return Read(self._events, self._bytes / 1e6, self._closed)

    async def _get(self, path: str, cookie: str) -> tuple[str, bytes]:
        reader, writer = await self._ask(path, cookie, "close")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise ConnectionError(f"{path.partition('?')[0]}: {head[:100]!r}")
        return head.decode(), body

    async def _ask(self, path: str, cookie: str, connection: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self._host.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\nCookie: {cookie}\r\nAccept: text/html\r\n"
            "Accept-Encoding: gzip\r\n"
            f"Connection: {connection}\r\n\r\n".encode()
        )
        return reader, writer


async def keep_open(link: str, number: int) -> Read:
    """Keep pages open until a line comes on standard input."""
    pages = OpenPages(link)
    cookie = await pages.enter()
    tasks = [asyncio.create_task(pages.open(cookie, k % STALLED == STALLED - 1)) for k in range(number)]
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    read = pages.read()
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):  # not one that was cancelled
            raise outcome
    return read


def serve_page(socket: str) -> None:
    """Serve the page of a pool; print the link for many."""
    from lightning_core.parts.web.web_server import listen, serve
    from lightning_core.pool import Pool
    from lightning_core.server.clients.socket_client import SocketClient

    with Pool(SocketClient(Path(socket))) as pool:
        serve(pool, listen("127.0.0.1", 0), [], readers=1, ready=lambda _, others: print(others[0], flush=True))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve_page(sys.argv[2])
    else:
        print(json.dumps(asyncio.run(keep_open(sys.argv[2], int(sys.argv[3])))), flush=True)
