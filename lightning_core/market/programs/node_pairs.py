"""Backward induction over the pairs of spot and on-demand nodes that a job may hold, where launches cost time.

A state before an interval is the pair that was held in the one before, also where some of its spot nodes are no longer
on offer, the start-up still to come, and the progress; a decision is the next pair. Three things can happen, and each
has its own gain of progress:

    launch: some kind of node becomes more. The job starts anew on all of them, for ``launch`` intervals.
    stay:   the pair is the same. What start-up there was goes on.
    shrink: nodes were given back, or lost, and none launched. That costs ``1 - shrink_fraction``.

What a launch gains does not depend on what was held, so that the best launch is one maximum over all pairs; the best of
those that only give nodes back is a running maximum over both kinds. An interval takes O(pairs * cells).

Start-up that is still to come is counted in stages: stage 0 has none, and stage k has what is left ``K - k`` intervals
after a launch, where K is ``launch`` rounded up. For a launch of up to one interval, stage 0 is the only one.
"""

from __future__ import annotations

import math

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.market.spot_job import SpotJob, intervals_after, value_at


class NodePairs:
    """The pairs that a job may hold, and the cells of progress that each gains in an interval.

    Args:
        job: The job.
        unit: Work of a cell of progress.
        numbers: Numbers of nodes of each kind that are considered, ascending, from 0; all by default.

    Attributes:
        numbers: The same, shape ``(M,)``.
        total: Nodes of a pair, shape ``(M, M)``: spot nodes by row, on-demand nodes by column.
        allowed: Whether a pair may be held.
        stages: Stages of a start-up.
        waits: Start-up still to come before an interval in each stage, in intervals, shape ``(stages + 1,)``; the last
            is that of a launch.
    """

    def __init__(self, job: SpotJob, unit: float, numbers: IntArray | None = None) -> None:
        self.numbers = np.arange(job.max_nodes + 1) if numbers is None else numbers
        self.total = self.numbers[:, None] + self.numbers
        self.allowed: BoolArray = (self.total == 0) | ((self.total >= job.min_nodes) & (self.total <= job.max_nodes))
        self.stages = max(math.ceil(job.launch - 1e-9), 1)
        self.waits = np.maximum(job.launch - np.arange(self.stages, -1, -1), 0.0)
        totals = np.unique(self.total[self.allowed]).tolist()
        self._of_total = [np.nonzero(self.allowed & (self.total == total)) for total in totals]
        self._shrinks = 1.0 - job.shrink_fraction
        throughput = np.array(job.throughput) / unit
        self.work: FloatArray = throughput[np.minimum(self.total, job.max_nodes)]

    def gain(self, wait: float) -> FloatArray:
        """Return the cells that each pair gains in an interval with so much start-up to come, shape ``(M, M)``."""
        return max(1.0 - wait, 0.0) * self.work

    def costs(self, price: float, on_demand: float) -> FloatArray:
        """Return the cost of each pair for an interval, shape ``(M, M)``; inf where it may not be held."""
        cost = self.numbers[:, None] * price + self.numbers * on_demand
        return np.where(self.allowed, cost, math.inf)

    def shrunk(self, wait: float) -> float:
        """Return the start-up to come in an interval in which nodes were given back or lost and none launched."""
        return max(wait, self._shrinks)

    def stage_after(self, wait: float) -> int:
        """Return the stage after an interval with so much start-up to come."""
        return min(max(math.ceil(wait - 1e-9) - 1, 0), self.stages - 1)

    def end(self, job: SpotJob, left: FloatArray, on_demand: float) -> FloatArray:
        """Return the worth at the deadline, less the cost of what is then left (V~ of eq. 9).

        Args:
            job: The job.
            left: Work left, shape ``(cells,)``.
            on_demand: Price of an on-demand node.

        Returns:
            Shape ``(stages, M, M, cells)``.
        """
        worth = np.empty((self.stages, *self.total.shape, len(left)))
        for stage in range(self.stages):
            for column, number in enumerate(self.numbers.tolist()):
                wait = self.waits[stage] if number == job.max_nodes else job.launch
                late = intervals_after(left, job.throughput[-1], wait)
                value = value_at(job.deadline + late, job.deadline, job.value, job.grace)
                worth[stage, :, column] = value - late * job.max_nodes * on_demand
        return worth

    def step_back(self, after: FloatArray, cost: FloatArray) -> FloatArray:
        """Return the worth before an interval from the worth after it.

        Args:
            after: Worth by what is held in the interval, shape ``(..., stages, M, M, cells)``. The last cell is that of
                a job that is done.
            cost: Cost of each pair, shape ``(..., M, M)``; inf where it cannot be had.

        Returns:
            Worth by what was held before it, of the same shape.
        """
        before = np.empty_like(after)
        top = self.stages - 1
        launched = self._moved(after[..., top, :, :, :], self.gain(self.waits[-1]), cost).max(axis=(-3, -2))
        for stage in range(self.stages):
            then = after[..., max(stage - 1, 0), :, :, :]
            wait = self.waits[stage]
            best = stays = self._moved(then, self.gain(wait), cost)
            if self.shrunk(wait) > wait:
                best = self._moved(then, self.gain(self.shrunk(wait)), cost)
            for n in range(1, len(self.numbers)):  # the best of all pairs with no more nodes of either kind
                np.maximum(best[..., n, :, :], best[..., n - 1, :, :], out=best[..., n, :, :])
            for n in range(1, len(self.numbers)):
                np.maximum(best[..., n, :], best[..., n - 1, :], out=best[..., n, :])
            if best is not stays:
                np.maximum(best, stays, out=best)
            before[..., stage, :, :, :] = np.maximum(best, launched[..., None, None, :], out=best)
        return before

    def launches(self, spot: int, on_demand: int) -> BoolArray:
        """Return whether each pair launches nodes beside so many that are held, shape ``(M, M)``."""
        return (self.numbers[:, None] > spot) | (self.numbers > on_demand)

    def action_values(
        self, after: FloatArray, cost: FloatArray, spot: int, on_demand: int, wait: float, cell: float
    ) -> FloatArray:
        """Return the worth of holding each pair in an interval, shape ``(M, M)``.

        Args:
            after: Worth by what is held in the interval, shape ``(stages, M, M, cells)``.
            cost: Cost of each pair, shape ``(M, M)``; inf where it cannot be had.
            spot: Spot nodes held, and ``on_demand`` those of the other kind: any numbers.
            on_demand: See there.
            wait: Start-up still to come, in intervals.
            cell: Progress, in cells.
        """
        launches, less = self.launches(spot, on_demand), self.total < spot + on_demand
        waits = np.where(launches, self.waits[-1], np.where(less, max(wait, self._shrinks), wait))
        stage = np.clip(np.ceil(waits - 1e-9).astype(np.int64) - 1, 0, self.stages - 1)
        at = cell + np.maximum(1.0 - waits, 0.0) * self.work
        last = after.shape[-1] - 1
        below = np.minimum(np.floor(at + 1e-9).astype(np.int64), last)
        part = np.clip(at - below, 0.0, 1.0)
        row, column = np.indices(self.total.shape)
        low, high = (after[stage, row, column, np.minimum(below + more, last)] for more in (0, 1))
        worth: FloatArray = (1.0 - part) * low + part * high - cost
        return worth

    def _moved(self, after: FloatArray, gains: FloatArray, cost: FloatArray) -> FloatArray:
        """Return ``after`` shifted by the cells that each pair gains, less its cost; between two cells it is linear."""
        moved = np.empty_like(after)
        moved[..., ~self.allowed, :] = -math.inf
        for rows, columns in self._of_total:  # they gain the same
            gain = float(gains[rows[0], columns[0]])
            whole = math.floor(gain + 1e-9)
            part, source = gain - whole, after[..., rows, columns, :]
            target = _shifted(source, whole)
            if part > 1e-9:
                target = (1.0 - part) * target + part * _shifted(source, whole + 1)
            moved[..., rows, columns, :] = target - cost[..., rows, columns, None]
        return moved


def _shifted(worth: FloatArray, cells: int) -> FloatArray:
    """Return the worth by the cell from which so many are gained; beyond the last cell there is none."""
    if cells == 0:
        return worth
    shifted = np.empty_like(worth)
    inside = max(worth.shape[-1] - cells, 0)
    shifted[..., :inside] = worth[..., cells:]
    shifted[..., inside:] = worth[..., -1:]
    return shifted
