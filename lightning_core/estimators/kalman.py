"""Power laws whose exponent and scale drift: Kalman filters of ln l = -b ln s + ln a, one filter step per cell.

``order`` 0 is the plain filter, a random walk of (-b, ln a): 2 states. ``order`` 2 is the dynamic Kalman filter of
LaiRA (Wang, Liu and Zhou, "CoRE-Learning with Look-Ahead and Immediate Resource Allocation", 2025, eqs. 3 to 7), value,
velocity and acceleration of both: 6 states. filterpy builds its transition and noise, and row by row the bank equals
``filterpy.kalman.KalmanFilter``.

The filter is the paper's, its coordinates are not. Instead of ln a, the height of the line at ln s = 0, a row keeps its
level at the newest cell. In a long run ln s hardly moves; -b and ln a are then known only jointly, and their covariance
grows until the small variance of the observed level is lost to rounding (it became negative after 1e4 to 1e6 cells).
Relative to the newest cell, the observed level is a coordinate of its own.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from lightning_core.core.arrays import NORMAL, BoolArray, FloatArray, IntArray, kept
from lightning_core.core.saved_state import Stateful

# A position beyond e^40 batches counts as never reached; losses stay within e^+-50.
MAX_LOG_POSITION = 40.0
MAX_LOG_LOSS = 50.0
# Rows processed together: enough to amortise the calls, few enough to stay in the caches (42 numbers per row in a
# step, about 500 in a forecast). Not powers of 2, which would compete for the same cache lines.
UPDATE_BLOCK = 5000
FORECAST_BLOCK = 250
# Points at which a forecast is evaluated: parts of the way to MAX_LOG_POSITION in ln s, dense near the newest cell.
KNOTS: FloatArray = np.linspace(0.0, 1.0, 48) ** 3
FACTORIAL = (1.0, 1.0, 2.0)


class Kalman(Stateful):
    """A bank of Kalman filters over power laws.

    Args:
        order: Derivatives in the state: 0 for a random walk, 1 for velocity, 2 for velocity and acceleration.
        delta: Step size of the dynamics, Delta of eq. 4; 0 decouples the derivatives.
        damping: How far ahead a drift is extrapolated, as a part of the cells seen; None (or inf) extrapolates it for
            ever, as printed (eq. 8).
        process: Variance q of the noise of each state and step.
        measurement: Variance R of a cell's ln l.
        prior: Variance of each state before the first cell. The state starts at 0, ln a at the first cell's ln l.
        noise: ``"independent"``, Q = q I; ``"white"``, q is the variance of the highest derivative and reaches the
            others through ``filterpy.common.Q_discrete_white_noise``.
        min_cells: Minimum number of cells before the bank forecasts anything.

    Raises:
        ValueError: If an argument is out of its range.
        ModuleNotFoundError: If filterpy is not installed.

    Example::

        >>> bank = Kalman()
        >>> bank.grow(1)
        >>> row = np.array([0])
        >>> for s in range(10, 2000, 10):
        ...     bank.observe(row, np.array([float(s)]), np.array([2.0 * s**-0.5]))
        >>> round(float(bank.predict(row, np.array([4000.0]))[0]), 3)
        0.032
        >>> bank.first_passage(row, np.array([0.04]))[0, [0, 9, 10, 19]].round(-1)
        array([ 1990.,  2380.,  2610., 47040.])
    """

    STATE = ("_belief", "_newest")

    def __init__(
        self,
        order: int = 2,
        delta: float = 1e-3,
        damping: float | None = 0.3,
        process: float = 1e-3,
        measurement: float = 1e-2,
        prior: float = 1.0,
        noise: Literal["independent", "white"] = "independent",
        min_cells: int = 3,
    ) -> None:
        if order not in (0, 1, 2):
            raise ValueError(f"order must be 0, 1 or 2, got {order}")
        for name, number in (("delta", delta), ("process", process), ("prior", prior)):
            if not 0 <= number < np.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {number}")
        if damping is not None and not damping >= 0:
            raise ValueError(f"damping must be at least 0, got {damping}")
        if not 0 < measurement < np.inf:
            raise ValueError(f"measurement must be positive and finite, got {measurement}")
        if noise not in ("independent", "white"):
            raise ValueError(f"noise must be 'independent' or 'white', got {noise!r}")
        if noise == "white" and order == 0:
            raise ValueError("noise must be 'independent' with order 0: there is no derivative for it to come through")
        if min_cells < 3:
            raise ValueError(f"min_cells must be at least 3 cells, got {min_cells}")
        # Imported here because it takes a second, which only users of this estimator should wait for.
        try:
            from filterpy.common import Q_discrete_white_noise, kinematic_state_transition
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "the estimators kalman and dkf (the policy laira's own) need filterpy, which is not installed; "
                "run pip install -c constraints.txt '.[kalman]' in the clone",
                name="filterpy",
            ) from None

        orders = order + 1
        self.order = order
        self.damping = np.inf if damping is None else damping
        self.measurement = measurement
        self.min_cells = min_cells
        self.delta = delta
        # Both are the same for -b and ln a: F and Q of the papers are the Kronecker products with I_2.
        self.transition: FloatArray = kinematic_state_transition(order, delta)
        self.noise: FloatArray = process * np.eye(orders)
        if noise == "white":
            self.noise = Q_discrete_white_noise(orders, delta, process)
        # One column per row of the bank: [P | state], its rows and the columns of P by (derivative, -b or level).
        self._shape = (orders, 2, 2 * orders + 1, -1)
        self._fresh = np.hstack([prior * np.eye(2 * orders), np.zeros((2 * orders, 1))]).reshape(-1, 1)
        self._belief = self._fresh[:, :0]
        # The newest cell: its number, ln s, s, and the distance of s from the cell before.
        self._newest = np.zeros((4, 0))

    def grow(self, rows: int) -> None:
        extra = rows - self._newest.shape[1]
        if extra > 0:
            extra = max(extra, rows - extra)  # amortised like a list, so that growing one by one is not quadratic
            self._belief = np.hstack([self._belief, np.repeat(self._fresh, extra, axis=1)])
            self._newest = np.hstack([self._newest, np.zeros((4, extra))])

    def keep(self, stays: BoolArray) -> None:
        self._belief = np.ascontiguousarray(kept(self._belief.T, stays).T)
        self._newest = np.ascontiguousarray(kept(self._newest.T, stays).T)

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        for start in range(0, len(rows), UPDATE_BLOCK):
            some = rows[start : start + UPDATE_BLOCK]
            cell = position[start : start + UPDATE_BLOCK], np.log(loss[start : start + UPDATE_BLOCK])
            if len(some) == 1 or (np.diff(some) == 1).all():  # neighbours are updated in place
                at = slice(some[0], some[-1] + 1)
                self._step(self._belief[:, at], self._newest[:, at], *cell)
            else:
                belief, newest = self._belief.take(some, axis=1), self._newest.take(some, axis=1)
                self._step(belief, newest, *cell)
                self._belief[:, some], self._newest[:, some] = belief, newest

    def _step(self, belief: FloatArray, newest: FloatArray, position: FloatArray, log_loss: FloatArray) -> None:
        """Predict, then update (eqs. 5 to 7), in place; both arguments have one column per row."""
        orders = self.order + 1
        both = belief.reshape(self._shape)
        covariance = both[:, :, :-1]
        p = covariance.reshape(orders, 2, orders, 2, -1)
        np.copyto(both[0, 1, -1], log_loss, where=newest[0] == 0)
        # F from the left, then P F^T. F is Toeplitz: a derivative acts on the next lower one as it does everywhere.
        for k in range(1, orders):
            both[:-k] += self.transition[0, k] * both[k:]
        for k in range(1, orders):
            p[:, :, :-k] += self.transition[0, k] * p[:, :, k:]
        # The level moves with the newest cell ...
        x = np.log(position)
        moved = x - newest[1]
        both[:, 1] += moved * both[:, 0]
        p[:, :, :, 1] += moved * p[:, :, :, 0]
        # ... and so noise that is independent for -b and for ln a is not for -b and the level.
        q = self.noise[:, :, None]
        qx = q * x
        p[:, 0, :, 0] += q
        p[:, 0, :, 1] += qx
        p[:, 1, :, 0] += qx
        p[:, 1, :, 1] += qx * x + q
        # Only the level is observed. Subtract from [P | state - observed] its own level's row, by the gain.
        level = both[0, 1].copy()
        level[-1] -= log_loss
        level /= np.sqrt(np.maximum(level[1], 0.0) + self.measurement)
        both -= level[:-1].reshape(orders, 2, 1, -1) * level
        square = covariance.reshape(2 * orders, 2 * orders, -1)
        square += square.transpose(1, 0, 2)
        square *= 0.5
        newest[0] += 1.0
        newest[3] = position - newest[2]
        newest[1] = x
        newest[2] = position

    def belief(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return state and covariance in the paper's coordinates: (-b, ln a, their velocities, their accelerations).

        Returns:
            Arrays of shape ``(n, d)`` and ``(n, d, d)``, d = 2, 4 or 6.
        """
        states = 2 * self.order + 2
        both = np.moveaxis(self._belief[:, rows].reshape(states, states + 1, -1), -1, 0)
        back = np.tile(np.eye(states), (len(rows), 1, 1))
        back[:, np.arange(1, states, 2), np.arange(0, states, 2)] = -self._newest[1, rows, None]
        return (back @ both[:, :, -1:])[:, :, 0], back @ both[:, :, :-1] @ back.transpose(0, 2, 1)

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        mean, _ = self._forecast(rows, np.minimum(np.log(position), MAX_LOG_POSITION)[:, None])
        return np.where(self._known(rows), np.exp(np.clip(mean[:, 0], -MAX_LOG_LOSS, MAX_LOG_LOSS)), np.nan)

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        """Return the quantiles of the first passage.

        At level p it is where mean + z_p * error of ln l first falls to the goal.

        The error is that of the filter's own covariance, extrapolated like the state. Future process noise is left
        out: with it the forecasts of real curves carry no information.
        """
        goal = np.log(threshold)
        reached = np.empty((len(rows), len(NORMAL)))
        for start in range(0, len(rows), FORECAST_BLOCK):
            block = slice(start, start + FORECAST_BLOCK)
            reached[block] = self._first_passage(rows[block], goal[block, None])
        return reached

    def _first_passage(self, rows: IntArray, goal: FloatArray) -> FloatArray:
        newest = self._newest[1, rows, None]
        x = newest + np.maximum(MAX_LOG_POSITION - newest, 0.0) * KNOTS
        mean, variance = self._forecast(rows, x)
        # Distance of the goal below the curve in standard errors, at its closest approach so far.
        below = np.minimum.accumulate((mean - goal) / np.sqrt(np.maximum(variance, 1e-12)), axis=1)
        there = below[:, None, :] <= -NORMAL[:, None]
        after = there.argmax(axis=2)
        before = np.maximum(after - 1, 0)
        row = np.arange(len(rows))[:, None]
        # Between two knots the curve is interpolated linearly.
        still, fell = below[row, before] + NORMAL, below[row, before] - below[row, after]
        fraction = still / np.where(fell > 0, fell, np.inf)
        reached: FloatArray = np.exp(x[row, before] + fraction * (x[row, after] - x[row, before]))
        reached[~there[:, :, -1]] = np.inf
        reached[~self._known(rows)] = np.nan
        return reached

    def _known(self, rows: IntArray) -> BoolArray:
        known: BoolArray = self._newest[0, rows] >= self.min_cells
        return known

    def _forecast(self, rows: IntArray, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of ln l at ln s = ``x`` (eq. 8, damped); all of shape ``(n, k)``."""
        count, newest, s, spacing = self._newest[:, rows, None]
        ahead = x - newest
        # A step is a cell; future cells are as far apart as the newest two.
        steps = np.expm1(np.maximum(ahead, 0.0)) * s / np.where(spacing > 0, spacing, 1.0)
        t = self.delta * np.minimum(steps, self.damping * np.maximum(count, 1.0))
        # The first rows of F^D are 1, t, t^2 / 2: state and covariance are polynomials in t.
        both = self._belief[:, rows].reshape(self._shape)
        orders = self.order + 1
        state = [both[i, :, -1] / FACTORIAL[i] for i in range(orders)]
        covariance = [np.zeros((2, 2, len(rows))) for _ in range(2 * orders - 1)]
        for i in range(orders):
            for j in range(orders):
                covariance[i + j] += both[i, :, 2 * j : 2 * j + 2] / (FACTORIAL[i] * FACTORIAL[j])
        slope, level = (_polynomial([term[k, :, None] for term in state], t) for k in (0, 1))
        slope_slope, slope_level, level_level = (
            _polynomial([term[i, j, :, None] for term in covariance], t) for i, j in ((0, 0), (0, 1), (1, 1))
        )
        return level + slope * ahead, level_level + ahead * (2.0 * slope_level + ahead * slope_slope)


def _polynomial(terms: list[FloatArray], t: FloatArray) -> FloatArray:
    value = terms[-1]
    for term in reversed(terms[:-1]):
        value = value * t
        value += term
    return value
