"""Checks of every request to the page, and security headers of every response.

Rules

1. The `Host` is one under which the page is served: a name that was made to point here is not.
2. A request that changes something comes from a page of this origin, or from a program that sends a token. A browser
   declares the origin of a request (`Origin`, `Sec-Fetch-Site`), which other sites cannot forge.
3. A body is small, and is read within seconds.
4. Answers allow no script but the page's own files, no frame, no other host. No response is cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightning_core.parts.web.api.error_answers import error_answer, is_api

MAX_BODY_BYTES, BODY_SECONDS = 2**20, 10.0
SAFE = frozenset({"GET", "HEAD"})
# Places and colours of the lanes are attributes of their elements.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RequestGuard:
    """Refuses requests that no page of ours makes.

    Args:
        app: Application that handles the accepted requests.
        hosts: Hosts under which the page is served, with the port where it is not the scheme's own.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                message["headers"] = headers.raw
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is not None:
            kind = error_answer if is_api(scope["path"]) else _plain_answer
            await kind(*refusal)(scope, receive, send_guarded)
            return
        await self._app(scope, _Body(receive), send_guarded)

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        """Return the status and the words with which a request is refused; None if it is not."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return 421, "this page is not served under that name; name it with --host-name"
        if int(headers.get("content-length") or 0) > MAX_BODY_BYTES:
            return 413, f"a request must be at most {MAX_BODY_BYTES:,} bytes"
        if method in SAFE:
            return None
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None:
            is_ours = urlsplit(origin).netloc.lower() == hosts[0].lower() and origin.startswith(("http://", "https://"))
        else:  # no browser leaves it out of such a request; a program has no cookie, but a token
            is_ours = site in (None, "same-origin") and "cookie" not in headers
        if not is_ours or site not in (None, "same-origin"):
            return 403, "requests that change something must come from this page itself"
        return None


def _plain_answer(status: int, words: str) -> Response:
    return PlainTextResponse(f"{words}\n", status)


class _Body:
    """The body of a request, if it is small and arrives in time."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._size, self._ended = receive, 0, False

    async def __call__(self) -> Message:
        if self._ended:
            return await self._receive()  # that the client has gone
        try:
            async with asyncio.timeout(BODY_SECONDS):
                message = await self._receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        self._size += len(message.get("body", b""))
        if self._size > MAX_BODY_BYTES:
            return {"type": "http.disconnect"}
        self._ended = not message.get("more_body", False)
        return message
