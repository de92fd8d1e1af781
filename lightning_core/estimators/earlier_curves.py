"""Curves of earlier runs of the same task as candidates for a new one: each stretched in time and shifted in level.

A candidate is an earlier run h, stretched by a factor tau: ``log l(s) = alpha + log h(s / tau)``. The stretches are a
grid, with a prior of heavy tails around 1; the level alpha has a normal prior around 0, in closed form from running
sums. Before its first cell a run is extended by its own slope, and beyond its last one by the posterior of power laws.

Cells are weighed by (s_i / s)^power as in the posterior of power laws, which has the same memories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray, kept
from lightning_core.core.saved_state import Stateful

# Earlier runs of a row.
MAX_RUNS = 3
# Logarithms of the stretches, and what is believed of them: Student's t with two degrees of freedom.
LOG_STRETCH = 0.45 * np.arange(-7, 8)
_PRIOR = (1.0 + (LOG_STRETCH / 1.2) ** 2 / 2.0) ** -1.5
LOG_PRIOR = np.log(_PRIOR / _PRIOR.sum())
# Standard deviations of the logarithm: of the level between two runs, and of what no cell shows of it.
LEVEL, LEVEL_ERROR = 0.08, 0.06
# Minimum mean squared residual, as a part of the loss.
MIN_RESIDUAL = 1e-5
# Points of a table, and how far it reaches beyond the end of its run, as the logarithm of the position.
POINTS, BEYOND = 160, 4.0
# Bounds of the slope before the first cell of a run, and the distance over which it is measured.
MIN_SLOPE, MAX_SLOPE, AT_FIRST = 0.02, 0.5, 1.0
# Three values in place of a normal distribution, with their weights.
NODES, LOG_NODE_WEIGHT = np.array([-1.22, 0.0, 1.22]), np.log([0.25, 0.5, 0.25])
# Candidates of less than this belief, as the logarithm of its ratio to the largest, are left out.
NEGLIGIBLE = -10.0
# Spread of the logarithm of the work left: within the length of a run, and more for each e-fold beyond.
SPREAD, SPREAD_BEYOND = 0.1, 0.5
# Losses are at least this, whose logarithm is finite.
_EARLIEST = -50.0


class Candidates(NamedTuple):
    """What a threshold means to each candidate of some rows that counts, arrays ``(n, memories, candidates)``.

    A row with fewer candidates than another has some without belief behind them.
    """

    log_passage: FloatArray
    """Logarithm of the batches done when the threshold is reached; inf if it never is."""
    spread: FloatArray
    """What is added to it, so that the three nodes of a level stand for the spread of the work left too."""
    log_belief: FloatArray
    """Logarithm of the belief, up to a constant of each row."""
    level: FloatArray
    """Prior probability of the level that was seen, 0 to 1, shape ``(n, memories)``."""


class EarlierCurves(Stateful):
    """The candidates of some rows of a bank.

    Args:
        powers: Powers of log-time forgetting, each with its own weights.
    """

    TABLES = ("_table", "_origin", "_step", "_slope", "_end")
    SLOTS = ("_runs", "_newest", "_weight", "_weight2", "_mean", "_square")
    STATE = ("_slot", *TABLES, *SLOTS)

    def __init__(self, powers: FloatArray) -> None:
        self._power = powers
        memories, stretches = len(powers), len(LOG_STRETCH)
        self._slot = np.zeros(0, np.int64)  # by row; -1 without earlier runs
        # Tables, one for each run that is different: the logarithm of the loss on a grid of log positions.
        self._table = np.zeros((0, POINTS))
        self._origin, self._step, self._slope, self._end = np.zeros((4, 0))
        # By slot: its runs, -1 for none, and moments of the residuals under each memory.
        self._runs = np.zeros((0, MAX_RUNS), np.int64)
        self._newest = np.zeros(0)
        self._weight, self._weight2 = np.zeros((2, 0, memories))
        self._mean, self._square = np.zeros((2, 0, memories, MAX_RUNS, stretches))

    def has(self, rows: IntArray) -> BoolArray:
        """Return whether each row has earlier runs."""
        if not len(self._slot):
            return np.zeros(len(rows), np.bool_)
        within = np.minimum(rows, len(self._slot) - 1)
        found: BoolArray = (self._slot[within] >= 0) & (rows < len(self._slot))
        return found

    def add(self, row: int, tables: Sequence[tuple[FloatArray, float, float, float]]) -> None:
        """Give a row its runs.

        Args:
            row: The row.
            tables: Of each run the logarithm of its loss at :data:`POINTS` log positions, the first of these, the
                step between two, and the last that the run itself has shown.
        """
        if row >= len(self._slot):
            self._slot = np.concatenate([self._slot, np.full(row + 1 - len(self._slot), -1)])
        runs = [self._place(*table) for table in tables[:MAX_RUNS]]
        if self._slot[row] < 0:
            self._slot[row] = np.count_nonzero(self._slot >= 0)
            self._make_room(self.SLOTS, int(self._slot[row]))
        slot = self._slot[row]
        for name in self.SLOTS:
            getattr(self, name)[slot] = 0
        self._runs[slot] = [*runs, *[-1] * (MAX_RUNS - len(runs))]

    def _place(self, table: FloatArray, origin: float, step: float, end: float) -> int:
        """Return the number of a table, which is added unless it is there."""
        same = np.flatnonzero((self._origin == origin) & (self._step == step) & (self._end == end))
        for k in same.tolist():
            if np.array_equal(self._table[k], table):
                return int(k)
        far = min(max(round(AT_FIRST / step), 1), POINTS - 1)
        slope = float(np.clip((table[0] - table[far]) / (far * step), MIN_SLOPE, MAX_SLOPE))
        place = int(np.count_nonzero(self._step))
        self._make_room(self.TABLES, place)
        self._table[place] = table
        self._origin[place], self._step[place], self._slope[place], self._end[place] = origin, step, slope, end
        return place

    def _make_room(self, names: Sequence[str], place: int) -> None:
        """Make room at a place for one more: amortised like a list, so that adding one by one is not quadratic."""
        for name in names:
            column = getattr(self, name)
            if place >= len(column):
                more = np.zeros((max(len(column), 1), *column.shape[1:]), column.dtype)
                setattr(self, name, np.concatenate([column, more]))

    def observe(self, rows: IntArray, log_position: FloatArray, log_loss: FloatArray) -> None:
        """Take in one cell for each row that has earlier runs; the others are left out."""
        has = self.has(rows)
        if not has.any():
            return
        at, x, y = self._slot[rows[has]], log_position[has], log_loss[has]
        runs = np.maximum(self._runs[at], 0)  # a place without a run has no belief behind it: any table will do
        expected = self._at(runs[:, :, None], x[:, None, None] - LOG_STRETCH)
        residual = (y[:, None, None] - expected)[:, None]
        since = np.where(self._weight[at, 0] > 0, self._newest[at] - x, 0.0)
        keep = np.exp(since[:, None] * self._power)
        old = keep * self._weight[at]
        weight = old + 1.0
        to = residual - self._mean[at]
        part = (old / weight)[:, :, None, None]
        self._square[at] = keep[:, :, None, None] * self._square[at] + part * to * to
        self._mean[at] += to / weight[:, :, None, None]
        self._weight[at] = weight
        self._weight2[at] = keep * keep * self._weight2[at] + 1.0
        self._newest[at] = x

    def _at(self, run: IntArray, x: FloatArray) -> FloatArray:
        """Return the logarithm of the loss of runs at log positions."""
        step = (x - self._origin[run]) / self._step[run]
        low = np.clip(step.astype(np.int64), 0, POINTS - 2)
        within = np.clip(step - low, 0.0, 1.0)
        value: FloatArray = self._table[run, low] * (1.0 - within) + self._table[run, low + 1] * within
        return value - np.minimum(step, 0.0) * self._step[run] * self._slope[run]

    def candidates(self, rows: IntArray, log_threshold: FloatArray, evidence: float) -> Candidates:
        """Return the candidates of rows that have earlier runs."""
        at = self._slot[rows]
        seen = self._weight[at] > 0
        weight = np.where(seen, self._weight[at], 1.0)[:, :, None, None]
        cells = np.where(seen, self._weight[at] ** 2 / np.where(seen, self._weight2[at], 1.0), 0.0)[:, :, None, None]
        mean, residual = self._mean[at], self._square[at] / weight
        error = residual + LEVEL_ERROR**2
        level = mean * (cells * LEVEL**2) / (cells * LEVEL**2 + error)
        deviation = LEVEL * np.sqrt(error / (cells * LEVEL**2 + error))
        unlikely = np.where(cells > 0, mean**2 / (LEVEL**2 + error / np.maximum(cells, 1e-9)) / 2.0, 0.0)
        there = (self._runs[at] >= 0)[:, None, :, None]
        prior = np.where(there, LOG_PRIOR - np.log(there.sum(axis=2, keepdims=True)), -np.inf)
        belief = prior - unlikely - np.minimum(cells, evidence) / 2.0 * np.log(residual + MIN_RESIDUAL)
        said = np.exp(prior - unlikely).sum(axis=(2, 3))
        # From here on only the candidates that count, close together, and the tables that they have.
        flat = (len(rows), len(self._power), -1)
        belief, level, deviation = (column.reshape(flat) for column in (belief, level, deviation))
        counts = belief > belief.max(axis=2, keepdims=True) + NEGLIGIBLE
        row, memory, number = np.nonzero(counts)
        run, stretch = np.divmod(number, len(LOG_STRETCH))
        tables, run = np.unique(self._runs[at][row, run], return_inverse=True)
        nodes = level[counts][:, None] + deviation[counts][:, None] * NODES
        reached = self._passage(tables, run[:, None], log_threshold[row][:, None] - nodes)
        beyond = np.clip(reached - self._end[tables][run][:, None], 0.0, BEYOND)
        place = row, memory, np.cumsum(counts, axis=2)[counts] - 1
        log_passage, spread, log_belief = np.empty((3, *flat[:2], int(counts.sum(axis=2).max()), len(NODES)))
        log_passage[...], spread[...], log_belief[...] = np.inf, 0.0, -np.inf
        log_passage[place] = reached + LOG_STRETCH[stretch][:, None]
        spread[place] = np.where(np.isfinite(reached), NODES * (SPREAD + SPREAD_BEYOND * beyond), 0.0)
        log_belief[place] = belief[counts][:, None] + LOG_NODE_WEIGHT
        return Candidates(log_passage.reshape(flat), spread.reshape(flat), log_belief.reshape(flat), said)

    def _passage(self, tables: IntArray, run: IntArray, log_loss: FloatArray) -> FloatArray:
        """Return the log position at which each run, a place in ``tables``, first falls to a loss; inf if never."""
        lowest = np.minimum.accumulate(self._table[tables], axis=1)
        origin, step, slope = self._origin[tables][run], self._step[tables][run], self._slope[tables][run]
        top, bottom = lowest[:, 0], lowest[:, -1]
        height = np.maximum(top - bottom, 1e-12)
        # One search for all tables: each falls by 1, from its own place on.
        keys = np.arange(len(lowest))[:, None] + (top[:, None] - lowest) / height[:, None]
        fallen = (top[run] - log_loss) / height[run]
        at = np.searchsorted(keys.ravel(), np.clip(fallen, 0.0, 1.0) + run).reshape(fallen.shape) - run * POINTS
        at = np.clip(at, 1, POINTS - 1)
        before, behind = lowest[run, at - 1], lowest[run, at]
        fall = before - behind
        part = np.divide(before - log_loss, fall, out=np.ones_like(fall), where=fall > 0)
        x = origin + step * (at - 1 + np.clip(part, 0.0, 1.0))
        earlier = origin + np.clip((top[run] - log_loss) / slope, _EARLIEST, 0.0)
        found: FloatArray = np.where(fallen <= 0.0, earlier, np.where(fallen > 1.0, np.inf, x))
        return found

    def keep(self, stays: BoolArray) -> None:
        """Drop rows; the tables that none of the others has go too."""
        slots = self._slot[: len(stays)]
        slots = np.concatenate([slots, np.full(len(stays) - len(slots), -1)])[stays]
        used = slots[slots >= 0]
        for name in self.SLOTS:
            setattr(self, name, getattr(self, name)[used])
        self._slot = np.where(slots >= 0, np.cumsum(slots >= 0) - 1, -1)
        tables = np.zeros(len(self._table), np.bool_)
        tables[self._runs[self._runs >= 0]] = True
        number = np.append(np.cumsum(tables) - 1, -1)
        self._runs = number[self._runs]
        for name in self.TABLES:
            setattr(self, name, kept(getattr(self, name), tables))
