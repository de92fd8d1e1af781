"""The rows of a job view and of a plan as objects, for policies that plan each job by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import LEVELS
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.core.speedup import SpeedUp
from lightning_core.planning.ramp import KNOWN_AFTER
from lightning_core.planning.reservations import Demand


class JobRow(NamedTuple):
    """A row of a :class:`~lightning_core.core.plans.JobView`.

    Attributes:
        left: Batches left, as of the last report or by forecast; NaN while unknown.
    """

    row: int
    speedup: SpeedUp
    deadline: float
    submitted: float
    batches: int
    left: float
    exact: bool
    reported_at: float
    held_devices: float
    trained_since: float
    resize_seconds: float
    fixed_size: int
    acknowledged: bool
    continues_late: bool
    weight: float

    @property
    def tried(self) -> bool:
        """Whether its throughput has been measured for long enough to plan with."""
        return self.speedup.seconds >= KNOWN_AFTER

    @property
    def on_its_way(self) -> bool:
        """Whether it was granted other devices and has not reported since."""
        return self.held_devices > 0 and self.batches > 0 and self.reported_at <= self.trained_since


def job_rows(jobs: JobView, level: float) -> list[JobRow]:
    """Return the rows of a view for a policy that chooses sizes; forecast work is taken at the quantile ``level``."""
    forecast = jobs.quantiles[:, int(np.searchsorted(LEVELS, level))] * jobs.throughput
    left = np.where(jobs.exact, jobs.remaining, forecast)
    columns = (
        jobs.row, jobs.speedup, jobs.deadline, jobs.submitted, jobs.batches, left, jobs.exact, jobs.reported_at,
        jobs.held_devices, jobs.trained_since, jobs.resize_seconds, jobs.fixed_size, jobs.acknowledged,
        jobs.continues_late, jobs.weight,
    )  # fmt: skip
    return [JobRow(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


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
