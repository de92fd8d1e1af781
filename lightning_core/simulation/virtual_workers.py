"""Who trains on which device in virtual time, and how far each has come.

Between two instants every job progresses at its duty times its throughput, as a fluid. A cell closes when its position
is reached; a job that runs past its recording sees the last tenth of it again, its positions going on.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from hashlib import sha256

from lightning_core.core.events import Cell, Checkpoint, Report
from lightning_core.core.jobs import Capability
from lightning_core.simulation.scenario import Delays, SimulatedJob

# Sums of times end in rounding: what is as close to a cell's position has reached it.
ROUNDING = 1e-12

Devices = tuple[int, ...]


class Worker:
    """One job's training and whoever carries it out; plain attributes, read at every event."""

    __slots__ = (
        "at",
        "batches_per_second",
        "began",
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
        "goal",
        "incarnation",
        "job",
        "launched",
        "leaving",
        "name",
        "number",
        "over",
        "positions",
        "ready",
        "recorded",
        "reported",
        "restart",
        "seen",
        "share",
        "since",
        "switches",
        "throughput",
        "time_share",
        "until",
        "values",
        "version",
    )  # fmt: skip

    def __init__(self, given: SimulatedJob) -> None:
        job = given.job
        self.job = job
        self.name = job.name
        self.launched = Capability.RELEASE in job.can and job.device is None
        self.deadline = given.submitted + job.deadline
        self.goal = math.inf if job.target.work is None else float(job.target.work)
        self.positions = [int(position) for position in given.position]
        self.values = [job.target.logged(float(loss)) for loss in given.loss]  # as its training would log them
        self.recorded = len(self.positions)
        self.throughput = float(given.throughput)
        self.by_size = dict(zip(job.sizes, map(float, given.throughputs), strict=True))
        self.restart = given.restart
        # Its process: where it is, or is about to be; whether it can train; what it was told.
        self.at: Devices = ()
        self.ready = self.leaving = self.over = False
        self.incarnation = 0 if self.launched else 1
        self.version = -1
        self.share = 0.0
        self.switches = 0
        # How far it is, and was at `since`; from then on it gains `batches_per_second` batches and `time_share` busy seconds a second.
        # Counted from there and not from step to step, so that rounding does not add up.
        self.done = self.busy = self.batches_per_second = self.time_share = 0.0
        self.since = self.done_since = self.busy_since = 0.0
        # What it has said: reports of this incarnation, cells in all, and as it was when the incarnation began.
        self.number = self.cells = self.earlier = self.began = 0
        self.busy_before = 0.0
        self.reported = -math.inf
        # Its next report: which entry of the heap it is, at how many batches, and how many cells are closed by then.
        self.entry = self.seen = 0
        self.until = 0.0

    def advance(self, now: float) -> None:
        """Trains until now."""
        if now > self.since:
            self.done = self.done_since + self.batches_per_second * (now - self.since)
            self.busy = self.busy_since + self.time_share * (now - self.since)

    def set_throughput(self, since: float, time_share: float) -> None:
        """From then on it trains this part of the time; it has advanced until now."""
        self.time_share, self.batches_per_second = (
            time_share,
            time_share * self.by_size.get(len(self.at), self.throughput),
        )
        self.since, self.done_since, self.busy_since = since, self.done, self.busy

    def begin(self, now: float) -> None:
        """A process of its own takes it up."""
        self.ready = True
        self.version = -1
        self.number = 0
        self.earlier = self.cells
        self.began = self.batches
        self.busy_before += self.busy
        self.busy = 0.0
        self.set_throughput(now, 0.0)

    def save(self) -> Checkpoint:
        """What it saves where it is now."""
        return Checkpoint(self.batches, sha256(f"{self.name} {self.batches}".encode()).hexdigest())

    def set_back(self, every: int) -> Checkpoint | None:
        """It is where it was last saved; what it saved there, if it did."""
        saved = max(self.began, self.batches // every * every if every else 0)
        self.done = float(saved)
        self.cells = bisect_right(self.positions, saved)
        return self.save() if saved else None

    @property
    def batches(self) -> int:
        """Whole ones, done by now."""
        return int(self.done * (1 + ROUNDING))

    def closed(self) -> int:
        """Cells that are closed by now."""
        return bisect_right(self.positions, self.done * (1 + ROUNDING), self.cells)

    def report(self, now: float, seen: int) -> Report:
        """Says how far it is, with all cells up to the number ``seen``."""
        positions, values, before = self.positions, self.values, self.earlier - 1
        cells = tuple([Cell(at - before, positions[at], values[at]) for at in range(self.cells, seen)])
        self.number += 1
        self.cells = seen
        self.reported = now
        return Report(
            self.name, self.incarnation, self.number, self.version, self.batches, self.busy, cells, began=self.began
        )

    def aim(self, report_every: float) -> float:
        """Looks for its next report: when, scheduler time; how far it is then is kept in ``until`` and ``seen``."""
        ahead = self.reported + report_every - self.since
        least = max(self.done, self.done_since + self.batches_per_second * ahead) * (1 - ROUNDING)
        cell = bisect_left(self.positions, least, self.cells)
        while cell == len(self.positions):
            self._lengthen(least)
            cell = bisect_left(self.positions, least, self.cells)
        self.until, self.seen = float(self.positions[cell]), cell + 1
        if self.done < self.goal < self.until:
            self.until, self.seen = self.goal, bisect_right(self.positions, self.goal, self.cells)
        return self.since + (self.until - self.done_since) / self.batches_per_second

    def _lengthen(self, position: float) -> None:
        """Sees the last tenth of its recording again, as often as a position needs, and once at least."""
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
    """Who trains on a device, and how often it has passed from one to another.

    Where one job has the device it is a switch if another one was the last to run there. Where several share it, there
    is a switch to each of them in every unit of time, less one if the last to run was among them.
    """

    __slots__ = ("clear", "last", "members", "resident", "since", "training")

    def __init__(self) -> None:
        self.training: list[Worker] = []  # as it should be from now on
        self.members: list[Worker] = []  # as it was since `since`
        self.since = 0.0
        self.last: Worker | None = None
        self.clear = 0.0  # until then somebody saves there, or is switched to
        self.resident = 0  # launched processes on it

    def settle(self, now: float, delays: Delays) -> None:
        """Time has passed or is about to: those who trained until now are counted, the others begin."""
        if self.training == self.members:
            return
        if self.members and now > self.since:
            self._count(math.ceil((now - self.since) / delays.turn_unit * (1 - ROUNDING)))
        self.members = self.training.copy()
        self.since = now
        self.clear = max(self.clear, now)
        if len(self.members) == 1 and self.last not in (None, self.members[0]):
            self.clear += delays.switch

    def training_share(self, delays: Delays) -> float:
        """Of the time that is left to train, where several have turns."""
        m = len(self.members)
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
