"""A posterior over power laws with a shift and a floor, and over the curves of earlier runs of the same task.

A power law through the origin (LARA, eq. 3.1) has no warm-up and no floor; real curves have both, and a point estimate
does not tell its error. So many candidates are kept (:mod:`.power_laws`), and, where there are earlier runs, their
curves too (:mod:`.earlier_curves`). They are weighed by their fit, but with the evidence of a few cells at most: the
errors of cells are correlated, and no candidate is exactly right. The candidates of each memory count equally.

Earlier runs have most of the prior belief while the loss has the level that they lead one to expect. If it has not,
they are of another task, and count for little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from lightning_core.core.arrays import LEVELS, NORMAL, BoolArray, FloatArray, IntArray, kept
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.saved_state import Stateful
from lightning_core.estimators.annealed_laws import AnnealedLaws
from lightning_core.estimators.earlier_curves import BEYOND, POINTS, EarlierCurves
from lightning_core.estimators.power_laws import MAX_LOG_POSITION, MAX_LOSS, MIN_LOSS, PowerLaws

POWERS = (4.0, 16.0)
MAX_POWERS = 16
# The largest prior share of earlier runs, and the probability of the level seen at which it is half of that.
HISTORY_SHARE, IMPROBABLE = 0.95, 0.1
# Part of the belief that earlier runs must have for a forecast of a few cells to be good enough.
READY_SHARE = 0.5
# Four quantiles of the widening, in place of the whole distribution.
_WIDE = NORMAL[2::5]
# Returns the batches that the laws of rows leave until thresholds, and their log beliefs, ``(n, powers, candidates)``.
LawsLeft = Callable[[IntArray, FloatArray], tuple[FloatArray, FloatArray]]
# Rows processed together, so that their candidates stay in the cache.
BLOCK = 256


class Posterior(Stateful):
    """A bank of posteriors over shifted power laws with a floor, and over the curves of earlier runs.

    Args:
        powers: Powers of log-time forgetting, each with its own candidates; the weight of cell i is (s_i / s_n)^power.
        evidence: Maximum number of cells that count as evidence.
        floor: Prior probability that a curve has a floor.
        widening: Standard deviation of the logarithm of the work left that the fit itself does not show.
        min_cells: Minimum number of cells before the bank forecasts anything without earlier runs.

    Raises:
        ValueError: If an argument is out of its range.

    Example::

        >>> bank = Posterior()
        >>> bank.grow(1)
        >>> row = np.array([0])
        >>> for s in range(10, 1000, 10):
        ...     bank.observe(row, np.array([float(s)]), np.array([2.0 * s**-0.5 + 0.1]))
        >>> bank.first_passage(row, np.array([0.15]))[0, [1, 9, 18]].round(-1)
        array([1380., 1560., 2080.])
    """

    # It accepts curves above a floor (above_floor.py): its candidates include a floor of their own.
    any_loss = True
    # Forecasts are cached until the row's next cell or a request for another threshold.
    CACHED = ("_asked", "_passage", "_share")
    STATE = ("_laws", "_annealed", "_earlier", *CACHED)

    def __init__(
        self,
        powers: Sequence[float] = POWERS,
        evidence: float = 6.0,
        floor: float = 0.05,
        widening: float = 0.2,
        min_cells: int = 3,
    ) -> None:
        if len(powers) > MAX_POWERS:
            raise ValueError(f"powers must be at most {MAX_POWERS}, got {len(powers)}")
        if not powers or not all(0 <= power < np.inf for power in powers):
            raise ValueError(f"powers must be at least one, each at least 0 and finite, got {list(powers)}")
        if not 0 < evidence < np.inf:
            raise ValueError(f"evidence must be positive and finite, got {evidence}")
        if not 0 < floor < 1:
            raise ValueError(f"floor must be above 0 and below 1, got {floor}")
        if not 0 <= widening < np.inf:
            raise ValueError(f"widening must be at least 0 and finite, got {widening}")
        if min_cells < 3:
            raise ValueError(f"min_cells must be at least 3 cells, got {min_cells}")
        self.powers, self.evidence, self.floor = tuple(powers), evidence, floor
        self.widening, self.min_cells = widening, min_cells
        self._laws = PowerLaws(np.array(self.powers), evidence, floor)
        self._annealed = AnnealedLaws(self._laws)
        self._earlier = EarlierCurves(np.array(self.powers))
        self._asked = np.zeros(0)
        self._passage = np.zeros((0, len(LEVELS)))
        self._share = np.zeros(0)  # of the belief, that of earlier runs

    def grow(self, rows: int) -> None:
        self._laws.grow(rows)
        extra = len(self._laws.count) - len(self._asked)
        for name in self.CACHED:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros((extra, *column.shape[1:]))]))

    def keep(self, stays: BoolArray) -> None:
        self._laws.keep(stays)
        self._annealed.keep(stays)
        self._earlier.keep(stays)
        for name in self.CACHED:
            setattr(self, name, kept(getattr(self, name), stays))

    def history(self, row: int, curves: Sequence[EarlierRun]) -> None:
        self._earlier.add(row, [_table(curve.batches, curve.losses) for curve in curves])
        self._asked[row] = 0.0

    def schedule(self, row: int, position: FloatArray, rate: FloatArray) -> None:
        self._annealed.set(row, position, rate, self._laws)
        self._asked[row] = 0.0

    def ready(self, rows: IntArray) -> BoolArray:
        trusted = (self._laws.count[rows] < self.min_cells) | (self._share[rows] >= READY_SHARE)
        return self._earlier.has(rows) & trusted

    def history_share(self, rows: IntArray) -> FloatArray:
        return np.where(self._earlier.has(rows), self._share[rows], 0.0)

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        loss = np.clip(loss, MIN_LOSS, MAX_LOSS)
        self._laws.observe(rows, position, loss)
        self._annealed.observe(rows, position, loss)
        self._earlier.observe(rows, np.log(position), np.log(loss))
        self._asked[rows] = 0.0

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        known = self._laws.count[rows] >= self.min_cells
        annealed = self._annealed.has(rows)
        said = np.full(len(rows), np.nan)
        for these, losses in ((known & ~annealed, self._law_losses), (known & annealed, self._annealed.predict)):
            if these.any():
                loss, log_belief = losses(rows[these], position[these])
                belief = normalised(log_belief) / len(self.powers)
                said[these] = np.exp(np.sum(belief * np.log(np.maximum(loss, MIN_LOSS)), axis=(1, 2)))
        return said

    def _law_losses(self, rows: IntArray, position: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the losses of the power laws at positions, and their log beliefs, each ``(n, powers, candidates)``."""
        laws, flat = self._laws.candidates(rows), (len(rows), len(self.powers), -1)
        x = self._laws.shape(position / self._laws.unit[rows])[:, None, None, :]
        return (laws.scale * x + laws.floor).reshape(flat), laws.log_belief.reshape(flat)

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        known = (self._laws.count[rows] >= self.min_cells) | self._earlier.has(rows)
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
        for laws_left, by_rate in ((self._laws_left, ~annealed), (self._annealed.follow, annealed)):
            for candidates, by_history in ((self._by_law, ~has), (self._with_history, has)):
                if (these := by_rate & by_history).any():
                    left[these] = belief_quantiles(*candidates(rows[these], threshold[these], laws_left))
        return self._laws.newest[rows, None] + self._widened(left)

    def _by_law(self, rows: IntArray, threshold: FloatArray, laws_left: LawsLeft) -> tuple[FloatArray, FloatArray]:
        """Return the batches left by each power law, and the belief in it, ``(n, powers, candidates)``."""
        left, log_belief = laws_left(rows, threshold)
        return left, normalised(log_belief)

    def _laws_left(self, rows: IntArray, threshold: FloatArray) -> tuple[FloatArray, FloatArray]:
        laws, flat = self._laws.candidates(rows), (len(rows), len(self.powers), -1)
        return self._laws.batches_left(rows, laws, threshold).reshape(flat), laws.log_belief.reshape(flat)

    def _with_history(
        self, rows: IntArray, threshold: FloatArray, laws_left: LawsLeft
    ) -> tuple[FloatArray, FloatArray]:
        """Return the same of rows that have earlier runs, whose curves come first."""
        runs = self._earlier.candidates(rows, np.log(threshold), self.evidence)
        reached = np.exp(np.minimum(runs.log_passage, 2 * MAX_LOG_POSITION))
        left = np.maximum(reached - self._laws.newest[rows, None, None], 1.0) * np.exp(runs.spread)
        left[np.isinf(runs.log_passage)] = np.inf
        fitted = self._laws.count[rows] >= self.min_cells
        share = np.where(fitted[:, None], HISTORY_SHARE * runs.level / (runs.level + IMPROBABLE), 1.0)[:, :, None]
        by_law, log_belief = np.full((2, len(rows), len(self.powers), 0), -np.inf)
        if fitted.any():
            some = laws_left(rows[fitted], threshold[fitted])
            by_law, log_belief = np.full((2, len(rows), *some[0].shape[1:]), -np.inf)
            by_law[fitted], log_belief[fitted] = some
        with np.errstate(divide="ignore"):
            log_belief = np.concatenate([runs.log_belief + np.log(share), log_belief + np.log(1.0 - share)], axis=2)
        belief = normalised(log_belief)
        self._share[rows] = np.clip(1.0 - belief[:, :, left.shape[2] :].sum(axis=2).mean(axis=1), 0.0, 1.0)
        return np.concatenate([left, by_law], axis=2), belief

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
        bank._laws.observe_curve(0, position, loss)
        ahead = np.exp(np.append(end, x[beyond]))
        log_ahead = np.log(bank.predict(np.zeros(len(ahead), np.int64), ahead))
        log_loss[beyond] += log_ahead[1:] - log_ahead[0]
    return log_loss, first, float(x[1] - x[0]), end
