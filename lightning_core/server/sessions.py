"""Jobs of scripts: who joins, who speaks for them, and when nobody does any more.

Rules

1. A script speaks for its job as long as its connection is open, and nobody else does.
2. When the process is gone, so is the job's claim. It is given a moment first, to come back on another connection.
3. Moments count while the scheduler's own process was awake: nobody is given up for its having stood still.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from lightning_core.core.answers import Grant, JoinReply
from lightning_core.core.events import Event, ExitCause, Report, Submit, WorkerExited
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.names import check_name
from lightning_core.core.protocols import DeviceNotSharedError, JoinRefusedError, NameTakenError
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.server import stall_aware_clock

# How long a script whose connection is lost may take to come back: by itself, and after the scheduler was away.
BACK_WITHIN = 1.0
BACK_AFTER_RESTART = 15.0
# A bridge says that it lives, and how long it may be silent, seconds.
BRIDGE_EVERY, BRIDGE_SILENT = 5.0, 30.0
PROCESS_GONE = "its process is gone"


class Sessions:
    """Speaks with a scheduler for the scripts that have joined it.

    Args:
        scheduler: as it is now; another object after trouble with the journal.
        handle: takes in an event.
    """

    def __init__(self, scheduler: Callable[[], Scheduler], handle: Callable[[Event], object]) -> None:
        self.devices: Sequence[tuple[str, str]] = ()
        """The pool's: of each its name and the path of its turnstile."""
        self.speakers: dict[str, int] = {}
        """Job: the connection that speaks for it."""
        self._scheduler = scheduler
        self._handle = handle
        self._bridges: dict[int, float] = {}  # first line of each, and when it was last heard of
        self._tasks: set[asyncio.Task[None]] = set()

    def join(self, job: Job, device: str, incarnation: int | None, line: int) -> JoinReply:
        """Adds the job of a script, or knows it again.

        Raises:
            JoinRefusedError: if its name is taken, or its device is not one of the pool's.
        """
        scheduler = self._scheduler()
        check_name(job.name)
        able = job.can - {Capability.RELEASE, Capability.RESIZE}
        job = replace(job, can=able, device=self._place(device), sizes=(), throughputs=())
        if job.min_devices > (have := scheduler.settings.devices):
            raise JoinRefusedError(f"{job.name} trains on {job.min_devices} devices, the pool has {have}")
        if (refusal := scheduler.settings.refusal(job.target)) is not None:
            raise JoinRefusedError(f"{job.name}: {refusal}")
        again = False
        if job.name in scheduler.names(active=True):
            if Capability.RELEASE in scheduler.job(job.name).can or self.speakers.get(job.name, line) != line:
                raise NameTakenError(f"the name {job.name!r} is taken by a job that has not ended; choose another")
            again = incarnation == scheduler.incarnation(job.name)
            if not again:  # another process had the name, and is gone
                self._part(job.name, scheduler.incarnation(job.name))
        self.speakers[job.name] = line
        self._handle(Submit((job,)))
        paths, cores = tuple(path for _, path in self.devices), scheduler.settings.cores
        return JoinReply(self._scheduler().incarnation(job.name), paths, again, cores)

    def speak(self, event: Report | WorkerExited, line: int) -> None:
        """Who reports for a job, or says that it leaves, is the one who speaks for it: nobody else may.

        Raises:
            RuntimeError: if another connection does. Whoever has just lost one tries again.
        """
        scheduler, job = self._scheduler(), event.job
        if not isinstance(scheduler.directive(job), Grant) or event.incarnation != scheduler.incarnation(job):
            return  # it changes nothing, and is told so
        if Capability.RELEASE in scheduler.job(job).can or self.speakers.get(job, line) != line:
            raise RuntimeError(f"another process speaks for {job}")
        self.speakers[job] = line
        if isinstance(event, WorkerExited):
            del self.speakers[job]

    def hung_up(self, line: int) -> None:
        """A connection has closed: the jobs that it spoke for are given a moment to come back on another."""
        for job in [job for job, speaker in self.speakers.items() if speaker == line]:
            del self.speakers[job]
            self._expect(job, BACK_WITHIN)

    def here(self, first: int) -> None:
        """A bridge lives, whose lines begin at ``first``; if it falls silent, its lines have hung up with it."""
        known = first in self._bridges
        self._bridges[first] = time.monotonic()
        if not known:
            self._keep(self._listen_for(first))

    def expect_all(self) -> None:
        """The scheduler was away: whoever does not come back soon is gone."""
        scheduler = self._scheduler()
        for job in scheduler.names(active=True):
            if Capability.RELEASE not in scheduler.job(job).can:
                self._expect(job, BACK_AFTER_RESTART)

    def close(self) -> None:
        """Nobody is waited for any more."""
        for task in self._tasks:
            task.cancel()

    def _place(self, device: str) -> int | None:
        known = [name for name, _ in self.devices]
        if not known:
            raise RuntimeError("the pool is coming up")
        if device in known:
            return known.index(device)
        if device == "cpu" and all(name.startswith("cpu") for name in known):
            return None  # any core will do
        raise DeviceNotSharedError(f"this process trains on {device}, the pool shares {', '.join(known)}")

    def _expect(self, job: str, within: float) -> None:
        """The life that a job has now is over if nobody speaks for it soon."""
        incarnation = self._scheduler().incarnation(job)

        async def say_farewell() -> None:
            await stall_aware_clock.sleep(within)
            if job not in self.speakers:
                self._part(job, incarnation)

        self._keep(say_farewell())

    def _part(self, job: str, incarnation: int) -> None:
        self._handle(WorkerExited(job, incarnation, ExitCause.LOST, PROCESS_GONE))

    async def _listen_for(self, first: int) -> None:
        heard = None
        while heard != self._bridges[first]:
            heard = self._bridges[first]
            await stall_aware_clock.sleep(heard + BRIDGE_SILENT - time.monotonic())
        del self._bridges[first]
        for line in {line for line in self.speakers.values() if line >> 32 == first >> 32}:
            self.hung_up(line)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """The loop itself would forget a task that nobody holds."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
