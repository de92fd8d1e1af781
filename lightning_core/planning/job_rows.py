"""The rows of a job view as objects, for policies that plan each job by itself."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import LEVELS
from lightning_core.core.plans import JobView
from lightning_core.core.speedup import SpeedUp
from lightning_core.planning.ramp import KNOWN_AFTER


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
