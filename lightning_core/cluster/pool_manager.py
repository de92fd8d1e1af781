"""The pool manager: a detached actor that manages devices and workers, apart from the scheduler, which decides.

Rules

1. It owns nothing that dies with it: placement groups, arbiters and workers are detached and named
   (:mod:`.worker_slots`), and a restarted pool manager continues with those that it finds.
2. The scheduler's placements are levels, not orders. Whatever is missing is launched (:mod:`.launcher`).
3. Results go from worker to scheduler. The pool manager only checks whether workers are alive, and reports on behalf of
   those that are not (:mod:`.monitor`).
4. Nothing that hangs delays the rest: each slot is filled, each worker asked and each job launched independently.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from lightning_core.cluster import config_checker
from lightning_core.cluster.launcher import READY_WITHIN, Launcher
from lightning_core.cluster.monitor import ASK_INTERVAL, WorkerMonitor
from lightning_core.cluster.node_slots import NodeSlots
from lightning_core.cluster.worker_slots import MAX_SILENCE, WorkerSlots
from lightning_core.core.answers import Placement
from lightning_core.run.ageing import Ends, age_out_as_time_passes
from lightning_core.scheduler.settings import Settings
from lightning_core.server.ray_settings import NAMESPACE, Actor
from lightning_core.server.start_scheduler import this_node
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.private_files import read_own

log = logging.getLogger(__name__)

# Seconds for which a request for placements waits for a change, and seconds that an answer may take beyond that.
NEWS_TIMEOUT, REPLY_TIMEOUT = 5.0, 10.0
# Seconds before a scheduler that does not answer is asked again, and before a retry after an unexpected error.
AWAY_PAUSE, ERROR_PAUSE = 0.5, 2.0
# Maximum size of the file in which the scheduler is recorded.
MAX_MEMORY_BYTES = 2**16


class PoolManager:
    """Manages the devices of a pool and the workers on them.

    Args:
        name: Name of the pool, with which all names of actors and placement groups begin.
        devices: Number of devices.
        workers_per_device: Number of workers to keep warm on each device.
        kind: Kind of the devices, ``"cpu"`` or ``"gpu"``.
        cores: Cores of each device, if they are CPUs.
        memory: Path of the file in which it records the scheduler that it serves, for after a restart.
        ready_within: Seconds within which all workers of a job must be ready.
        max_silence: Seconds for which a busy worker may not answer.
        locations: Location of each device; empty for any.
        min_devices: Number of devices that the pool needs to open, if nodes come and go; None for all.
        checker: Path of the socket of a process that checks configs; empty for none.
    """

    def __init__(
        self,
        name: str,
        devices: int,
        workers_per_device: int,
        kind: str,
        cores: int,
        memory: str,
        ready_within: float = READY_WITHIN,
        max_silence: float = MAX_SILENCE,
        locations: Sequence[str] = (),
        min_devices: int | None = None,
        checker: str = "",
    ) -> None:
        self._checker = config_checker.start(Path(checker)) if checker else None  # it ends with this process
        self._memory = Path(memory)
        self._ready_within = ready_within
        self._folder: Path | None = None
        if min_devices is None:
            self._slots = WorkerSlots(name, devices, workers_per_device, kind, cores, locations)
        else:
            self._slots = NodeSlots(name, devices, workers_per_device, kind, cores, min_devices)
        self._monitor = WorkerMonitor(self._slots, lambda: self._folder, max_silence)
        self._monitoring: asyncio.Task[None] | None = None
        self._following: list[asyncio.Task[None]] = []
        self._launcher: Launcher | None = None
        self._opening = asyncio.Lock()
        self._resumed = False  # whether the work of an earlier pool manager is resumed
        if self._memory.exists():  # Ray has restarted it, and refuses calls of itself until the restart is known
            self._waking = asyncio.get_running_loop().create_task(self._wake())

    async def open(self, patience: float = 300.0, *, warm: bool = True) -> None:
        """Start or find the devices, their arbiters and their workers.

        Args:
            patience: Seconds that this may take.
            warm: Whether to wait until all workers have imported their modules; otherwise returns once scripts can
                share the devices.

        Raises:
            RuntimeError: If no node has a free device, or a worker cannot be started.
        """
        await self._open()
        try:
            async with asyncio.timeout(patience):
                await (self._slots.wait_until_warm() if warm else self._slots.wait_until_shared())
        except TimeoutError:
            problems = {f"device {p.device}: {p.problem}" for p in self._slots if p.worker is None}
            raise RuntimeError(f"the pool is not ready after {patience:.0f} s: {'; '.join(sorted(problems))}") from None

    async def serve(self, scheduler: str, folder: str, *, warm: bool = True) -> None:
        """Launch the placements of a scheduler, which replaces any earlier one.

        Args:
            scheduler: Name of the scheduler's actor.
            folder: Folder of its pool, with the specs of the jobs.
            warm: See :meth:`open`.
        """
        await self._open()
        self._stop_following()
        for slot in self._slots.busy():
            if slot.incarnation is not None and slot.incarnation.scheduler != scheduler:  # of an abandoned run
                self._slots.kill(slot, "its job's scheduler no longer exists")
        await self.open(warm=warm)
        await asyncio.to_thread(write_whole, self._memory, json.dumps([scheduler, folder]))
        self._follow(scheduler, Path(folder))

    async def busy(self) -> list[str]:
        """Return the jobs whose workers have not left them yet."""
        await self._open()
        return sorted({slot.incarnation.job for slot in self._slots.busy() if slot.incarnation is not None})

    async def starting(self) -> tuple[int, int]:
        """Return the number of workers that are warm, and of those that should be."""
        warm = [slot.worker is not None for slot in self._slots]
        return sum(warm), len(warm)

    async def warm(self) -> int:
        """Return the number of devices that have a worker and whose nodes are not draining."""
        await self._open()
        await self._slots.refresh()
        devices = {slot.device for slot in self._slots if slot.worker is not None}
        return sum(not self._slots.is_draining(device) for device in devices)

    async def pids(self) -> list[int]:
        """Return the ids of the workers' processes."""
        return list(await asyncio.gather(*(p.worker.pid.remote() for p in self._slots if p.worker is not None)))

    async def pid(self) -> int:
        """Return the id of the pool manager's own process."""
        return os.getpid()

    async def close(self) -> None:
        """End workers, arbiters and placement groups, including those of an earlier pool manager."""
        self._stop_following()
        if self._monitoring is not None:
            self._monitoring.cancel()
        await self._slots.close()

    # ------------------------------------------------------------------------------------------------ within

    async def _wake(self) -> None:
        """Resume the work of the pool manager before the restart."""
        while True:
            try:
                await self._open()
                return
            except Exception:  # whatever the error: nothing else would retry
                log.exception("the pool manager could not resume its work")
                await asyncio.sleep(ERROR_PAUSE)

    async def _open(self) -> None:
        async with self._opening:
            await self._slots.open()
            if self._monitoring is None:
                self._monitoring = asyncio.get_running_loop().create_task(self._monitor.run())
            if self._resumed:
                return
            if self._memory.exists():
                scheduler, folder = json.loads(read_own(self._memory.parent, self._memory.name, MAX_MEMORY_BYTES))
                self._folder = Path(folder)  # it has the checkpoints of workers that die before all slots are settled
                await self._slots.wait_until_settled()
                self._follow(scheduler, self._folder)
            self._resumed = True

    def _follow(self, scheduler: str, folder: Path) -> None:
        self._folder = folder
        self._launcher = Launcher(self._slots, self._monitor, scheduler, folder, self._ready_within)
        loop = asyncio.get_running_loop()
        self._following = [
            loop.create_task(self._keep_launched(scheduler, self._launcher)),
            loop.create_task(self._report_devices(scheduler)),
            loop.create_task(age_out_as_time_passes(folder, partial(self._ask_ends, scheduler))),
        ]

    def _stop_following(self) -> None:
        for task in self._following:
            task.cancel()
        if self._launcher is not None:
            self._launcher.close()

    async def _keep_launched(self, scheduler: str, launcher: Launcher) -> None:
        """Keep launching placements that do not run."""
        known: list[Placement] | None = None
        while True:
            try:
                actor = ray.get_actor(scheduler, namespace=NAMESPACE)
                shared = list(zip(self._slots.names, self._slots.arbiters, strict=True))
                async with asyncio.timeout(REPLY_TIMEOUT):
                    await actor.register_devices.remote(shared)
                async with asyncio.timeout(NEWS_TIMEOUT + REPLY_TIMEOUT):
                    known = await actor.placements.remote(known, NEWS_TIMEOUT)
                launcher.want(known or [])
                async with asyncio.timeout(REPLY_TIMEOUT):
                    await self._monitor.kill_overdue(actor, scheduler)
            except (RayError, ValueError, TimeoutError):  # it is being restarted, or is stalled
                known = None
                await asyncio.sleep(AWAY_PAUSE)
            except Exception:  # whatever the error: the jobs need their workers
                log.exception("placements of %s could not be launched", scheduler)
                known = None
                await asyncio.sleep(ERROR_PAUSE)

    async def _report_devices(self, scheduler: str) -> None:
        """Report to a scheduler which devices are unavailable, and their kinds and machines, as that changes."""
        reported: dict[int, str] | None = None
        told: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        is_current = False
        while True:
            try:
                await self._slots.refresh()
                if (unavailable := self._slots.unavailable()) != reported:
                    actor = ray.get_actor(scheduler, namespace=NAMESPACE)
                    async with asyncio.timeout(REPLY_TIMEOUT):
                        await actor.set_unavailable.remote(list(unavailable.items()))
                    reported = unavailable
                    is_current = False  # a device may be back on another node
                if not is_current and (found := await self._slots.found()) != told:
                    actor = ray.get_actor(scheduler, namespace=NAMESPACE)
                    async with asyncio.timeout(REPLY_TIMEOUT):
                        await actor.set_found.remote(*found)
                    told = found
                is_current = True
            except (RayError, ValueError, TimeoutError):  # it is being restarted, or is stalled
                reported = told = None
            except Exception:  # whatever the error: the next check may succeed
                log.exception("the devices could not be checked")
                await asyncio.sleep(ERROR_PAUSE)
            await asyncio.sleep(ASK_INTERVAL)

    async def _ask_ends(self, scheduler: str) -> tuple[Settings, Ends]:
        """Ask a scheduler for its settings, and which of its jobs have ended."""
        actor = ray.get_actor(scheduler, namespace=NAMESPACE)
        async with asyncio.timeout(REPLY_TIMEOUT):
            return Settings(**(await actor.about.remote())["settings"]), await actor.ends.remote()


