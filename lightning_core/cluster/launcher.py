"""Launches the jobs that the scheduler has placed and that have no workers yet: once, and all ranks or none.

Rules

1. Placements are levels, not orders. Each is launched independently: one that waits for its device delays no other.
2. A job starts when there is an idle worker on each of its devices and all of them answer. They are taken in one step,
   so that two jobs never wait for each other's workers.
3. A job waits as long as it takes for workers that are busy. If workers are missing or silent for longer than
   ``ready_within``, the scheduler gets :class:`LaunchTimedOut` with device and reason, and no worker is held.
4. Before an incarnation starts, the newest complete checkpoint that the scheduler has accepted is put in its folder.
5. Each launch is recorded before and after, so that a restarted pool manager knows whether it was complete.
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
from lightning_core.cluster.monitor import WorkerMonitor, deliver
from lightning_core.cluster.worker_slot import WorkerSlot
from lightning_core.cluster.worker_slots import MAX_SILENCE, WorkerSlots
from lightning_core.core.answers import Placement
from lightning_core.core.codec import job_from_dict
from lightning_core.core.events import Checkpoint, ExitCause, LaunchTimedOut, WorkerExited
from lightning_core.regular_files import read_text
from lightning_core.server.clocks import MAX_WAKEUP_DELAY, StallAwareClock
from lightning_core.server.ray_settings import NAMESPACE
from lightning_core.storage import job_specs
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.job_checkpoints import adopt
from lightning_core.storage.job_specs import home_of
from lightning_core.worker.assignment import Assignment, Incarnation
from lightning_core.worker.process_group import Rank
from lightning_core.worker.script_run import FINISH_WITHIN

log = logging.getLogger(__name__)

# Seconds within which all workers of a job must be ready.
READY_WITHIN = 60.0
# Seconds after which a launch is tried again, unless a worker becomes idle earlier.
RETRY_INTERVAL = 0.5
# File in a job's folder with the last incarnation launched, and the word for a launch that is not complete.
LAUNCH_FILE = "launched"
BEGUN = "begun"
MAX_LAUNCH_BYTES = 100


class Launcher:
    """Launches the placements of one scheduler.

    Args:
        slots: Worker slots of the pool.
        monitor: Monitor of their workers.
        scheduler: Name of the scheduler's actor.
        folder: Folder of the pool, with the specs of the jobs.
        ready_within: Seconds within which all workers of a job must be ready.
    """

    def __init__(
        self,
        slots: WorkerSlots,
        monitor: WorkerMonitor,
        scheduler: str,
        folder: Path,
        ready_within: float = READY_WITHIN,
    ) -> None:
        self._slots = slots
        self._monitor = monitor
        self._scheduler = scheduler
        self._folder = folder
        self._ready_within = ready_within
        self._launched: set[Incarnation] = set()  # whose launch was complete
        self._admissions: dict[Placement, asyncio.Task[None]] = {}

    def want(self, placements: Sequence[Placement]) -> None:
        """Set which jobs should have workers; returns at once."""
        for withdrawn in self._admissions.keys() - set(placements):
            self._admissions[withdrawn].cancel()
        for placement in placements:
            incarnation = Incarnation(placement.job, placement.incarnation, self._scheduler)
            if placement in self._admissions or (incarnation in self._launched and self._slots.of(incarnation)):
                continue
            if self._monitor.is_reporting(incarnation):  # the scheduler does not know yet that it is lost
                continue
            task = asyncio.ensure_future(self._admit(placement, incarnation))
            self._admissions[placement] = task
            task.add_done_callback(lambda _, placement=placement: self._admissions.pop(placement))  # type: ignore[misc]

    def close(self) -> None:
        """Stop launching."""
        for task in self._admissions.values():
            task.cancel()

    async def _admit(self, placement: Placement, incarnation: Incarnation) -> None:
        """Launch a job as soon as its workers are ready, or report to the scheduler why they are not."""
        clock = StallAwareClock(RETRY_INTERVAL + MAX_SILENCE + MAX_WAKEUP_DELAY)
        waited, told = 0.0, ""
        while True:
            self._slots.changed.clear()
            try:
                missing = await self._try(placement, incarnation)
            except (RayError, ValueError):  # the scheduler is being restarted, or no longer exists
                missing = ""
            except Exception as error:  # a full disk, say
                missing = " ".join(str(error).split()) or type(error).__name__
                if missing != told:
                    log.exception("%s could not be launched", incarnation.job)
                told = missing
            if missing is None:
                return
            elapsed = clock.since() or 0.0
            waited = waited + elapsed if missing else 0.0
            if waited > self._ready_within:
                log.warning("%s: not all of its workers are ready: %s", incarnation.job, missing)
                await deliver(incarnation.scheduler, LaunchTimedOut(incarnation.job, incarnation.number, missing))
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_INTERVAL):  # wait_for may lose a cancellation
                    await self._slots.changed.wait()

    async def _try(self, placement: Placement, incarnation: Incarnation) -> str | None:
        """Start an incarnation if its workers are ready.

        Returns:
            None if nothing is left to do; otherwise which workers are missing, empty if all are only busy.
        """
        home = home_of(self._folder, incarnation.job)
        number, incomplete = await asyncio.to_thread(_read_launch, home)
        have = self._slots.of(incarnation)
        if have and not (number == incarnation.number and incomplete):
            self._launched.add(incarnation)  # by an earlier pool manager
            return None
        if number >= incarnation.number:
            for slot in have:
                self._slots.kill(slot, f"the launch of {incarnation.job} was not complete")
            if incomplete:  # the pool manager died in between, which is no failure of the job
                await deliver(
                    incarnation.scheduler, WorkerExited(incarnation.job, incarnation.number, ExitCause.RELEASED)
                )
            else:  # its worker has just left, and reported it; or it died while no pool manager was running
                await self._monitor.report_lost(
                    incarnation, ExitCause.LOST, "its worker died while no pool manager was running"
                )
            return None
        scheduler = ray.get_actor(incarnation.scheduler, namespace=NAMESPACE)
        digest: str = await scheduler.spec_sha256.remote(incarnation.job)
        try:
            alone = await asyncio.to_thread(self._assignment, placement, digest)
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            detail = f"its spec cannot be read: {type(error).__name__}: {error}"
            await deliver(
                incarnation.scheduler, WorkerExited(incarnation.job, incarnation.number, ExitCause.UNUSABLE, detail)
            )
            return None
        found = [self._slots.find_free(device) for device in placement.devices]
        slots = [slot for slot in found if isinstance(slot, WorkerSlot)]
        if len(slots) < len(found):
            return _join(zip(placement.devices, found, strict=True))
        for slot in slots:
            slot.reserved = True
        try:
            return await self._begin(slots, incarnation, alone, home)
        finally:
            for slot in slots:
                slot.reserved = False

    async def _begin(
        self, slots: Sequence[WorkerSlot], incarnation: Incarnation, alone: Assignment, home: Path
    ) -> str | None:
        """Start an incarnation on slots that are reserved for it; returns as :meth:`_try` does."""
        workers = [slot.worker for slot in slots]
        silent = await asyncio.gather(*(self._find_problem(slot) for slot in slots))
        if any(problem is not None for problem in silent):
            return _join(zip(alone.devices, silent, strict=True))
        scheduler = ray.get_actor(incarnation.scheduler, namespace=NAMESPACE)
        checkpoints: Sequence[Checkpoint] = await scheduler.checkpoints.remote(incarnation.job)
        if checkpoints:
            await asyncio.to_thread(adopt, home, incarnation.number, {save.sha256 for save in checkpoints})
        met = ("127.0.0.1", 0)
        if len(workers) > 1:
            async with asyncio.timeout(MAX_SILENCE):
                met = _meeting_point(await asyncio.gather(*(worker.meeting.remote() for worker in workers)))
        await asyncio.to_thread(_record_launch, home, incarnation, incomplete=True)
        if workers != [slot.worker for slot in slots]:
            return "a worker died while the others were asked"
        address, port = met
        for number, slot in enumerate(slots):
            worker = slot.worker
            rank = alone.rank._replace(number=number, of=len(slots), address=address, port=port)
            assert worker is not None  # it has just answered
            slot.assign(worker, incarnation, exit_awaited=True, more_grace=FINISH_WITHIN if alone.script else 0.0)
            running = worker.run.remote(replace(alone, rank=rank))
            self._slots.spawn(self._monitor.await_exit(slot, worker, running))
        self._launched.add(incarnation)
        try:
            await asyncio.to_thread(_record_launch, home, incarnation, incomplete=False)
        except OSError as error:  # it trains; only a restarted pool manager would launch it again
            log.warning("%s: its launch could not be recorded: %s", incarnation.job, error)
        return None

    async def _find_problem(self, slot: WorkerSlot) -> str | None:
        """Return why a worker is not ready, empty if it is busy; None if it is ready."""
        worker = slot.worker
        try:
            async with asyncio.timeout(MAX_SILENCE):
                incarnation = await worker.job.remote()  # type: ignore[union-attr]  # the slot has a worker
        except (TimeoutError, RayError) as error:
            if slot.worker is worker:
                problem = f"has not answered for {MAX_SILENCE:.0f} s" if isinstance(error, TimeoutError) else "died"
                self._slots.kill(slot, f"its worker {problem}")
                if isinstance(error, TimeoutError):
                    self._slots.suspect(slot)
            return slot.problem
        if incarnation is None:
            return None
        slot.assign(worker, incarnation)  # this process did not know of its job
        return ""

    def _assignment(self, placement: Placement, digest: str) -> Assignment:
        spec = job_specs.read(self._folder, placement.job, digest)
        job, hang = job_from_dict(spec["job"]), spec["hang"]
        return Assignment(
            job=placement.job,
            incarnation=placement.incarnation,
            target=job.target,
            config=spec["config"],
            cell=spec["cell"],
            save_every=spec["save_every"],
            keep_best=spec["keep_best"],
            hang=None if hang is None else hang * 2**placement.hangs,  # it may have been no hang
            on_hold=job.on_hold,
            scheduler=self._scheduler,
            folder=str(home_of(self._folder, placement.job)),
            paths=tuple(spec["paths"]),
            kind=self._slots.kind,
            devices=placement.devices,
            rank=Rank(micro_batches=micro_batches_of(spec["config"], job.max_devices) if job.sizes else 0),
        )


def _meeting_point(found: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """Return the address at which the ranks meet: that of rank 0, or the local host if all are on one machine."""
    address, port = found[0]
    return "127.0.0.1" if all(other == address for other, _ in found) else address, port


def _join(found: Iterable[tuple[int, WorkerSlot | str | None]]) -> str:
    return "; ".join(f"device {device}: {problem}" for device, problem in found if problem and isinstance(problem, str))


def _read_launch(home: Path) -> tuple[int, bool]:
    """Return the last incarnation launched, 0 for none, and whether its launch may be incomplete."""
    try:
        number, _, state = read_text(home / LAUNCH_FILE, MAX_LAUNCH_BYTES).partition(" ")
        return int(number), state == BEGUN
    except FileNotFoundError:
        return 0, False


def _record_launch(home: Path, incarnation: Incarnation, *, incomplete: bool) -> None:
    write_whole(home / LAUNCH_FILE, f"{incarnation.number} {BEGUN}" if incomplete else str(incarnation.number))
