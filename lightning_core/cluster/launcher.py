"""Who should run is a level, not an order: whatever is placed and has no workers is launched, once, all ranks or none.

Rules

1. Each placement is admitted by itself: one that waits for its device keeps nobody else waiting.
2. A job begins when there is a free worker on each of its devices and all of them answer; they are taken in one step,
   so that two jobs never wait for each other's half.
3. Workers that are at work will be free; whoever waits for them waits. Workers that are missing or silent for longer
   than ``ready_within`` are told to the scheduler as :class:`LaunchTimedOut`, by device and reason, and nobody is kept.
4. Before a life begins it is given, in a folder of its own, the newest checkpoint that the scheduler has accepted and
   that is whole.
5. What is launched is noted before and after, so that a Keeper that comes after knows whether it was done whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import ray
from ray.exceptions import RayError

from lightning_core.bundle.job_spec import micro_batches_of
from lightning_core.cluster.monitor import WorkerMonitor, tell
from lightning_core.cluster.worker_slots import SILENT, WorkerSlot, WorkerSlots
from lightning_core.core.answers import Placement
from lightning_core.core.codec import job_from_dict
from lightning_core.core.events import Checkpoint, ExitCause, LaunchTimedOut, WorkerExited
from lightning_core.server.ray_settings import NAMESPACE
from lightning_core.server.stall_aware_clock import STOOD_STILL, StallAwareClock
from lightning_core.storage import job_specs
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.job_checkpoints import adopt
from lightning_core.storage.job_specs import home_of
from lightning_core.worker.process_group import Rank
from lightning_core.worker.worker import Assignment, Incarnation

log = logging.getLogger(__name__)

# How long all workers of a job may take to be ready, seconds.
READY_WITHIN = 60.0
# How soon a launch that had no room is tried again, if nobody says that there is some, seconds.
AGAIN = 0.5
# In a job's folder: the last incarnation that was launched, and whether that was begun only.
LAUNCHED = "launched"
HALF = "begun"


class Launcher:
    """Launches what one scheduler places.

    Args:
        places: of the pool.
        watch: over them.
        scheduler: name of its actor.
        folder: of the pool: the jobs' specs are there.
        ready_within: how long all workers of a job may take to be ready, seconds.
    """

    def __init__(
        self,
        places: WorkerSlots,
        watch: WorkerMonitor,
        scheduler: str,
        folder: Path,
        ready_within: float = READY_WITHIN,
    ) -> None:
        self._places = places
        self._watch = watch
        self._scheduler = scheduler
        self._folder = folder
        self._ready_within = ready_within
        self._whole: set[Incarnation] = set()  # launched, and whole when they were
        self._admissions: dict[Placement, asyncio.Task[None]] = {}

    def want(self, placements: Sequence[Placement]) -> None:
        """These jobs should have workers, and no others; returns at once."""
        for gone in self._admissions.keys() - set(placements):
            self._admissions[gone].cancel()
        for placement in placements:
            life = Incarnation(placement.job, placement.incarnation, self._scheduler)
            if placement in self._admissions or (life in self._whole and self._places.of(life)):
                continue
            task = asyncio.ensure_future(self._admit(placement, life))
            self._admissions[placement] = task
            task.add_done_callback(lambda _, placement=placement: self._admissions.pop(placement))  # type: ignore[misc]

    def close(self) -> None:
        """Launches nothing any more."""
        for task in self._admissions.values():
            task.cancel()

    async def _admit(self, placement: Placement, life: Incarnation) -> None:
        """Sees to it that a job gets its workers, or that the scheduler hears why not."""
        awake = StallAwareClock(AGAIN + SILENT + STOOD_STILL)
        waited, told = 0.0, ""
        while True:
            self._places.moved.clear()
            try:
                missing = await self._try(placement, life)
            except (RayError, ValueError):  # the scheduler is being restarted, or no more
                missing = ""
            except Exception as error:  # a full disk, say
                missing = " ".join(str(error).split()) or type(error).__name__
                if missing != told:
                    log.exception("%s could not be launched", life.job)
                told = missing
            if missing is None:
                return
            gone = awake.since() or 0.0
            waited = waited + gone if missing else 0.0
            if waited > self._ready_within:
                log.warning("%s: not all of its workers are ready: %s", life.job, missing)
                await tell(life.scheduler, LaunchTimedOut(life.job, life.incarnation, missing))
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN):  # wait_for may lose that this was cancelled
                    await self._places.moved.wait()

    async def _try(self, placement: Placement, life: Incarnation) -> str | None:
        """Begins a life if it can; who is missing, in words, empty if all are only at work; None if nothing is left
        to do.
        """
        home = home_of(self._folder, life.job)
        number, half = await asyncio.to_thread(_noted, home)
        have = self._places.of(life)
        if have and not (number == life.incarnation and half):
            self._whole.add(life)  # of a Keeper before this one
            return None
        if number >= life.incarnation:
            for place in have:
                self._places.end(place, f"{life.job} was launched by halves")
            if half:  # a Keeper died at it: the job is none the worse for that
                await tell(life.scheduler, WorkerExited(life.job, life.incarnation, ExitCause.RELEASED))
            else:  # its worker has just left, and said so; or it died while there was no Keeper
                await self._watch.report_lost(life, ExitCause.LOST, "its worker died unseen")
            return None
        try:
            alone = await asyncio.to_thread(self._assignment, placement, home)
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            detail = f"its spec cannot be read: {type(error).__name__}: {error}"
            await tell(life.scheduler, WorkerExited(life.job, life.incarnation, ExitCause.UNUSABLE, detail))
            return None
        found = [self._places.free(device) for device in placement.devices]
        places = [place for place in found if isinstance(place, WorkerSlot)]
        if len(places) < len(found):
            return _words(zip(placement.devices, found, strict=True))
        for place in places:
            place.reserved = True
        try:
            return await self._begin(places, life, alone, home)
        finally:
            for place in places:
                place.reserved = False

    async def _begin(
        self, places: Sequence[WorkerSlot], life: Incarnation, alone: Assignment, home: Path
    ) -> str | None:
        """As :meth:`_try`, on places that are kept for this life meanwhile."""
        workers = [place.worker for place in places]
        silent = await asyncio.gather(*(self._trouble(place) for place in places))
        if any(trouble is not None for trouble in silent):
            return _words(zip(alone.devices, silent, strict=True))
        scheduler = ray.get_actor(life.scheduler, namespace=NAMESPACE)
        checkpoints: Sequence[Checkpoint] = await scheduler.checkpoints.remote(life.job)
        if checkpoints:
            await asyncio.to_thread(adopt, home, life.incarnation, {save.sha256 for save in checkpoints})
        met = ("127.0.0.1", 0)
        if len(workers) > 1:
            async with asyncio.timeout(SILENT):
                met = _meet(await asyncio.gather(*(worker.meeting.remote() for worker in workers)))
        await asyncio.to_thread(_note, home, life, half=True)
        if workers != [place.worker for place in places]:
            return "a worker died while the others were asked"
        address, port = met
        for number, place in enumerate(places):
            worker = place.worker
            rank = alone.rank._replace(number=number, of=len(places), address=address, port=port)
            assert worker is not None  # it has just answered
            place.take(worker, life, heard_of=True)
            running = worker.run.remote(replace(alone, rank=rank))
            self._places.task(self._watch.attend(place, worker, running))
        self._whole.add(life)
        try:
            await asyncio.to_thread(_note, home, life, half=False)
        except OSError as error:  # it trains; only a Keeper that comes after would begin it anew
            log.warning("%s: that it was launched could not be noted: %s", life.job, error)
        return None

    async def _trouble(self, place: WorkerSlot) -> str | None:
        """What is wrong with a worker that should be ready, in words, empty if it is at work; None if it is ready."""
        worker = place.worker
        try:
            async with asyncio.timeout(SILENT):
                life = await worker.job.remote()  # type: ignore[union-attr]  # it is free
        except (TimeoutError, RayError) as error:
            if place.worker is worker:
                words = f"has not answered for {SILENT:.0f} s" if isinstance(error, TimeoutError) else "died"
                self._places.end(place, f"its worker {words}")
            return place.trouble
        if life is None:
            return None
        place.take(worker, life)  # nobody here knew of it
        return ""

    def _assignment(self, placement: Placement, home: Path) -> Assignment:
        spec = job_specs.read(home)
        job = job_from_dict(spec["job"])
        return Assignment(
            job=placement.job,
            incarnation=placement.incarnation,
            target=job.target,
            config=spec["config"],
            cell=spec["cell"],
            save_every=spec["save_every"],
            keep_best=spec.get("keep_best", False),  # one that was kept by a version before this has none
            scheduler=self._scheduler,
            folder=str(home),
            paths=tuple(spec["paths"]),
            kind=self._places.kind,
            devices=placement.devices,
            rank=Rank(slots=micro_batches_of(spec["config"], job.max_devices) if job.sizes else 0),
        )


def _meet(found: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """Where the ranks meet: at the first one's; by the machine's own address only where they are on several."""
    address, port = found[0]
    return "127.0.0.1" if all(other == address for other, _ in found) else address, port


def _words(found: Iterable[tuple[int, WorkerSlot | str | None]]) -> str:
    return "; ".join(f"device {device}: {trouble}" for device, trouble in found if trouble and isinstance(trouble, str))


def _noted(home: Path) -> tuple[int, bool]:
    """Which incarnation was launched last, 0 for none, and whether that may have been done by halves."""
    try:
        number, _, half = (home / LAUNCHED).read_text().partition(" ")
        return int(number), half == HALF
    except FileNotFoundError:
        return 0, False


def _note(home: Path, life: Incarnation, *, half: bool) -> None:
    write_whole(home / LAUNCHED, f"{life.incarnation} {HALF}" if half else str(life.incarnation))
