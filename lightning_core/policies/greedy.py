"""LARA's greedy baselines: after exploration, the job closest to its target first.

Wang, Yu, Zhao and Zhou, "Learning with Adaptive Resource Allocation", ICML 2024, section 4.1: Least Resources First and
Easiest Thread First. Both compare the work S_k that is still needed. The paper counts S_k in data; but a batch of one
job is not a batch of another, so seconds are the default.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, kept
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.core.saved_state import Stateful
from lightning_core.planning.exploration import Exploration
from lightning_core.planning.sequencing import one_by_one

Count = Literal["seconds", "data"]


class LeastResourcesFirst(Stateful):
    """Least work left first (LARA's Least Resources First), after an exploration.

    Args:
        explore: Loss cells that a job must show before it is judged.
        count: Unit of the work: ``"seconds"`` times devices, or ``"data"``, batches, as printed.

    Raises:
        ValueError: If an argument is out of its range.
    """

    estimator = "weighted"

    def __init__(self, explore: int = 10, count: Count = "seconds") -> None:
        self._exploration = Exploration(explore)
        self.count = _checked(count)

    def plan(self, jobs: JobView, now: float) -> Plan:
        needs = jobs.work * jobs.size
        key = needs if self.count == "seconds" else jobs.remaining
        return self._exploration.plan(jobs, now) or _smallest_first(jobs, key, needs, now, "least_work", "more_work")


class EasiestFirst(Stateful):
    """Least work relative to its total time first (LARA's Easiest Thread First), after an exploration.

    That time, d_k - b_k, runs from the job's first plan to its deadline.

    Args:
        explore: Loss cells that a job must show before it is judged.
        count: Unit of the work: ``"seconds"``, or ``"data"``, batches, as printed.

    Raises:
        ValueError: If an argument is out of its range.
    """

    estimator = "weighted"
    STATE = ("_began",)

    def __init__(self, explore: int = 10, count: Count = "seconds") -> None:
        self._exploration = Exploration(explore)
        self.count = _checked(count)
        self._began = np.zeros(0)  # by row

    def keep(self, stays: BoolArray) -> None:
        self._began = kept(self._began, stays)

    def plan(self, jobs: JobView, now: float) -> Plan:
        new = int(jobs.row.max()) + 1 - len(self._began)
        if new > 0:
            self._began = np.concatenate([self._began, np.full(new, np.nan)])
        began = self._began[jobs.row]
        self._began[jobs.row] = began = np.where(np.isnan(began), now, began)
        time = np.maximum(jobs.deadline - began, 1e-9)
        ratio = (jobs.work if self.count == "seconds" else jobs.remaining) / time
        return self._exploration.plan(jobs, now) or _smallest_first(jobs, ratio, jobs.work, now, "easiest", "harder")


def _checked(count: Count) -> Count:
    if count not in get_args(Count):
        raise ValueError(f"count must be one of {', '.join(get_args(Count))}, got {count!r}")
    return count


def _smallest_first(jobs: JobView, key: FloatArray, needs: FloatArray, now: float, code: str, waiting: str) -> Plan:
    """Return a plan of one job after another by ``key``, smallest first; NaN comes last, ties by submission."""
    plan = one_by_one(jobs, np.argsort(key, kind="stable"), now)
    plan.codes[:] = index(code)
    plan.waiting[:] = index(waiting)
    plan.numbers[:, 0] = needs
    plan.numbers[:, 1] = jobs.deadline - now
    hopeless = ~np.isfinite(jobs.work)
    plan.codes[hopeless] = index("first_in_line")
    plan.waiting[hopeless] = index("not_falling")
    plan.numbers[hopeless] = 0.0
    return plan
