"""The Keeper: one detached actor that looks after devices and workers, apart from the scheduler that decides.

Rules

1. One permanent placement group of one device for each device of the pool; workers take a hundredth of it each, so that
   several are warm on one device. Who trains is decided by grants and turns, not by Ray.
2. Groups, turnstiles and workers are detached and named. A Keeper that is started again adopts them by their names.
3. What should run is a level, not an order: the scheduler's placements. Whatever is missing is launched, once.
4. Results go from worker to scheduler. The Keeper only watches whether workers are alive, and speaks for the dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lightning_core.codec import job_from_dict
from lightning_core.drivers.ray_actor import NAMESPACE, Actor
from lightning_core.launch.gang import Rank, free_port
from lightning_core.launch.turnstile import Turnstile
from lightning_core.launch.worker import Assignment, Worker
from lightning_core.types import Placement, WorkerLeft

log = logging.getLogger(__name__)

# Part of a device's Ray resource that each process on it takes.
PART = 0.01
# Seconds between two looks at workers that a Keeper before this one had started.
LOOK = 1.0
# How long one question for placements waits for news, seconds; and how soon a launch that had no room is tried again.
NEWS = 5.0
AGAIN = 0.25
# How soon what failed for a reason that nobody foresaw is tried again, seconds.
RETRY = 2.0
# How long a worker may go on with a job that is over, seconds.
GRACE = 30.0
# In a job's folder: the last incarnation that was launched.
LAUNCHED = "launched"


class TurnstileActor:
    """Hosts a device's turnstile on the device's node."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lc-"))  # private to the user
        self._turnstile = Turnstile(self._folder / "turn")

    def path(self) -> str:
        """Of the socket."""
        return str(self._turnstile.path)

    def close(self) -> None:
        """Ends the turnstile."""
        self._turnstile.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Place:
    """Room for one warm worker on a device."""

    def __init__(self, device: int, number: int) -> None:
        self.device = device
        self.number = number
        self.worker: Actor | None = None
        self.job: tuple[str, int, str] | None = None
        """Name, incarnation and scheduler of the job that the worker has."""
        self.over_since: float | None = None
        """When that job was first seen to be over."""

    @property
    def name(self) -> str:
        """Of the worker's actor, after the pool's name."""
        return f"worker-{self.device}-{self.number}"

    def has(self, worker: Actor) -> bool:
        """Whether it still is this place's worker: it may have been ended on purpose, and another one be here."""
        return self.worker is worker


