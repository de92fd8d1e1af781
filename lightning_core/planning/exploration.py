"""LARA's exploration: every job trains until its curve has shown enough to be judged.

Liu et al., "Learning with Adaptive Resource Allocation", ICML 2024, section 4.1 and Algorithm 2.
"""

from __future__ import annotations

import numpy as np

from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.planning.sequencing import side_by_side

# Batches per cell of the exploration threshold after which a job counts as explored, whatever it has shown.
MAX_BATCHES_PER_CELL = 100


class Exploration:
    """Equal shares for the jobs that have shown too little, and nothing for the others meanwhile.

    Args:
        cells: Loss cells that a job must show before it is judged (the exploration threshold H).

    Raises:
        ValueError: If ``cells`` is negative.
    """

    def __init__(self, cells: int) -> None:
        if cells < 0:
            raise ValueError(f"explore must be at least 0 cells, got {cells}")
        self.cells = cells

    def plan(self, jobs: JobView, now: float) -> Plan | None:
        """Return the plan while some job is unexplored, None once all are explored."""
        # A job without a measured throughput or a forecast cannot be judged, whatever the threshold. But a job that has
        # trained for its batches without a usable loss must not block the others: it is judged as it is.
        unseen = np.isnan(jobs.work) | (~jobs.exact & (jobs.cells < self.cells))
        unexplored = unseen & (jobs.batches <= MAX_BATCHES_PER_CELL * max(self.cells, 1))
        if not unexplored.any():
            return None
        plan = side_by_side(jobs, np.flatnonzero(unexplored), now, "explore")
        plan.codes[~unexplored] = plan.waiting[~unexplored] = index("explored")
        plan.numbers[:, 0] = jobs.cells
        plan.numbers[:, 1] = self.cells
        return plan
