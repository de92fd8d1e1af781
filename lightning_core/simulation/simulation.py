"""A pool in virtual time: recorded loss curves are played to the scheduler that ships, with every delay given.

Rules

1. Everything that decides is :class:`~lightning_core.scheduler.scheduler.Scheduler`, through ``handle`` and
   ``wakeup``. It cannot tell the simulation from training, and its journal replays like a live one.
2. The scheduler hears of everything that has happened by an instant before it is woken at that instant, and of two
   things at one instant in the order in which they were scheduled: a run is the same each time.
3. What a supply of nodes has to tell the scheduler comes before the jobs that are submitted then, and what it knows of
   earlier pools comes first of all.

Workers and devices are in :mod:`~lightning_core.simulation.virtual_pool`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lightning_core.core.answers import Answer, End, Grant, VerdictChanged
from lightning_core.core.control import PartAnswer, WallClock
from lightning_core.core.events import DevicesFound, EarlierRuns, Event, PartEvent, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Beside
from lightning_core.core.supplies import VirtualNodes
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import Summary
from lightning_core.simulation.event_queue import EventQueue
from lightning_core.simulation.scenario import Delays, GivenVerdict, JobOutcome, Outcome, SimulatedJob
from lightning_core.simulation.virtual_pool import Pace, VirtualPool
from lightning_core.simulation.virtual_workers import VirtualWorker
from lightning_core.storage.journals.journal import Journal


class Simulation:
    """Jobs on a pool, in virtual time.

    Args:
        settings: Settings of the scheduler.
        jobs: Jobs with their simulated trainings; those of one time are submitted together.
        delays: Everything that takes time other than training; None for no delays.
        journal: Path of a journal to write, which must not exist; None to write none.
        check: Whether to check the scheduler's invariants after every event.
        losses: Times at which the process of a job dies, scheduler time, by job name. Where it has none then, nothing
            happens.
        save_every: Batches between two checkpoints; 0 if a job is saved only when it leaves.
        wall_clock: Wall clock at the start, for controllers that use it.
        nodes: Nodes of the pool, whose devices come and go with them; None if all devices stay.
        events: Events for controllers, each with its scheduler time, such as a placement plan.
        pace: Returns how fast a job trains beside others, by its name and theirs, as a fraction of its throughput
            alone. None if that is not known: then no two jobs train at once.
        kinds: Kind of each device, by which jobs are as fast as their ``paces`` say, whether the scheduler knows or
            not; empty for the locations of the settings.
        machines: Machine of each device, of which the scheduler is told; empty if all are on one.

    Raises:
        ValueError: If there is no job, two have the same name, ``losses`` names an unknown one, or there are nodes
            and no supply in the settings, or the reverse; while it runs, if an event does not fit.

    Example::

        >>> from lightning_core.core.jobs import Job
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
        wall_clock: WallClock | None = None,
        nodes: VirtualNodes | None = None,
        events: Sequence[tuple[float, PartEvent]] = (),
        pace: Pace | None = None,
        kinds: Sequence[str] = (),
        machines: Sequence[str] = (),
    ) -> None:
        names = [given.job.name for given in jobs]
        if not names:
            raise ValueError("jobs: at least one job is needed")
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"jobs: {min(twice)!r} is there twice")
        if unknown := set(losses or {}) - set(names):
            raise ValueError(f"losses: there is no job {min(unknown)!r}")
        if save_every < 0:
            raise ValueError(f"save_every must be at least 0 batches, got {save_every}")
        if (settings.supply is None) != (nodes is None):
            raise ValueError("nodes: must be given where the settings have a supply of nodes, and only there")
        # Reports come as cells close, and nothing hangs.
        self._settings = replace(settings, stall=None, remember=max(settings.remember, len(names)))
        if pace is None:
            self._settings = replace(self._settings, beside=Beside.NEVER)
        self._pace, self._kinds = pace, _checked("kinds", kinds or settings.locations, settings)
        self._machines = _checked("machines", machines, settings)
        self._delays = delays or Delays()
        self._save_every, self._wall_clock = save_every, wall_clock
        self._path = journal
        self._journal: Journal | None = None
        self._check = check
        self._scheduler = Scheduler(self._settings)
        self._queue = EventQueue()
        self._pool = self._make_pool(
            {given.job.name: VirtualWorker(given, reports_memory=settings.device_memory is not None) for given in jobs}
        )
        self._verdicts: dict[str, list[GivenVerdict]] = {name: [] for name in names}
        self._nodes = nodes
        if nodes is not None:
            nodes.join(self._pool, self._queue, self._handle)
        self._deciding = 0.0
        self._events = self._rounds = 0
        for when in sorted({given.submitted for given in jobs}):
            self._queue.at(when, self._submit, [given for given in jobs if given.submitted == when])
        for name, times in (losses or {}).items():
            for when in times:
                self._queue.at(when, self._pool.lose, self._pool.workers[name])
        for when, event in events:
            self._queue.at(when, self._tell, event)

    def _make_pool(self, workers: Mapping[str, VirtualWorker]) -> VirtualPool:
        settings = self._settings
        return VirtualPool(
            workers,
            settings.devices,
            settings.slots_per_device,
            self._delays,
            self._save_every,
            self._queue,
            self._send,
            self._pace,
            self._kinds,
            self._machines,
        )

    def run(self, until: float = math.inf) -> Outcome:
        """Play until nothing is left to happen; once.

        Args:
            until: Scheduler time at which to stop, whatever is left.

        Raises:
            JournalError: If there is a journal already.
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
        if self._wall_clock is not None and self._settings.controllers:
            self._handle(self._wall_clock)
        if self._machines:
            self._handle(DevicesFound(machines=self._machines))
        queue, pool, nodes, wakeup = self._queue, self._pool, self._nodes, self._scheduler.wakeup
        for event in () if nodes is None else nodes.first_events():
            self._handle(event)
        while True:
            wanted = wakeup()
            woken = math.inf if wanted is None else wanted
            coming = queue.next_at
            begins = math.inf
            if nodes is not None and not (nodes.is_empty and coming == woken == math.inf):
                begins = nodes.next_at
            when = min(coming, woken, begins)
            if when > queue.now and not pool.settled:
                pool.settle(self._scheduler.placements)
            elif when > until or when == math.inf:
                if until < math.inf:
                    queue.now = max(queue.now, until)
                return
            elif nodes is not None and begins == when:
                queue.now = begins
                nodes.begin_interval()
            elif coming <= woken:
                number, action, argument = queue.take()
                # A report is due only if no later one was scheduled instead.
                if action != pool.report_due or argument.entry == number:
                    action(argument)
            else:
                queue.now = woken
                self._handle(Tick())

    # ------------------------------------------------------------------------------------------------ the scheduler

    def _submit(self, jobs: Sequence[SimulatedJob]) -> None:
        for event in () if self._nodes is None else self._nodes.due_events(self._scheduler, self._queue.now):
            self._handle(event)
        self._handle(Submit(tuple(given.job for given in jobs)))
        runs = tuple(dict.fromkeys(run for given in jobs for run in given.earlier))
        if runs:
            found = [(given.job.name, tuple(map(runs.index, given.earlier))) for given in jobs if given.earlier]
            self._handle(EarlierRuns(runs, tuple(found)))
        for given in jobs:
            worker = self._pool.workers[given.job.name]
            if not worker.launched and not worker.over:  # a script that has joined
                self._pool.begin(worker)

    def _tell(self, event: PartEvent) -> None:
        """Send the controllers an event that must be valid, as in a pool."""
        self._scheduler.check_part_event(event, self._queue.now)
        self._handle(event)

    def _send(self, event: Event) -> None:
        """Send an event of a worker to the scheduler."""
        self._queue.at(self._queue.now + self._delays.report, self._handle, event)

    def _handle(self, event: Event) -> None:
        now, delay = self._queue.now, self._delays.report
        start = time.perf_counter()
        answers = self._scheduler.handle(event, now)
        self._deciding += time.perf_counter() - start
        self._events += 1
        if self._journal is not None:
            self._journal.append(event, now, answers, self._scheduler.accepted, self._scheduler.calls)
        if self._check:
            self._scheduler.check()
        if not isinstance(event, Report | PartEvent) or any(isinstance(answer, End) for answer in answers):
            self._rounds += 1
        if isinstance(event, WorkerExited):  # its job may come back
            self._queue.at(now + delay, self._pool.look_at_placements, None)
        if answers and delay:
            self._queue.at(now + delay, self._hear, answers)
        else:
            self._hear(answers)

    def _hear(self, answers: list[Answer]) -> None:
        """Deliver answers when they arrive."""
        for answer in answers:
            match answer:
                case End():
                    self._pool.end(self._pool.workers[answer.job])
                case Grant():
                    self._pool.obey(answer)
                case PartAnswer() if self._nodes is not None:
                    self._nodes.hear(answer.decoded())
                case VerdictChanged(name, verdict):
                    worker = self._pool.workers[name]
                    worker.advance(self._queue.now)
                    self._verdicts[name].append(GivenVerdict(self._queue.now, worker.batches, verdict))

    def _outcome(self) -> Outcome:
        folder = Path() if self._path is None else self._path.parent
        self._pool.finish()
        status = {job.name: job for job in self._scheduler.status()}
        jobs = []
        for name, worker in self._pool.workers.items():
            worker.advance(self._queue.now)
            known = status.get(name)  # None: the run was stopped before it was submitted
            jobs.append(
                JobOutcome(
                    name,
                    None if known is None else known.verdict,
                    None if known is None else known.finished_at,
                    worker.batches,
                    worker.busy_before + worker.busy,
                    worker.switches,
                    tuple(self._verdicts[name]),
                )
            )
        return Outcome(
            tuple(jobs),
            sum(job.switches for job in jobs),
            self._events,
            self._rounds,
            self._deciding,
            Summary.of(self._settings, self._queue.now, list(status.values()), folder),
            None if self._nodes is None else self._nodes.record(self._scheduler),
            self._scheduler.failed_parts,
        )


def _checked(what: str, names: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Return names of all devices, if there are any; a ValueError if there are more or fewer."""
    if names and len(names) != settings.devices:
        raise ValueError(f"{what} must be one for each of {settings.devices} devices, got {len(names)}")
    return tuple(names)
