"""A pool of one device without Ray: its scheduler and its device's arbiter in threads of this process."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from lightning_core.core.answers import JobStatus
from lightning_core.node.device_arbiter import DeviceArbiter
from lightning_core.node.processes import started
from lightning_core.scheduler.settings import Settings
from lightning_core.server.ray_actor import SchedulerActor

T = TypeVar("T")
# Seconds that a call may take.
PATIENCE = 30.0


class Served:
    """A pool that scripts join by its folder.

    Args:
        device: Name of its device: ``"cpu0"``, or the UUID of a GPU.
        settings: Settings of its scheduler.
    """

    def __init__(self, device: str, settings: Settings) -> None:
        self._temp = tempfile.TemporaryDirectory(prefix="lc-")
        self.folder = Path(self._temp.name)
        self._arbiter = DeviceArbiter(self.folder / "arbiter")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scheduler", daemon=True)
        self._thread.start()
        socket = self.folder / "socket"
        self._actor = SchedulerActor(settings.to_dict(), str(self.folder / "pool"), str(socket))
        self._do(self._actor.pid())  # opens the socket
        self._do(self._actor.register_devices([(device, str(self._arbiter.path))]))
        me = os.getpid()
        head = {"pid": me, "started": started(me), "temp": self._temp.name, "socket": str(socket), "token": ""}
        (self.folder / "head.json").write_text(json.dumps(head))

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._actor.close())
        self._do(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._arbiter.close()
        self._temp.cleanup()

    def status(self) -> list[JobStatus]:
        """Return the status of all jobs so far."""
        return self._do(self._actor.status())[1]

    def _do(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(PATIENCE)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
