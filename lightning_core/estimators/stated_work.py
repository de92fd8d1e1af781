"""Forecast of one loss curve for a statement to its user: how much longer until its target, and how sure is that?

A bank that plans for many jobs (:mod:`.posterior`) must not give up a job too early. A user who is told a number takes
it at its word. So this forecast believes more readily in floors, asks for more evidence, remembers longer, and has a
prior over the work left: candidates that fit as well as others, and go on for ever, do not decide alone.

It is made on demand from the points of a curve, and keeps no state.
"""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import LEVELS, FloatArray
from lightning_core.estimators.curve_families import MAX_LOSS, MIN_LOSS
from lightning_core.estimators.posterior import Posterior, UsualWork

# Powers of log-time forgetting, and prior probabilities of each family, and of a floor in it.
POWERS, FAMILIES, FLOORS = (1.0, 4.0, 16.0), (0.6, 0.2, 0.2), (0.3, 0.5, 0.5)


def work_left(
    position: FloatArray, loss: FloatArray, threshold: float, rates: tuple[FloatArray, FloatArray] | None = None
) -> FloatArray:
    """Return quantiles of the batches left until a curve comes down to a threshold.

    Args:
        position: Batches done at each point, growing, shape ``(n,)``.
        loss: Losses, shape ``(n,)``. If one or the threshold is not positive, they count from a floor below them all;
            but losses above 0 do not fall to 0.
        threshold: Loss to reach.
        rates: Batches and learning rates of the whole training, as of
            :class:`~lightning_core.core.protocols.KnowsSchedule`; None if they are constant or unknown.

    Returns:
        Quantiles at :data:`~lightning_core.core.arrays.LEVELS`, shape ``(20,)``; inf for never, NaN for fewer points
        than the posterior needs.

    Example::

        >>> s = np.arange(10.0, 1000.0, 10.0)
        >>> work_left(s, 2.0 * np.exp(-s / 400.0) + 0.1, 0.15)[[1, 10, 18]].round(-1)
        array([470., 620., 720.])
    """
    if not len(position):
        return np.full(len(LEVELS), np.nan)
    loss, threshold = np.clip(loss, -MAX_LOSS, MAX_LOSS), min(max(threshold, -MAX_LOSS), MAX_LOSS)
    lowest = min(float(loss.min()), threshold)
    if lowest <= 0 and (threshold != 0 or loss.min() < 0):  # a loss that was never below 0 has its floor there
        floor = lowest - max(float(loss[len(loss) // 4]) - lowest, 1e-6 * abs(lowest), 1e-12)
        loss, threshold = loss - floor, threshold - floor
    bank = Posterior(POWERS, 12.0, FLOORS, widening=0.0, families=FAMILIES, usual=UsualWork())
    bank.grow(1)
    if rates is not None:
        bank.schedule(0, *rates)
    bank.observe_curve(0, position, loss)
    left: FloatArray = bank.first_passage(np.array([0]), np.array([max(threshold, MIN_LOSS)]))[0] - position[-1]
    return left


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
