"""LARA's greedy baselines: after its exploration, whoever is nearest to the target first.

Liu et al., "Learning with Adaptive Resource Allocation", ICML 2024, section 5: Least Resources First and Easiest Thread
First. Both compare the work S_k that is still needed. As printed S_k is counted in data, which says nothing across
domains; here it is seconds.
"""

from __future__ import annotations

import numpy as np

from lightning_core.policies.exploring import Exploration
from lightning_core.policies.in_order import one_by_one
from lightning_core.reasons import index
from lightning_core.types import FloatArray, JobView, Plan


class LeastResourcesFirst:
    """Least work left first, counted in seconds times devices (LARA's Least Resources First), after an exploration.

    Args:
        explore: loss cells that a job must have shown before it is judged.

    Raises:
        ValueError: if it is negative.
    """

    estimator = "weighted"

    def __init__(self, explore: int = 10) -> None:
        self._exploration = Exploration(explore)

    def plan(self, jobs: JobView, now: float) -> Plan:
        needs = jobs.work * jobs.size
        return self._exploration.plan(jobs, now) or _least_first(jobs, needs, needs, now, "least_work", "more_work")


class EasiestFirst:
    """Least work for the time it has first (LARA's Easiest Thread First), after an exploration.

    The printed ratio is S_k / (d_k - b_k), with the time from begin to deadline; here it is the time that is left, as
    S_k is the work that is left.

    Args:
        explore: loss cells that a job must have shown before it is judged.

    Raises:
        ValueError: if it is negative.
    """

    estimator = "weighted"

    def __init__(self, explore: int = 10) -> None:
        self._exploration = Exploration(explore)

    def plan(self, jobs: JobView, now: float) -> Plan:
        slack = jobs.deadline - now
        part = jobs.work / np.where(slack > 0, slack, np.nan)
        return self._exploration.plan(jobs, now) or _least_first(jobs, part, jobs.work, now, "easiest", "harder")


def _least_first(jobs: JobView, key: FloatArray, needs: FloatArray, now: float, code: str, waiting: str) -> Plan:
    """One by one by ``key``; NaN comes last, ties by submission."""
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
