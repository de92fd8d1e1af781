"""The Keeper: one detached actor that looks after devices and workers, apart from the scheduler that decides.

Rules

1. It owns nothing that dies with it: groups, turnstiles and workers are detached and named (:mod:`.places`), and a
   Keeper that is started again goes on with what it finds.
2. What should run is a level, not an order: the scheduler's placements. What is missing is launched
   (:mod:`.launching`).
3. Results go from worker to scheduler. The Keeper only watches whether workers are alive, and speaks for those that
   cannot (:mod:`.watching`).
4. Nothing that hangs keeps it from the rest: each place is filled, each worker asked and each job launched by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from lightning_core.cluster import config_checker
from lightning_core.cluster.launcher import READY_WITHIN, Launcher
from lightning_core.cluster.monitor import LOOK, WorkerMonitor
from lightning_core.cluster.node_slots import NodeSlots
from lightning_core.cluster.worker_slots import SILENT, WorkerSlots
from lightning_core.core.answers import Placement
from lightning_core.server.ray_actor import Actor, here
from lightning_core.server.ray_settings import NAMESPACE
from lightning_core.storage.atomic_files import write_whole

log = logging.getLogger(__name__)

# How long one question for placements waits for news, and how long its answer may take beyond that, seconds.
NEWS, LATE = 5.0, 10.0
# How soon a scheduler that is away is asked again, and whatever nobody foresaw is tried again, seconds.
AWAY, RETRY = 0.5, 2.0


class PoolManager:
    """Looks after the devices of a pool and the workers on them.

    Args:
        name: of the pool; everything it makes is named after it.
        devices: of the pool.
        slots: workers to keep warm on each.
        kind: of the devices, ``"cpu"`` or ``"gpu"``.
        cores: of each device, if they are CPUs.
        memory: path of a file in which it notes whom it serves, for the Keeper after it.
        ready_within: how long all workers of a job may take to be ready, seconds.
        silent: how long a worker at work may not answer, seconds.
        locations: where each device is; empty for anywhere.
        least: devices that must be there when it opens; None for all.
        checker: path of the socket of a process that checks configs for those who submit; empty for none.
    """

    def __init__(
        self,
        name: str,
        devices: int,
        slots: int,
        kind: str,
        cores: int,
        memory: str,
        ready_within: float = READY_WITHIN,
        silent: float = SILENT,
        locations: Sequence[str] = (),
        least: int | None = None,
        checker: str = "",
    ) -> None:
        self._checker = config_checker.start(Path(checker)) if checker else None  # it ends with this process
        self._memory = Path(memory)
        self._ready_within = ready_within
        self._folder: Path | None = None
        if least is None:
            self._places = WorkerSlots(name, devices, slots, kind, cores, locations)
        else:
            self._places = NodeSlots(name, devices, slots, kind, cores, least)
        self._watch = WorkerMonitor(self._places, lambda: self._folder, silent)
        self._watching: asyncio.Task[None] | None = None
        self._following: list[asyncio.Task[None]] = []
        self._launcher: Launcher | None = None
        self._opening = asyncio.Lock()
        self._took_up = False  # what the Keeper before it was at, if there was one
        if self._memory.exists():  # Ray has started it again: it takes up its work without being asked
            ray.get_runtime_context().current_actor.wake.remote()

    async def open(self, patience: float = 120.0, *, warm: bool = True) -> None:
        """Brings up, or finds again, the devices, their turnstiles and their workers.

        Args:
            patience: seconds that this may take.
            warm: whether to wait until all workers have imported what they need. Without that it returns once scripts
                can share the devices.

        Raises:
            RuntimeError: if no node has a device free, or a worker cannot be started.
        """
        await self._open()
        try:
            async with asyncio.timeout(patience):
                await (self._places.filled() if warm else self._places.shared())
        except TimeoutError:
            trouble = {f"device {p.device}: {p.trouble}" for p in self._places if p.worker is None}
            raise RuntimeError(f"the pool is not ready after {patience:.0f} s: {'; '.join(sorted(trouble))}") from None

    async def serve(self, scheduler: str, folder: str, *, warm: bool = True) -> None:
        """Launches what a scheduler places, from the specs in the folder of its pool; the one before is forgotten.

        Args:
            scheduler: name of its actor.
            folder: of its pool.
            warm: as of :meth:`open`.
        """
        await self._open()
        self._stop_following()
        for place in self._places.busy():
            if place.life is not None and place.life.scheduler != scheduler:  # of a run that was given up
                self._places.end(place, "its job's scheduler is no more")
        await self.open(warm=warm)
        await asyncio.to_thread(write_whole, self._memory, json.dumps([scheduler, folder]))
        self._follow(scheduler, Path(folder))

    async def wake(self) -> None:
        """Finds again what the Keeper before this one had, and goes on with it."""
        while True:
            try:
                await self._open()
                return
            except Exception:  # whatever it is, nobody else would do it
                log.exception("the Keeper could not take up its work")
                await asyncio.sleep(RETRY)

    async def busy(self) -> list[str]:
        """Jobs whose worker has not put them down yet."""
        await self._open()
        return sorted({place.life.job for place in self._places.busy() if place.life is not None})

    async def starting(self) -> tuple[int, int]:
        """Workers that are there, and workers that there should be."""
        there = [place.worker is not None for place in self._places]
        return sum(there), len(there)

    async def warm(self) -> int:
        """Devices with a worker that is there and stays."""
        await self._open()
        await self._places.look()
        devices = {place.device for place in self._places if place.worker is not None}
        return sum(not self._places.is_leaving(device) for device in devices)

    async def pids(self) -> list[int]:
        """Of the workers' processes."""
        return list(await asyncio.gather(*(p.worker.pid.remote() for p in self._places if p.worker is not None)))

    async def pid(self) -> int:
        """Of the Keeper's own process."""
        return os.getpid()

    async def close(self) -> None:
        """Ends workers, turnstiles and groups, also those of a Keeper before this one."""
        self._stop_following()
        if self._watching is not None:
            self._watching.cancel()
        await self._places.close()

    # ------------------------------------------------------------------------------------------------ within

    async def _open(self) -> None:
        async with self._opening:
            await self._places.open()
            if self._watching is None:
                self._watching = asyncio.get_running_loop().create_task(self._watch.run())
            if self._took_up:
                return
            if self._memory.exists():
                await self._places.settled()
                scheduler, folder = json.loads(self._memory.read_text())
                self._follow(scheduler, Path(folder))
            self._took_up = True

    def _follow(self, scheduler: str, folder: Path) -> None:
        self._folder = folder
        self._launcher = Launcher(self._places, self._watch, scheduler, folder, self._ready_within)
        loop = asyncio.get_running_loop()
        self._following = [
            loop.create_task(self._look_after(scheduler, self._launcher)),
            loop.create_task(self._look_at_devices(scheduler)),
        ]

    def _stop_following(self) -> None:
        for task in self._following:
            task.cancel()
        if self._launcher is not None:
            self._launcher.close()

    async def _look_after(self, scheduler: str, launcher: Launcher) -> None:
        """Brings what runs to what is placed, again and again."""
        known: list[Placement] | None = None
        while True:
            try:
                actor = ray.get_actor(scheduler, namespace=NAMESPACE)
                shared = list(zip(self._places.names, self._places.arbiters, strict=True))
                async with asyncio.timeout(LATE):
                    await actor.shares.remote(shared)
                async with asyncio.timeout(NEWS + LATE):
                    known = await actor.placements.remote(known, NEWS)
                launcher.want(known or [])
                async with asyncio.timeout(LATE):
                    await self._watch.reclaim(actor, scheduler)
            except (RayError, ValueError, TimeoutError):  # it is being restarted, or stands still
                known = None
                await asyncio.sleep(AWAY)
            except Exception:  # whatever it is, the jobs want their workers
                log.exception("the Keeper could not do all that %s wants", scheduler)
                known = None
                await asyncio.sleep(RETRY)

    async def _look_at_devices(self, scheduler: str) -> None:
        """Tells a scheduler which devices are gone, or will be, as soon as that changes."""
        told: dict[int, str] | None = None
        while True:
            try:
                await self._places.look()
                if (gone := self._places.gone()) != told:
                    actor = ray.get_actor(scheduler, namespace=NAMESPACE)
                    async with asyncio.timeout(LATE):
                        await actor.gone.remote(list(gone.items()))
                    told = gone
            except (RayError, ValueError, TimeoutError):  # it is being restarted, or stands still
                told = None
            except Exception:  # whatever it is, the next look may tell more
                log.exception("what has become of the devices is not known")
                await asyncio.sleep(RETRY)
            await asyncio.sleep(LOOK)


def start_pool_manager(
    name: str,
    devices: int,
    slots: int,
    kind: str,
    cores: int,
    memory: Path,
    locations: Sequence[str] = (),
    least: int | None = None,
    checker: Path | None = None,
    **patience: float,
) -> Actor:
    """A named, detached Keeper that Ray starts again whenever it dies; the one of that name if there is one.

    Args:
        name: of the pool.
        devices: of the pool.
        slots: workers to keep warm on each.
        kind: of the devices.
        cores: of each, if they are CPUs.
        memory: path of its notes.
        locations: where each device is; empty for anywhere.
        least: devices that must be there when it opens; None for all.
        checker: path of the socket of a process that checks configs; None for none.
        **patience: ``ready_within`` and ``silent`` of the :class:`PoolManager`, seconds.
    """
    options = {
        "name": f"{name}-keeper",
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "num_cpus": 0,
        "scheduling_strategy": here(),
    }
    actor: Any = ray.remote(PoolManager)
    made = actor.options(**options)
    more = {"locations": locations, "least": least, "checker": "" if checker is None else str(checker)}
    return made.remote(name, devices, slots, kind, cores, str(memory), **more, **patience)