class Keeper:
    """Looks after the devices of a pool and the workers on them.

    Args:
        name: of the pool; everything it makes is named after it.
        devices: of the pool.
        slots: workers to keep warm on each.
        kind: of the devices, ``"cpu"`` or ``"gpu"``.
        memory: path of a file in which it notes whom it serves, for the Keeper after it.
    """

    def __init__(self, name: str, devices: int, slots: int, kind: str, memory: str) -> None:
        self._name = name
        self._memory = Path(memory)
        self._kind = kind
        self._resource = "GPU" if kind == "gpu" else "device"
        self._groups: list[Any] = []
        self._turnstiles: list[str] = []
        self._names = [f"cpu{device}" for device in range(devices)]
        self._places = [Place(device, number) for device in range(devices) for number in range(slots)]
        self._devices = devices
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._is_open = False
        if self._memory.exists():  # Ray has started it again: it takes up its work without being asked
            ray.get_runtime_context().current_actor.wake.remote()

    async def open(self, patience: float = 120.0) -> None:
        """Brings up, or finds again, the devices' groups, their turnstiles and their workers.

        Raises:
            RuntimeError: if no node has a device free.
        """
        async with self._opening:
            if not self._groups:
                groups = await asyncio.to_thread(lambda: [self._find_group(k) for k in range(self._devices)])
                for group in groups:
                    if not await asyncio.to_thread(group.wait, 10.0):
                        raise RuntimeError(f"no free device: the cluster has no {self._resource} to give")
                self._groups = groups
            turnstiles = [self._detached(TurnstileActor, f"turnstile-{k}", k).remote() for k in range(self._devices)]
            self._turnstiles = list(await asyncio.gather(*(t.path.remote() for t in turnstiles)))
            new = [self._adopt(place) for place in self._places if place.worker is None]
            await asyncio.wait_for(asyncio.gather(*new), patience)
            if self._kind == "gpu":
                first = {place.device: place.worker for place in self._places if place.worker is not None}
                self._names = list(await asyncio.gather(*(first[k].device.remote() for k in sorted(first))))
            self._is_open = True
            self._room.set()
            if self._following is None and self._memory.exists():
                self._begin_to_follow(*json.loads(self._memory.read_text()))

    async def serve(self, scheduler: str, folder: str) -> None:
        """Launches what a scheduler places, from the specs in the folder of its pool; the one before is forgotten."""
        await self.open()
        if self._following is not None:
            self._following.cancel()
        for place in self._places:
            if place.job is not None and place.job[2] != scheduler:  # of a run that was given up
                self._end_worker(place)
        await self.open()
        _write(self._memory, json.dumps([scheduler, folder]))
        self._begin_to_follow(scheduler, folder)

    async def wake(self) -> None:
        """Finds again what the Keeper before this one had, and goes on with it."""
        await self._reopen()

    async def busy(self) -> list[str]:
        """Jobs whose worker has not put them down yet."""
        if not self._is_open:
            await self.open()
        return sorted({place.job[0] for place in self._places if place.job is not None})

    async def pids(self) -> list[int]:
        """Of the workers' processes."""
        return list(await asyncio.gather(*(p.worker.pid.remote() for p in self._places if p.worker is not None)))

    async def pid(self) -> int:
        """Of the Keeper's own process."""
        return os.getpid()

    async def close(self) -> None:
        """Ends workers, turnstiles and groups, also those of a Keeper before this one."""
        for task in [*self._tasks, *([self._following] if self._following is not None else [])]:
            task.cancel()
        for place in self._places:
            self._end(place.name)
        for k in range(self._devices):
            try:
                turnstile = ray.get_actor(f"{self._name}-turnstile-{k}", namespace=NAMESPACE)
                await turnstile.close.remote()
            except (ValueError, RayError):
                pass  # there is none, or it died: its process took the socket with it
            self._end(f"turnstile-{k}")
            remove_placement_group(await asyncio.to_thread(self._find_group, k))

    # ------------------------------------------------------------------------------------------------ launching

    def _begin_to_follow(self, scheduler: str, folder: str) -> None:
        self._following = asyncio.get_running_loop().create_task(self._follow(scheduler, Path(folder)))

    async def _follow(self, scheduler: str, folder: Path) -> None:
        known: list[Placement] | None = None
        while True:
            try:
                known = await self._look_after(scheduler, folder, known)
            except (RayError, ValueError):  # it is being restarted
                known = None
                await asyncio.sleep(2 * AGAIN)
            except Exception:  # a full disk, say: whatever it is, the other jobs want their workers
                log.exception("the Keeper could not do all that %s wants", scheduler)
                known = None
                await asyncio.sleep(RETRY)

    async def _look_after(self, scheduler: str, folder: Path, known: list[Placement] | None) -> list[Placement] | None:
        """Launches what is placed and has no worker; the placements if all of them have theirs."""
        actor = ray.get_actor(scheduler, namespace=NAMESPACE)
        await actor.shares.remote(list(zip(self._names, self._turnstiles, strict=True)))
        placements: list[Placement] = await actor.placements.remote(known, NEWS)
        self._room.clear()
        missing = [placement for placement in placements if not await self._launch(placement, scheduler, folder)]
        await self._reclaim(actor, scheduler)
        if not missing:
            return placements
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._room.wait(), AGAIN)
        return None

    async def _launch(self, placement: Placement, scheduler: str, folder: Path) -> bool:
        """Whether the job has its workers, or will not get any."""
        job, incarnation, devices = placement
        home = folder / "jobs" / job
        mark = home / LAUNCHED
        if any(place.job is not None and place.job[:2] == (job, incarnation) for place in self._places):
            return True
        if mark.exists() and int(mark.read_text()) >= incarnation:
            # It was launched, and nobody has it: its worker has just left, or a Keeper died with it half launched.
            await self._mourn(WorkerLeft(job, incarnation, released=True), scheduler)
            return True
        places = []
        for device in devices:
            free = [p for p in self._places if p.device == device and p.job is None and p.worker is not None]
            if not free:
                return False
            places.append(free[0])
        try:
            spec: Mapping[str, Any] = json.loads((home / "spec.json").read_text())
            alone = Assignment(
                job=job,
                incarnation=incarnation,
                target=job_from_dict(spec["job"]).target,
                config=spec["config"],
                cell=spec["cell"],
                scheduler=scheduler,
                folder=str(home),
                paths=tuple(spec["paths"]),
                kind=self._kind,
                devices=devices,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            detail = f"its spec cannot be read: {type(error).__name__}: {error}"
            await self._mourn(WorkerLeft(job, incarnation, crashed=True, detail=detail), scheduler)
            return True
        _write(mark, str(incarnation))
        port = free_port() if len(devices) > 1 else 0
        for number, place in enumerate(places):
            place.job = (job, incarnation, scheduler)
            assert place.worker is not None  # it was chosen because it has one
            running = place.worker.run.remote(replace(alone, rank=Rank(number, len(devices), port=port)))
            self._task(self._attend(place, place.worker, running))
        return True

    async def _attend(self, place: Place, worker: Actor, running: Any) -> None:
        """Waits until a worker has put its job down."""
        try:
            await running
        except ActorUnavailableError:  # not known to be dead
            await self._watch(place, worker)
        except RayError as error:
            await self._bury(place, worker, error)
        else:
            self._vacate(place, worker)

    async def _watch(self, place: Place, worker: Actor) -> None:
        """Looks after a worker of which there is no other sign, until it is idle or dead."""
        while place.has(worker) and place.job is not None:
            await asyncio.sleep(LOOK)
            try:
                job = await asyncio.wait_for(worker.job.remote(), GRACE)
            except (TimeoutError, ActorUnavailableError):
                continue
            except RayError as error:
                await self._bury(place, worker, error)
                return
            if job is None:
                self._vacate(place, worker)

    def _vacate(self, place: Place, worker: Actor) -> None:
        if place.has(worker):
            place.job = None
            self._room.set()

    async def _adopt(self, place: Place) -> None:
        """A worker is new, or a Keeper before this one had it at work."""
        worker = self._detached(Worker, place.name, place.device, max_concurrency=2).remote(
            self._turnstiles[place.device], self._kind
        )
        try:
            job = await worker.job.remote()
        except RayError as error:
            raise RuntimeError(f"a worker could not be started: {error}") from None
        place.worker, place.job = worker, job
        if job is not None:
            self._task(self._watch(place, worker))

    async def _reclaim(self, scheduler: Actor, name: str) -> None:
        """A worker that goes on with a job that is over is given a while, then it is ended by force."""
        now = asyncio.get_running_loop().time()
        busy = [place for place in self._places if place.job is not None and place.job[2] == name]
        try:
            over = await scheduler.over.remote([place.job[:2] for place in busy if place.job is not None])
        except RayError:
            return  # it is being restarted
        for place, is_over in zip(busy, over, strict=True):
            if not is_over:
                place.over_since = None
            elif place.over_since is None:
                place.over_since = now
            elif now - place.over_since > GRACE:
                log.warning("%s is over and its worker goes on: ended by force", place.job)
                place.over_since = None
                self._end_worker(place)
                self._task(self._reopen())

    def _end_worker(self, place: Place) -> None:
        if place.worker is not None:
            ray.kill(place.worker)
        place.worker = place.job = None

    async def _bury(self, place: Place, worker: Actor, error: RayError) -> None:
        """A worker has died: its job's other ranks wait for it in vain, and the device needs a new one."""
        if not place.has(worker):
            return
        job, place.worker, place.job = place.job, None, None
        if job is not None:
            for other in self._places:
                if other.job == job:
                    self._end_worker(other)
            name, incarnation, scheduler = job
            detail = "the worker's process died" if isinstance(error, RayActorError) else str(error)
            await self._mourn(WorkerLeft(name, incarnation, crashed=True, detail=detail), scheduler)
        self._task(self._reopen())

    async def _reopen(self) -> None:
        while True:
            try:
                await self.open()
                return
            except (RayError, RuntimeError, TimeoutError) as error:
                log.warning("a worker could not be replaced, it is tried again: %s", error)
                await asyncio.sleep(RETRY)

    async def _mourn(self, left: WorkerLeft, scheduler: str) -> None:
        """Speaks for a worker that cannot."""
        for _ in range(60):
            try:
                actor = ray.get_actor(scheduler, namespace=NAMESPACE)
                await actor.event.remote(left)
                return
            except ValueError:
                return  # no such scheduler any more, nobody to tell
            except RayError:
                await asyncio.sleep(0.5)  # it is being restarted

    # ------------------------------------------------------------------------------------------------ Ray

    def _task(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, name: str) -> None:
        with contextlib.suppress(ValueError):  # there is none
            ray.kill(ray.get_actor(f"{self._name}-{name}", namespace=NAMESPACE))

    def _find_group(self, device: int) -> Any:
        name = f"{self._name}-device-{device}"
        try:
            return ray.util.get_placement_group(name)
        except ValueError:  # there is none yet
            return placement_group([{self._resource: 1}], strategy="PACK", name=name, lifetime="detached")

    def _detached(self, kind: type[Any], name: str, device: int, **options: Any) -> Any:
        resources = {"num_gpus": PART} if self._kind == "gpu" else {"resources": {self._resource: PART}}
        return ray.remote(kind).options(
            name=f"{self._name}-{name}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._groups[device]),
            **resources,
            **options,
        )


def _write(path: Path, text: str) -> None:
    """Whole or not at all: whoever writes may be killed in the middle."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    os.replace(beside, path)


def start_keeper(name: str, devices: int, slots: int, kind: str, memory: Path) -> Actor:
    """A named, detached Keeper that Ray starts again whenever it dies; the one of that name if there is one."""
    options = {
        "name": f"{name}-keeper",
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "num_cpus": 0,
    }
    actor: Any = ray.remote(Keeper)
    return actor.options(**options).remote(name, devices, slots, kind, str(memory))
