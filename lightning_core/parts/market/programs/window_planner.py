"""Exact plans for a few intervals by dynamic programming, for all jobs of a batch and any progress at once.

For a given number of nodes the cheapest split is spot first where spot is cheaper, and the cost of a change depends on
the number before. So a state is (interval, progress, number), and a decision is the next number. Progress lies on a
grid that contains the work of every interval, if there is one (:mod:`.progress_grid`); else it is rounded down to a
fine one.

    f_t(Z, m) = max over n of  f_{t+1}(Z + mu(n, m) H(n), n) - cost_t(n)

``mu`` depends only on whether n is above m, equal or below. Where a job continues to train while more nodes are
launched, its gain on m nodes meanwhile is added; windows bill whole intervals. After its soft deadline a job that is
not done is charged in each interval the value that it loses in it. With running maxima over larger and over smaller n,
an interval takes O(grid * nodes) for each job. Only progress that a job can still have is evaluated, and windows that
end in the same interval share a table. The same recursion over all intervals to the deadline, with the recorded prices,
is the offline optimum (:mod:`.optimum`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.programs.progress_grid import JobGroup, groups_of
from lightning_core.parts.market.spot_job import EXACT, intervals_after, value_at

if TYPE_CHECKING:
    from lightning_core.parts.market.observation import Observation, SpotForecast


End = Literal["target", "literal", "rollout"]
"""Worth of a window by the progress at its end.

