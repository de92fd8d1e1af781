"""LARA's exploration: every job trains until its curve has shown enough to be judged.

Wang, Yu, Zhao and Zhou, "Learning with Adaptive Resource Allocation", ICML 2024, section 3.3: the set E_tau of
Algorithm 2, lines 5 to 8. The paper counts its threshold H in data; a batch of one job is not a batch of another, so
loss cells are the default.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lightning_core.core.arrays import BoolArray, IntArray
from lightning_core.core.limits import shown
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.planning.sequencing import side_by_side

# Batches per cell of the exploration threshold for which a job holds up the others, whatever it has shown.
MAX_BATCHES_PER_CELL = 100


def may_show_more(jobs: JobView, cells: int) -> BoolArray:
    """Return which jobs are worth waiting for, shape ``(n,)``.

    One that has shown fewer losses than the threshold, usable or not, will show more: a validation loss may come once
    in thousands of batches. One that has shown none may never do so, and is waited for only for some batches.

    Args:
        jobs: All jobs.
        cells: Exploration threshold.
    """
    limit = max(cells, 1)
    more: BoolArray = (jobs.batches <= MAX_BATCHES_PER_CELL * limit) | ((jobs.shown > 0) & (jobs.shown < limit))
    return more


def has_shown_nothing(jobs: JobView) -> BoolArray:
    """Return which jobs have shown no loss at all, usable or not, shape ``(n,)``; they may still do so."""
    nothing: BoolArray = ~jobs.exact & (jobs.shown == 0)
    return nothing


class Exploration:
    """Equal shares for the jobs that have shown too little, and nothing for the others meanwhile.

    Args:
        cells: Loss cells that a job must show before it is judged (the exploration threshold H).
        batches: Batches that it must have trained before, unless its work is known (H as printed); or by the name of a
            job (H_k), 0 for jobs that are not named.

    Raises:
        ValueError: If a number is negative or, of a job, not whole.
    """

    def __init__(self, cells: int, batches: int | Mapping[str, int] = 0) -> None:
        if cells < 0:
            raise ValueError(f"explore must be at least 0 cells, got {cells}")
        if not isinstance(batches, int | Mapping):
            raise ValueError(f"explore_batches must be a number of batches, or one for each job, got {shown(batches)}")
        for where, number in {"": batches}.items() if isinstance(batches, int) else batches.items():
            of_job = f" of job {shown(where)}" if where else ""
            if not isinstance(number, int) or number < 0:
                raise ValueError(f"explore_batches{of_job} must be at least 0 batches, got {shown(number)}")
        self.cells, self.batches = cells, batches

    def plan(self, jobs: JobView, now: float) -> Plan | None:
        """Return the plan while some job is unexplored, None once all are explored."""
        # A job without a measured throughput or a forecast cannot be judged, whatever the threshold. But a job that has
        # shown all those losses without a usable one must not block the others: it is judged as it is.
        unseen = np.isnan(jobs.work) | (~jobs.exact & (jobs.cells < self.cells))
        unexplored = unseen & may_show_more(jobs, self.cells)
        needed = self._batches(jobs)
        short = ~jobs.exact & (jobs.batches < needed)
        unexplored |= short
        if not unexplored.any():
            return None
        plan = side_by_side(jobs, np.flatnonzero(unexplored), now, "explore")
        plan.codes[~unexplored] = plan.waiting[~unexplored] = index("explored")
        plan.numbers[:, 0] = jobs.cells
        plan.numbers[:, 1] = self.cells
        plan.codes[short] = plan.waiting[short] = index("explore_batches")
        plan.numbers[short, 0], plan.numbers[short, 1] = jobs.batches[short], needed[short]
        return plan

    def _batches(self, jobs: JobView) -> IntArray:
        """Return the batches that each job must have trained before it is judged, shape ``(n,)``."""
        if isinstance(self.batches, int):
            return np.full(len(jobs), self.batches)
        return np.array([self.batches.get(name, 0) for name in jobs.name], np.int64)
