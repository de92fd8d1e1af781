"""Serves a pool on another machine on a local socket: ``python -m lightning_core.server.proxy HOST:PORT SOCKET``.

It is a separate process, because Ray ends every process that has joined a cluster whose head is lost. It ends when the
process that started it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lightning_core.server.access.people import Person
from lightning_core.server.probe import UNREACHABLE, UNUSABLE, PoolUnavailableError, ask
from lightning_core.server.server import SocketServer

# Name of the pool whose head was started for it; in a cluster that a pool has joined, it has one of its own.
POOL = "pool"
SCHEDULER = "-scheduler"


def name_of(head: Mapping[str, Any]) -> str:
    """Return the name of a pool, with which the names of its actors begin, from its ``head.json``."""
    return str(head.get("name", POOL))


class Remote:
    """A pool whose scheduler is an actor of a remote Ray; every call is forwarded unchanged, with its person.

    A process that may open the socket of a proxy holds the token of that Ray, and needs no proxy to do everything
    there.

    This process and the pool both number connections, so those of this process begin at a random number.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._first = (1 + secrets.randbits(32)) << 32

    def __getattr__(self, method: str) -> Any:
        return partial(self._forward, method)

    async def join(self, job: Any, device: str, incarnation: int | None, connection: int, person: Person) -> Any:
        reply = await self._forward("join", job, device, incarnation, self._first + connection, person)
        return reply._replace(arbiters=tuple(path if Path(path).exists() else "" for path in reply.arbiters))

    async def event(self, event: Any, connection: int, person: Person) -> Any:
        return await self._forward("event", event, self._first + connection, person)

    async def report(self, report: Any, connection: int, person: Person) -> Any:
        return await self._forward("report", report, self._first + connection, person)

    async def disconnected(self, connection: int) -> None:
        from ray.exceptions import RayError

        with contextlib.suppress(RayError):  # the pool is down
            await self._forward("disconnected", self._first + connection)

    async def send_heartbeats(self, every: float) -> None:
        """Send heartbeats, so that the jobs of a killed proxy do not keep their shares for ever."""
        while True:
            with contextlib.suppress(Exception):  # the actor is being restarted
                await self._forward("heartbeat", self._first)
            await asyncio.sleep(every)

    async def _forward(self, method: str, *args: Any) -> Any:
        return await forward(self._actor, method, *args)


async def forward(actor: Any, method: str, *args: Any) -> Any:
    """Call a method of an actor of Ray, and raise what it raises without Ray's wrapping."""
    from ray.exceptions import RayTaskError

    try:
        return await getattr(actor, method).remote(*args)
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None


async def until_orphaned(parent: int) -> None:
    """Wait until standard input closes or the parent ends: a child that it has forked may keep the pipe open."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    watches = [sys.stdin.fileno()]
    with contextlib.suppress(OSError):  # it has just ended, or is not visible from here
        watches.append(os.pidfd_open(parent))
    for watch in watches:
        loop.add_reader(watch, over.set)
    await over.wait()
    for watch in watches:
        loop.remove_reader(watch)


def _scheduler(ray: Any) -> str:
    """Return the name of the scheduler's actor of the pool of a cluster.

    Raises:
        ValueError: If there is no pool, or there are several.
    """
    from lightning_core.server.ray_settings import NAMESPACE

    named = ray.util.list_named_actors(all_namespaces=True)
    found = [one["name"] for one in named if one["namespace"] == NAMESPACE and one["name"].endswith(SCHEDULER)]
    if len(found) > 1:
        raise ValueError(f"several pools are there ({', '.join(sorted(found))}): name the folder of one")
    if not found:
        raise ValueError("no pool is up in that Ray")
    return str(found[0])


def main(address: str, path: str) -> int:
    """Join the Ray at ``address`` and serve its pool until the process that has started this one ends."""
    parent = os.getppid()
    if not os.environ.get("RAY_AUTH_MODE"):
        os.environ["RAY_AUTH_MODE"] = "token"  # Ray reads it once, on import
    import ray
    from ray.exceptions import RayError

    from lightning_core.server.ray_settings import NAMESPACE
    from lightning_core.server.sessions import PROXY_HEARTBEAT

    try:
        ask(address)
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        actor = ray.get_actor(_scheduler(ray), namespace=NAMESPACE)
    except PoolUnavailableError as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    except (RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        hint = "Python and Ray must be of its versions" if isinstance(error, RuntimeError) else "is a pool up there?"
        print(f"{address}: the pool cannot be reached ({type(error).__name__}: {reason}); {hint}", file=sys.stderr)
        return UNREACHABLE

    async def serve() -> None:
        remote = Remote(actor)
        server = SocketServer(remote, Path(path))
        await server.open()
        heartbeats = asyncio.create_task(remote.send_heartbeats(PROXY_HEARTBEAT))
        await until_orphaned(parent)
        heartbeats.cancel()
        await server.close()

    asyncio.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
