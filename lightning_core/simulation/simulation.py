"""A pool in virtual time: recorded curves are played to the scheduler that ships, with every delay named.

Rules

1. All that decides is :class:`~lightning_core.scheduler.scheduler.Scheduler`, through ``handle`` and ``wakeup``. It
   cannot tell that nobody trains, and its journal replays like a live one.
2. What has happened by an instant is heard before the scheduler is woken at that instant, and of two things at one
   instant the first is first: a run is the same each time. Devices change hands once an instant, when all is said.
3. A worker speaks as a live one does: it says that it is there, reports while it trains and when it stops, numbers what
   it says, saves and leaves when its devices are others, and comes back as the next incarnation.
4. A training ends when its deadline has passed and its recording is over.
5. In a pool with a market a job that is over teaches as soon as its deadline has passed: before whoever is submitted
   then gets a spot policy.
6. A process that is lost takes with it what was not saved. Its job comes back as the scheduler says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from lightning_core.core.answers import Answer, End, Grant
from lightning_core.core.events import Event, ExitCause, Report, SelectorFeedback, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.scheduler.market_jobs import CounterfactualReplay
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import Summary
from lightning_core.simulation.scenario import Delays, JobOutcome, Outcome, SimulatedJob
from lightning_core.simulation.virtual_workers import Device, Devices, Worker
from lightning_core.storage.journal import Journal

__all__ = ["Delays", "JobOutcome", "Outcome", "SimulatedJob", "Simulation"]


class Simulation:
    """Jobs on a pool, in virtual time.

    Args:
        settings: of the scheduler.
        jobs: with what their trainings will be like; those of one time are submitted together.
        delays: what takes time beside training; None for none.
        journal: file to keep, made anew; None keeps nothing.
        check: whether the scheduler's invariants are looked at after every event.
        losses: by job, when its process dies, scheduler time; nothing happens to one that has none then.
        save_every: batches between two checkpoints; 0: a job is saved only where it leaves.

    Raises:
        ValueError: if there is no job, two have one name, or one that is not there is lost.

    Example::

        >>> from lightning_core.core.targets import LossTarget
        >>> jobs = [
        ...     SimulatedJob(Job(name, deadline, LossTarget("loss", 0.5)), [10, 20, 30], [0.9, 0.6, 0.4], 10.0)
        ...     for name, deadline in (("later", 9.0), ("sooner", 4.0))
        ... ]
        >>> outcome = Simulation(Settings(policy="edf", window=1), jobs).run()
        >>> [(job.name, str(job.verdict), job.finished_at) for job in outcome.jobs]
        [('later', 'met', 6.0), ('sooner', 'met', 3.0)]
    """

    def __init__(
        self,
        settings: Settings,
        jobs: Sequence[SimulatedJob],
        delays: Delays | None = None,
        journal: Path | None = None,
        *,
        check: bool = False,
        losses: Mapping[str, Sequence[float]] | None = None,
        save_every: int = 0,
    ) -> None:
        names = [given.job.name for given in jobs]
        if not names:
            raise ValueError("jobs: at least one job is needed")
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"jobs: {min(twice)!r} is there twice")
        if strangers := set(losses or {}) - set(names):
            raise ValueError(f"losses: there is no job {min(strangers)!r}")
        if save_every < 0:
            raise ValueError(f"save_every must be at least 0 batches, got {save_every}")
        # Reports come as cells close, and nothing hangs.
        self._settings = settings = replace(settings, stall=None)
        self._delays = delays or Delays()
        self._save_every = save_every
        self._path = journal
        self._journal: Journal | None = None
        self._check = check
        self._scheduler = Scheduler(settings)
        self._lessons = CounterfactualReplay.of(settings)
        self._workers = {given.job.name: Worker(given) for given in jobs}
        self._devices = [Device() for _ in range(settings.devices)]
        # What is to be looked at when an instant is over: devices that change hands, jobs that want a process.
        self._unsettled: set[int] = set()
        self._unplaced = False
        self._now = 0.0
        self._deciding = 0.0
        self._events = self._rounds = 0
        # (when, number, what to do, with what): where nothing is said a report is due.
        self._heap: list[tuple[float, int, Callable[[Any], None] | None, Any]] = []
        self._numbers = 0
        for when in sorted({given.submitted for given in jobs}):
            self._at(when, self._submit, tuple(given.job for given in jobs if given.submitted == when))
        for name, times in (losses or {}).items():
            for when in times:
                self._at(when, self._lose, self._workers[name])

    def run(self, until: float = math.inf) -> Outcome:
        """Plays until nothing is left to happen; once.

        Args:
            until: scheduler time to stop at, whatever is left.

        Raises:
            JournalError: if there is a journal already.
        """
        if self._path is not None:
            self._journal = Journal.create(self._path, self._settings, durable=False)
        try:
            self._play(until)
        finally:
            if self._journal is not None:
                self._journal.close()
        return self._outcome()

    def _play(self, until: float) -> None:
        heap, wakeup = self._heap, self._scheduler.wakeup
        while True:
            wanted = wakeup()
            woken = math.inf if wanted is None else wanted
            coming = heap[0][0] if heap else math.inf
            when = min(coming, woken)
            if when > self._now and (self._unsettled or self._unplaced):
                self._settle()
            elif when > until or when == math.inf:
                if until < math.inf:
                    self._now = max(self._now, until)
                return
            elif coming <= woken:
                self._now, number, action, argument = heappop(heap)
                if action is not None:
                    action(argument)
                elif argument.entry == number:
                    self._due(argument)
            else:
                self._now = woken
                self._handle(Tick())

    def _at(self, when: float, action: Callable[[Any], None] | None, argument: Any) -> int:
        self._numbers += 1
        heappush(self._heap, (when, self._numbers, action, argument))
        return self._numbers

    # ------------------------------------------------------------------------------------------------ the scheduler

    def _submit(self, jobs: tuple[Job, ...]) -> None:
        self._teach()
        self._handle(Submit(jobs))
        for job in jobs:
            worker = self._workers[job.name]
            if not worker.launched and not worker.over:  # a script that has joined
                self._begin(worker)

    def _teach(self) -> None:
        """Those that are over teach those to come."""
        if self._lessons is not None:
            for replayable in self._lessons.due(self._scheduler, self._now):
                self._handle(self._lessons.feedback(replayable))

    def _say(self, event: Event) -> None:
        """A worker speaks."""
        self._at(self._now + self._delays.report, self._handle, event)

    def _handle(self, event: Event) -> None:
        start = time.perf_counter()
        answers = self._scheduler.handle(event, self._now)
        self._deciding += time.perf_counter() - start
        self._events += 1
        if self._journal is not None:
            self._journal.append(event, self._now, answers)
        if self._check:
            self._scheduler.check()
        if not isinstance(event, Report | SelectorFeedback) or any(isinstance(answer, End) for answer in answers):
            self._rounds += 1
        if isinstance(event, WorkerExited):  # its job may come back
            self._at(self._now + self._delays.report, self._look, None)
        if answers and self._delays.report:
            self._at(self._now + self._delays.report, self._hear, answers)
        else:
            self._hear(answers)

    # ------------------------------------------------------------------------------------------------ workers

    def _hear(self, answers: list[Answer]) -> None:
        """What the scheduler has said arrives."""
        for answer in answers:
            worker = self._workers[answer.job]
            match answer:
                case End():
                    self._end(worker)
                case Grant(devices=devices) if not worker.ready:
                    self._unplaced |= bool(devices)
                case Grant(version=version) if version > worker.version:
                    self._obey(worker, answer)

    def _look(self, _: None) -> None:
        """Whoever launches workers looks at the placements when the instant is over."""
        self._unplaced = True

    def _obey(self, worker: Worker, grant: Grant) -> None:
        worker.version = grant.version
        if worker.launched and sorted(grant.devices) != sorted(worker.at):
            self._leave(worker)
        else:
            self._train(worker, grant.share, grant.devices)

    def _train(self, worker: Worker, share: float, at: Devices) -> None:
        """It goes on with this duty; if it has none it stops, and says so."""
        worker.advance(self._now)
        before = worker.at if worker.share else ()
        after = at if share else ()
        if before != after:
            for device in before:
                self._devices[device].training.remove(worker)
            for device in after:
                self._devices[device].training.append(worker)
        self._unsettled.update(before, after)
        worker.share, worker.at = share, at
        if before and not after:
            worker.set_pace(self._now, 0.0)
            worker.entry = 0
            self._say(worker.report(self._now, worker.closed()))

    def _due(self, worker: Worker) -> None:
        """It has come as far as its next report."""
        now = self._now
        worker.advance(now)
        worker.done = worker.until
        self._say(worker.report(now, worker.seen))
        if now >= worker.deadline and worker.cells >= worker.recorded:
            self._say(WorkerExited(worker.name, worker.incarnation))
            self._end(worker)
        else:
            worker.entry = self._at(worker.aim(self._delays.report_every), None, worker)

    def _begin(self, worker: Worker) -> None:
        """Its process is up; the answer to its first report says what it may hold."""
        if not worker.over:
            worker.begin(self._now)
            self._say(worker.report(self._now, worker.cells))

    def _leave(self, worker: Worker) -> None:
        """It saves where it is, and is gone when that is done."""
        gone = self._now + self._delays.release
        if worker.share:
            self._train(worker, 0.0, worker.at)
            for device in worker.at:
                self._devices[device].clear = max(self._devices[device].clear, gone)
        else:
            self._say(worker.report(self._now, worker.closed()))
        worker.ready, worker.leaving = False, True
        self._at(gone, self._left, worker)

    def _left(self, worker: Worker) -> None:
        worker.leaving = False
        self._make_room(worker)
        self._say(WorkerExited(worker.name, worker.incarnation, ExitCause.RELEASED, saved=worker.save()))

    def _lose(self, worker: Worker) -> None:
        """Its process dies."""
        if worker.over or not worker.ready:
            return
        self._stop(worker)
        self._make_room(worker)
        save = worker.set_back(self._save_every)
        self._say(WorkerExited(worker.name, worker.incarnation, ExitCause.LOST, "its process died", save))

    def _end(self, worker: Worker) -> None:
        """The job is over."""
        if worker.over:
            return
        worker.over = True
        self._stop(worker)
        if not worker.leaving:
            self._make_room(worker)

    def _stop(self, worker: Worker) -> None:
        """It trains no more, and says nothing of it."""
        worker.advance(self._now)
        if worker.share:
            for device in worker.at:
                self._devices[device].training.remove(worker)
            self._unsettled.update(worker.at)
        worker.set_pace(self._now, 0.0)
        worker.share = 0.0
        worker.entry = 0
        worker.ready = False

    def _make_room(self, worker: Worker) -> None:
        if worker.launched:
            for device in worker.at:
                self._devices[device].warm -= 1
            self._unplaced = True
        worker.at = ()

    # ------------------------------------------------------------------------------------------------ hands change

    def _settle(self) -> None:
        if self._unplaced:
            self._place()
            return
        delays, devices = self._delays, self._devices
        changed = sorted(self._unsettled)
        self._unsettled.clear()
        for at in changed:
            devices[at].settle(self._now, delays)
        for worker in {worker.name: worker for at in changed for worker in devices[at].members}.values():
            self._set_pace(worker)

    def _set_pace(self, worker: Worker) -> None:
        worker.advance(self._now)
        on = [self._devices[at] for at in worker.at]
        start = max(self._now, *[device.clear for device in on])
        speed = worker.share * on[0].part(self._delays)
        if speed == worker.speed and start == max(self._now, worker.since):
            return  # nothing has changed for it
        worker.set_pace(start, speed)
        worker.entry = self._at(worker.aim(self._delays.report_every), None, worker) if speed > 0 else 0

    def _place(self) -> None:
        """Launches whoever is placed and has no process, where there is room; the others wait until somebody leaves."""
        self._unplaced = False
        slots = self._settings.slots_per_device
        for name, incarnation, at in self._scheduler.placements():
            worker = self._workers[name]
            on = [self._devices[device] for device in at]
            full = slots is not None and any(device.warm >= slots for device in on)
            if worker.at or worker.over or incarnation == worker.incarnation or full:
                continue
            for device in on:
                device.warm += 1
            worker.at, worker.incarnation = at, incarnation
            took = worker.restart if worker.batches and worker.restart is not None else self._delays.start
            self._at(self._now + took, self._begin, worker)

    def _outcome(self) -> Outcome:
        folder = Path() if self._path is None else self._path.parent
        for device in self._devices:
            device.training.clear()
            device.settle(self._now, self._delays)
        status = {job.name: job for job in self._scheduler.status()}
        jobs = []
        for name, worker in self._workers.items():
            worker.advance(self._now)
            told = status.get(name)  # None: the run was stopped before it was submitted
            jobs.append(
                JobOutcome(
                    name,
                    None if told is None else told.verdict,
                    None if told is None else told.finished_at,
                    worker.batches,
                    worker.busy_before + worker.busy,
                    worker.switches,
                )
            )
        return Outcome(
            tuple(jobs),
            sum(job.switches for job in jobs),
            self._events,
            self._rounds,
            self._deciding,
            Summary.of(self._settings, self._now, list(status.values()), folder),
        )
