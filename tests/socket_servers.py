"""A pool's server without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning_core.core.answers import State, Verdict
from lightning_core.node.processes import started
from lightning_core.server.access.groups import GroupSocket
from lightning_core.server.ray_actor import SchedulerActor
from lightning_core.server.sessions import PROCESS_EXITED
from tests.waiting import PATIENCE


@contextlib.contextmanager
def socket_pool(folder: Path, settings: Mapping[str, Any] | None = None) -> Iterator[Pool]:
    """A pool whose socket has a short path, as Unix sockets need.

    Args:
        folder: Folder of the pool.
        settings: Settings of its scheduler.
    """
    with tempfile.TemporaryDirectory(prefix="lc-") as name:
        made = Pool(folder, Path(name) / "socket", settings)
        try:
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def found_pool(**settings: Any) -> Iterator[Pool]:
    """A pool in a folder by which scripts find it, the parent of its socket.

    Args:
        settings: Settings of its scheduler.
    """
    with tempfile.TemporaryDirectory(prefix="lc-") as name:
        folder, me = Path(name), os.getpid()
        made = Pool(folder / "pool", folder / "socket", {"policy": "uniform", **settings})
        head = {"pid": me, "started": started(me), "temp": name, "socket": str(made.path), "token": ""}
        (folder / "head.json").write_text(json.dumps(head))
        try:
            yield made
        finally:
            made.close()


class Pool:
    """A scheduler with its server, in a thread with its own event loop; no Ray."""

    def __init__(
        self, folder: Path, path: Path, settings: Mapping[str, Any] | None = None, group: GroupSocket | None = None
    ) -> None:
        self.settings: dict[str, Any] = {"policy": "uniform"} if settings is None else dict(settings)
        self.folder = folder
        self.path = path
        self.group = group
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.actor = self._make_actor()

    def _make_actor(self) -> SchedulerActor:
        actor = SchedulerActor(self.settings, str(self.folder), str(self.path), group=self.group)
        self.do(actor.pid())
        self.do(actor.register_devices([(f"cpu{k}", "/turn") for k in range(self.settings.get("devices", 1))]))
        return actor

    def do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    def restart(self) -> None:
        """Restart the actor as after the death of its process: unwritten state is lost, and no client is connected."""
        self.do(self.actor.close())
        self.actor = self._make_actor()

    def is_current(self, name: str, incarnation: int = 1) -> bool:
        """Return whether this is the job's current incarnation, and the job has not ended."""
        _, jobs = self.do(self.actor.status())
        job = [job for job in jobs if job.name == name][-1]
        return bool(job.state is not State.ENDED and job.incarnation == incarnation)

    def crashed(self, name: str) -> bool:
        """Return whether the job ended because its process exited."""
        _, jobs = self.do(self.actor.status())
        job = [job for job in jobs if job.name == name][-1]
        return bool(job.verdict is Verdict.CRASHED and job.detail == PROCESS_EXITED)

    def close(self) -> None:
        self.do(self.actor.close())
        self.do(self._wind_up())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _wind_up(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
