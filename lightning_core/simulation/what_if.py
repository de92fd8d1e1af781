"""Who would make it, as things are and after a change: the share of simulated futures in which each job is in time.

A future draws how much work each job has left from its forecast, and lets the pool's own policy plan it: at first,
whenever a part of the jobs has ended, and from time to time. Between two plans a device that becomes free goes to the
next job in the order of the last one. The same draws are played with the change and without it, so that what differs is
the change's doing.

What it leaves out: the seconds that a start or a move takes, faults, memory, jobs that are yet to come, and that
forecasts become better with time. Pools on which a market, a plan or a calendar decides, or in which owners have shares
of their own, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import LEVELS, BoolArray, FloatArray
from lightning_core.scheduler.asking.prospects import Asks, Prospects
from lightning_core.scheduler.settings import Settings

# Plans of a future: one whenever a part of the jobs has ended or a part of the time is over.
PLANS = 8
MAX_CHANGED_DEVICES = 4096
# Seconds of work that count as done: times of old pools are no more exact.
TINY = 1e-6


class Change(NamedTuple):
    """Something that a person thinks of changing."""

    job: str = ""
    """Name of the job that is to have another deadline; empty for none."""
    deadline: float = inf
    """Its deadline in scheduler time; inf for none."""
    devices: int | None = None
    """Number of devices of the pool; None to leave it."""

    def apply(self, prospects: Prospects) -> Prospects:
        """Return the prospects after the change.

        Raises:
            KeyError: If there is no such job that has not ended.
            ValueError: If the number of devices is out of range.
        """
        if self.devices is not None:
            if not 1 <= self.devices <= MAX_CHANGED_DEVICES:
                raise ValueError(f"devices must be 1 to {MAX_CHANGED_DEVICES}, got {self.devices}")
            prospects = prospects.with_devices(self.devices)
        return prospects.with_deadline(self.job, self.deadline) if self.job else prospects


@dataclass(frozen=True)
class Chances:
    """In how many futures each job is in time."""

    names: list[str]
    """Name of each job with a deadline, before or after the change."""
    before: list[float]
    """Fraction of the futures in which it is in time as things are; NaN for a job without a deadline."""
    after: list[float]
    """The same after the change."""
    known: list[bool]
    """Whether anything is known of its work yet."""
    futures: int
    """Number of futures."""


def refusal(settings: Settings) -> str:
    """Return why the futures of a pool cannot be simulated here; empty if they can."""
    if settings.controllers:
        return f"what decides on this pool beside its policy ({', '.join(settings.controllers)}) is not simulated here"
    return "shares of owners are not simulated here" if settings.owners else ""


def chances(prospects: Prospects, change: Change, goes_on: Callable[[int], bool]) -> Chances:
    """Return in how many futures each job is in time, before a change and after it.

    Args:
        prospects: What the scheduler expects.
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
        before += finish(prospects, needs) <= prospects.deadline
        after += finish(changed, needs) <= changed.deadline
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
    )


def draws(prospects: Prospects) -> Iterator[FloatArray]:
    """Yield draws of the seconds of work that each job has left, shape ``(n,)``: the same ones each time."""
    work = np.minimum(prospects.work, 1e15)  # what is never reached has no end
    random = np.random.default_rng(0)
    while True:
        level = random.random(len(work))
        yield np.array([np.interp(u, LEVELS, row) for u, row in zip(level, work, strict=True)])


def finish(prospects: Prospects, needs: FloatArray) -> FloatArray:
    """Play one future; return when each job meets its target, scheduler time, shape ``(n,)``; inf for not in time.

    Args:
        prospects: What the scheduler expects.
        needs: Seconds of work that each job has left, shape ``(n,)``.
    """
    return _Future(prospects, needs).play()


class _Future:
    """One future as it goes on."""

    def __init__(self, prospects: Prospects, needs: FloatArray) -> None:
        n = len(needs)
        self._prospects, self._needs, self._policy = prospects, needs, prospects.begin()
        self._now = prospects.now
        self._done, self._finish = np.zeros(n), np.full(n, inf)
        self._active: BoolArray = np.ones(n, np.bool_)
        self._late = prospects.late()
        finite = prospects.deadline[np.isfinite(prospects.deadline)]
        self._end = float(finite.max(initial=self._now))
        self._few = max(n // PLANS, 1)
        self._soon = max((self._end - self._now) / PLANS, 1e-6)

    def play(self) -> FloatArray:
        asks, changes, planned_at = list[Asks](), self._few, self._now
        while self._now < self._end and self._waits().any():
            if changes >= self._few or self._now >= planned_at + self._soon:
                asks = self._prospects.plan(self._policy, self._now, self._done, self._active, self._late)
                changes, planned_at = 0, self._now
            serves = self._dispatch(asks)
            self._go_on(serves, min(planned_at + self._soon, self._end))
            changes += self._close(serves)
        return self._finish

    def _waits(self) -> BoolArray:
        """Return which jobs may still be in time."""
        waits: BoolArray = self._active & ~self._late & np.isfinite(self._prospects.deadline)
        return waits

    def _dispatch(self, asks: list[Asks]) -> dict[int, float]:
        """Return how fast each job that trains does its work, in seconds of work per second."""
        free, serves = float(self._prospects.devices), dict[int, float]()
        for job, share, size, throughput in asks:
            if free < 1e-9:
                break
            wants = share * size
            if not self._active[job] or (size > 1 and wants > free + 1e-9):
                continue
            given = min(wants, free)
            serves[job] = throughput * given / size
            free -= given
        return serves

    def _go_on(self, serves: dict[int, float], until: float) -> None:
        """Train until a job ends, a deadline passes, or a time."""
        ends = min((self._now + (self._needs[job] - self._done[job]) / rate for job, rate in serves.items()),
                   default=inf)  # fmt: skip
        due = self._prospects.deadline[self._waits()].min(initial=inf)
        then = max(min(ends, due, until), self._now)
        for job, rate in serves.items():
            self._done[job] += rate * (then - self._now)
        self._now = then

    def _close(self, serves: dict[int, float]) -> int:
        """End the jobs that have met their targets, and note those whose deadline has passed; return how many."""
        ended = [job for job in serves if self._done[job] >= self._needs[job] * (1 - 1e-9) - TINY]
        for job in ended:
            self._active[job], self._finish[job] = False, self._now
        missed = np.flatnonzero(self._waits() & (self._prospects.deadline <= self._now)).tolist()
        for job in missed:
            self._late[job] = True
            self._active[job] = not self._prospects.stops(job)
        return len(ended) + len(missed)
