"""TODO."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.market.job_batch import JobBatch
from lightning_core.market.spot_job import SpotJob

if TYPE_CHECKING:
    pass


# Units of work that are tried for a grid, as parts of what one instance does; and how fine one is that is not exact.
UNITS = (1.0, 0.5, 0.25, 0.2, 0.1, 0.05, 0.025, 0.02, 0.01)


CELLS = 1000


# Jobs that are looked at together, and numbers in a table of theirs: it stays in the processor's cache.
TOGETHER = 64


NUMBERS = 1_000_000


class Group(NamedTuple):
    """Jobs that are equally fast and have the same deadline.

    Args:
        rows: of their batch.
        deadline: theirs.
        unit: of progress.
        same: cells that so many instances come on in an interval, shape ``(N + 1,)``.
        up: the same, in the interval in which their number has grown.
        down: the same, in the interval in which it has shrunk.
    """

    rows: IntArray
    deadline: int
    unit: float
    same: IntArray
    up: IntArray
    down: IntArray

    def gains(self, held: IntArray) -> IntArray:
        """Cells that 0, 1, .. instances come on, by the number before, shape ``(n, N + 1)``."""
        number, held = np.arange(len(self.same)), held[:, None]
        return np.where(number > held, self.up, np.where(number < held, self.down, self.same))

    def cell(self, progress: FloatArray) -> IntArray:
        """The cell in which so much progress lies."""
        cells: IntArray = np.floor(progress / self.unit + 1e-6).astype(np.int64)
        return cells


def exact_grid(throughput: FloatArray, up: float, down: float) -> float | None:
    """A unit of which every interval's work is a multiple; None if there is none that is not too fine.

    Args:
        throughput: work of 0, 1, .. instances in an interval, shape ``(N + 1,)``.
        up: part of an interval that is left if their number grows.
        down: part that is left if it shrinks.
    """
    gains = np.concatenate([throughput, up * throughput, down * throughput])
    for unit in UNITS:
        cells = gains / unit
        if np.abs(cells - np.round(cells)).max() < 1e-6 and cells.max() <= 4 * CELLS:
            return unit
    return None


def grid_of(throughput: FloatArray, up: float, down: float) -> float:
    """The unit of :func:`exact_grid`; if there is none, a fine one."""
    exact = exact_grid(throughput, up, down)
    return float(throughput.max()) / CELLS if exact is None else exact


def groups_of(batch: JobBatch) -> list[Group]:
    """The jobs of a batch by speed and deadline, a few at a time."""
    found: dict[tuple[float, ...], list[int]] = {}
    for row, job in enumerate(batch.jobs):
        found.setdefault((*job.throughput, job.growth_fraction, job.shrink_fraction, job.deadline), []).append(row)
    groups = []
    for rows in found.values():
        one = group_of(batch.jobs[rows[0]])
        max_nodes = max(min(batch.work[rows].max() / one.unit, one.deadline * int(one.same[-1])), 1)
        some = int(np.clip(NUMBERS / (len(one.same) * max_nodes), 1, TOGETHER))
        groups += [one._replace(rows=np.array(rows[at : at + some])) for at in range(0, len(rows), some)]
    return groups


def group_of(job: SpotJob, unit: float | None = None) -> Group:
    """A job on its grid.

    Args:
        job: the job.
        unit: of progress, if it is not to be the finest that is needed: what an interval does is then rounded.
    """
    throughput = np.array(job.throughput)
    unit, rounded = (unit, 0.5) if unit else (grid_of(throughput, job.growth_fraction, job.shrink_fraction), 1e-6)
    cells = (
        np.floor(part * throughput / unit + rounded).astype(np.int64)
        for part in (1.0, job.growth_fraction, job.shrink_fraction)
    )
    return Group(np.zeros(1, np.int64), job.deadline, unit, *cells)
