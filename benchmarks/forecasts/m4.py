"""The M4 estimator of learning curves, fitted offline: the baseline of both papers.

Alabdulmohsin, Neyshabur and Zhai, "Revisiting Neural Scaling Laws in Language and Vision", 2022: between the loss of
guessing l_0 and the final loss l_inf, (l - l_inf) / (l_0 - l)^alpha = beta s^-c.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize, nnls

from lightning_core.core.arrays import FloatArray

# Start of the search: l_inf as a fraction of the lowest loss seen, and how far l_0 lies above the highest, relative.
# Close to the data, as published: the lower l_inf is, the less ln(l - l_inf) varies, and the minimum may be at 0.
START = (0.98, 0.01)
# How close to the losses seen the two may come, and how far above them l_0 may lie, relative.
NEAREST, HIGHEST = 1e-3, 10.0


@dataclass(frozen=True, slots=True)
class M4:
    """A fitted curve.

    Args:
        log_beta: Logarithm of the scale of the excess loss.
        c: Exponent, at least 0.
        alpha: Slowness with which the curve leaves ``first``; 0 is a power law with a floor.
        last: Loss l_inf after infinite data.
        first: Loss l_0 of guessing.
    """

    log_beta: float
    c: float
    alpha: float
    last: float
    first: float

    def predict(self, s: FloatArray) -> FloatArray:
        """Return the loss after ``s`` batches (all positive), of the shape of ``s``; by bisection."""
        goal = self.log_beta - self.c * np.log(s)
        low, high = np.zeros(np.shape(goal)), np.ones(np.shape(goal))
        width = self.first - self.last
        for _ in range(50):
            part = (low + high) / 2.0  # of the way up from last to first
            above = np.log(part * width) - self.alpha * np.log((1.0 - part) * width) > goal
            low, high = np.where(above, low, part), np.where(above, part, high)
        curve: FloatArray = self.last + (low + high) / 2.0 * width
        return curve

    def first_passage(self, threshold: float) -> float:
        """Return the batches until the loss is at ``threshold``: inf if never, 0 if it starts there."""
        if threshold >= self.first:
            return 0.0
        if threshold <= self.last or self.c == 0.0:
            return np.inf
        excess = np.log(threshold - self.last) - self.alpha * np.log(self.first - threshold)
        return float(np.exp(np.clip((self.log_beta - excess) / self.c, -700.0, 700.0)))


def fit_m4(s: FloatArray, loss: FloatArray) -> M4:
    """Least squares of the equation's logarithm.

    ``ln(l - l_inf) = ln beta - c ln s + alpha ln(l_0 - l)`` is linear but for l_inf and l_0, so these two are searched
    and the rest is solved for each pair, c and alpha not negative. The paper takes turns between the two; both go down
    to the minimum nearest to the least loss seen.

    Args:
        s: batches done, shape ``(n,)``, above 0.
        loss: seen there, above 0.

    Raises:
        ValueError: if there are fewer than 6 points, or they are all the same.

    Example::

        >>> s = np.arange(1.0, 300.0)
        >>> curve = fit_m4(s, 2.0 * s**-0.5 + 0.3)
        >>> bool(abs(curve.predict(np.array([3000.0]))[0] / (2.0 * 3000**-0.5 + 0.3) - 1) < 0.01)
        True
    """
    if len(s) < 6:
        raise ValueError(f"M4 has 5 parameters and needs at least 6 points, got {len(s)}")
    least, greatest = float(loss.min()), float(loss.max())
    if not least < greatest:
        raise ValueError(f"M4 needs losses that differ, all are {least}")
    columns = np.ones((len(s), 4))
    columns[:, 1] = -1.0  # nnls finds no negative numbers: ln beta is a difference
    columns[:, 2] = -np.log(s)

    def solve(at: FloatArray) -> tuple[FloatArray, float]:
        columns[:, 3] = np.log(greatest * (1.0 + at[1]) - loss)
        return nnls(columns, np.log(loss - least * at[0]))  # type: ignore[no-any-return]

    bounds = [(0.0, 1.0 - NEAREST), (NEAREST, HIGHEST)]
    best = minimize(lambda at: solve(at)[1], START, method="Nelder-Mead", bounds=bounds, options={"xatol": 1e-6}).x
    (plus, minus, c, alpha), _ = solve(best)
    return M4(float(plus - minus), float(c), float(alpha), least * float(best[0]), greatest * (1.0 + float(best[1])))
