"""The rows of a plan as objects, for policies that plan each job by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.planning.job_rows import JobRow
from lightning_core.planning.reservations import Demand


@dataclass(slots=True)
class PlanRow:
    """What is planned for one job."""

    rank: int  # 0: served now, 1: planned for later or behind, 2: gets what is left
    share: float
    size: int
    finish: float
    code: str
    numbers: tuple[float, float] = (0.0, 0.0)


def make_plan(
    jobs: JobView,
    rows: Sequence[JobRow],
    demands: Sequence[Demand | None],
    plan_rows: Sequence[PlanRow],
    again: float,
) -> Plan:
    """Return the plan that consists of these rows.

    Args:
        jobs: The jobs as the policy sees them.
        rows: Each job by itself.
        demands: Demand of each job; None for a job without one.
        plan_rows: What is planned for each job.
        again: Scheduler time at which the policy wants to be asked again.
    """

    def rank(row: int) -> tuple[int, int, float, int]:
        """Serve jobs that keep their devices first and jobs that grow last, so that no job moves for another."""
        job, need, planned = rows[row], demands[row], plan_rows[row]
        more = planned.share * planned.size - job.held_devices
        end = job.deadline if need is None else need.end
        return planned.rank, 0 if jobs.quantum < 1.0 or not more else 1 if more < 0 else 2, end, row

    served = np.array([planned.rank == 0 for planned in plan_rows])
    codes = np.array([index(planned.code) for planned in plan_rows])
    share = np.array([planned.share for planned in plan_rows])
    return Plan(
        order=np.array(sorted(range(len(rows)), key=rank)),
        share=share,
        finish=np.array([planned.finish for planned in plan_rows]),
        codes=codes,
        waiting=np.where(served, index("no_room"), codes),
        numbers=np.array([planned.numbers for planned in plan_rows]),
        work_conserving=False,
        size=np.array([planned.size for planned in plan_rows], np.int64),
        capped=(share < 1.0) & served,
        replan_at=again,
    )
