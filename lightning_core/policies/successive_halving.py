"""Successive halving: drop the worse half, again and again, until one job is left (a baseline of LaiRA).

Karnin, Koren and Somekh, "Almost Optimal Exploration in Multi-Armed Bandits", ICML 2013. It looks for the best single
run, while a pool should end as many jobs in time as possible.
"""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray, renumbered
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.core.saved_state import Stateful
from lightning_core.policies.round_robin import RoundRobin

# Maximum distance that a reason reports.
MAX_DISTANCE = 99.0


class SuccessiveHalving(Stateful):
    """Rounds of equal length, after each of which only the better half goes on (LaiRA's Successive Halving).

    Of K jobs there are ceil(log2 K) rounds, from the first plan to the latest deadline. In a round all jobs that are
    left take turns by round robin. At its end the better half stays, rounded up; the last job runs on. Better is
    closer to the
    target: the current loss over its goal, because losses of different data are not comparable; for a target in
        batches,
    all of them over those done. A job that has shown nothing is farthest. Ties: by deadline.

    A new job joins those that are left. When the rounds are over and new jobs have come, or when all jobs that were
    left have ended, all jobs start anew. On several devices the halving goes on until the rest fit the pool side by
    side.

    Args:
        quantum: Seconds of a turn.

    Raises:
        ValueError: If ``quantum`` is not positive and finite.
    """

    positive_losses = True
    STATE = ("_in_turn", "_out", "_newest", "_ends")

    def __init__(self, quantum: float = 5.0) -> None:
        self._in_turn = RoundRobin(quantum)
        self._out: IntArray = np.zeros(0, np.int64)  # rows of the dropped jobs
        self._newest: float = -1  # row of the last job that joined this bracket
        self._ends: list[float] = []  # ends of the remaining rounds, the next one last

    def keep(self, stays: BoolArray) -> None:
        self._in_turn.keep(stays)
        self._out = (np.cumsum(stays) - 1)[self._out[stays[self._out]]]
        self._newest = renumbered(self._newest, stays)

    def plan(self, jobs: JobView, now: float) -> Plan:
        left = ~np.isin(jobs.row, self._out)
        came = int(jobs.row[-1]) > self._newest
        if not left.any() or (came and not self._ends):
            left = self._begin(jobs, now)
        self._newest = int(jobs.row[-1])
        distance = distances(jobs)
        while self._ends and now >= self._ends[-1]:
            self._ends.pop()
            left = self._halve(jobs, left, distance)
        return self._shared_plan(jobs, left, distance, now)

    def _begin(self, jobs: JobView, now: float) -> BoolArray:
        """Set rounds of equal length up to the latest deadline."""
        self._out = np.zeros(0, np.int64)
        rounds = int(np.ceil(np.log2(max(float(jobs.size.sum()) / jobs.devices, 1.0))))
        horizon = float(jobs.deadline.max()) - now
        self._ends = [now + horizon * (k + 1) / rounds for k in reversed(range(rounds))]
        return np.ones(len(jobs), np.bool_)

    def _halve(self, jobs: JobView, left: BoolArray, distance: FloatArray) -> BoolArray:
        rows = np.flatnonzero(left)
        rows = rows[np.lexsort((jobs.deadline[rows], distance[rows]))]
        worse = rows[(len(rows) + 1) // 2 :]
        self._out = np.concatenate([self._out, jobs.row[worse]])
        left = left.copy()
        left[worse] = False
        return left

    def _shared_plan(self, jobs: JobView, left: BoolArray, distance: FloatArray, now: float) -> Plan:
        rows, dropped = np.flatnonzero(left), np.flatnonzero(~left)
        turns = self._in_turn.plan(jobs.only(rows), now)
        n = len(jobs)
        share, finish, numbers = np.zeros(n), np.full(n, np.inf), np.zeros((n, 2))
        codes, waiting = np.full(n, index("halved")), np.full(n, index("halved"))
        share[rows], finish[rows], numbers[rows] = turns.share, turns.finish, turns.numbers
        codes[rows], waiting[rows] = turns.codes, turns.waiting
        numbers[dropped, 0] = np.minimum(distance[dropped], MAX_DISTANCE)
        nearest_first = dropped[np.argsort(distance[dropped], kind="stable")]
        return Plan(np.concatenate([rows[turns.order], nearest_first]), share, finish, codes, waiting, numbers)


def distances(jobs: JobView) -> FloatArray:
    """Return the factor by which each job is away from its target, shape ``(n,)``; inf where unknown.

    A loss of 0.8 with a goal of 0.4 is at 2, and so is a job that has done half of its batches.
    """
    done = np.maximum(jobs.batches, 1).astype(np.float64)
    with np.errstate(over="ignore"):  # a factor that no float can hold is infinite
        distance = np.where(jobs.exact, jobs.remaining / done + 1.0, jobs.loss / jobs.goal)
    distance[np.isnan(distance)] = np.inf
    return distance
