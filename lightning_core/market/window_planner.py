"""The best plan over a few intervals, exactly, by dynamic programming; for all jobs of a batch and any progress at once.

For a number of instances the cheapest split is spot first where that is cheaper, and a change is paid for by what the
number was before. So a state is (interval, progress, number), and a decision the next number. Progress lies on a grid on
which every interval's work does, if there is one (:func:`grid_of`); else it is rounded down to a fine one.

    f_t(Z, m) = max over n of  f_{t+1}(Z + mu(n, m) H(n), n) - cost_t(n)

``mu`` knows only whether n is more than m, the same or less: with the maxima over larger and over smaller n running
along, an interval takes O(grid * instances) for each job. Only the progress that a job still can have is looked at, and
windows that end at the same interval are one. The same recursion over all intervals to the deadline, with the prices
as they came, is the offline optimum (:mod:`.optimum`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.market.job_batch import JobBatch
from lightning_core.market.progress_grid import Group, groups_of
from lightning_core.market.spot_job import EXACT, intervals_after, value_at

if TYPE_CHECKING:
    from lightning_core.market.observation import Forecast, Observation


End = Literal["target", "literal", "rollout"]
"""What a window is worth by the progress at its end: ``"target"``, as if what is missing of even progress were missing
at the deadline; ``"literal"``, all that is missing (eq. 10 as printed); ``"rollout"``, all of it, done at once on as
many on-demand instances as the job can use."""


class Table(NamedTuple):
    """What a window is worth from each of its intervals on.

    Args:
        group: whose it is.
        first, last: the least and the most progress of each job that it is asked of, in cells, shape ``(jobs,)``.
        worth: behind each interval of the window, arrays of shape ``(N + 1, jobs, cells)``: by the number of instances
            held in it.
        cost: of so many instances in each interval, shape ``(intervals, jobs, N + 1)``; inf where it may not have so many.
    """

    group: Group
    first: IntArray
    last: IntArray
    worth: list[FloatArray]
    cost: FloatArray

    def cell(self, progress: FloatArray) -> IntArray:
        """The column in which so much progress lies, shape ``(jobs,)``."""
        cell: IntArray = np.minimum(self.group.cell(progress) - self.first, self.worth[0].shape[2] - 1)
        return cell

    def has(self, progress: FloatArray) -> bool:
        """Whether it can be asked of so much progress."""
        cell = self.group.cell(progress)
        return bool(((cell >= self.first) & (cell <= self.last)).all())

    def action_values(self, interval: int, cell: IntArray, held: IntArray) -> tuple[FloatArray, IntArray]:
        """What 0, 1, .. instances in an interval of the window are worth, and to which cells they lead.

        Args:
            interval: counted from 0.
            cell: in which each job is, shape ``(jobs,)``.
            held: its instances in the interval before.

        Returns:
            Each of shape ``(jobs, N + 1)``.
        """
        number, jobs = np.arange(len(self.group.same)), np.arange(len(cell))[:, None]
        after = self.worth[interval]
        then = np.minimum(cell[:, None] + self.group.gains(held), after.shape[2] - 1)
        return after[number, jobs, then] - self.cost[interval], then


class WindowPlanner:
    """Plans for windows of forecasts. Policies that share one share its tables: it keeps those of one interval.

    Args:
        end: what a window is worth at its end.
    """

    def __init__(self, end: End = "target") -> None:
        self.end = end
        self._batch: JobBatch | None = None
        self._forecast: Forecast | None = None
        self._groups: list[Group] = []
        self._tables: dict[tuple[int, int], Table] = {}

    def plan(self, observation: Observation, horizon: int, steps: int) -> tuple[IntArray, IntArray]:
        """The first steps of the best plan of each job.

        Args:
            observation: the interval, and forecasts of at least ``horizon`` intervals.
            horizon: intervals of the window behind this one.
            steps: how many to tell, at most ``horizon + 1``.

        Returns:
            Spot and on-demand instances, each of shape ``(B, steps)``; none behind a deadline.
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
        """What the best plan of each job is worth from now on, shape ``(B,)``; nan if its deadline is over."""
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
        """One a group whose deadline is not over."""
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

    def _table(self, observation: Observation, intervals: int, group: Group, *, last_only: bool = False) -> Table:
        batch, rows = observation.batch, group.rows
        evenly = self.end == "target"
        goal = batch.work[rows] * ((observation.interval + intervals) / group.deadline if evenly else 1.0)
        cells = np.ceil(goal / group.unit - 1e-6).astype(np.int64)
        first = group.cell(np.minimum(observation.lowest, observation.progress)[rows])
        last = group.cell(np.maximum(observation.highest, observation.progress)[rows])
        # Up to the goal, or what can be done by then.
        columns = np.minimum(np.maximum(cells - first, 0), last - first + intervals * int(group.same[-1])).max() + 1
        done = (first[:, None] + np.arange(columns)) * group.unit
        numbers = len(group.same)
        begin = observation.interval + intervals if self.end == "rollout" else group.deadline
        worth = [_end_of(batch, rows, np.maximum(goal[:, None] - done, 0.0), begin, numbers)]
        cost = _costs(observation, rows, intervals, numbers)
        for at in range(intervals - 1, 0, -1):
            worth.append(step_back(worth[-1], cost[at], group))
            if last_only:
                del worth[0]
        return Table(group, first, last, worth[::-1], cost)


