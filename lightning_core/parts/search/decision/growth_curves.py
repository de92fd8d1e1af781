"""A forecast of the trials of one search, learned from all of them: growth curves with random effects.

The trials of a search are one task with different hyper-parameters, so each is evidence about the others: how fast
values improve late in a trial, and how much of the differences between trials shows early. The curve of trial i is

    y_i(s) = phi(log s)' c_i + noise,    c_i ~ N(mu, Sigma),

with piecewise linear functions phi between knots that are even in log s: c_i holds the values at the knots. mu, Sigma
and the noise are fitted by expectation-maximisation to all curves, the partial ones too: stopping trials that looked
bad does not bias it, because the decisions rest on observed values (N. Laird and J. Ware, Random-effects models for
longitudinal data, Biometrics 1982). With few trials a prior speaks: improvements become smaller from knot to knot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray

KNOTS = 6
# Prior standard deviations: of the difference between two trials at the first knot, of that between their improvements
# from one knot to the next, and of an improvement; all of log values or of values in units of their own spread.
LEVEL, IMPROVEMENT = 0.5, 0.35
# Expected ratio of an improvement to the one before with its spread, and the correlation of consecutive ones across
# trials.
LATER, LATER_SPREAD, ALIKE = 0.8, 0.25, 0.6
# The prior of Sigma and of the noise count as this many trials and cells.
PRIOR_TRIALS, PRIOR_CELLS, PRIOR_NOISE = 6.0, 10.0, 0.05
ROUNDS = 8


class Curves(NamedTuple):
    """Sums over the cells of some curves, one row each."""

    gram: FloatArray
    """Sums of phi phi', ``(n, knots, knots)``."""
    cross: FloatArray
    """Sums of phi y, ``(n, knots)``."""
    square: FloatArray
    """Sums of y squared, ``(n,)``."""
    cells: FloatArray
    """Numbers of cells, ``(n,)``."""


class GrowthCurves:
    """The model of the trials of a search.

    Args:
        max_steps: Steps of a whole trial, at least 2: the last knot.
    """

    def __init__(self, max_steps: float) -> None:
        if not 2 <= max_steps < np.inf:
            raise ValueError(f"max_steps must be at least 2 and finite, got {max_steps}")
        self.end = float(np.log(max_steps))
        self.knots = np.linspace(0.0, self.end, KNOTS)
        self.sigma = _prior_covariance()
        self.mu = np.zeros(KNOTS)
        self.noise = PRIOR_NOISE**2

    def basis(self, steps: FloatArray) -> FloatArray:
        """Return phi at steps, ``(n, knots)``; beyond the last knot it stays."""
        at = np.clip(np.log(steps), 0.0, self.end) / self.end * (KNOTS - 1)
        low = np.minimum(at.astype(np.int64), KNOTS - 2)
        part = at - low
        phi = np.zeros((len(at), KNOTS))
        rows = np.arange(len(at))
        phi[rows, low] = 1.0 - part
        phi[rows, low + 1] = part
        return phi

    def summed(self, curves: Sequence[tuple[FloatArray, FloatArray]]) -> Curves:
        """Return sums over each curve ``(steps, values)``, of the last value in each fifth of an e-fold of steps."""
        n = len(curves)
        gram, cross = np.zeros((n, KNOTS, KNOTS)), np.zeros((n, KNOTS))
        square, cells = np.zeros((2, n))
        for i, (steps, values) in enumerate(curves):
            kept = _cell_ends(steps)
            phi, y = self.basis(steps[kept]), values[kept]
            gram[i], cross[i], square[i], cells[i] = phi.T @ phi, phi.T @ y, y @ y, len(y)
        return Curves(gram, cross, square, cells)

    def fit(self, seen: Curves, rounds: int = ROUNDS) -> None:
        """Fit the model to curves, from where the last fit ended."""
        n = len(seen.cells)
        if n == 0:
            return
        first = seen.cross.sum(axis=0)
        level = first.sum() / max(seen.gram.sum(), 1e-9)
        prior_mean, prior_precision = _prior_of_mean(level)
        scatter0 = PRIOR_TRIALS * _prior_covariance()
        for _ in range(rounds):
            mean, covariance = self.posterior(seen)
            inverse = np.linalg.inv(self.sigma)
            self.mu = np.linalg.solve(
                n * inverse + prior_precision, inverse @ mean.sum(axis=0) + prior_precision @ prior_mean
            )
            apart = mean - self.mu
            self.sigma = (scatter0 + apart.T @ apart + covariance.sum(axis=0)) / (PRIOR_TRIALS + n)
            misfit = (
                seen.square
                - 2.0 * np.einsum("ik,ik->i", seen.cross, mean)
                + np.einsum("ikl,ikl->i", seen.gram, covariance + mean[:, :, None] * mean[:, None, :])
            )
            self.noise = float((PRIOR_CELLS * PRIOR_NOISE**2 + misfit.sum()) / (PRIOR_CELLS + seen.cells.sum()))

    def posterior(self, seen: Curves) -> tuple[FloatArray, FloatArray]:
        """Return mean ``(n, knots)`` and covariance ``(n, knots, knots)`` of the values at the knots."""
        inverse = np.linalg.inv(self.sigma)
        covariance = np.asarray(np.linalg.inv(inverse + seen.gram / self.noise), dtype=np.float64)
        mean: FloatArray = np.einsum("ikl,il->ik", covariance, inverse @ self.mu + seen.cross / self.noise)
        return mean, covariance


def _cell_ends(steps: FloatArray) -> np.ndarray:
    """Return the places of the last value of each cell: of the steps within a fifth of an e-fold."""
    if not len(steps):
        return np.zeros(0, dtype=np.int64)
    cell = np.floor(np.log(steps) * 5.0)
    return np.flatnonzero(np.append(cell[1:] != cell[:-1], True))


def _prior_covariance() -> FloatArray:
    """Return the prior covariance of the values at the knots: a level, and correlated improvements."""
    order = np.arange(KNOTS - 1)
    steps = IMPROVEMENT**2 * ALIKE ** np.abs(order[:, None] - order)
    sums = np.zeros((KNOTS, KNOTS))
    sums[:, 0] = 1.0
    sums[1:, 1:] = np.tril(np.ones((KNOTS - 1, KNOTS - 1)))
    inner = np.zeros((KNOTS, KNOTS))
    inner[0, 0] = LEVEL**2
    inner[1:, 1:] = steps
    covariance: FloatArray = sums @ inner @ sums.T
    return covariance


def _prior_of_mean(level: float) -> tuple[FloatArray, FloatArray]:
    """Return mean and precision of the prior of mu: each improvement is a part of the one before."""
    rows = np.zeros((KNOTS - 2, KNOTS))
    for k in range(KNOTS - 2):
        # (mu[k+2] - mu[k+1]) - LATER (mu[k+1] - mu[k]) = 0, give or take
        rows[k, k : k + 3] = [LATER, -1.0 - LATER, 1.0]
    precision = rows.T @ rows / LATER_SPREAD**2
    precision[0, 0] += 1e-4
    precision[1, 1] += 1e-4
    return np.full(KNOTS, level), precision
