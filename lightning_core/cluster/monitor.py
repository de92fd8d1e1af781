"""Whether the workers are alive: found out by asking them, and told to the scheduler for those that cannot.

Rules

1. Every worker that has a job is asked about once a second, one question at a time; a thread that does not train
   answers. A dead one is known at once, one that hangs or is cut off after ``silent`` seconds, whatever Ray believes.
2. What does not count is the time in which the Keeper itself stood still: nobody could have answered it.
3. A job whose rank is gone is gone: the others would wait for it in vain, so they are ended too. What the job had saved
   in the last moment is looked for first, and told along.
4. A worker that was given up may live on behind a broken line, and write. The job's next incarnation has a folder of
   its own and the scheduler's word for what may be in it: that is the fence, not the kill.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayActorError, RayError

from lightning_core.cluster.worker_slots import SILENT, WorkerSlot, WorkerSlots
from lightning_core.core.events import Checkpoint, ExitCause, LaunchTimedOut, WorkerExited
from lightning_core.server.ray_actor import Actor
from lightning_core.server.ray_settings import NAMESPACE
from lightning_core.server.stall_aware_clock import STOOD_STILL, StallAwareClock
from lightning_core.storage.job_checkpoints import checkpoint_folder, find
from lightning_core.storage.job_specs import home_of
from lightning_core.worker.exit_causes import OOM
from lightning_core.worker.worker import Incarnation

log = logging.getLogger(__name__)

# Seconds between two questions.
LOOK = 1.0
# How long a worker may go on with a job that is over, seconds.
GRACE = 30.0
# How often, and with which pauses in seconds, a scheduler that is away is told something.
TRIES, PAUSE = 120, 0.5


class WorkerMonitor:
    """Looks after the workers of a pool.

    Args:
        places: where they are.
        folder: of the pool whose jobs they train, as it is now.
        silent: how long a worker may not answer, seconds.
    """

    def __init__(self, places: WorkerSlots, folder: Callable[[], Path | None], silent: float = SILENT) -> None:
        self._places = places
        self._folder = folder
        self._silent = silent
        self._asked: dict[WorkerSlot, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Watches for ever."""
        awake = StallAwareClock(LOOK + STOOD_STILL)
        while True:
            await asyncio.sleep(LOOK)
            try:
                self.look(awake.since())
            except Exception:  # whatever it is, nobody else would find out who hangs
                log.exception("the workers could not be looked at")

    def look(self, gone: float | None) -> None:
        """Asks everybody who has no question to answer; gives up who owes an answer for too long.

        Args:
            gone: seconds since the last look; None if this process stood still meanwhile.
        """
        for place in self._places.busy():
            if place.worker is None:
                continue  # ended a moment ago, as a rank of a job that is given up
            place.silent = 0.0 if gone is None else place.silent + gone
            if place.silent > self._silent:
                where = f"on device {place.device}"
                cause = ExitCause.PREEMPTED if self._places.is_leaving(place.device) else ExitCause.LOST
                self.lose(place, cause, f"its worker {where} has not answered for {place.silent:.0f} s")
            elif place not in self._asked:
                asked = asyncio.ensure_future(self._ask(place, place.worker))
                self._asked[place] = asked
                asked.add_done_callback(lambda _, place=place: self._asked.pop(place, None))  # type: ignore[misc]

    async def attend(self, place: WorkerSlot, worker: Actor, running: object) -> None:
        """Waits until a worker has put its job down."""
        try:
            await running  # type: ignore[misc]
        except ActorUnavailableError:  # not known to be dead
            place.heard_of = False
        except RayError as error:
            self.on_worker_exit(place, worker, error)
        else:
            if place.has(worker):
                self._places.vacate(place)

    async def reclaim(self, scheduler: Actor, name: str) -> None:
        """A worker that goes on with a job that is over is given a while, then it is ended by force."""
        now = asyncio.get_running_loop().time()
        busy = [(place, place.life) for place in self._places.busy() if place.life and place.life.scheduler == name]
        over = await scheduler.over.remote([(life.job, life.incarnation) for _, life in busy])
        for (place, life), is_over in zip(busy, over, strict=True):
            if place.life != life:
                continue
            if not is_over:
                place.over_since = None
            elif place.over_since is None:
                place.over_since = now
            elif now - place.over_since > GRACE:
                log.warning("%s is over and its worker goes on: ended by force", life.job)
                self._places.end(place, "its worker went on with a job that was over")

    def lose(self, place: WorkerSlot, cause: ExitCause, detail: str) -> None:
        """Gives up the life that a place's worker has, with all its ranks."""
        life = place.life
        if life is None:
            self._places.end(place, detail)
            return
        for rank in self._places.of(life):
            if (asked := self._asked.pop(rank, None)) is not None:
                asked.cancel()
            self._places.end(rank, detail if rank is place else f"it was a rank of {life.job}, which lost another")
        self._places.task(self.report_lost(life, cause, detail))

    async def _ask(self, place: WorkerSlot, worker: Actor) -> None:
        try:
            life = await worker.job.remote()
        except ActorUnavailableError:
            return  # cut off, or dying: it is asked again
        except RayError as error:
            self.on_worker_exit(place, worker, error)
            return
        if place.has(worker):
            place.silent = 0.0
            if life is None and not place.heard_of:
                self._places.vacate(place)

    def on_worker_exit(self, place: WorkerSlot, worker: Actor, error: RayError) -> None:
        if place.has(worker):
            self.lose(place, *classify_exit(error))

    async def report_lost(self, life: Incarnation, cause: ExitCause, detail: str) -> None:
        """Tells the scheduler of a life that is gone, and what it saved last."""
        folder = self._folder()
        saved = None if folder is None else await asyncio.to_thread(_last_save, home_of(folder, life.job), life)
        await tell(life.scheduler, WorkerExited(life.job, life.incarnation, cause, detail, saved))


def classify_exit(error: RayError) -> tuple[ExitCause, str]:
    """Why a worker is gone, of what Ray says."""
    if isinstance(error, ActorDiedError) and error.preempted:
        return ExitCause.PREEMPTED, "its node was taken away"
    if isinstance(error, OutOfMemoryError):  # Ray ends who takes too much
        return ExitCause.LOST, f"{OOM}: its node ran out of memory, and Ray ended the worker's process"
    return ExitCause.LOST, "the worker's process died" if isinstance(error, RayActorError) else str(error)


def _last_save(home: Path, life: Incarnation) -> Checkpoint | None:
    """What a life of a job had saved last, and whole."""
    try:
        found = find(checkpoint_folder(home, life.incarnation))
    except (OSError, ValueError) as error:  # of a disk in trouble: what was reported before it still counts
        log.warning("%s: what it saved cannot be looked at: %s", life.job, error)
        return None
    return None if found is None else found.checkpoint


async def tell(scheduler: str, event: WorkerExited | LaunchTimedOut) -> None:
    """Speaks for a worker that cannot, until the scheduler has heard it or is no more."""
    for _ in range(TRIES):
        try:
            actor = ray.get_actor(scheduler, namespace=NAMESPACE)
            await actor.event.remote(event)
            return
        except ValueError:
            return  # no such scheduler any more, nobody to tell
        except RayError:
            await asyncio.sleep(PAUSE)  # it is being restarted, or its disk is full
    log.error("%s could not be told: %s", scheduler, event)
