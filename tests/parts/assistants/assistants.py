"""An assistant that speaks with a server of the tools, and the pool behind it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CallToolResult, Implementation

from lightning_core.core.events import Cell, Report
from lightning_core.core.jobs import Job
from lightning_core.core.targets import LossTarget
from lightning_core.parts.assistants.mcp_http import http_app, listen, person_of
from lightning_core.parts.assistants.mcp_server import AssistantServer
from lightning_core.parts.assistants.pool_access import PoolAccess
from lightning_core.parts.assistants.tools import Permit
from lightning_core.server.access.authenticators import Authenticators
from tests.socket_servers import Pool as Server
from tests.socket_servers import found_pool
from tests.waiting import until

T = TypeVar("T")
EVERYTHING = (Permit.CHANGES, Permit.SUBMIT)


class Refused(Exception):
    """A tool has refused; its words are the message."""


class Assistant:
    """Calls tools."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def names(self) -> list[str]:
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def raw(self, tool: str, **arguments: Any) -> CallToolResult:
        return await self.client.call_tool(tool, arguments)

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the structured answer of a tool."""
        answer = await self.raw(tool, **arguments)
        if answer.is_error:
            raise Refused(answer.content[0].text)
        assert isinstance(answer.structured_content, dict)
        return answer.structured_content


@asynccontextmanager
async def assistant(server: Any, name: str = "claude-code", mode: str = "auto") -> AsyncIterator[Assistant]:
    """An assistant that has connected.

    Args:
        server: A server, the parameters of its command, or a transport.
        name: What the assistant calls itself.
        mode: Which protocol it speaks: ``auto``, the newest, or ``legacy``, with a handshake.
    """
    client_info = Implementation(name=name, version="1")
    async with Client(server, client_info=client_info, mode=mode, read_timeout_seconds=60) as client:
        yield Assistant(client)


def ask(server: Any, story: Callable[[Assistant], Awaitable[T]], name: str = "claude-code", mode: str = "auto") -> T:
    """Return what an assistant finds out."""
    return told(assistant(server, name, mode), story)


def told(made: AbstractAsyncContextManager[Assistant], story: Callable[[Assistant], Awaitable[T]]) -> T:
    """Return what a story returns, or raise what it raises: not in a group, as tasks around it would."""

    async def run() -> T | BaseException:
        async with made as entered:
            try:
                return await story(entered)
            except (Exception, pytest.fail.Exception) as error:
                return error

    found = anyio.run(run)
    if isinstance(found, BaseException):
        raise found
    return found


def call(server: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the structured answer to one call."""
    return ask(server, lambda made: made.call(tool, **arguments))


def tools_of(folder: Path, *allowed: Permit, token: str = "") -> Any:
    """Return a server of the tools for the pool of a folder, in this process."""
    return AssistantServer(PoolAccess(str(folder), token), allowed).mcp


@contextmanager
def pool_with(*jobs: Job, **settings: Any) -> Iterator[tuple[Server, Path]]:
    """A pool with jobs, and the folder by which it is found."""
    with found_pool(**{"policy": "edf"} | settings) as server:
        if jobs:
            server.do(server.actor.submit(jobs))
        yield server, server.path.parent


def loss_job(name: str, deadline: float = 600.0, **terms: Any) -> Job:
    return Job(name, deadline, LossTarget("loss", 0.5), **terms)


def report(server: Server, name: str, losses: list[float], batches: int = 10, busy: float = 0.0) -> None:
    """Report the first losses of a job, one every ``batches`` batches."""
    cells = tuple(Cell(number, number * batches, loss) for number, loss in enumerate(losses, 1))
    done = len(losses) * batches
    server.do(server.actor.report(Report(name, 1, 1, 10**6, done, busy or done / 100, cells=cells)))


@contextmanager
def over_http(folder: Path, pool: Path, *allowed: Permit) -> Iterator[str]:
    """Serve the tools over HTTP; give the address.

    Args:
        folder: Folder by which the pool is found.
        pool: The pool's own folder, which has its tokens.
        allowed: What the server was started with.
    """
    listener = listen(0)
    port = listener.getsockname()[1]
    server = AssistantServer(PoolAccess(str(folder)), allowed, person_of)
    config = uvicorn.Config(http_app(server, Authenticators(pool).person, port), log_level="error",
                            timeout_graceful_shutdown=1)  # fmt: skip
    served = uvicorn.Server(config)
    thread = threading.Thread(target=served.run, args=([listener],))
    thread.start()
    until(lambda: served.started)
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        served.should_exit = True
        thread.join()


def ask_over_http(
    address: str, token: str, story: Callable[[Assistant], Awaitable[T]], mode: str = "auto", **headers: str
) -> T:
    """Return what an assistant finds out over HTTP, by a token."""

    @asynccontextmanager
    async def made() -> AsyncIterator[Assistant]:
        async with (
            create_mcp_http_client({"Authorization": f"Bearer {token}", **headers}) as http,
            assistant(streamable_http_client(address, http_client=http), mode=mode) as entered,
        ):
            yield entered

    return told(made(), story)
