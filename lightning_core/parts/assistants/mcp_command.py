"""``lightning-core mcp``: the pool as tools of assistants, by the Model Context Protocol."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from types import FrameType
from typing import NoReturn

from lightning_core.bundle.problems import BundleError, require
from lightning_core.cli.arguments import add_pool, whole_number
from lightning_core.node.signals import EXIT_SIGNALS
from lightning_core.parts.assistants.pool_access import PoolAccess
from lightning_core.parts.assistants.tools import Permit
from lightning_core.pool.pool_errors import NotOnThisMachineError
from lightning_core.scheduler.summary import EXIT_MET
from lightning_core.server.access.authenticators import Authenticators
from lightning_core.variables import PREFIX

PORT, MAX_PORT = 8711, 65535
# The oldest release of the package `mcp` that has what is used here, and of the first one that may not.
OLDEST, TOO_NEW = (2, 2), (3, 0)


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command ``mcp``."""
    mcp = command("mcp", _mcp, "serve the pool to assistants as tools of the Model Context Protocol")
    changes = "also serve tools that change jobs: deadline, devices, pause, resume, cancel"
    mcp.add_argument("--allow-changes", action="store_true", help=changes)
    submit = "also serve tools that check and submit bundles, which are code that runs as the pool's account"
    mcp.add_argument("--allow-submit", action="store_true", help=submit)
    http = (
        f"serve over HTTP on 127.0.0.1 (port {PORT} by default, 0 for any that is free) instead of the standard "
        "streams; each request needs a token of `lightning-core token new`, and has its rights"
    )
    mcp.add_argument("--http", type=whole_number(0, MAX_PORT), nargs="?", const=PORT, metavar="PORT", help=http)
    add_pool(mcp)


def _mcp(arguments: argparse.Namespace) -> int:
    check_package()
    allowed = [Permit.CHANGES] * arguments.allow_changes + [Permit.SUBMIT] * arguments.allow_submit
    serve = _over_streams if arguments.http is None else _over_http
    serve(arguments, allowed)
    return EXIT_MET


def check_package() -> None:
    """Check that the package of the protocol is installed, in a version that is known.

    Raises:
        BundleError: If it is not; the message has the command that installs it.
    """
    require("mcp", extra="mcp")
    try:
        number = version("mcp")
        found = tuple(map(int, number.split(".")[:2]))
    except (PackageNotFoundError, ValueError):
        return  # it is no release, and may be anything
    if not OLDEST <= found < TOO_NEW:
        wanted = f"at least {'.'.join(map(str, OLDEST))} and below {TOO_NEW[0]}"
        install = "pip install -c constraints.txt '.[mcp]' in the clone"
        raise BundleError([f"mcp must be {wanted}, got {number}; run {install}"])


def _over_streams(arguments: argparse.Namespace, allowed: Sequence[Permit]) -> None:
    """Serve over the standard streams until the client closes them."""
    import anyio
    from mcp.server.stdio import stdio_server

    from lightning_core.parts.assistants.mcp_server import AssistantServer

    server = AssistantServer(PoolAccess(arguments.pool, os.environ.get(f"{PREFIX}TOKEN", "")), allowed)

    async def serve() -> None:
        async with stdio_server() as (read, write):
            await server.mcp.run(read, write, server.mcp.create_initialization_options())

    for number in EXIT_SIGNALS:
        signal.signal(number, _end)
    anyio.run(serve)


def _end(number: int, _: FrameType | None) -> NoReturn:
    """End the process at once: a thread of it waits for standard input, and nothing is lost with it."""
    os._exit(128 + number)


def _over_http(arguments: argparse.Namespace, allowed: Sequence[Permit]) -> None:
    """Serve over HTTP until a signal ends the process.

    Raises:
        ConnectionError: If no pool is up.
        NotOnThisMachineError: If the pool is on another machine, where its tokens are known.
    """
    from lightning_core.parts.assistants.mcp_http import listen, person_of, serve_http
    from lightning_core.parts.assistants.mcp_server import AssistantServer

    access = PoolAccess(arguments.pool)
    with access.pool() as pool:
        if pool.is_far:
            raise NotOnThisMachineError(
                f"{pool.client.path}: its tokens are known on its own machine; start `lightning-core mcp --http` "
                "there, or leave out --http"
            )
        folder, words = pool.folder, pool.describe()
    server = AssistantServer(access, allowed, person_of)
    serve_http(
        server, Authenticators(folder).person, listen(arguments.http),
        lambda address: print(f"{words} is served to assistants at {address}; each request needs a token "
                              "(`lightning-core token new`)", flush=True),
    )  # fmt: skip
