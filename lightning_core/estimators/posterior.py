"""A posterior over families of falling curves, and over the curves of earlier runs of the same task.

A power law through the origin (LARA, eq. 3.1) has no warm-up and no floor; real curves have both, small trainings often
fall otherwise, and a point estimate does not tell its error. So many candidates are kept (:mod:`.curve_families`), and,
where there are earlier runs, their curves too (:mod:`.earlier_curves`). They are weighed by their fit, but with the
evidence of a few cells at most: the errors of cells are correlated, and no candidate is exactly right. The candidates
of each memory count equally.

Earlier runs have most of the prior belief while the loss has the level that they lead one to expect. If it has not,
they are of another task, and count for little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import LEVELS, NORMAL, BoolArray, FloatArray, IntArray, kept
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.saved_state import Stateful
from lightning_core.estimators.annealed_families import AnnealedFamilies
from lightning_core.estimators.curve_families import MAX_LOG_POSITION, MAX_LOSS, MIN_LOSS, CurveFamilies
from lightning_core.estimators.earlier_curves import BEYOND, POINTS, EarlierCurves

POWERS = (4.0, 16.0)
MAX_POWERS = 16
# The largest prior share of earlier runs, and the probability of the level seen at which it is half of that.
HISTORY_SHARE, IMPROBABLE = 0.95, 0.1
# Part of the belief that earlier runs must have for a forecast of a few cells to be good enough.
READY_SHARE = 0.5
# Four quantiles of the widening, in place of the whole distribution.
_WIDE = NORMAL[2::5]
# Returns the batches that the fits of rows leave until thresholds, and their log beliefs, ``(n, powers, candidates)``.
FitsLeft = Callable[[IntArray, FloatArray], tuple[FloatArray, FloatArray]]
# Rows processed together, so that their candidates stay in the cache.
BLOCK = 256


class UsualWork(NamedTuple):
    """A prior over the work left, relative to the work done: fits that go on for ever should not decide alone.

    Attributes:
        ratio: Most likely ratio.
        spread: Standard deviation of its logarithm.
        penalty: Largest loss of log belief, which a fit has that never gets there.
    """

    ratio: float = 2.0
    spread: float = 0.8
    penalty: float = 5.0

    def log_belief(self, ratio: FloatArray) -> FloatArray:
        """Return the logarithm of the belief in ratios, up to a constant."""
        z = np.log(ratio / self.ratio) / self.spread
        return -np.minimum(z * z / 2.0, self.penalty)


class Posterior(Stateful):
    """A bank of posteriors over families of curves with and without a floor, and over the curves of earlier runs.

    Args:
        powers: Powers of log-time forgetting, each with its own candidates; the weight of cell i is (s_i / s_n)^power.
        evidence: Maximum number of cells that count as evidence.
        floor: Prior probability that a curve has a floor, or one for each family.
        widening: Standard deviation of the logarithm of the work left that the fit itself does not show.
        min_cells: Minimum number of cells before the bank forecasts anything without earlier runs.
        families: Prior probability of each family: power laws, stretched exponentials, plateaus with a drop.
        usual: Prior over the work left, by which a fit counts for less the less usual it is; None for none.

    Raises:
        ValueError: If an argument is out of its range.

    Example::

        >>> bank = Posterior()
        >>> bank.grow(1)
        >>> row = np.array([0])
        >>> for s in range(10, 1000, 10):
        ...     bank.observe(row, np.array([float(s)]), np.array([2.0 * s**-0.5 + 0.1]))
        >>> bank.first_passage(row, np.array([0.15]))[0, [1, 9, 18]].round(-1)
        array([1350., 1560., 2120.])
    """

    # It accepts curves above a floor (above_floor.py): its candidates include a floor of their own.
    any_loss = True
    # Forecasts are cached until the row's next cell or a request for another threshold.
    CACHED = ("_asked", "_passage", "_share")
    STATE = ("_families", "_annealed", "_earlier", *CACHED)

    def __init__(
        self,
        powers: Sequence[float] = POWERS,
        evidence: float = 6.0,
        floor: float | Sequence[float] = 0.05,
        widening: float = 0.2,
        min_cells: int = 3,
        families: Sequence[float] = (0.8, 0.1, 0.1),
        usual: UsualWork | None = None,
    ) -> None:
        if len(powers) > MAX_POWERS:
            raise ValueError(f"powers must be at most {MAX_POWERS}, got {len(powers)}")
        if not powers or not all(0 <= power < np.inf for power in powers):
            raise ValueError(f"powers must be at least one, each at least 0 and finite, got {list(powers)}")
        if not 0 < evidence < np.inf:
            raise ValueError(f"evidence must be positive and finite, got {evidence}")
        floors = np.asarray(floor, np.float64)
        if not ((floors > 0) & (floors < 1)).all():
            raise ValueError(f"floor must be above 0 and below 1, got {floor}")
        if not 0 <= widening < np.inf:
            raise ValueError(f"widening must be at least 0 and finite, got {widening}")
        if min_cells < 3:
            raise ValueError(f"min_cells must be at least 3 cells, got {min_cells}")
        shares = np.asarray(families, np.float64)
        if shares.shape != (3,) or not (shares > 0).all() or abs(shares.sum() - 1.0) > 1e-9:
            raise ValueError(f"families must be three positive probabilities that add up to 1, got {families}")
        self.powers, self.evidence, self.usual = tuple(powers), evidence, usual
        self.widening, self.min_cells = widening, min_cells
        self._families = CurveFamilies(np.array(self.powers), evidence, shares, floors)
        self._annealed = AnnealedFamilies(self._families)
        self._earlier = EarlierCurves(np.array(self.powers))
        self._asked = np.zeros(0)
        self._passage = np.zeros((0, len(LEVELS)))
        self._share = np.zeros(0)  # of the belief, that of earlier runs

    def grow(self, rows: int) -> None:
        self._families.grow(rows)
        extra = len(self._families.count) - len(self._asked)
        for name in self.CACHED:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros((extra, *column.shape[1:]))]))

    def keep(self, stays: BoolArray) -> None:
        self._families.keep(stays)
        self._annealed.keep(stays)
        self._earlier.keep(stays)
        for name in self.CACHED:
            setattr(self, name, kept(getattr(self, name), stays))

    def history(self, row: int, curves: Sequence[EarlierRun]) -> None:
        self._earlier.add(row, [_table(curve.batches, curve.losses) for curve in curves])
        self._asked[row] = 0.0

    def schedule(self, row: int, position: FloatArray, rate: FloatArray) -> None:
        self._annealed.set(row, position, rate, self._families)
        self._asked[row] = 0.0

    def ready(self, rows: IntArray) -> BoolArray:
        trusted = (self._families.count[rows] < self.min_cells) | (self._share[rows] >= READY_SHARE)
        return self._earlier.has(rows) & trusted

    def history_share(self, rows: IntArray) -> FloatArray:
        return np.where(self._earlier.has(rows), self._share[rows], 0.0)

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        loss = np.clip(loss, MIN_LOSS, MAX_LOSS)
        self._families.observe(rows, position, loss)
        self._annealed.observe(rows, position, loss)
        self._earlier.observe(rows, np.log(position), np.log(loss))
        self._asked[rows] = 0.0

    def observe_curve(self, row: int, position: FloatArray, loss: FloatArray) -> None:
        """Take a whole curve into a row without cells and without earlier runs, as :meth:`observe` does one by one.

        Args:
            row: The row.
            position: Batches done at each cell, growing, shape ``(n,)``.
            loss: Losses, shape ``(n,)``.
        """
        loss = np.clip(loss, MIN_LOSS, MAX_LOSS)
        self._families.observe_curve(row, position, loss)
        self._annealed.observe_curve(row, position, loss)
        self._asked[row] = 0.0

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        known = self._families.count[rows] >= self.min_cells
        annealed = self._annealed.has(rows)
        said = np.full(len(rows), np.nan)
        for these, losses in ((known & ~annealed, self._fitted_losses), (known & annealed, self._annealed.predict)):
            if these.any():
                loss, log_belief = losses(rows[these], position[these])
                belief = normalised(log_belief) / len(self.powers)
                said[these] = np.exp(np.sum(belief * np.log(np.maximum(loss, MIN_LOSS)), axis=(1, 2)))
        return said

    def _fitted_losses(self, rows: IntArray, position: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the losses of the fits at positions, and their log beliefs, each ``(n, powers, candidates)``."""
        fits, flat = self._families.candidates(rows), (len(rows), len(self.powers), -1)
        x = self._families.shape(position / self._families.unit[rows])[:, None, None, :]
        return (fits.scale * x + fits.floor).reshape(flat), fits.log_belief.reshape(flat)

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        known = (self._families.count[rows] >= self.min_cells) | self._earlier.has(rows)
        stale = np.flatnonzero((self._asked[rows] != threshold) & known)
        for start in range(0, len(stale), BLOCK):
            block = stale[start : start + BLOCK]
            at = rows[block]
            self._passage[at] = self._forecast(at, np.clip(threshold[block], MIN_LOSS, MAX_LOSS))
            self._asked[at] = threshold[block]
        return np.where(known[:, None], self._passage[rows], np.nan)

    def _forecast(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        has, annealed = self._earlier.has(rows), self._annealed.has(rows)
        left = np.empty((len(rows), len(LEVELS)))
        for fits_left, by_rate in ((self._fits_left, ~annealed), (self._annealed.follow, annealed)):
            for candidates, by_history in ((self._by_fit, ~has), (self._with_history, has)):
                if (these := by_rate & by_history).any():
                    left[these] = belief_quantiles(*candidates(rows[these], threshold[these], fits_left))
        return self._families.newest[rows, None] + self._widened(left)

    def _by_fit(self, rows: IntArray, threshold: FloatArray, fits_left: FitsLeft) -> tuple[FloatArray, FloatArray]:
        """Return the batches left by each fit, and the belief in it, ``(n, powers, candidates)``."""
        left, log_belief = fits_left(rows, threshold)
        if self.usual is not None:
            log_belief = log_belief + self.usual.log_belief(left / self._families.newest[rows, None, None])
        return left, normalised(log_belief)

    def _fits_left(self, rows: IntArray, threshold: FloatArray) -> tuple[FloatArray, FloatArray]:
        fits, flat = self._families.candidates(rows), (len(rows), len(self.powers), -1)
        return self._families.batches_left(rows, fits, threshold).reshape(flat), fits.log_belief.reshape(flat)

    def _with_history(
        self, rows: IntArray, threshold: FloatArray, fits_left: FitsLeft
    ) -> tuple[FloatArray, FloatArray]:
        """Return the same of rows that have earlier runs, whose curves come first."""
        runs = self._earlier.candidates(rows, np.log(threshold), self.evidence)
        reached = np.exp(np.minimum(runs.log_passage, 2 * MAX_LOG_POSITION))
        left = np.maximum(reached - self._families.newest[rows, None, None], 1.0) * np.exp(runs.spread)
        left[np.isinf(runs.log_passage)] = np.inf
        fitted = self._families.count[rows] >= self.min_cells
        share = np.where(fitted[:, None], HISTORY_SHARE * runs.level / (runs.level + IMPROBABLE), 1.0)[:, :, None]
        by_fit, log_belief = np.full((2, len(rows), len(self.powers), 0), -np.inf)
        if fitted.any():
            some = fits_left(rows[fitted], threshold[fitted])
            by_fit, log_belief = np.full((2, len(rows), *some[0].shape[1:]), -np.inf)
            by_fit[fitted], log_belief[fitted] = some
        with np.errstate(divide="ignore"):
            log_belief = np.concatenate([runs.log_belief + np.log(share), log_belief + np.log(1.0 - share)], axis=2)
        belief = normalised(log_belief)
        self._share[rows] = np.clip(1.0 - belief[:, :, left.shape[2] :].sum(axis=2).mean(axis=1), 0.0, 1.0)
        return np.concatenate([left, by_fit], axis=2), belief

    def _widened(self, left: FloatArray) -> FloatArray:
        """Spread each quantile by the widening, and return the quantiles of the result."""
        with np.errstate(divide="ignore"):
            spread = np.log(left)[:, :, None] + self.widening * _WIDE
        spread = np.sort(spread.reshape(len(left), -1), axis=1).reshape(len(left), len(LEVELS), -1)
        middle: FloatArray = np.exp((spread[:, :, 1] + spread[:, :, 2]) / 2.0)
        return middle


def normalised(log_belief: FloatArray) -> FloatArray:
    """Return beliefs ``(n, powers, candidates)`` that add up to 1 under each memory.

    They are added in order: so a row's are the same to the bit whatever the rows beside it, which may have more.
    """
    belief = np.exp(log_belief - log_belief.max(axis=2, keepdims=True))
    whole: FloatArray = belief / np.cumsum(belief, axis=2)[:, :, -1:]
    return whole


def belief_quantiles(left: FloatArray, belief: FloatArray) -> FloatArray:
    """Return quantiles of candidates ``(n, powers, candidates)`` by belief, the same under each memory; ``(n, 20)``."""
    left = left.reshape(len(left), -1)
    order = np.argsort(left, axis=1, kind="stable")  # so that further candidates without belief change nothing
    left = np.take_along_axis(left, order, axis=1)
    up_to = np.cumsum(np.take_along_axis(belief.reshape(left.shape), order, axis=1), axis=1)
    # One search for all rows: each row's beliefs run from its number to the next one.
    row = np.arange(len(left))[:, None]
    at = np.searchsorted((up_to / up_to[:, -1:] + row).ravel(), (LEVELS + row).ravel())
    found: FloatArray = left.ravel()[at].reshape(-1, len(LEVELS))
    return found


@lru_cache(maxsize=1000)
def _table(batches: tuple[int, ...], losses: tuple[float, ...]) -> tuple[FloatArray, float, float, float]:
    """Return the table of an earlier run, as :meth:`EarlierCurves.add` takes it."""
    position, loss = np.array(batches, np.float64), np.clip(losses, MIN_LOSS, MAX_LOSS)
    first, end = float(np.log(batches[0])), float(np.log(batches[-1]))
    x = np.linspace(first, end + BEYOND, POINTS)
    log_loss = np.interp(x, np.log(position), np.log(loss))
    bank, beyond = Posterior(), x > end
    if len(batches) >= bank.min_cells:
        bank.grow(1)
        bank.observe_curve(0, position, loss)
        ahead = np.exp(np.append(end, x[beyond]))
        log_ahead = np.log(bank.predict(np.zeros(len(ahead), np.int64), ahead))
        log_loss[beyond] += log_ahead[1:] - log_ahead[0]
    return log_loss, first, float(x[1] - x[0]), end
