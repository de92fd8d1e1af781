"""Round robin: each job in turn, for a fixed time."""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import BoolArray, renumbered
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.core.saved_state import Stateful


class RoundRobin(Stateful):
    """Each job in turn has whole devices for a fixed time (LaiRA's Round Robin).

    As many jobs as fit the pool have their turn at once, in the order of submission, cyclically. A turn ends early when
    all of its jobs have ended. Turns end at rounds of the scheduler, so its period should be shorter.

    Args:
        quantum: Seconds of a turn.

    Raises:
        ValueError: If ``quantum`` is not positive and finite.
    """

    STATE = ("_turn", "_ends")

    def __init__(self, quantum: float = 5.0) -> None:
        if not 0 < quantum < np.inf:
            raise ValueError(f"quantum must be positive and finite, got {quantum}")
        self.quantum = quantum
        # Rows of the jobs whose turn it is, in their order; halfway between two rows stood a job that is over.
        self._turn: tuple[float, ...] = ()
        self._ends = -np.inf

    def keep(self, stays: BoolArray) -> None:
        self._turn = tuple(renumbered(row, stays) for row in self._turn)

    def plan(self, jobs: JobView, now: float) -> Plan:
        n = len(jobs)
        if now >= self._ends or not np.isin(jobs.row, self._turn).any():
            after = np.searchsorted(jobs.row, self._turn[-1], side="right") if self._turn else 0
            rows = np.roll(np.arange(n), -int(after))
            fit = max(int(np.searchsorted(np.cumsum(jobs.size[rows]), jobs.devices, side="right")), 1)
            self._turn = tuple(jobs.row[rows[:fit]].tolist())
            self._ends = now + self.quantum
        rows = np.roll(np.arange(n), -int(np.searchsorted(jobs.row, self._turn[0])))
        has_turn = np.isin(jobs.row[rows], self._turn)
        order = rows[np.argsort(~has_turn, kind="stable")]  # jobs submitted since then wait for the next turn
        numbers = np.zeros((n, 2))
        numbers[order, 0] = np.arange(n)
        rounds = max(float(jobs.size.sum()) / jobs.devices, 1.0)
        return Plan(
            order=order,
            share=np.ones(n),
            finish=now + jobs.work * rounds,
            codes=np.full(n, index("its_turn")),
            waiting=np.full(n, index("not_its_turn")),
            numbers=numbers,
        )
