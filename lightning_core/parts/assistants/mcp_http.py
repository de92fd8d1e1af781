"""The server over HTTP: on this machine alone, and each request with the token of a user.

Rules

1. It listens on 127.0.0.1. Other machines reach it by `ssh -L`, or by a proxy of the user.
2. Every request carries a token of the pool (`lightning-core token new`), and is made in the name of its user. It is
   checked with each request, so a token that is revoked ends the sessions that it began.
3. `Host` and `Origin` are those of this server: a name that was made to point here is refused, and so is a page of
   another site.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.routing import Route

from lightning_core.parts.assistants.mcp_server import AssistantServer
from lightning_core.server.access.people import Person

HOST, PATH = "127.0.0.1", "/mcp"
# Bytes of a request: a bundle has at most 1 MiB. Sessions, and seconds after which an idle one ends.
MAX_BODY_BYTES, MAX_SESSIONS, IDLE_SECONDS = 2**21, 100, 3600.0
# Connections; seconds of an idle one, and that open requests have to end when the server ends.
MAX_CONNECTIONS, KEEP_ALIVE, SHUTDOWN = 200, 20, 2


class PersonUser(AuthenticatedUser):
    """The user of a request, to whom the session that it begins belongs."""

    def __init__(self, person: Person) -> None:
        super().__init__(AccessToken(token="", client_id=person.name, scopes=[]))
        self.person = person


class TokenBackend(AuthenticationBackend):
    """Knows users by the tokens of their requests.

    Args:
        holder_of: Function that returns the user of a token; None if it is not valid.
    """

    def __init__(self, holder_of: Callable[[str], Person | None]) -> None:
        self._holder_of = holder_of

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        """Return the user of a request; None if it has none."""
        kind, _, token = conn.headers.get("authorization", "").partition(" ")
        person = self._holder_of(token.strip()) if kind.lower() == "bearer" else None
        return None if person is None else (AuthCredentials([]), PersonUser(person))


def person_of(request: Any) -> Person:
    """Return the user of a request that was let in."""
    user = request.user
    assert isinstance(user, PersonUser)
    return user.person


def http_app(server: AssistantServer, holder_of: Callable[[str], Person | None], port: int) -> Starlette:
    """Return the application of a server.

    Args:
        server: The server.
        holder_of: Function that returns the user of a token; None if it is not valid.
        port: Port under which it is reached.
    """
    hosts = [f"{name}:{port}" for name in (HOST, "localhost")]
    manager = StreamableHTTPSessionManager(
        server.mcp, json_response=True, session_idle_timeout=IDLE_SECONDS, max_request_body_size=MAX_BODY_BYTES,
        max_sessions=MAX_SESSIONS,
        security_settings=TransportSecuritySettings(
            allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts]
        ),
    )  # fmt: skip

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    guarded = RequireAuthMiddleware(StreamableHTTPASGIApp(manager), required_scopes=[])
    authentication = Middleware(AuthenticationMiddleware, backend=TokenBackend(holder_of))
    return Starlette(routes=[Route(PATH, guarded)], middleware=[authentication], lifespan=lifespan)


class _HttpServer(uvicorn.Server):
    """A server that calls a function once it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def listen(port: int) -> socket.socket:
    """Return a socket that listens on this machine.

    Args:
        port: Number of the port; 0 for any that is free.

    Raises:
        ValueError: If the port is taken.
    """
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        words = error.strerror if error.errno is None else os.strerror(error.errno)
        raise ValueError(f"{HOST}, port {port}: {words}; name another port, or 0 for any") from None


def serve_http(
    server: AssistantServer,
    holder_of: Callable[[str], Person | None],
    listener: socket.socket,
    ready: Callable[[str], None],
) -> None:
    """Serve over HTTP until a signal ends the process.

    Args:
        server: The server.
        holder_of: Function that returns the user of a token; None if it is not valid.
        listener: Socket that listens.
        ready: Called with the address when requests can come.
    """
    port = listener.getsockname()[1]
    app = http_app(server, holder_of, port)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, date_header=False, proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS, timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=SHUTDOWN,
        ws="none", lifespan="on",
    )  # fmt: skip
    with suppress(KeyboardInterrupt):
        _HttpServer(config, lambda: ready(f"http://{HOST}:{port}{PATH}")).run(sockets=[listener])
