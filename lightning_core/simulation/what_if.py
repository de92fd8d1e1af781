"""What-if simulation: the fraction of simulated futures in which each job finishes in time, with and without a change.

A future draws how much work each job has left from its forecast, and lets the pool's own policy plan it: at first,
whenever a part of the jobs has ended, and from time to time. Between two plans devices that become free are allocated
by the last one. The same draws are played with the change and without it, so that every difference is due to the
change.

A start, a resume and a move of a job take as long as its moves, or those of the other jobs, were measured to take. No
more jobs are on a device than its memory holds; a job with unknown needs has its devices for itself until it has
trained, and then needs as much as others. Where owners have shares of their own they are divided as in the pool, in
turns that last as long as a plan holds.

A calendar and a placement plan are played: they hold and move jobs in a future at their times, with the last demand
continued. A market is not: the devices that it holds now stay to the end, and so do the jobs without any.

Not simulated: faults, nodes that come and go, prices, future jobs, and the improvement of forecasts with time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import LEVELS, BoolArray, FloatArray
from lightning_core.scheduler.asking.prospects import Assumed, Prospects

# Plans of a future: one whenever a part of the jobs has ended or a part of the time is over.
# Turns of owners last as long as a plan, so there are more of them.
PLANS, PLANS_BY_OWNER = 8, 24
MAX_CHANGED_DEVICES = 4096
# Seconds of work that count as done: times of old pools are no more exact.
TINY = 1e-6


class Assumption(NamedTuple):
    """A hypothetical change."""

    job: str = ""
    """Name of the job that is to have another deadline, or train on another number of devices; empty for none."""
    deadline: float | None = None
    """Its deadline in scheduler time; inf for none, None to leave it."""
    devices: int | None = None
    """Number of devices of the pool; None to leave it."""
    own: int | None = None
    """Number of devices of the job; None to leave it."""

    def apply(self, prospects: Prospects) -> Prospects:
        """Return the prospects after the change.

        Raises:
            KeyError: If there is no such job that has not ended.
            ValueError: If a number of devices is out of range, or does not fit the job or the pool.
        """
        for devices in (self.devices, self.own):
            if devices is not None and not 1 <= devices <= MAX_CHANGED_DEVICES:
                raise ValueError(f"devices must be 1 to {MAX_CHANGED_DEVICES}, got {devices}")
        if self.devices is not None:
            prospects = prospects.with_devices(self.devices)
        if self.job and self.deadline is not None:
            prospects = prospects.with_deadline(self.job, self.deadline)
        return prospects.with_devices_of(self.job, self.own) if self.job and self.own is not None else prospects


@dataclass(frozen=True)
class Chances:
    """Fraction of the futures in which each job finishes in time."""

    names: list[str]
    """Name of each job with a deadline, before or after the change."""
    before: list[float]
    """Fraction of the futures in which it is in time as things are; NaN for a job without a deadline."""
    after: list[float]
    """The same after the change."""
    known: list[bool]
    """Whether its work is known at all."""
    futures: int
    """Number of futures."""
    assumed: Assumed = field(default_factory=Assumed)
    """Assumptions beside the forecasts."""


def chances(prospects: Prospects, change: Assumption, goes_on: Callable[[int], bool]) -> Chances:
    """Return in how many futures each job is in time, before a change and after it.

    Args:
        prospects: Expectations of the scheduler.
        change: The change.
        goes_on: Whether to play one more future, given the number of those that were played.

    Raises:
        KeyError: If there is no such job that has not ended.
        ValueError: If nothing is known of any job yet, or the change is invalid.
    """
    if not prospects.known.any():
        raise ValueError("nothing is known yet of the work that any job has left; ask again when some have trained")
    changed = change.apply(prospects)
    n = len(prospects.names)
    before, after, played = np.zeros(n), np.zeros(n), 0
    for needs in draws(prospects):
        if played and not goes_on(played):
            break
        for pool, count in ((prospects, before), (changed, after)):
            if len(pool.played) == played:
                pool.played.append(finish(pool, needs))
            count += pool.played[played] <= pool.deadline
        played += 1
    for count, deadline in ((before, prospects.deadline), (after, changed.deadline)):
        count[np.isinf(deadline)] = np.nan
    shown = np.flatnonzero(~(np.isnan(before) & np.isnan(after))).tolist()
    return Chances(
        [prospects.names[k] for k in shown],
        [float(before[k] / played) for k in shown],
        [float(after[k] / played) for k in shown],
        [bool(prospects.known[k]) for k in shown],
        played,
        changed.assumed(),
    )


def draws(prospects: Prospects) -> Iterator[FloatArray]:
    """Yield draws of the seconds of work that each job has left, shape ``(n,)``: the same ones each time."""
    work = np.minimum(prospects.work, 1e15)  # unreachable targets have no end
    random = np.random.default_rng(0)
    while True:
        level = random.random(len(work))
        yield np.array([np.interp(u, LEVELS, row) for u, row in zip(level, work, strict=True)])


def finish(prospects: Prospects, needs: FloatArray) -> FloatArray:
    """Play one future; return when each job meets its target, scheduler time, shape ``(n,)``; inf for not in time.

    Args:
        prospects: Expectations of the scheduler.
        needs: Seconds of work that each job has left, shape ``(n,)``.
    """
    return _Future(prospects, needs).play()


class _Future:
    """A simulated future."""

    def __init__(self, prospects: Prospects, needs: FloatArray) -> None:
        n = len(needs)
        self._prospects, self._needs, self._now = prospects, needs, prospects.now
        self._done, self._finish = np.zeros(n), np.full(n, inf)
        finite = prospects.deadline[np.isfinite(prospects.deadline)]
        self._end = float(finite.max(initial=self._now))
        plans = PLANS_BY_OWNER if prospects.has_owners else PLANS
        self._few = max(n // plans, 1)
        self._soon = max((self._end - self._now) / plans, 1e-6)
        self._pool = prospects.begin(self._soon)

    def play(self) -> FloatArray:
        pool, changes, planned_at, wakes, freed = self._pool, self._few, self._now, inf, True
        while self._now < self._end and self._waits().any():
            if changes >= self._few or self._now >= min(planned_at + self._soon, wakes):
                pool.plan(self._now, self._done)
                changes, planned_at, freed = 0, self._now, True
                wakes = pool.wakes(self._now)
            if freed:
                pool.allocate(self._now, self._done)
            self._go_on(min(planned_at + self._soon, wakes, self._end))
            closed, freed = self._close()
            changes += closed
        return self._finish

    def _waits(self) -> BoolArray:
        """Return which jobs may still be in time."""
        waits: BoolArray = self._pool.active & ~self._pool.late & np.isfinite(self._prospects.deadline)
        return waits

    def _go_on(self, until: float) -> None:
        """Train until a job ends, a deadline passes, or a time."""
        rate = self._pool.rate
        serves = np.flatnonzero(rate)
        begins = np.maximum(self._pool.up_at, self._now)
        ends = begins[serves] + (self._needs[serves] - self._done[serves]) / rate[serves]
        due = self._prospects.deadline[self._waits()].min(initial=inf)
        then = max(min(float(ends.min(initial=inf)), float(due), until), self._now)
        self._done += rate * np.maximum(then - begins, 0.0)
        self._pool.train(then - self._now)
        self._now = then

    def _close(self) -> tuple[int, bool]:
        """End the jobs that have met their targets, and note those whose deadline has passed.

        Returns:
            How many, and whether devices are free again.
        """
        pool, freed = self._pool, False
        ended = np.flatnonzero((pool.rate > 0) & (self._done >= self._needs * (1 - 1e-9) - TINY)).tolist()
        for job in ended:
            self._finish[job], freed = self._now, True
            pool.end(job)
        missed = np.flatnonzero(self._waits() & (self._prospects.deadline <= self._now)).tolist()
        for job in missed:
            freed |= bool(pool.rate[job])
            pool.miss(job)
            if self._prospects.stops(job):
                pool.end(job)
        return len(ended) + len(missed), freed