def _end_of(batch: JobBatch, rows: IntArray, left: FloatArray, begin: int, numbers: int) -> FloatArray:
    """What the rest is worth if it is done from an interval on, by number of instances, job and cell."""
    max_nodes, price, up, fastest, deadline, value, grace = (
        column[rows][:, None]
        for column in (
            batch.max_nodes,
            batch.on_demand,
            batch.growth_fraction,
            batch.fastest,
            batch.deadline,
            batch.value,
            batch.grace,
        )
    )

    def worth(at_most: bool) -> FloatArray:
        late = intervals_after(left, at_most, fastest, up)
        return value_at(begin + late, deadline, value, grace) - late * max_nodes * price

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


def step_back(after: FloatArray, cost: FloatArray, group: Group) -> FloatArray:
    """What it is worth before an interval, by what it is worth behind it; both of shape (numbers, jobs, cells).

    Args:
        after: by the number of instances held in the interval.
        cost: of so many instances, shape ``(jobs, numbers)``.
        group: the jobs.

    Returns:
        By the number held before.
    """
    best = _moved(after, group.same, cost)
    more = _moved(after, group.up, cost)
    fewer = more.copy() if np.array_equal(group.up, group.down) else _moved(after, group.down, cost)
    # In place: more[m] becomes the best of all that are at least m, fewer[m] of all that are at most m.
    for m in range(len(after) - 2, -1, -1):
        np.maximum(more[m], more[m + 1], out=more[m])
    for m in range(1, len(after)):
        np.maximum(fewer[m], fewer[m - 1], out=fewer[m])
    np.maximum(best[:-1], more[1:], out=best[:-1])
    np.maximum(best[1:], fewer[:-1], out=best[1:])
    return best


def _moved(after: FloatArray, gains: IntArray, cost: FloatArray) -> FloatArray:
    """``after`` so many cells further on, at most at the last one, less the cost of each number."""
    moved = np.empty_like(after)
    for n, cells in enumerate(gains.tolist()):
        inside = max(after.shape[2] - cells, 0)
        np.subtract(after[n, :, cells:], cost[:, n, None], out=moved[n, :, :inside])
        np.subtract(after[n, :, -1:], cost[:, n, None], out=moved[n, :, inside:])
    return moved


def _walk(table: Table, observation: Observation, steps: int) -> IntArray:
    """The numbers of instances that lead to what the window is worth, shape ``(jobs, steps)``."""
    rows = table.group.rows
    jobs = np.arange(len(rows))
    cell, held = table.cell(observation.progress[rows]), observation.held[rows]
    totals = np.zeros((len(rows), steps), np.int64)
    for step in range(steps):
        worth, then = table.action_values(step, cell, held)
        good = worth >= worth.max(1, keepdims=True) - EXACT
        # Of equals the number that it has, else the smallest.
        held = np.where(good[jobs, held], held, good.argmax(1))
        cell = then[jobs, held]
        totals[:, step] = held
    return totals
