"""A posterior over power laws with a shift and a floor: l(s) = a (s + s0)^-b + c.

A power law through the origin (LARA, eq. 3.1) has no warm-up and no floor; real curves have both, and a point estimate
does not say how wrong it may be. So many candidates are kept: a grid over the exponent b and the shift s0, each with
and without a floor, a and c in closed form from running sums. They are weighed by how well they fit, but with the
evidence of a few cells at most: cells err together, and all candidates are wrong in the end.

Cells are weighed by (s_i / s)^power (log-time forgetting) and by l_i^-2 (noise in proportion to the loss).
"""

from __future__ import annotations

import numpy as np

from lightning_core.types import LEVELS, NORMAL, FloatArray, IntArray

# Beyond e^40 times the first cell a curve does not get there in anybody's life: no overflow, no false hope.
FARTHEST = 40.0
EXPONENTS = np.geomspace(0.05, 2.0, 9)
# In units of the first cell.
SHIFTS = np.array([0.0, 2.0, 8.0, 32.0, 128.0])
# Misfit that is noise in any case, relative and squared: a perfect fit is no proof.
LEAST_MISFIT = 1e-8
# Four quantiles of the widening, in place of the whole distribution.
_WIDE = NORMAL[2::5]
# Losses beyond are taken as these: their squares and inverse squares still multiply.
LEAST_LOSS, MOST_LOSS = 1e-50, 1e50
# Rows that are worked on at once: their candidates stay in the cache.
_BLOCK = 256