``"target"``: as if the gap to even progress were missing at the deadline. ``"literal"``: all work left is missing there
(eq. 10 as printed). ``"rollout"``: all work left is done at once on as many on-demand nodes as the job can use.
"""


class Table(NamedTuple):
    """Worth of a window from each of its intervals on.

    Attributes:
        group: Jobs of the table.
        first, last: Lowest and highest progress of each job that it covers, in cells, shape ``(jobs,)``.
        worth: Worth after each interval of the window, arrays of shape ``(N + 1, jobs, cells)``, by the number of
            nodes held in it.
        cost: Cost by interval, job and number of nodes, shape ``(intervals, jobs, N + 1)``; inf where not allowed.
    """

    group: JobGroup
    first: IntArray
    last: IntArray
    worth: list[FloatArray]
    cost: FloatArray

    def cell(self, progress: FloatArray) -> IntArray:
        """Return the column of a progress, shape ``(jobs,)``."""
        cell: IntArray = np.minimum(self.group.cell(progress) - self.first, self.worth[0].shape[2] - 1)
        return cell

    def has(self, progress: FloatArray) -> bool:
        """Return whether the table covers a progress."""
        cell = self.group.cell(progress)
        return bool(((cell >= self.first) & (cell <= self.last)).all())

    def action_values(self, interval: int, cell: IntArray, held: IntArray) -> tuple[FloatArray, IntArray]:
        """Return the value of holding 0, 1, .. nodes in an interval of the window, and the cells that this leads to.

        Args:
            interval: Interval of the window, from 0.
            cell: Cell of each job, shape ``(jobs,)``.
            held: Nodes of each in the interval before.

        Returns:
            Two arrays of shape ``(jobs, N + 1)``.
        """
        number, jobs = np.arange(len(self.group.same)), np.arange(len(cell))[:, None]
        after = self.worth[interval]
        then = np.minimum(cell[:, None] + self.group.gains(held), after.shape[2] - 1)
        return after[number, jobs, then] - self.cost[interval], then


class WindowPlanner:
    """Plans windows of forecasts. Policies that share one share its tables, which are kept for one interval.

    Args:
        end: Worth of a window at its end.
    """

    def __init__(self, end: End = "target") -> None:
        self.end = end
        self._batch: JobBatch | None = None
        self._forecast: SpotForecast | None = None
        self._groups: list[JobGroup] = []
        self._tables: dict[tuple[int, int], Table] = {}

    def plan(self, observation: Observation, horizon: int, steps: int) -> tuple[IntArray, IntArray]:
        """Return the first steps of the best plan of each job.

        Args:
            observation: The interval, with forecasts of at least ``horizon`` intervals.
            horizon: Intervals of the window after this one.
            steps: Steps to return, at most ``horizon + 1``.

        Returns:
            Spot and on-demand nodes, each of shape ``(B, steps)``; 0 after a deadline.
        """
        totals = np.zeros((len(observation.batch), steps), np.int64)
        for table in self._tables_of(observation, horizon):
            planned = _walk(table, observation, min(steps, len(table.cost)))
            totals[table.group.rows, : planned.shape[1]] = planned
        prices, counts = (column[:, :steps] for column in observation.forecast)
        cheap = prices <= observation.batch.on_demand[:, None]
        spot = np.where(cheap, np.minimum(counts, totals), 0)
        return spot, totals - spot

    def worth(self, observation: Observation, horizon: int) -> FloatArray:
        """Return the value of the best plan of each job from now on, shape ``(B,)``; nan after its deadline."""
        found = np.full(len(observation.batch), np.nan)
        for group in groups_of(observation.batch):
            intervals, rows = min(horizon + 1, group.deadline - observation.interval), group.rows
            if intervals <= 0:
                continue
            table = self._table(observation, intervals, group, last_only=True)
            worth, _ = table.action_values(0, table.cell(observation.progress[rows]), observation.held[rows])
            found[rows] = worth.max(1)
        return found

    def _tables_of(self, observation: Observation, horizon: int) -> Iterator[Table]:
        """Yield a table for each group whose deadline has not passed."""
        if self._batch is not observation.batch:
            self._batch, self._groups = observation.batch, groups_of(observation.batch)
        if self._forecast is not observation.forecast:
            self._forecast, self._tables = observation.forecast, {}
        for number, group in enumerate(self._groups):
            intervals = min(horizon + 1, group.deadline - observation.interval)
            if intervals <= 0:
                continue
            table = self._tables.get((number, intervals))
            if table is None or not table.has(observation.progress[group.rows]):
                table = self._tables[number, intervals] = self._table(observation, intervals, group)
            yield table

    def _table(self, observation: Observation, intervals: int, group: JobGroup, *, last_only: bool = False) -> Table:
        batch, rows = observation.batch, group.rows
        evenly = self.end == "target"
        ends = observation.interval + intervals
        goal = batch.work[rows] * (min(ends / group.due, 1.0) if evenly else 1.0)
        cells = np.ceil(goal / group.unit - 1e-6).astype(np.int64)
        first = group.cell(np.minimum(observation.lowest, observation.progress)[rows])
        last = group.cell(np.maximum(observation.highest, observation.progress)[rows])
        # Up to the goal, or to the farthest cell that can be reached.
        columns = np.minimum(np.maximum(cells - first, 0), last - first + intervals * int(group.same[-1])).max() + 1
        done = (first[:, None] + np.arange(columns)) * group.unit
        numbers = len(group.same)
        begin = ends if self.end == "rollout" else max(group.due, ends)
        is_open = done < batch.work[rows, None] - EXACT
        worth = [_end_of(batch, rows, np.maximum(goal[:, None] - done, 0.0), begin, numbers)]
        cost = _costs(observation, rows, intervals, numbers)
        for at in range(intervals - 1, 0, -1):
            charge = batch.charge(observation.interval + at)[rows, None]
            worth.append(step_back(worth[-1], cost[at], group, charge * is_open))
            if last_only:
                del worth[0]
        return Table(group, first, last, worth[::-1], cost)


def _end_of(batch: JobBatch, rows: IntArray, left: FloatArray, begin: int, numbers: int) -> FloatArray:
    """Return the value of the work left if it is done from an interval on, by number of nodes, job and cell."""
    max_nodes, price, launch, fastest, due, value, grace = (
        column[rows][:, None]
        for column in (
            batch.max_nodes,
            batch.on_demand,
            batch.launch,
            batch.fastest,
            batch.due,
            batch.value,
            batch.grace,
        )
    )

    charged = value - value_at(begin, due, value, grace)  # before that, in the window or ahead of it

    def worth(at_most: bool) -> FloatArray:
        late = intervals_after(left, fastest, 0.0 if at_most else launch)
        return value_at(begin + late, due, value, grace) - late * max_nodes * price + charged

    at_most = np.arange(numbers)[:, None, None] == max_nodes
    return np.where(at_most, worth(True), worth(False))


def _costs(observation: Observation, rows: IntArray, intervals: int, numbers: int) -> FloatArray:
    batch, number = observation.batch, np.arange(numbers)
    price, count = (column[rows, :intervals].T[:, :, None] for column in observation.forecast)
    on_demand = batch.on_demand[rows][:, None]
    spot = np.where(price <= on_demand, np.minimum(number, count), 0)
    cost = spot * price + (number - spot) * on_demand
    allowed = (number == 0) | ((number >= batch.min_nodes[rows][:, None]) & (number <= batch.max_nodes[rows][:, None]))
    return np.where(allowed, cost, math.inf)


def step_back(after: FloatArray, cost: FloatArray, group: JobGroup, charge: FloatArray) -> FloatArray:
    """Return the value before an interval from the value after it; both of shape ``(numbers, jobs, cells)``.

    Args:
        after: Worth by the number of nodes held in the interval.
        cost: Cost of each number of nodes, shape ``(jobs, numbers)``.
        group: The jobs.
        charge: Value lost in the interval by job and cell, shape ``(jobs, cells)``; 0 where the job is done.

    Returns:
        Worth by the number of nodes held before.
    """
    best = _moved(after, group.same, cost)
    more = _moved(after, group.up, cost)
    fewer = more.copy() if np.array_equal(group.up, group.down) else _moved(after, group.down, cost)
    # In place: more[m] becomes the best of all numbers >= m, fewer[m] of all numbers <= m.
    for m in range(len(after) - 2, -1, -1):
        np.maximum(more[m], more[m + 1], out=more[m])
    for m in range(1, len(after)):
        np.maximum(fewer[m], fewer[m - 1], out=fewer[m])
    columns, last = np.arange(after.shape[2]), after.shape[2] - 1
    for m in np.flatnonzero(group.meanwhile[:-1]).tolist():  # a job that had m nodes trains on while more are launched
        more[m + 1] = more[m + 1][:, np.minimum(columns + group.meanwhile[m], last)]
    np.maximum(best[:-1], more[1:], out=best[:-1])
    np.maximum(best[1:], fewer[:-1], out=best[1:])
    return np.subtract(best, charge, out=best) if charge.any() else best


def _moved(after: FloatArray, gains: IntArray, cost: FloatArray) -> FloatArray:
    """Return ``after`` shifted by the cells gained, at most to the last one, less the cost of each number."""
    moved = np.empty_like(after)
    for n, cells in enumerate(gains.tolist()):
        inside = max(after.shape[2] - cells, 0)
        np.subtract(after[n, :, cells:], cost[:, n, None], out=moved[n, :, :inside])
        np.subtract(after[n, :, -1:], cost[:, n, None], out=moved[n, :, inside:])
    return moved


def _walk(table: Table, observation: Observation, steps: int) -> IntArray:
    """Return the numbers of nodes along the best plan, shape ``(jobs, steps)``."""
    rows = table.group.rows
    jobs = np.arange(len(rows))
    cell, held = table.cell(observation.progress[rows]), observation.held[rows]
    totals = np.zeros((len(rows), steps), np.int64)
    for step in range(steps):
        worth, then = table.action_values(step, cell, held)
        good = worth >= worth.max(1, keepdims=True) - EXACT
        # On a tie it keeps its number, else the smallest wins.
        held = np.where(good[jobs, held], held, good.argmax(1))
        cell = then[jobs, held]
        totals[:, step] = held
    return totals
