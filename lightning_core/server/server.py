"""The pool's server for processes that have not joined Ray: JSON lines over a Unix socket.

Rules

1. Scripts that train and all commands use this server. They need no Ray, so a lost head cannot kill them, and a status
   request takes milliseconds.
2. The socket lies in a folder that is private to its user; the members of a group may have another one
   (:mod:`.access.groups`). Requests are JSON: nothing in them is executed, and every value is checked for its type. An
   invalid line is refused and changes nothing.
3. Every request names its protocol version. If the versions differ, the request is refused and nothing is done.
4. A connection that reports for a job stands for its process: when it closes, the process counts as gone.
5. No client makes another wait: requests, held bytes and sizes of each are limited (:mod:`.connections`,
   :mod:`.json_limits`), and one request of each is read at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from lightning_core.core.protocols import JoinRefusedError
from lightning_core.node.processes import process_watch
from lightning_core.node.unix_sockets import BACKLOG, listen, max_connections
from lightning_core.server import json_limits
from lightning_core.server.access.accounts import peer_at
from lightning_core.server.access.groups import GroupSocket
from lightning_core.server.calls import BYTES_PER_VALUE, Calls, ServedScheduler, read_id, write_answer
from lightning_core.server.clients.socket_client import REFUSALS
from lightning_core.server.connections import MAX_CONNECTIONS, ClientConnection, Connections
from lightning_core.storage.job_specs import MAX_SPEC_BYTES

log = logging.getLogger(__name__)

# Bytes of a request: the largest is one spec. And bytes that are read from a connection before it is others' turn.
MAX_LINE_BYTES, CHUNK_BYTES = MAX_SPEC_BYTES + 2**16, 2**16
# Seconds between two looks whether a client whose request is delayed is still there.
CLOSED_CHECK_INTERVAL = 0.1
# A client makes one request at a time; one with this many unanswered requests is disconnected.
MAX_PENDING_CALLS = 16
# Seconds within which a request that has begun must be complete, a new connection must make a valid one, and answers
# must be read. A connection that has made one may be idle for ever: its job may hold.
LINE_TIMEOUT, PROOF_TIMEOUT, READ_TIMEOUT = 10.0, 10.0, 60.0


class SocketServer:
    """Serves a pool on a socket.

    Args:
        pool: Pool to serve.
        path: Path of the socket, at most 107 characters; accessible to its user only.
        group: Socket for the members of a group; None for none.
    """

    def __init__(self, pool: ServedScheduler, path: Path, group: GroupSocket | None = None) -> None:
        self._pool = pool
        self._path = path
        self._group = group
        self._calls = Calls(pool)
        self._servers: list[asyncio.Server] = []
        self._connections = Connections(max_connections(MAX_CONNECTIONS))
        self._refused = 0

    async def open(self) -> None:
        """Begin to listen; the sockets of an earlier process are replaced.

        Raises:
            OSError: If the path is too long, or its folder cannot be written.
        """
        await self._listen(listen(self._path), None)
        if (group := self._group) is not None:
            try:
                await self._listen(listen(group.path, group=group.gid), group)
            except OSError as error:  # its folder may have gone: the pool still serves its own account
                log.warning("%s: members of the group cannot reach the pool: %s", group.path, error)

    async def _listen(self, listener: socket.socket, group: GroupSocket | None) -> None:
        serve = partial(self._serve, group)
        self._servers.append(await asyncio.start_unix_server(serve, sock=listener, limit=CHUNK_BYTES, backlog=BACKLOG))

    async def close(self) -> None:
        """Remove the sockets and close all connections."""
        paths = [self._path] if self._group is None else [self._path, self._group.path]
        for server, path in zip(self._servers, paths, strict=False):
            server.close()
            path.unlink(missing_ok=True)
        self._connections.drop_all()

    def counters(self) -> dict[str, int]:
        """Return the number of connections, and of requests and connections that were refused so far."""
        return {"connections": len(self._connections), "refused": self._refused}

    def _refuse(self, number: int | str | None, words: str, **more: Any) -> bytes:
        self._refused += 1
        return write_answer(number, "refused", words, **more)

    async def _serve(
        self, group: GroupSocket | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        loop, calls = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        peer = peer_at(writer.get_extra_info("socket"), group)
        connection = self._connections.admit(peer, writer.transport, loop.time())
        if connection is None:
            words = f"the pool's server has {len(self._connections)} connections, which is its limit; try again later"
            self._refused += 1
            writer.write(write_answer(None, "failed", words))
            writer.close()
            return
        watch = _watch_process(writer)
        proof = loop.call_later(PROOF_TIMEOUT, self._connections.drop_unproven, connection)
        try:
            async for line in self._lines(reader, connection):
                connection.unfinished = len(line)
                answer_at = loop.time() + self._connections.delay(connection, len(line), loop.time())
                await asyncio.sleep(0)
                while (left := answer_at - loop.time()) > 0 and not reader.at_eof():
                    await asyncio.sleep(min(left, CLOSED_CHECK_INTERVAL))
                if len(calls) >= MAX_PENDING_CALLS or writer.is_closing() or left > 0:
                    break
                call = asyncio.create_task(self._answer(line, connection, writer))
                calls.add(call)
                call.add_done_callback(calls.discard)
        except ValueError as error:
            writer.write(self._refuse(None, str(error)))
        except OSError:  # it died in the middle of a line, or took too long over one
            pass
        finally:
            proof.cancel()
            for call in calls:
                call.cancel()
            if watch is not None:
                loop.remove_reader(watch)
                os.close(watch)
            self._connections.drop(connection)
            await self._pool.disconnected(connection.number)

    async def _lines(self, reader: asyncio.StreamReader, connection: ClientConnection) -> AsyncIterator[bytes]:
        """Yield the lines that arrive.

        Raises:
            ValueError: If one is too long.
            TimeoutError: If one takes too long.
        """
        line, until = bytearray(), None
        while True:
            async with asyncio.timeout_at(until):
                chunk = await reader.read(CHUNK_BYTES)
            if not chunk:
                return
            first, *more = chunk.split(b"\n")
            line += first
            for following in more:
                yield bytes(line)
                line[:] = following
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"a request must be at most {MAX_LINE_BYTES:,} bytes")
            if not line:
                until = None
            elif until is None or more:
                until = asyncio.get_running_loop().time() + LINE_TIMEOUT
            connection.unfinished = len(line)
            self._connections.limit_memory(len(chunk))

    async def _answer(self, line: bytes, connection: ClientConnection, writer: asyncio.StreamWriter) -> None:
        number = None
        try:
            body = json_limits.loads(line)
            number = read_id(body)
            size = len(line) + BYTES_PER_VALUE * json_limits.weigh(line)
            asked = self._calls.parse(body, size, connection)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            # A plain ValueError has a message for users; a KeyError, for example, does not.
            known = type(error) is ValueError or isinstance(error, JoinRefusedError)
            words = str(error) if known else f"invalid request: {type(error).__name__}: {error}"
            answer = self._refuse(number, words, **_because(error))
        else:
            connection.proven = True
            self._connections.limit_memory(size)  # it may be prepared
            try:
                answer = write_answer(number, "value", await asked())
            except ValueError as error:  # JoinRefusedError is one
                answer = self._refuse(number, str(error), **_because(error))
            except Exception as error:  # the pool is in trouble; the client may ask again
                answer = write_answer(number, "failed", f"{type(error).__name__}: {error}")
        await self._send(answer, connection, writer)

    async def _send(self, answer: bytes, connection: ClientConnection, writer: asyncio.StreamWriter) -> None:
        if writer.is_closing():
            return
        try:
            writer.write(answer)
            self._connections.limit_memory(len(answer))
            async with asyncio.timeout(READ_TIMEOUT):
                await writer.drain()
        except TimeoutError:
            self._connections.drop(connection)
        except OSError:  # the client is gone
            pass


def _because(error: Exception) -> dict[str, str]:
    """Return the code of a refusal, if it has one."""
    codes = [name for name, kind in REFUSALS.items() if isinstance(error, kind)]
    return {"because": codes[0]} if codes else {}


def _watch_process(writer: asyncio.StreamWriter) -> int | None:
    """Close the connection when the process that opened it ends: a child that it forked may keep the socket open."""
    try:
        watch = process_watch(writer.get_extra_info("socket"))
    except OSError:  # it is in another container, say: the connection closes with its last process
        return None
    asyncio.get_running_loop().add_reader(watch, writer.transport.abort)
    return watch