class Posterior:
    """A bank of posteriors over shifted power laws with a floor.

    Args:
        power: log-time forgetting; the weight of cell i is (s_i / s_n)^power.
        evidence: cells that speak at most, however many were seen.
        floor: how likely a curve is believed to have a floor before it is seen.
        widening: what a fitted curve does not know of itself: spread of the logarithm of the work left.
        least: cells needed before anything is said.

    Raises:
        ValueError: if an argument is out of its range.

    Example::

        >>> bank = Posterior()
        >>> bank.grow(1)
        >>> row = np.array([0])
        >>> for s in range(10, 1000, 10):
        ...     bank.observe(row, np.array([float(s)]), np.array([2.0 * s**-0.5 + 0.1]))
        >>> bank.first_passage(row, np.array([0.15]))[0, [1, 9, 18]].round(-1)
        array([1380., 1530., 1960.])
    """

    def __init__(
        self,
        power: float = 4.0,
        evidence: float = 5.0,
        floor: float = 0.2,
        widening: float = 0.4,
        least: int = 3,
    ) -> None:
        if not 0 <= power < np.inf:
            raise ValueError(f"power must be at least 0 and finite, got {power}")
        if not 0 < evidence < np.inf:
            raise ValueError(f"evidence must be positive and finite, got {evidence}")
        if not 0 < floor < 1:
            raise ValueError(f"floor must be above 0 and below 1, got {floor}")
        if not 0 <= widening < np.inf:
            raise ValueError(f"widening must be at least 0 and finite, got {widening}")
        if least < 3:
            raise ValueError(f"least must be at least 3 cells, got {least}")
        self.power, self.evidence, self.floor, self.widening, self.least = power, evidence, floor, widening, least
        self._b = np.repeat(EXPONENTS, len(SHIFTS))
        self._shift = np.tile(SHIFTS, len(EXPONENTS))
        self._count = np.zeros(0, np.int64)
        # unit: position of the first cell, the unit of the shifts. weight: sum of the weights in time, weight2 of their
        # squares. precision: sum of the weights over l^2; the moments are under these, of x = (s + s0)^-b and l.
        self._unit, self._newest, self._weight, self._weight2 = np.zeros((4, 0))
        self._precision, self._mean_l, self._ll = np.zeros((3, 0))
        self._mean_x, self._xx, self._xl = np.zeros((3, 0, len(self._b)))
        # Forecasts last until the row's next cell, or until somebody asks for another threshold.
        self._asked = np.zeros(0)
        self._passage = np.zeros((0, len(LEVELS)))

    _COLUMNS = ("_count", "_unit", "_newest", "_weight", "_weight2", "_precision", "_mean_l", "_ll", "_mean_x", "_xx",
                "_xl", "_asked", "_passage")  # fmt: skip

    def grow(self, rows: int) -> None:
        extra = rows - len(self._count)
        if extra > 0:
            extra = max(extra, len(self._count))  # as a list does: growing one by one is not quadratic
            for name in self._COLUMNS:
                column = getattr(self, name)
                more = np.zeros((extra, *column.shape[1:]), column.dtype)
                setattr(self, name, np.concatenate([column, more]))

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        loss = np.clip(loss, LEAST_LOSS, MOST_LOSS)
        first = self._count[rows] == 0
        self._unit[rows] = np.where(first, position, self._unit[rows])
        keep = (np.where(first, 0.0, self._newest[rows]) / position) ** self.power
        x = self._shape(position / self._unit[rows])
        fresh = 1.0 / (loss * loss)
        old = keep * self._precision[rows]
        total = old + fresh
        to_l, to_x = loss - self._mean_l[rows], x - self._mean_x[rows]
        gain = old * fresh / total
        step = fresh / total
        keep_x, gain_x = keep[:, None], gain[:, None] * to_x
        self._ll[rows] = keep * self._ll[rows] + gain * to_l * to_l
        self._xx[rows] = keep_x * self._xx[rows] + gain_x * to_x
        self._xl[rows] = keep_x * self._xl[rows] + gain_x * to_l[:, None]
        self._mean_l[rows] += step * to_l
        self._mean_x[rows] += step[:, None] * to_x
        self._precision[rows] = total
        self._weight[rows] = keep * self._weight[rows] + 1.0
        self._weight2[rows] = keep * keep * self._weight2[rows] + 1.0
        self._newest[rows] = position
        self._count[rows] += 1
        self._asked[rows] = 0.0

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        known = self._count[rows] >= self.least
        said = np.full(len(rows), np.nan)
        if known.any():
            at = rows[known]
            scale, base, belief = self._candidates(at)
            x = self._shape(position[known] / self._unit[at])
            curve = np.maximum(scale * np.concatenate([x, x], axis=1) + base, 1e-300)
            said[known] = np.exp(np.sum(belief * np.log(curve), axis=1))
        return said

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        stale = np.flatnonzero((self._asked[rows] != threshold) & (self._count[rows] >= self.least))
        for start in range(0, len(stale), _BLOCK):
            block = stale[start : start + _BLOCK]
            at = rows[block]
            self._passage[at] = self._forecast(at, np.clip(threshold[block], LEAST_LOSS, MOST_LOSS))
            self._asked[at] = threshold[block]
        return np.where((self._count[rows] >= self.least)[:, None], self._passage[rows], np.nan)

    def _shape(self, position: FloatArray) -> FloatArray:
        """The candidates' x, positions in units of the first cell: shape ``(n, candidates without a floor)``."""
        shape: FloatArray = np.exp(-self._b * np.log(position[:, None] + self._shift))
        return shape

    def _candidates(self, rows: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Scale, floor and belief of each candidate, shape ``(n, 2 x grid)``: those without a floor, then those with."""
        precision, mean_l, ll = self._precision[rows, None], self._mean_l[rows, None], self._ll[rows, None]
        mean_x, xx, xl = self._mean_x[rows], self._xx[rows], self._xl[rows]
        weight, weight2 = self._weight[rows, None], self._weight2[rows, None]
        raw_xl = xl + precision * mean_x * mean_l
        scale = raw_xl / (xx + precision * mean_x * mean_x)
        misfit = ll + precision * mean_l * mean_l - scale * raw_xl
        steep = np.where(xx > 0, xl / np.where(xx > 0, xx, 1.0), 0.0)
        base = mean_l - steep * mean_x
        misfit_with = ll - steep * xl
        possible = (steep > 0) & (base > 0)
        speaks = np.minimum(weight * weight / weight2, self.evidence)
        log_belief = np.concatenate(
            [
                np.log(1.0 - self.floor) - speaks / 2 * np.log(np.maximum(misfit, 0.0) / weight + LEAST_MISFIT),
                np.where(
                    possible,
                    np.log(self.floor) - speaks / 2 * np.log(np.maximum(misfit_with, 0.0) / weight + LEAST_MISFIT),
                    -np.inf,
                ),
            ],
            axis=1,
        )
        belief = np.exp(log_belief - log_belief.max(axis=1, keepdims=True))
        belief /= belief.sum(axis=1, keepdims=True)
        return (
            np.concatenate([scale, np.where(possible, steep, 0.0)], axis=1),
            np.concatenate([np.zeros_like(scale), np.where(possible, base, 0.0)], axis=1),
            belief,
        )

    def _forecast(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        scale, base, belief = self._candidates(rows)
        here = (self._newest[rows] / self._unit[rows])[:, None]
        above = threshold[:, None] - base
        reaches = (above > 0) & (scale > 0)
        log_u = np.log(np.where(reaches, scale / np.where(reaches, above, 1.0), 1.0)) / np.tile(self._b, 2)
        reaches &= log_u < FARTHEST
        u = np.exp(np.where(reaches, log_u, 0.0)) - np.tile(self._shift, 2)
        left = np.where(reaches, np.maximum(u - here, 1.0), np.inf)
        order = np.argsort(left, axis=1)
        left, belief = (np.take_along_axis(values, order, axis=1) for values in (left, belief))
        up_to = np.cumsum(belief, axis=1)
        at = (up_to[:, None, :] < LEVELS[:, None]).sum(axis=2)
        quantiles = np.take_along_axis(left, np.minimum(at, left.shape[1] - 1), axis=1)
        return (here + self._widened(quantiles)) * self._unit[rows, None]

    def _widened(self, left: FloatArray) -> FloatArray:
        """Each quantile spread out by the widening, and the quantiles of that."""
        with np.errstate(divide="ignore"):
            spread = np.log(left)[:, :, None] + self.widening * _WIDE
        spread = np.sort(spread.reshape(len(left), -1), axis=1).reshape(len(left), len(LEVELS), -1)
        middle: FloatArray = np.exp((spread[:, :, 1] + spread[:, :, 2]) / 2.0)
        return middle
