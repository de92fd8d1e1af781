"""Workers and devices in virtual time: which worker trains on which device, and how far it has come.

Between two instants every job progresses continuously at its share times its throughput. A cell closes when its
position is reached. A job that runs past its recording repeats the last tenth of it at further positions.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from hashlib import sha256

from lightning_core.core.events import Cell, Checkpoint, Report
from lightning_core.core.jobs import Capability, OnHold
from lightning_core.core.reported import MemoryUse
from lightning_core.simulation.scenario import Delays, SimulatedJob

# Relative rounding error of sums of times: a position this close to that of a cell has reached it.
ROUNDING = 1e-12

Devices = tuple[int, ...]


class VirtualWorker:
    """A job's training and its process; plain attributes, because they are read at every event."""

    __slots__ = (
        "apart",
        "at",
        "batches_at_start",
        "batches_per_second",
        "beside",
        "busy",
        "busy_before",
        "busy_since",
        "by_size",
        "cells",
        "deadline",
        "done",
        "done_since",
        "earlier",
        "entry",
        "evaluated",
        "goal",
        "incarnation",
        "job",
        "launched",
        "learning_rates",
        "leaving",
        "memory",
        "name",
        "number",
        "on_kind",
        "over",
        "pace",
        "paces",
        "positions",
        "ready",
        "recorded",
        "reported",
        "restart",
        "seen",
        "share",
        "since",
        "spread",
        "switches",
        "throughput",
        "time_share",
        "until",
        "values",
        "version",
    )  # fmt: skip

    def __init__(self, given: SimulatedJob, *, reports_memory: bool = False) -> None:
        job = given.job
        self.job = job
        self.name = job.name
        self.launched = Capability.RELEASE in job.can and job.device is None
        # Without a deadline a training ends when its recording is over.
        self.deadline = given.submitted + (0.0 if job.is_best_effort else job.deadline)
        self.goal = math.inf if job.target.work is None else float(job.target.work)
        self.positions = [int(position) for position in given.position]
        self.values = [job.target.logged(float(loss)) for loss in given.loss]  # as its training logs them
        self.recorded = len(self.positions)
        self.throughput = float(given.throughput)
        self.by_size = dict(zip(job.sizes, map(float, given.throughputs), strict=True))
        self.restart = given.restart
        self.paces, self.on_kind = given.paces, 1.0
        self.apart, self.spread = given.apart, 1.0
        self.learning_rates = given.learning_rates
        # A recording has no memory use: the job's stated need counts, or hardly any.
        kept = job.memory or 1 if job.on_hold is OnHold.KEEP else 1
        self.memory = MemoryUse(job.memory or 1, kept) if reports_memory else None
        self.evaluated = given.evaluated
        # Its process: its devices now or soon, whether it can train, and its newest grant.
        self.at: Devices = ()
        self.ready = self.leaving = self.over = False
        self.incarnation = 0 if self.launched else 1
        self.version = -1
        self.share = 0.0
        self.beside, self.pace = 0, 1.0
        self.switches = 0
        # Progress now, and at `since`, from when on it gains `batches_per_second` batches and `time_share` busy seconds
        # per second. Progress is counted from there and not from step to step, so that rounding errors do not add up.
        self.done = self.busy = self.batches_per_second = self.time_share = 0.0
        self.since = self.done_since = self.busy_since = 0.0
        # Reports of this incarnation, cells in total, and both at the start of the incarnation.
        self.number = self.cells = self.earlier = self.batches_at_start = 0
        self.busy_before = 0.0
        self.reported = -math.inf
        # Its next report: the number of its entry in the queue, its batches, and the cells that are closed by then.
        self.entry = self.seen = 0
        self.until = 0.0

    @property
    def trains(self) -> bool:
        """Whether it may train by its newest grant."""
        return self.share > 0 or self.beside > 0

    def advance(self, now: float) -> None:
        """Train until now."""
        if now > self.since:
            self.done = self.done_since + self.batches_per_second * (now - self.since)
            self.busy = self.busy_since + self.time_share * (now - self.since)

    def set_throughput(self, since: float, time_share: float) -> None:
        """Set the share of the time that it trains from ``since`` on; it must have advanced until now."""
        self.time_share = time_share
        self.batches_per_second = (
            time_share * self.pace * self.on_kind * self.spread * self.by_size.get(len(self.at), self.throughput)
        )
        self.since, self.done_since, self.busy_since = since, self.done, self.busy

    def begin(self, now: float) -> None:
        """Start the next incarnation."""
        self.ready = True
        self.version = -1
        self.number = 0
        self.earlier = self.cells
        self.batches_at_start = self.batches
        self.busy_before += self.busy
        self.busy = 0.0
        self.set_throughput(now, 0.0)

    def save(self) -> Checkpoint:
        """Return the checkpoint that it saves now."""
        return Checkpoint(self.batches, sha256(f"{self.name} {self.batches}".encode()).hexdigest())

    def set_back(self, every: int) -> Checkpoint | None:
        """Go back to the newest checkpoint; return it, or None if there is none.

        Args:
            every: Batches between two checkpoints; 0 if it saves as often as its job says, if that says so.
        """
        saved = max(self.batches_at_start, self.batches // every * every if every else self._saved_by_time())
        self.done = self.done_since = float(saved)
        self.cells = bisect_right(self.positions, saved)
        return self.save() if saved else None

    def _saved_by_time(self) -> int:
        """Return the batches of the newest checkpoint that was due by the seconds it has trained."""
        every = self.job.save_every
        if every is None or not self.busy:
            return 0
        part = self.busy // every * every / self.busy
        return self.batches_at_start + int(part * (self.batches - self.batches_at_start))

    @property
    def batches(self) -> int:
        """Whole batches done by now."""
        return int(self.done * (1 + ROUNDING))

    def closed(self) -> int:
        """Return the number of cells that are closed by now."""
        return bisect_right(self.positions, self.done * (1 + ROUNDING), self.cells)

    def report(self, now: float, seen: int) -> Report:
        """Return its next report, with all cells up to the number ``seen``."""
        positions, values, before = self.positions, self.values, self.earlier - 1
        cells = tuple([Cell(at - before, positions[at], values[at]) for at in range(self.cells, seen)])
        self.number += 1
        self.cells = seen
        self.reported = now
        return Report(
            self.name,
            self.incarnation,
            self.number,
            self.version,
            self.batches,
            self.busy,
            cells,
            batches_at_start=self.batches_at_start,
            evaluated=self.evaluated and self.cells > 0,  # before its first evaluation it cannot tell
            learning_rates=self.learning_rates if self.number == 1 else None,
            memory=self.memory if self.number == 1 else None,
        )

    def aim(self, report_every: float, progress_every: float = math.inf) -> float:
        """Return when its next report is due, and keep its progress at that time in ``until`` and ``seen``.

        Args:
            report_every: Minimum seconds between two reports.
            progress_every: Seconds after which it reports its progress though no cell has closed.
        """
        ahead = self.reported + report_every - self.since
        earliest = max(self.done, self.done_since + self.batches_per_second * ahead) * (1 - ROUNDING)
        cell = bisect_left(self.positions, earliest, self.cells)
        while cell == len(self.positions):
            self._lengthen(earliest)
            cell = bisect_left(self.positions, earliest, self.cells)
        self.until, self.seen = float(self.positions[cell]), cell + 1
        if self.done < self.goal < self.until:
            self.until, self.seen = self.goal, bisect_right(self.positions, self.goal, self.cells)
        due = self.since + (self.until - self.done_since) / self.batches_per_second
        if due > (sooner := max(self.reported, self.since) + progress_every):
            self.until, self.seen = self.done_since + self.batches_per_second * (sooner - self.since), self.cells
            return sooner
        return due

    def _lengthen(self, position: float) -> None:
        """Repeat the last tenth of the recording, as often as a position needs and at least once."""
        positions, n = self.positions, self.recorded
        again = max(n // 10, 1)
        start = positions[n - again - 1] if again < n else 0
        steps = [position - start for position in positions[n - again : n]]
        values = self.values[n - again : n]
        for _ in range(max(math.ceil((position - positions[-1]) / steps[-1]), 1)):
            last = positions[-1]
            positions += [last + step for step in steps]
            self.values += values


class Device:
    """A device: the workers that train on it, and how often it has passed from one to another.

    If one job has the device, there is a switch if another job was the last to run there. If several share it, there is
    a switch to each of them per unit of time, less one if the last to run was among them.
    """

    __slots__ = ("clear", "last", "members", "resident", "since", "training")

    def __init__(self) -> None:
        self.training: list[VirtualWorker] = []  # from now on
        self.members: list[VirtualWorker] = []  # since `since`
        self.since = 0.0
        self.last: VirtualWorker | None = None
        self.clear = 0.0  # until then a process saves there or is switched to
        self.resident = 0  # number of launched processes on it

    def settle(self, now: float, delays: Delays) -> None:
        """Count the switches of the workers that have trained until now, and let the next ones begin."""
        if self.training == self.members:
            return
        if self.members and now > self.since:
            self._count(math.ceil((now - self.since) / delays.turn_unit * (1 - ROUNDING)))
        self.members = self.training.copy()
        self.since = now
        self.clear = max(self.clear, now)
        if len(self.members) == 1 and self.last not in (None, self.members[0]):
            self.clear += delays.switch

    def company(self, worker: VirtualWorker) -> list[VirtualWorker]:
        """Return the workers that train beside one, itself included."""
        return [one for one in self.members if one is worker or (one.beside == worker.beside > 0)]

    def training_share(self, delays: Delays) -> float:
        """Fraction of the time that is left for training where several groups take turns."""
        m = len({one.beside or -place for place, one in enumerate(self.members, 1)})
        return 1.0 if m == 1 else max(0.0, 1.0 - m * delays.switch / delays.turn_unit)

    def _count(self, units: int) -> None:
        members, last = self.members, self.last
        if len(members) == 1:
            units = 1
        for worker in members:
            worker.switches += units
        if last is None or last in members:
            (last or members[0]).switches -= 1
        self.last = members[-1]
        self.last.switches -= units - 1
