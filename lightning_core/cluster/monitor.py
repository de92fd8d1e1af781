"""Monitors workers by asking them, and reports those that are dead or hang to the scheduler.

Rules

1. Each worker, idle or not, is asked about once a second, one question at a time; a thread that does not train
   answers. A dead worker is known at once; one that hangs or is cut off is known after ``max_silence`` seconds,
   whatever Ray believes. An idle one is replaced, so that the device of a lost node is not planned on.
2. Time in which the pool manager itself was stalled does not count: no answer could have reached it.
3. A job that loses a rank is lost: its other ranks would wait in vain, so they are killed too. The report to the
   scheduler has the last checkpoint that the job wrote.
4. Ray does not say why a process died. The device arbiter on its node knows whether the kernel has just killed one for
   memory; if that cannot be known and the node was nearly full, the report names this suspicion.
5. A worker that was given up may survive behind a broken connection, and write. The fence is not the kill: the job's
   next incarnation has a folder of its own, with only those checkpoints that the scheduler has accepted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)

from lightning_core.cluster.worker_slot import WorkerSlot
from lightning_core.cluster.worker_slots import MAX_SILENCE, WorkerSlots
from lightning_core.core.events import Checkpoint, ExitCause, LaunchTimedOut, WorkerExited
from lightning_core.server.clocks import MAX_WAKEUP_DELAY, StallAwareClock
from lightning_core.server.ray_settings import NAMESPACE, Actor
from lightning_core.storage.job_checkpoints import checkpoint_folder, find
from lightning_core.storage.job_specs import home_of
from lightning_core.worker.assignment import Incarnation
from lightning_core.worker.exit_causes import OOM

log = logging.getLogger(__name__)

# Seconds between two questions to a worker.
ASK_INTERVAL = 1.0
# Seconds for which a worker may continue with a job that has ended.
OVERDUE_GRACE = 30.0
# Part of the longest silence after which another rank of a silent worker counts as silent too.
SILENT_TOO = 0.5
# Attempts to deliver an event to a scheduler that does not answer, and seconds between them.
DELIVERY_ATTEMPTS, DELIVERY_PAUSE = 120, 0.5


class WorkerMonitor:
    """Monitors the workers of a pool.

    Args:
        slots: Worker slots of the pool.
        folder: Function that returns the folder of the pool whose jobs are trained at the moment.
        max_silence: Seconds for which a worker may not answer.
    """

    def __init__(self, slots: WorkerSlots, folder: Callable[[], Path | None], max_silence: float = MAX_SILENCE) -> None:
        self._slots = slots
        self._folder = folder
        self._max_silence = max_silence
        self._asked: dict[WorkerSlot, asyncio.Task[None]] = {}
        self._given_up: set[Incarnation] = set()  # until that is reported

    async def run(self) -> None:
        """Monitor the workers until cancelled."""
        clock = StallAwareClock(ASK_INTERVAL + MAX_WAKEUP_DELAY)
        while True:
            await asyncio.sleep(ASK_INTERVAL)
            try:
                self.check(clock.since())
            except Exception:  # whatever the error: nothing else would notice a hanging worker
                log.exception("the workers could not be checked")

    def check(self, elapsed: float | None) -> None:
        """Ask each worker that has no open question; give up each that has been silent for too long.

        Args:
            elapsed: Seconds since the last check; None if this process was stalled in between.
        """
        for slot in self._slots:
            if slot.worker is None:
                continue  # it is being started
            slot.silent_for = 0.0 if elapsed is None else slot.silent_for + elapsed
            if slot.silent_for > self._max_silence:
                where = f"on device {slot.device}"
                cause = ExitCause.PREEMPTED if self._slots.is_draining(slot.device) else ExitCause.LOST
                silent = self._silent_with(slot)
                self.give_up(slot, cause, f"its worker {where} has not answered for {slot.silent_for:.0f} s")
                for one in silent:
                    self._slots.suspect(one)
            elif slot not in self._asked:
                asked = asyncio.ensure_future(self._ask(slot, slot.worker))
                self._asked[slot] = asked
                asked.add_done_callback(lambda _, slot=slot: self._asked.pop(slot, None))  # type: ignore[misc]

    def _silent_with(self, slot: WorkerSlot) -> list[WorkerSlot]:
        """Return a silent slot and those of its job's other ranks that are silent too, as on the same lost machine.

        They are killed with it, so that none of them is asked any more.
        """
        ranks = [slot] if slot.incarnation is None else self._slots.of(slot.incarnation)
        return [rank for rank in ranks if rank.silent_for > SILENT_TOO * self._max_silence]

    async def await_exit(self, slot: WorkerSlot, worker: Actor, running: object) -> None:
        """Wait until a worker has left its job."""
        try:
            await running  # type: ignore[misc]
        except ActorUnavailableError:  # not known to be dead
            if slot.holds(worker):
                slot.exit_awaited = False
        except RayError as error:
            self.on_worker_exit(slot, worker, error)
        else:
            if slot.holds(worker):
                self._slots.release(slot)

    async def kill_overdue(self, scheduler: Actor, name: str) -> None:
        """Kill each worker that has continued for too long with a job that has ended.

        Args:
            scheduler: Actor of the scheduler.
            name: Its name.
        """
        now = asyncio.get_running_loop().time()
        busy = [
            (slot, slot.incarnation)
            for slot in self._slots.busy()
            if slot.incarnation and slot.incarnation.scheduler == name
        ]
        ended = await scheduler.have_ended.remote([(incarnation.job, incarnation.number) for _, incarnation in busy])
        for (slot, incarnation), has_ended in zip(busy, ended, strict=True):
            if slot.incarnation != incarnation:
                continue
            if not has_ended:
                slot.ended_since = None
            elif slot.ended_since is None:
                slot.ended_since = now
            elif now - slot.ended_since > OVERDUE_GRACE + slot.more_grace:
                log.warning("%s has ended and its worker continues: killed", incarnation.job)
                self._slots.kill(slot, "its worker continued with a job that had ended")

    def give_up(self, slot: WorkerSlot, cause: ExitCause, detail: str, *, died: bool = False) -> None:
        """Give up the incarnation that the worker of a slot has, with all its ranks.

        Args:
            slot: Worker slot.
            cause: Cause, if known.
            detail: Description of it.
            died: Whether the worker's process died by itself, so that its node is asked why.
        """
        incarnation = slot.incarnation
        if incarnation is None:
            self._slots.kill(slot, detail)
            return
        for rank in self._slots.of(incarnation):
            if (asked := self._asked.pop(rank, None)) is not None:
                asked.cancel()
            self._slots.kill(
                rank, detail if rank is slot else f"it was a rank of {incarnation.job}, which lost another rank"
            )
        self._given_up.add(incarnation)
        self._slots.spawn(self._report_given_up(incarnation, cause, detail, slot.device if died else None))

    def is_reporting(self, incarnation: Incarnation) -> bool:
        """Return whether an incarnation has lost its workers, and the cause is about to be reported."""
        return incarnation in self._given_up

    async def _report_given_up(
        self, incarnation: Incarnation, cause: ExitCause, detail: str, device: int | None
    ) -> None:
        try:
            killed, words = (False, "") if device is None else await self._slots.why_died(device)
            if killed:
                cause, detail = ExitCause.OUT_OF_MEMORY, f"{OOM}: {words}"
            elif words:
                detail = f"{detail} ({words})"
            await self.report_lost(incarnation, cause, detail)
        finally:
            self._given_up.discard(incarnation)

    async def _ask(self, slot: WorkerSlot, worker: Actor) -> None:
        had = slot.incarnation
        try:
            incarnation = await worker.job.remote()
        except ActorUnavailableError:
            return  # cut off or dying: ask again
        except RayError as error:
            self.on_worker_exit(slot, worker, error)
            return
        if slot.holds(worker):
            slot.silent_for = 0.0
            if incarnation is None and had is not None and had == slot.incarnation and not slot.exit_awaited:
                self._slots.release(slot)

    def on_worker_exit(self, slot: WorkerSlot, worker: Actor, error: RayError) -> None:
        if slot.holds(worker):
            cause, detail = classify_exit(error)
            died = cause is ExitCause.LOST and isinstance(error, RayActorError)  # and Ray does not say why
            self.give_up(slot, cause, detail, died=died)

    async def report_lost(self, incarnation: Incarnation, cause: ExitCause, detail: str) -> None:
        """Report a lost incarnation to the scheduler, with its last checkpoint."""
        folder = self._folder()
        saved = (
            None
            if folder is None
            else await asyncio.to_thread(_last_checkpoint, home_of(folder, incarnation.job), incarnation)
        )
        await deliver(incarnation.scheduler, WorkerExited(incarnation.job, incarnation.number, cause, detail, saved))


def classify_exit(error: RayError) -> tuple[ExitCause, str]:
    """Return the cause of a worker's death, and a description, from Ray's error."""
    if isinstance(error, ActorDiedError) and error.preempted:
        return ExitCause.PREEMPTED, "its node was preempted"
    if isinstance(error, OutOfMemoryError):  # Ray kills the process that uses most memory
        return ExitCause.OUT_OF_MEMORY, f"{OOM}: its node ran out of memory, and Ray killed the worker's process"
    if isinstance(error, RayTaskError):  # a worker reports errors of its job: this one cannot train any
        return ExitCause.BROKEN, str(error)
    return ExitCause.LOST, "the worker's process died" if isinstance(error, RayActorError) else str(error)


def _last_checkpoint(home: Path, incarnation: Incarnation) -> Checkpoint | None:
    """Return the last complete checkpoint that an incarnation wrote."""
    try:
        found = find(checkpoint_folder(home, incarnation.number))
    except (OSError, ValueError) as error:  # a disk error; checkpoints reported before still count
        log.warning("%s: its last checkpoint cannot be read: %s", incarnation.job, error)
        return None
    return None if found is None else found.checkpoint


async def deliver(scheduler: str, event: WorkerExited | LaunchTimedOut) -> None:
    """Deliver an event on behalf of a worker, until the scheduler has it or no longer exists."""
    for _ in range(DELIVERY_ATTEMPTS):
        try:
            actor = ray.get_actor(scheduler, namespace=NAMESPACE)
            await actor.event.remote(event)
            return
        except ValueError:
            return  # the scheduler no longer exists
        except RayError:
            await asyncio.sleep(DELIVERY_PAUSE)  # it is being restarted, or its disk is full
    log.error("could not be delivered to %s: %s", scheduler, event)