def start_pool_manager(
    name: str,
    devices: int,
    workers_per_device: int,
    kind: str,
    cores: int,
    memory: Path,
    locations: Sequence[str] = (),
    min_devices: int | None = None,
    checker: Path | None = None,
    **patience: float,
) -> Actor:
    """Start a named, detached pool manager, which Ray restarts whenever it dies; or find the one of that name.

    Args:
        name: Name of the pool.
        devices: Number of devices.
        workers_per_device: Number of workers to keep warm on each device.
        kind: Kind of the devices.
        cores: Cores of each device, if they are CPUs.
        memory: Path of the file in which it records the scheduler that it serves.
        locations: Location of each device; empty for any.
        min_devices: Number of devices that the pool needs to open, if nodes come and go; None for all.
        checker: Path of the socket of a process that checks configs; None for none.
        **patience: ``ready_within`` and ``max_silence`` of the :class:`PoolManager`, seconds.
    """
    options = {
        "name": f"{name}-manager",
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "num_cpus": 0,
        "scheduling_strategy": this_node(),
    }
    actor: Any = ray.remote(PoolManager)
    made = actor.options(**options)
    more = {"locations": locations, "min_devices": min_devices, "checker": "" if checker is None else str(checker)}
    return made.remote(name, devices, workers_per_device, kind, cores, str(memory), **more, **patience)
