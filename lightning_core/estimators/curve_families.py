"""Families of falling curves, fitted to losses: l(s) = a x(s) + c.

Three families of shapes x, each on a grid, with positions u in units of the first cell:

- power laws with a shift, (u + s0)^-b, which long trainings follow;
- stretched exponentials, exp(-(u / t)^b), and
- a plateau with a drop, 1 / (1 + (u / t)^b), which small trainings follow as often.

Each candidate comes with and without a floor c; a and c follow in closed form from running sums.

Cells are weighed by (s_i / s)^power (log-time forgetting) and by l_i^-2 (noise in proportion to the loss). A long
memory is stable, a short one notices a bend: each has candidates of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray, kept
from lightning_core.core.saved_state import Stateful

EXPONENTS = np.geomspace(0.05, 2.0, 9)
# Shifts in units of the first cell.
SHIFTS = np.array([0.0, 2.0, 8.0, 32.0, 128.0])
# Exponents of a stretched exponential, and of a plateau with a drop.
STRETCHES, SLOPES = np.array([0.6, 1.0, 1.5]), np.array([2.0, 3.0])
# Times t of both, in units of the first cell.
TIMES = np.geomspace(3.0, 3000.0, 12)
# Candidates of each family, and the family of each candidate.
SIZES = np.array([len(EXPONENTS) * len(SHIFTS), len(STRETCHES) * len(TIMES), len(SLOPES) * len(TIMES)])
FAMILY = np.repeat(np.arange(3), SIZES)
IS_LAW, IS_STRETCHED = FAMILY == 0, FAMILY == 1
# Exponent, shift and time of each candidate; a family that has no shift or time of its own has 0 or 1.
_TIMED = np.concatenate([STRETCHES, SLOPES])
EXPONENT = np.concatenate([np.repeat(EXPONENTS, len(SHIFTS)), np.repeat(_TIMED, len(TIMES))])
SHIFT = np.concatenate([np.tile(SHIFTS, len(EXPONENTS)), np.zeros(len(_TIMED) * len(TIMES))])
TIME = np.concatenate([np.ones(SIZES[0]), np.tile(TIMES, len(_TIMED))])
# A position beyond e^40 times the first cell counts as never reached, which also avoids overflow.
MAX_LOG_POSITION = 40.0
# Sum of relative squared misfits that is taken to lie before the first cell: a perfect fit of a few cells is no proof.
PRIOR_MISFIT, MIN_MISFIT = 2e-4, 1e-8
# A shape whose variance is a smaller part of its mean square is level in all that was seen. It tells no floor, and of
# the families that come down at a time of their own it tells nothing: that time may be any.
MIN_VARIANCE, MIN_SEEN = 1e-12, 1e-5
# Beyond this logarithm of (u / t)^b a shape is 0.
MAX_LOG_RISEN = 300.0
# Losses are clipped to these, whose squares and inverse squares do not overflow.
MIN_LOSS, MAX_LOSS = 1e-50, 1e50


class Fits(NamedTuple):
    """The candidates of some rows, arrays ``(n, powers, 2, grid)``: without a floor, then with one."""

    scale: FloatArray
    floor: FloatArray
    log_belief: FloatArray
    """Logarithm of the belief, up to a constant of each row and memory; -inf where a candidate is impossible."""


class CurveFamilies(Stateful):
    """The candidates of a bank of curves, one row each.

    Args:
        powers: Powers of log-time forgetting; the weight of cell i is (s_i / s_n)^power.
        evidence: Maximum number of cells that count as evidence.
        families: Prior probability of each family.
        floors: Prior probability that a curve has a floor, or one for each family.
    """

    # unit: position of the first cell, the unit of the shifts. Per power, weight: sum of the weights in time, weight2:
    # sum of their squares, precision: sum of the weights over l^2. The moments under these weights are of l and of
    # the shape x of each candidate.
    STATE = ("count", "unit", "newest", "_weight", "_weight2", "_precision", "_mean_l", "_ll", "_mean_x", "_xx", "_xl")

    def __init__(self, powers: FloatArray, evidence: float, families: FloatArray, floors: float | FloatArray) -> None:
        self.power, self.evidence, self.families = powers, evidence, families
        self.floors = np.broadcast_to(np.asarray(floors, np.float64), len(SIZES))
        # The log prior of each candidate without a floor, and with one; shape (2, grid).
        self._log_prior = np.log(np.stack([1.0 - self.floors, self.floors]) * families / SIZES)[:, FAMILY]
        memories, grid = len(powers), len(FAMILY)
        self.count = np.zeros(0, np.int64)
        self.unit, self.newest = np.zeros((2, 0))
        self._weight, self._weight2, self._precision, self._mean_l, self._ll = np.zeros((5, 0, memories))
        self._mean_x, self._xx, self._xl = np.zeros((3, 0, memories, grid))

    def grow(self, rows: int) -> None:
        """Make room for rows ``0 .. rows - 1``."""
        extra = rows - len(self.count)
        if extra > 0:
            extra = max(extra, len(self.count))  # amortised like a list, so that growing one by one is not quadratic
            for name in self.STATE:
                column = getattr(self, name)
                more = np.zeros((extra, *column.shape[1:]), column.dtype)
                setattr(self, name, np.concatenate([column, more]))

    def keep(self, stays: BoolArray) -> None:
        """Drop rows; those that stay close up."""
        for name in self.STATE:
            setattr(self, name, kept(getattr(self, name), stays))

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        """Add one cell per row; positions in batches, losses within their limits, of shape ``(n,)``."""
        at = slice(int(rows[0]), int(rows[0]) + 1) if len(rows) == 1 else rows  # avoids copies for a single row
        loss = loss[:, None]
        first = self.count[at] == 0
        self.unit[at] = unit = np.where(first, position, self.unit[at])
        keep = (np.where(first, 0.0, self.newest[at]) / position)[:, None] ** self.power
        x = self.shape(position / unit)[:, None, :]
        fresh = 1.0 / (loss * loss)
        old = keep * self._precision[at]
        total = old + fresh
        step = fresh / total
        to_l, to_x = loss - self._mean_l[at], x - self._mean_x[at]
        gain = old * step
        keep_x, gain_x = keep[..., None], gain[..., None] * to_x
        self._ll[at] = keep * self._ll[at] + gain * to_l * to_l
        self._xx[at] = keep_x * self._xx[at] + gain_x * to_x
        self._xl[at] = keep_x * self._xl[at] + gain_x * to_l[..., None]
        self._mean_l[at] += step * to_l
        self._mean_x[at] += step[..., None] * to_x
        self._precision[at] = total
        self._weight[at] = keep * self._weight[at] + 1.0
        self._weight2[at] = keep * keep * self._weight2[at] + 1.0
        self.newest[at] = position
        self.count[at] += 1

    def copy_row(self, other: CurveFamilies, row: int, to: IntArray) -> None:
        """Set rows to a row of another bank with the same arguments."""
        for name in self.STATE:
            getattr(self, name)[to] = getattr(other, name)[row]

    def observe_curve(self, row: int, position: FloatArray, loss: FloatArray) -> None:
        """Add all cells of a curve to a row that has none, as :meth:`observe` does one by one; arrays ``(n,)``."""
        self.unit[row], self.newest[row], self.count[row] = position[0], position[-1], len(position)
        weight = (position / position[-1])[:, None] ** self.power
        precision = weight / (loss * loss)[:, None]
        self._weight[row], self._weight2[row] = weight.sum(axis=0), (weight * weight).sum(axis=0)
        self._precision[row] = total = precision.sum(axis=0)
        x = self.shape(position / position[0])
        self._mean_l[row] = mean_l = loss @ precision / total
        self._mean_x[row] = mean_x = precision.T @ x / total[:, None]
        to_l, to_x = loss[:, None] - mean_l, x[:, None, :] - mean_x
        self._ll[row] = (precision * to_l * to_l).sum(axis=0)
        self._xx[row] = (precision[..., None] * to_x * to_x).sum(axis=0)
        self._xl[row] = (precision[..., None] * to_x * to_l[..., None]).sum(axis=0)

    def shape(self, position: FloatArray) -> FloatArray:
        """Return the candidates' x at positions in units of the first cell, shape ``(n, grid)``."""
        u = position[:, None]
        laws = np.exp(-EXPONENT[IS_LAW] * np.log(u + SHIFT[IS_LAW]))
        risen = np.exp(np.minimum(EXPONENT[~IS_LAW] * np.log(u / TIME[~IS_LAW]), MAX_LOG_RISEN))
        stretched = IS_STRETCHED[~IS_LAW]
        shape = np.concatenate([laws, np.exp(-risen[:, stretched]), 1.0 / (1.0 + risen[:, ~stretched])], axis=1)
        return shape

    @staticmethod
    def passage(x: FloatArray, candidate: IntArray) -> FloatArray:
        """Return the positions, in units of the first cell, at which candidates have come down to x; inf beyond all.

        Args:
            x: Values to come down to, positive, shape ``(..., n)``.
            candidate: Number of each candidate, shape ``(n,)`` or that of ``x``.
        """
        log_x, exponent, family = np.log(x), EXPONENT[candidate], FAMILY[candidate]
        falls = np.maximum(-log_x, 0.0)
        with np.errstate(divide="ignore", over="ignore"):
            # The logarithm of -log x, and of 1 / x - 1.
            risen = np.where(family == 1, np.log(falls), falls + np.log(-np.expm1(-falls)))
            log_u = np.where(family == 0, -log_x, risen) / exponent
        near = log_u < MAX_LOG_POSITION
        u = TIME[candidate] * np.exp(np.where(near, log_u, 0.0)) - SHIFT[candidate]
        return np.where(near, u, np.inf)

    def candidates(self, rows: IntArray) -> Fits:
        """Return the candidates of rows that have at least one cell."""
        weight, weight2 = self._weight[rows, :, None], self._weight2[rows, :, None]
        precision, mean_l, ll = self._precision[rows, :, None], self._mean_l[rows, :, None], self._ll[rows, :, None]
        mean_x, xx, xl = self._mean_x[rows], self._xx[rows], self._xl[rows]
        scale, base, misfit = np.zeros((3, len(rows), len(self.power), 2, len(FAMILY)))
        raw_xl = xl + precision * mean_x * mean_l
        square = precision * mean_x * mean_x
        scale[:, :, 0] = np.divide(raw_xl, xx + square, out=np.zeros_like(xl), where=xx + square > 0)
        misfit[:, :, 0] = ll + precision * mean_l * mean_l - scale[:, :, 0] * raw_xl
        steep = np.divide(xl, xx, out=np.zeros_like(xl), where=xx > MIN_VARIANCE * square)
        above = mean_l - steep * mean_x
        possible = (steep > 0) & (above > 0)
        scale[:, :, 1] = np.where(possible, steep, 0.0)
        base[:, :, 1] = np.where(possible, above, 0.0)
        misfit[:, :, 1] = ll - steep * xl
        cells = np.minimum(weight * weight / weight2, self.evidence)[:, :, None]
        relative = (np.maximum(misfit, 0.0) + PRIOR_MISFIT) / weight[:, :, None] + MIN_MISFIT
        log_belief = self._log_prior - cells / 2.0 * np.log(relative)
        log_belief[:, :, 1][~possible] = -np.inf
        unseen = ~IS_LAW & (xx < MIN_SEEN * square)
        log_belief[np.repeat(unseen[:, :, None], 2, axis=2)] = -np.inf
        return Fits(scale, base, log_belief)

    def batches_left(self, rows: IntArray, fits: Fits, threshold: FloatArray) -> FloatArray:
        """Return the batches until each candidate reaches a threshold, at least one cell, inf if it never does.

        Args:
            rows: Rows of the bank, shape ``(n,)``.
            fits: Their candidates.
            threshold: Threshold of each, ``(n,)``.

        Returns:
            Array ``(n, powers, 2, grid)``.
        """
        unit = self.unit[rows, None, None, None]
        above = threshold[:, None, None, None] - fits.floor
        reaches = (above > 0) & (fits.scale > 0)
        x = np.divide(above, fits.scale, out=np.ones_like(above), where=reaches)
        u = self.passage(x, np.arange(len(FAMILY)))
        left: FloatArray = np.where(reaches, np.maximum(u - self.newest[rows, None, None, None] / unit, 1.0), np.inf)
        return left * unit
