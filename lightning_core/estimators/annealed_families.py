"""Families of curves of trainings whose learning rates are known: a loss falls as its learning rate comes down.

The loss of a training is l(s) = (a x(s) + c) exp(-kappa d(s)): a curve as at a constant rate, times what annealing
gains. d is the part by which the rate has come down from its highest so far, averaged over a hundredth of the
run, as the loss follows with a delay; a warm-up is none of it. How much is gained, kappa, is a grid of its own.

For each kappa, the losses are divided by that factor and fitted like those at a constant rate. Where the products
reach a threshold has no closed form: each is followed over the learning rates ahead, at which the fit itself is asked
for the threshold divided by the factor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray, kept
from lightning_core.core.saved_state import Stateful
from lightning_core.estimators.curve_families import FAMILY, MAX_LOSS, MIN_LOSS, CurveFamilies

# What annealing gains, and what is believed of it.
GAINS = np.array([0.0, 0.05, 0.2, 0.8])
_PRIOR = 1.0 / (1.0 + 3.0 * GAINS)
LOG_PRIOR = np.log(_PRIOR / _PRIOR.sum())
# Part of the run over which a rate is averaged.
DELAY = 0.01
# Positions at which d is kept: closer where it changes.
POINTS = 64
# Candidates of less than this belief, as the logarithm of its ratio to the largest, are not followed.
NEGLIGIBLE = -6.0


class Followed(NamedTuple):
    """Candidates of some rows that count, arrays ``(n, memories, candidates)``."""

    left: FloatArray
    """Batches until the threshold is reached, at least one cell; inf if it never is."""
    log_belief: FloatArray
    """Logarithm of the belief, up to a constant of each row and memory; -inf where a row has fewer candidates."""


class AnnealedFamilies(Stateful):
    """The candidates of those rows of a bank that have learning rates.

    Args:
        families: The families of all rows, from which a row's own begin.
    """

    STATE = ("_slot", "_position", "_annealed", "_families")

    def __init__(self, families: CurveFamilies) -> None:
        # Of each slot, a row for each gain.
        self._families = CurveFamilies(families.power, families.evidence, families.families, families.floors)
        self._slot = np.zeros(0, np.int64)  # by row; -1 at a constant rate
        self._position, self._annealed = np.zeros((2, 0, POINTS))  # by slot

    def has(self, rows: IntArray) -> BoolArray:
        """Return whether each row has learning rates that come down."""
        if not len(self._slot):
            return np.zeros(len(rows), np.bool_)
        within = np.minimum(rows, len(self._slot) - 1)
        found: BoolArray = (self._slot[within] >= 0) & (rows < len(self._slot))
        return found

    def set(self, row: int, position: FloatArray, rate: FloatArray, families: CurveFamilies) -> None:
        """Give a row its learning rates, in place of those that it had.

        What it has seen stays as it was understood when it was seen.

        Args:
            row: The row.
            position: Batches, growing, shape ``(n,)``.
            rate: Their learning rates, shape ``(n,)``.
            families: The families of all rows.
        """
        points = annealing(position, rate)
        if row >= len(self._slot):
            self._slot = np.concatenate([self._slot, np.full(row + 1 - len(self._slot), -1)])
        if points is None:
            stays = np.ones(len(self._slot), np.bool_)
            stays[row] = False
            self._drop_slots(stays)
            return
        if self._slot[row] < 0:
            self._slot[row] = slot = len(self._position)
            self._position, self._annealed = (
                np.concatenate([column, np.zeros((1, POINTS))]) for column in (self._position, self._annealed)
            )
            self._families.grow((slot + 1) * len(GAINS))
            self._families.copy_row(families, row, self._of(np.array([slot])))
        self._position[self._slot[row]], self._annealed[self._slot[row]] = points

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        """Take in one cell for each row that has learning rates; the others are left out."""
        has = self.has(rows)
        if has.any():
            slots, position = self._slot[rows[has]], position[has]
            above = np.clip(loss[has, None] / self._factor(slots, position), MIN_LOSS, MAX_LOSS)
            self._families.observe(self._of(slots), np.repeat(position, len(GAINS)), above.ravel())

    def observe_curve(self, row: int, position: FloatArray, loss: FloatArray) -> None:
        """Take in all cells of a curve, if its row has learning rates; arrays ``(n,)``."""
        if not self.has(np.array([row]))[0]:
            return
        slot = self._slot[[row]]
        factor = self._factor(np.repeat(slot, len(position)), position)
        for k, at in enumerate(self._of(slot).tolist()):
            self._families.observe_curve(at, position, np.clip(loss / factor[:, k], MIN_LOSS, MAX_LOSS))

    def predict(self, rows: IntArray, position: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the losses at positions, and their log beliefs, each ``(n, memories, candidates)``."""
        slots = self._slot[rows]
        at, each = self._of(slots), np.repeat(position, len(GAINS))
        fits = self._families.candidates(at)
        x = self._families.shape(each / self._families.unit[at])[:, None, None, :]
        factor = self._factor(slots, position).ravel()[:, None, None, None]
        return self._together((fits.scale * x + fits.floor) * factor), self._beliefs(fits.log_belief)

    def follow(self, rows: IntArray, threshold: FloatArray) -> Followed:
        """Return where the candidates of rows reach their thresholds, shape ``(n,)``."""
        slots = self._slot[rows]
        at = self._of(slots)
        fits = self._families.candidates(at)
        belief = self._beliefs(fits.log_belief)
        counts = belief > belief.max(axis=2, keepdims=True) + NEGLIGIBLE
        row, memory, number = np.nonzero(counts)
        gain, fit = np.divmod(number, belief.shape[2] // len(GAINS))
        scale, floor = (self._together(column)[counts] for column in (fits.scale, fits.floor))
        reached = self._reached(slots, row, GAINS[gain], fit, scale, floor, threshold[row])
        place = row, memory, np.cumsum(counts, axis=2)[counts] - 1
        left, log_belief = np.empty((2, *belief.shape[:2], int(counts.sum(axis=2).max())))
        left[...], log_belief[...] = np.inf, -np.inf
        left[place], log_belief[place] = reached, belief[counts]
        return Followed(left, log_belief)

    def keep(self, stays: BoolArray) -> None:
        """Drop rows; those that stay close up."""
        slots = self._slot[: len(stays)]
        self._slot = np.concatenate([slots, np.full(len(stays) - len(slots), -1)])
        self._drop_slots(stays)
        self._slot = self._slot[stays]

    def _drop_slots(self, stays: BoolArray) -> None:
        """Drop the slots of rows; each row's number of its slot follows."""
        slots = np.zeros(len(self._position), np.bool_)
        slots[self._slot[stays & (self._slot >= 0)]] = True
        self._position, self._annealed = (kept(column, slots) for column in (self._position, self._annealed))
        self._families.keep(np.repeat(slots, len(GAINS)))
        self._slot = np.where(stays & (self._slot >= 0), np.append(np.cumsum(slots) - 1, -1)[self._slot], -1)

    def _of(self, slots: IntArray) -> IntArray:
        """Return the rows of the fits of slots, one for each gain."""
        return (slots[:, None] * len(GAINS) + np.arange(len(GAINS))).ravel()

    def _together(self, column: FloatArray) -> FloatArray:
        """Return a column of the fits ``(n * gains, memories, 2, grid)`` as ``(n, memories, candidates)``."""
        by_gain = column.reshape(-1, len(GAINS), column.shape[1], column.shape[2] * column.shape[3])
        return by_gain.swapaxes(1, 2).reshape(len(by_gain), column.shape[1], -1)

    def _beliefs(self, log_belief: FloatArray) -> FloatArray:
        prior = np.tile(LOG_PRIOR, len(log_belief) // len(GAINS))
        return self._together(log_belief + prior[:, None, None, None])

    def _factor(self, slots: IntArray, position: FloatArray) -> FloatArray:
        """Return the factors of each gain at positions ``(n,)``, shape ``(n, gains)``."""
        annealed = [np.interp(position[k], self._position[slot], self._annealed[slot]) for k, slot in enumerate(slots)]
        factor: FloatArray = np.exp(-GAINS * np.array(annealed)[:, None])
        return factor

    def _reached(
        self, slots: IntArray, row: IntArray, gain: FloatArray, fit: IntArray, scale: FloatArray, floor: FloatArray,
        threshold: FloatArray,
    ) -> FloatArray:  # fmt: skip
        """Return the batches left of single candidates, arrays ``(m,)``; ``row`` is the place of each one's slot."""
        newest, unit = self._families.newest[slots * len(GAINS)], self._families.unit[slots * len(GAINS)]
        today = [np.interp(newest[k], self._position[slot], self._annealed[slot]) for k, slot in enumerate(slots)]
        ahead = self._position[slots] > newest[:, None]
        position = np.where(ahead, self._position[slots], newest[:, None])
        # A rate that rises again counts as low as it has been: then the losses fall, and one search finds the passage.
        lowest = np.maximum.accumulate(np.where(ahead, self._annealed[slots], np.array(today)[:, None]), axis=1)
        candidate = fit % len(FAMILY)
        fitted = scale > 0

        def passed(point: IntArray) -> FloatArray:
            """Return the batches done when each candidate reaches its threshold, if the rate stays as at a point."""
            above = threshold * np.exp(gain * lowest[row, point]) - floor
            reaches = fitted & (above > 0)
            x = np.divide(above, scale, out=np.ones_like(above), where=reaches)
            return np.where(reaches, self._families.passage(x, candidate) * unit[row], np.inf)

        # The first point at which the rate has come down far enough, POINTS if there is none.
        low, high = np.full(len(row), -1), np.full(len(row), POINTS)
        for _ in range(POINTS.bit_length()):
            middle = (low + high) // 2
            is_past = passed(np.clip(middle, 0, POINTS - 1)) <= position[row, np.clip(middle, 0, POINTS - 1)]
            open_still = high - low > 1
            high, low = np.where(open_still & is_past, middle, high), np.where(open_still & ~is_past, middle, low)
        before, at = np.clip(low, 0, POINTS - 1), np.clip(high, 0, POINTS - 1)
        then = passed(at)
        late, early = passed(before) - position[row, before], then - position[row, at]
        # Where it is never reached at the rate before, it is as soon as the rate allows.
        inside = np.isfinite(late) & (late > early)
        late, early = np.where(inside, late, 1.0), np.where(inside, early, 0.0)
        between = position[row, before] + late / (late - early) * (position[row, at] - position[row, before])
        found = np.where((high == 0) | (high == POINTS), then, between)
        left: FloatArray = np.maximum(found - newest[row], unit[row])
        return left


def annealing(position: FloatArray, rate: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Return positions and how far the learning rate has come down at each, two arrays of :data:`POINTS`.

    Args:
        position: Batches, growing, shape ``(n,)``.
        rate: Learning rates at these, shape ``(n,)``, linear in between.

    Returns:
        The positions, growing, and for each d(s), in [0, 1]; None for a rate that never comes down.
    """
    highest = np.maximum.accumulate(rate)
    down = 1.0 - np.divide(rate, highest, out=np.ones_like(rate), where=highest > 0)
    if not down.any():
        return None
    delay = DELAY * position[-1]
    s = np.unique(np.concatenate([position, position + delay, position + delay / 2]))
    steps = np.diff(position)
    area = np.concatenate([[0.0], np.cumsum((down[1:] + down[:-1]) / 2.0 * steps)])

    # The integral of d, exact between two points: a rate is linear there. Before and after them d is constant.
    def integral(at: FloatArray) -> FloatArray:
        inside = np.clip(at, position[0], position[-1])
        k = np.clip(np.searchsorted(position, inside) - 1, 0, max(len(position) - 2, 0))
        level = np.interp(inside, position, down)
        total: FloatArray = area[k] + (down[k] + level) / 2.0 * (inside - position[k])
        total += down[0] * np.minimum(at - position[0], 0.0) + down[-1] * np.maximum(at - position[-1], 0.0)
        return total

    smooth = np.clip((integral(s) - integral(s - delay)) / delay, 0.0, 1.0)
    changes = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(smooth)))])
    measure = changes / max(changes[-1], 1e-300) + (s - s[0]) / (s[-1] - s[0])
    points: FloatArray = np.interp(np.linspace(0.0, measure[-1], POINTS), measure, s)
    return points, np.interp(points, s, smooth)
