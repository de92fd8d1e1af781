"""Brings the door of a pool on another machine here: ``python -m lightning_core.server.proxy HOST:PORT SOCKET``.

A process of its own, because Ray ends whatever has joined a cluster whose head is lost. It ends when the process that
started it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from functools import partial
from pathlib import Path
from typing import Any

from lightning_core.server.probe import UNUSABLE, PoolUnavailableError, ask
from lightning_core.server.server import SocketServer

POOL = "pool-scheduler"


class Remote:
    """A pool whose scheduler is an actor that this process can call; each call is passed on as it is.

    Connections are counted here, and there: those of this process begin at a number of its own.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._first = (1 + secrets.randbits(32)) << 32

    def __getattr__(self, method: str) -> Any:
        return partial(self._pass_on, method)

    async def join(self, job: Any, device: str, incarnation: int | None, line: int) -> Any:
        welcome = await self._pass_on("join", job, device, incarnation, self._first + line)
        return welcome._replace(arbiters=tuple(path if Path(path).exists() else "" for path in welcome.arbiters))

    async def event(self, event: Any, line: int) -> Any:
        return await self._pass_on("event", event, self._first + line)

    async def hung_up(self, line: int) -> None:
        from ray.exceptions import RayError

        with contextlib.suppress(RayError):  # it is gone: there is nobody to tell
            await self._pass_on("hung_up", self._first + line)

    async def say_that_it_lives(self, every: float) -> None:
        """Else a bridge that is killed would leave its jobs with their shares for ever."""
        while True:
            with contextlib.suppress(Exception):  # it is being restarted
                await self._pass_on("here", self._first)
            await asyncio.sleep(every)

    async def _pass_on(self, method: str, *args: Any) -> Any:
        from ray.exceptions import RayTaskError

        try:
            return await getattr(self._actor, method).remote(*args)
        except RayTaskError as error:  # its words, not the way that they came
            raise error.cause if isinstance(error.cause, Exception) else error from None


def main(address: str, path: str) -> int:
    """Joins the Ray at ``address`` and serves its pool until standard input closes."""
    if not os.environ.get("RAY_AUTH_MODE"):
        os.environ["RAY_AUTH_MODE"] = "token"  # Ray looks once, when it is imported
    import ray
    from ray.exceptions import RayError

    from lightning_core.server.ray_settings import NAMESPACE
    from lightning_core.server.sessions import BRIDGE_EVERY

    try:
        ask(address)
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        actor = ray.get_actor(POOL, namespace=NAMESPACE)
    except PoolUnavailableError as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    except (RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        hint = "Python and Ray must be of its versions" if isinstance(error, RuntimeError) else "is a pool up there?"
        print(f"{address}: the pool cannot be reached ({type(error).__name__}: {reason}); {hint}", file=sys.stderr)
        return 2

    async def serve() -> None:
        remote = Remote(actor)
        door = SocketServer(remote, Path(path))
        await door.open()
        life = asyncio.create_task(remote.say_that_it_lives(BRIDGE_EVERY))
        await asyncio.to_thread(sys.stdin.read)  # until whoever started it is gone
        life.cancel()
        await door.close()

    asyncio.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
