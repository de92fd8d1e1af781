"""Plans of several groups of jobs as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.planning.best_effort import fewest


def joined(view: JobView, plans: Sequence[Plan], rows: Sequence[IntArray]) -> Plan:
    """Return the plans of all groups as one; its order has the jobs of one group after those of another.

    Args:
        view: All jobs.
        plans: The plan of each group.
        rows: The rows of each group in the view.
    """
    n = len(view)
    filled = {
        name for name in ("size", "capped", "yields", "kind") if any(getattr(one, name) is not None for one in plans)
    }
    whole = Plan(
        order=np.concatenate([its[one.order] for one, its in zip(plans, rows, strict=True)]),
        share=np.zeros(n),
        finish=np.full(n, np.nan),
        codes=np.zeros(n, np.int64),
        waiting=np.zeros(n, np.int64),
        numbers=np.zeros((n, 2)),
        work_conserving=all(one.work_conserving for one in plans),
        size=(fewest(view) if len(view.speedup) else view.size.copy()) if "size" in filled else None,
        capped=np.zeros(n, np.bool_) if "capped" in filled else None,
        yields=np.zeros(n, np.bool_) if "yields" in filled else None,
        replan_at=min(one.replan_at for one in plans),
        kind=np.full(n, -1) if "kind" in filled else None,
    )
    for one, its in zip(plans, rows, strict=True):
        for name in ("share", "finish", "codes", "waiting", "numbers", "size", "capped", "yields", "kind"):
            if (column := getattr(one, name)) is not None:
                getattr(whole, name)[its] = column
    return whole
