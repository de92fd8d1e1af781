"""Grids of progress for dynamic programming: jobs of equal throughput and deadline share one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.spot_job import SpotJob

# Units of work to try for an exact grid, relative to the work of one node in an interval.
UNITS = (1.0, 0.5, 0.25, 0.2, 0.1, 0.05, 0.025, 0.02, 0.01)
# Cells of the fastest interval on a grid that is not exact.
CELLS = 1000
# Bounds of the jobs in a group and of the entries in its table, which should stay in the processor's cache.
MAX_GROUP_JOBS = 64
MAX_TABLE_ENTRIES = 1_000_000


class JobGroup(NamedTuple):
    """Jobs of equal throughput and deadlines.

    Attributes:
        rows: Their rows in the batch.
        deadline: Their deadline.
        due: Their soft deadline.
        unit: Unit of progress: one cell of the grid.
        same: Cells gained in an interval by the number of nodes, shape ``(N + 1,)``, if that is as before.
        up: The same if the number has grown.
        down: The same if it has shrunk.
        meanwhile: Cells gained on this many nodes while others are launched, shape ``(N + 1,)``.
    """

    rows: IntArray
    deadline: int
    due: int
    unit: float
    same: IntArray
    up: IntArray
    down: IntArray
    meanwhile: IntArray

    def gains(self, held: IntArray) -> IntArray:
        """Return the cells gained by 0, 1, .. nodes, given the number held before, shape ``(n, N + 1)``."""
        number, held = np.arange(len(self.same)), held[:, None]
        return np.where(number > held, self.up + self.meanwhile[held], np.where(number < held, self.down, self.same))

    def cell(self, progress: FloatArray) -> IntArray:
        """Return the cell of a progress."""
        cells: IntArray = np.floor(progress / self.unit + 1e-6).astype(np.int64)
        return cells


def exact_grid(throughput: FloatArray, *fractions: float) -> float | None:
    """Return a unit that divides the work of every interval; None if none is coarse enough.

    Args:
        throughput: Work of 0, 1, .. nodes in an interval, shape ``(N + 1,)``.
        fractions: Fractions of an interval that may be left for training, beside a whole one.
    """
    gains = np.concatenate([part * throughput for part in (1.0, *fractions)])
    for unit in UNITS:
        cells = gains / unit
        if np.abs(cells - np.round(cells)).max() < 1e-6 and cells.max() <= 4 * CELLS:
            return unit
    return None


def grid_of(throughput: FloatArray, *fractions: float) -> float:
    """Return the unit of :func:`exact_grid`, or a fine one if there is none."""
    exact = exact_grid(throughput, *fractions)
    return float(throughput.max()) / CELLS if exact is None else exact


def groups_of(batch: JobBatch) -> list[JobGroup]:
    """Return the jobs of a batch by throughput and deadline, a few at a time."""
    found: dict[tuple[float, ...], list[int]] = {}
    for row, job in enumerate(batch.jobs):
        terms = job.launch, job.overlap, job.shrink_time, job.deadline, job.due
        found.setdefault((*job.throughput, *terms), []).append(row)
    groups = []
    for rows in found.values():
        one = group_of(batch.jobs[rows[0]])
        max_nodes = max(min(batch.work[rows].max() / one.unit, one.deadline * int(one.same[-1])), 1)
        some = int(np.clip(MAX_TABLE_ENTRIES / (len(one.same) * max_nodes), 1, MAX_GROUP_JOBS))
        groups += [one._replace(rows=np.array(rows[at : at + some])) for at in range(0, len(rows), some)]
    return groups


def group_of(job: SpotJob, unit: float | None = None) -> JobGroup:
    """Return a job on its grid.

    Args:
        job: The job.
        unit: Unit of progress; None for the coarsest exact one. Another one rounds the work of an interval.
    """
    throughput = np.array(job.throughput)
    fractions = max(1.0 - job.launch, 0.0), 1.0 - job.shrink_time, job.overlap
    unit, rounded = (unit, 0.5) if unit else (grid_of(throughput, *fractions), 1e-6)
    cells = (np.floor(part * throughput / unit + rounded).astype(np.int64) for part in (1.0, *fractions))
    return JobGroup(np.zeros(1, np.int64), job.deadline, job.due, unit, *cells)
