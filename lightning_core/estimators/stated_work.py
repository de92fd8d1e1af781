"""Forecast of one loss curve for a statement to its user: how much longer until its target, and how sure is that?

A bank that plans for many jobs (:mod:`.posterior`) knows power laws only, and must not give up a job too early. A user
who is told a number takes it at its word. So this forecast weighs more families of curves, which small trainings
follow as often: a power law with a shift, a stretched exponential (Weibull), and a plateau with a drop (Hill), each
with and without a floor; and what annealing gains where the learning rates are known. A broad prior over the work left,
relative to the work done, keeps candidates that fit as well as others, and go on for ever, from deciding alone.

It is made on demand from the points of a curve, and keeps no state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import LEVELS, BoolArray, FloatArray
from lightning_core.estimators.annealed_laws import GAINS, LOG_PRIOR, annealing
from lightning_core.estimators.posterior import belief_quantiles, normalised
from lightning_core.estimators.power_laws import EXPONENTS, MAX_LOSS, MIN_LOSS, SHIFTS

# Times in units of the first point after which a curve that is no power law has mostly come down.
TIMES = np.geomspace(2.0, 4096.0, 45)
# Exponents of time in a stretched exponential, and in a plateau with a drop.
STRETCHES, SLOPES = (0.5, 0.7, 1.0, 1.4, 2.0), (2.0, 3.0, 4.0)
# Prior belief in each family, and that a curve of it has a floor.
FAMILIES, FLOORS = np.array([0.5, 0.25, 0.25]), np.array([0.3, 0.5, 0.5])
# Powers of log-time forgetting, each with its own candidates.
POWERS = np.array([1.0, 4.0, 16.0])
# Number of points that count as evidence at most.
EVIDENCE = 12.0
# Sum of relative squared misfits that is taken to lie before the first point.
PRIOR_MISFIT, MIN_MISFIT = 2e-4, 1e-8
# Prior over the work left: logarithm of its most likely ratio to the work done, its standard deviation, and the largest
# penalty, which a candidate has that never gets there.
USUAL, SPREAD, NEVER = np.log(2.0), 0.8, 5.0
# Positions ahead at which candidates are followed, up to this many times the work done.
AHEAD, FARTHEST = 160, 300.0
# Points before which nothing is said.
MIN_POINTS = 3


class _Shapes(NamedTuple):
    """The shapes of all families; arrays ``(grid,)``."""

    family: FloatArray
    exponent: FloatArray
    shift: FloatArray
    time: FloatArray

    def at(self, u: FloatArray) -> FloatArray:
        """Return all shapes at positions in units of the first point, ``(n,)``; shape ``(n, grid)``."""
        u = u[:, None]
        rises = (u / self.time) ** self.exponent
        power = (u + self.shift) ** -self.exponent
        return np.select([self.family == 0, self.family == 1], [power, np.exp(-rises)], 1.0 / (1.0 + rises))


def _shapes() -> _Shapes:
    laws = [(0, b, s0, 1.0) for b in EXPONENTS for s0 in SHIFTS]
    weibulls = [(1, b, 0.0, time) for b in STRETCHES for time in TIMES]
    hills = [(2, b, 0.0, time) for b in SLOPES for time in TIMES]
    return _Shapes(*np.array(laws + weibulls + hills, np.float64).T)


SHAPES = _shapes()


def work_left(
    position: FloatArray, loss: FloatArray, threshold: float, rates: tuple[FloatArray, FloatArray] | None = None
) -> FloatArray:
    """Return quantiles of the batches left until a curve comes down to a threshold.

    Args:
        position: Batches done at each point, growing, shape ``(n,)``.
        loss: Losses, shape ``(n,)``. If one or the threshold is not positive, they count from a floor below them all.
        threshold: Loss to reach.
        rates: Batches and learning rates of the whole training, as of
            :class:`~lightning_core.core.protocols.KnowsSchedule`; None if they are constant or unknown.

    Returns:
        Quantiles at :data:`~lightning_core.core.arrays.LEVELS`, shape ``(20,)``; inf for never, NaN for fewer than
        :data:`MIN_POINTS` points.

    Example::

        >>> s = np.arange(10.0, 1000.0, 10.0)
        >>> work_left(s, 2.0 * np.exp(-s / 400.0) + 0.1, 0.15)[[1, 10, 18]].round(-1)
        array([450., 590., 630.])
    """
    if len(position) < MIN_POINTS:
        return np.full(len(LEVELS), np.nan)
    loss, threshold = np.clip(loss, -MAX_LOSS, MAX_LOSS), min(max(threshold, -MAX_LOSS), MAX_LOSS)
    lowest = min(loss.min(), threshold)
    if lowest <= 0:
        floor = lowest - max(loss[len(loss) // 4] - lowest, 1e-6 * abs(lowest), 1e-12)
        loss, threshold = loss - floor, threshold - floor
    loss, threshold = np.clip(loss, MIN_LOSS, MAX_LOSS), min(max(threshold, MIN_LOSS), MAX_LOSS)
    unit, now = position[0], position[-1]
    x = SHAPES.at(position / unit)
    ahead = now + now * np.geomspace(0.01, FARTHEST, AHEAD)
    x_ahead = SHAPES.at(ahead / unit)
    points = None if rates is None else annealing(*rates)
    gains, gain_prior = (np.zeros(1), np.zeros(1)) if points is None else (GAINS, LOG_PRIOR)
    down, down_ahead = (0.0, 0.0) if points is None else (np.interp(s, *points) for s in (position, ahead))
    weight = (position / now) ** POWERS[:, None]
    left, belief = [], []
    for gain, prior in zip(gains, gain_prior, strict=True):
        factor_ahead = np.exp(-gain * down_ahead) * np.ones(AHEAD)
        for scale, floor, log_belief in _fits(x, loss / np.exp(-gain * down), weight):
            curve = (scale[:, None] * x_ahead + floor[:, None]) * factor_ahead[None, :, None]
            found = _first(curve <= threshold, ahead - now)
            z = (np.log(found / now) - USUAL) / SPREAD
            left.append(found)
            belief.append(log_belief + prior - np.minimum(z * z / 2.0, NEVER))
    log_belief = np.concatenate(belief, axis=1)[None]
    quantiles: FloatArray = belief_quantiles(np.concatenate(left, axis=1)[None], normalised(log_belief))[0]
    return quantiles


def likeliest(left: FloatArray) -> tuple[float, float]:
    """Return the work left that is most likely within a factor of two of the truth, and how likely that is.

    Args:
        left: Quantiles of the work left, shape ``(20,)``, positive.

    Example::

        >>> work, chance = likeliest(np.concatenate([np.linspace(90.0, 110.0, 15), np.full(5, np.inf)]))
        >>> round(work, -1), chance
        (100.0, 0.75)
    """
    finite = np.log(left[np.isfinite(left)])
    if not len(finite):
        return np.inf, 0.0
    near = np.abs(finite - finite[:, None]) <= np.log(2.0)
    most = near.sum(axis=1)
    # Of several that are as likely, the middle one.
    best = np.flatnonzero(most == most.max())
    return float(np.exp(finite[best[len(best) // 2]])), float(most.max() / len(left))


def _fits(x: FloatArray, y: FloatArray, weight: FloatArray) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
    """Return scale, floor and log belief of all candidates without a floor, and with one; ``(memories, grid)``."""
    precision = weight / (y * y)
    total = precision.sum(axis=1, keepdims=True)
    mean_y, mean_x = precision @ y[:, None] / total, precision @ x / total
    to_y, to_x = y - mean_y, x - mean_x[:, None]  # (memories, n), (memories, n, grid)
    yy = (precision * to_y * to_y).sum(axis=1, keepdims=True)
    xx = (precision[:, :, None] * to_x * to_x).sum(axis=1)
    xy = (precision[:, :, None] * to_x * to_y[:, :, None]).sum(axis=1)
    amount = weight.sum(axis=1, keepdims=True)
    cells = np.minimum(amount**2 / (weight**2).sum(axis=1, keepdims=True), EVIDENCE)
    family = SHAPES.family.astype(np.int64)
    share = np.log(FAMILIES / np.bincount(family))[family]
    raw = xy + total * mean_x * mean_y
    through = raw / (xx + total * mean_x**2 + 1e-300)
    steep = np.divide(xy, xx, out=np.zeros_like(xy), where=xx > 1e-12 * total * mean_x**2)
    base = mean_y - steep * mean_x
    fits = []
    for scale, floor, misfit, prior, possible in (
        (through, np.zeros_like(through), yy + total * mean_y**2 - through * raw, 1.0 - FLOORS, through > 0),
        (steep, base, yy - steep * xy, FLOORS, (steep >= 0) & (base > 0)),
    ):
        relative = (np.maximum(misfit, 0.0) + PRIOR_MISFIT) / amount + MIN_MISFIT
        log_belief = share + np.log(prior)[family] - cells / 2.0 * np.log(relative)
        fits.append((scale, floor, np.where(possible, log_belief, -np.inf)))
    return fits


def _first(reached: BoolArray, left: FloatArray) -> FloatArray:
    """Return the work at the first position that is reached, inf if none is; ``reached`` is ``(memories, n, grid)``."""
    at = reached.argmax(axis=1)
    found: FloatArray = np.where(reached.any(axis=1), left[at], np.inf)
    return found
