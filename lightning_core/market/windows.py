"""The best plan over a few slots, exactly, by dynamic programming; for all jobs of a batch and any progress at once.

For a number of instances the cheapest split is spot first where that is cheaper, and a change is paid for by what the
number was before. So a state is (slot, progress, number), and a decision the next number. Progress lies on a grid on
which every slot's work does, if there is one (:func:`grid_of`); else it is rounded down to a fine one.

    f_t(Z, m) = max over n of  f_{t+1}(Z + mu(n, m) H(n), n) - cost_t(n)

``mu`` knows only whether n is more than m, the same or less: with the maxima over larger and over smaller n running
along, a slot takes O(grid * instances) for each job. The same recursion over all slots to the deadline, with the prices
as they came, is the offline optimum (:mod:`.optimum`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from lightning_core.market.model import EXACT, Batch, SpotJob, slots_after, value_at
from lightning_core.types import FloatArray, IntArray

if TYPE_CHECKING:
    from lightning_core.market.playing import Forecast, Seen

# Units of work that are tried for a grid, as parts of what one instance does; and how fine one is that is not exact.
UNITS = (1.0, 0.5, 0.25, 0.2, 0.1, 0.05, 0.025, 0.02, 0.01)
CELLS = 1000
# Where nothing else says so.
NEVER = -math.inf

End = Literal["target", "literal", "rollout"]
"""What a window is worth by the progress at its end: ``"target"``, as if what is missing of even progress were missing
at the deadline; ``"literal"``, all that is missing (eq. 10 as printed); ``"rollout"``, all of it, done at once on as
many on-demand instances as the job can use."""


class Group(NamedTuple):
    """Jobs that are equally fast.

    Args:
        rows: of their batch.
        unit: of progress.
        same: cells that so many instances come on in a slot, shape ``(N + 1,)``.
        up: the same, in the slot in which their number has grown.
        down: the same, in the slot in which it has shrunk.
    """

    rows: IntArray
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


def exact_grid(speed: FloatArray, up: float, down: float) -> float | None:
    """A unit of which every slot's work is a multiple; None if there is none that is not too fine.

    Args:
        speed: work of 0, 1, .. instances in a slot, shape ``(N + 1,)``.
        up: part of a slot that is left if their number grows.
        down: part that is left if it shrinks.
    """
    gains = np.concatenate([speed, up * speed, down * speed])
    for unit in UNITS:
        cells = gains / unit
        if np.abs(cells - np.round(cells)).max() < 1e-6 and cells.max() <= 4 * CELLS:
            return unit
    return None


def grid_of(speed: FloatArray, up: float, down: float) -> float:
    """The unit of :func:`exact_grid`; if there is none, a fine one."""
    exact = exact_grid(speed, up, down)
    return float(speed.max()) / CELLS if exact is None else exact


def groups_of(batch: Batch) -> list[Group]:
    """The jobs of a batch by their speed."""
    found: dict[tuple[float, ...], list[int]] = {}
    for row, job in enumerate(batch.jobs):
        found.setdefault((*job.speed, job.up, job.down), []).append(row)
    return [group_of(batch.jobs[rows[0]], rows) for rows in found.values()]


def group_of(job: SpotJob, rows: Sequence[int] = (0,)) -> Group:
    """A job, and the rows of those that are as fast."""
    speed = np.array(job.speed)
    unit = grid_of(speed, job.up, job.down)
    cells = (np.floor(part * speed / unit + 1e-6).astype(np.int64) for part in (1.0, job.up, job.down))
    return Group(np.array(rows), unit, *cells)


class Table(NamedTuple):
    """What a window is worth from each of its slots on.

    Args:
        group: whose it is.
        worth: of each slot of the window and its end, arrays of shape ``(N + 1, jobs, cells)``: by the number of
            instances held before.
        cost: of so many instances in each slot, shape ``(slots, jobs, N + 1)``; inf where it may not have so many.
    """

    group: Group
    worth: list[FloatArray]
    cost: FloatArray


class Windows:
    """Plans for windows of forecasts. Policies that share one share its tables: it keeps those of one slot.

    Args:
        end: what a window is worth at its end.
    """

    def __init__(self, end: End = "target") -> None:
        self.end = end
        self._of: tuple[int, ...] = ()
        self._kept: tuple[Batch, Forecast] | None = None  # so that nothing else gets their ids
        self._groups: list[Group] = []
        self._tables: dict[int, list[Table]] = {}

    def plan(self, seen: Seen, horizon: int, steps: int) -> tuple[IntArray, IntArray]:
        """The first steps of the best plan of each job.

        Args:
            seen: the slot, and forecasts of at least ``horizon`` slots.
            horizon: slots of the window behind this one.
            steps: how many to tell, at most ``horizon + 1``.

        Returns:
            Spot and on-demand instances, each of shape ``(B, steps)``; none behind a deadline.
        """
        totals = np.zeros((len(seen.batch), steps), np.int64)
        for table in self._tables_of(seen, horizon):
            totals[table.group.rows] = _walk(table, seen, steps)
        prices, counts = (column[:, :steps] for column in seen.forecast)
        cheap = prices <= seen.batch.on_demand[:, None]
        spot = np.where(cheap, np.minimum(counts, totals), 0)
        return spot, totals - spot

    def worth(self, seen: Seen, horizon: int) -> FloatArray:
        """What the best plan of each job is worth from now on, shape ``(B,)``."""
        found = np.zeros(len(seen.batch))
        for table in self._tables_of(seen, horizon):
            rows = table.group.rows
            cell = _cell(table, seen)
            found[rows] = table.worth[0][seen.held[rows], np.arange(len(rows)), cell]
        return found

    def _tables_of(self, seen: Seen, horizon: int) -> list[Table]:
        if self._of[:1] != (id(seen.batch),):
            self._groups = groups_of(seen.batch)
        if self._of != (of := (id(seen.batch), id(seen.forecast))):
            self._of, self._tables, self._kept = of, {}, (seen.batch, seen.forecast)
        if horizon not in self._tables:
            self._tables[horizon] = [self._table(seen, horizon, group) for group in self._groups]
        return self._tables[horizon]

    def _table(self, seen: Seen, horizon: int, group: Group) -> Table:
        batch, rows = seen.batch, group.rows
        slots = np.arange(seen.slot, seen.slot + horizon + 1)
        inside = slots[:, None] < batch.deadline[rows]
        last = np.minimum(seen.slot + horizon + 1, batch.deadline[rows])
        goal = batch.work[rows] * (last / batch.deadline[rows] if self.end == "target" else 1.0)
        cells = int(np.ceil(goal.max() / group.unit - 1e-6)) + 1
        numbers = len(group.same)
        left = np.maximum(goal[:, None] - np.arange(cells) * group.unit, 0.0)
        worth = [self._end_of(batch, rows, left, last, numbers)]
        cost = _costs(seen, rows, horizon, numbers)
        for at in range(horizon, -1, -1):
            before = step_back(worth[-1], cost[at], group)
            worth.append(before if inside[at].all() else np.where(inside[at][:, None], before, worth[-1]))
        return Table(group, worth[::-1], cost)

    def _end_of(self, batch: Batch, rows: IntArray, left: FloatArray, last: IntArray, numbers: int) -> FloatArray:
        """By number of instances, job and cell."""
        most, price, up, fastest = (
            column[rows][:, None] for column in (batch.most, batch.on_demand, batch.up, batch.fastest)
        )
        deadline, value, grace = (column[rows][:, None] for column in (batch.deadline, batch.value, batch.grace))
        begin = last[:, None] if self.end == "rollout" else deadline

        def worth(at_most: bool) -> FloatArray:
            late = slots_after(left, at_most, fastest, up)
            return value_at(begin + late, deadline, value, grace) - late * most * price

        fewer, all_of_them = worth(False), worth(True)
        at_most = np.arange(numbers)[:, None, None] == most
        return np.where(at_most, all_of_them, fewer)


def _costs(seen: Seen, rows: IntArray, horizon: int, numbers: int) -> FloatArray:
    batch, number = seen.batch, np.arange(numbers)
    price, count = (column[rows, : horizon + 1].T[:, :, None] for column in seen.forecast)
    on_demand = batch.on_demand[rows][:, None]
    spot = np.where(price <= on_demand, np.minimum(number, count), 0)
    cost = spot * price + (number - spot) * on_demand
    allowed = (number == 0) | ((number >= batch.least[rows][:, None]) & (number <= batch.most[rows][:, None]))
    return np.where(allowed, cost, math.inf)


def step_back(after: FloatArray, cost: FloatArray, group: Group) -> FloatArray:
    """What it is worth one slot earlier, by what it is worth after that slot; both of shape (numbers, jobs, cells)."""
    numbers = len(after)
    best, one = np.empty_like(after), np.empty_like(after[0])
    for n in range(numbers):
        _less(after[n], int(group.same[n]), cost[:, n], best[n])
    for gains, order in ((group.up, range(numbers - 1, -1, -1)), (group.down, range(numbers))):
        others = np.full_like(one, NEVER)  # the best of those larger than m, or smaller
        for m in order:
            np.maximum(best[m], others, out=best[m])
            np.maximum(others, _less(after[m], int(gains[m]), cost[:, m], one), out=others)
    return best


def _less(after: FloatArray, cells: int, cost: FloatArray, out: FloatArray) -> FloatArray:
    """``after`` so many cells further on, at most at the last one, less the cost of each job."""
    inside = max(after.shape[1] - cells, 0)
    np.subtract(after[:, cells:], cost[:, None], out=out[:, :inside])
    np.subtract(after[:, -1:], cost[:, None], out=out[:, inside:])
    return out


def _cell(table: Table, seen: Seen) -> IntArray:
    rows = table.group.rows
    cell: IntArray = np.minimum(table.group.cell(seen.progress[rows]), table.worth[0].shape[2] - 1)
    return cell


def _walk(table: Table, seen: Seen, steps: int) -> IntArray:
    """The numbers of instances that lead to what the window is worth, shape ``(jobs, steps)``."""
    group, rows = table.group, table.group.rows
    jobs, numbers = np.arange(len(rows)), np.arange(len(group.same))
    cell, held = _cell(table, seen), seen.held[rows]
    totals = np.zeros((len(rows), steps), np.int64)
    for step in range(steps):
        gains = group.gains(held)
        after, cost = table.worth[step + 1], table.cost[step]
        then = np.minimum(cell[:, None] + gains, after.shape[2] - 1)
        worth = after[numbers, jobs[:, None], then] - cost
        good = worth >= worth.max(1, keepdims=True) - EXACT
        # Of equals the number that it has, else the smallest.
        chosen = np.where(good[jobs, held], held, good.argmax(1))
        chosen = np.where(seen.slot + step < seen.batch.deadline[rows], chosen, 0)
        cell, held = then[jobs, chosen], chosen
        totals[:, step] = chosen
    return totals
