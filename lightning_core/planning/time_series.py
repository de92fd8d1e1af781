"""Forecasts of a time series: prices, available instances, arrivals.

A forecaster makes a table of a series: row ``t`` holds its forecasts after seeing intervals ``0`` to ``t``. Only
:class:`Perfect` looks further, for comparison. The last value is the baseline to beat: report its :func:`errors` beside
those of any other forecaster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lightning_core.core.arrays import FloatArray, IntArray

# Intervals that an autoregression is fitted to, and intervals between two fits.
WINDOW, REFIT = 192, 24


class Forecaster(Protocol):
    """Makes a table of forecasts of a series."""

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        """Return the forecasts at each interval for the intervals after it.

        Args:
            values: Series of shape ``(T,)``.
            horizon: Number of intervals ahead, at least 1.

        Returns:
            Shape ``(T, horizon)``; row ``t`` is for intervals ``t + 1`` to ``t + horizon``.
        """


@runtime_checkable
class LiveForecaster(Forecaster, Protocol):
    """A forecaster of series that go on: it knows no future, and makes the newest row of its table alone."""

    def newest(self, values: FloatArray, horizon: int) -> FloatArray:
        """Return the last row of the table, equal to the bit, in time that hardly grows with the series."""


class LastValue:
    """Forecasts the last value (persistence)."""

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        return np.repeat(np.asarray(values, float)[:, None], horizon, axis=1)

    def newest(self, values: FloatArray, horizon: int) -> FloatArray:
        return np.full(horizon, float(values[-1]))


class Perfect:
    """Knows the future; past the end of the series it repeats the last value."""

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        values = np.asarray(values, float)
        padded = np.concatenate([values, np.full(horizon, values[-1])])
        future: FloatArray = sliding_window_view(padded, horizon)[1:]
        return future.copy()


@dataclass(frozen=True, slots=True)
class Seasonal:
    """Forecasts the value of a day ago, corrected by the last value, which counts less the further ahead.

    Args:
        period: Intervals per day.
        decay: Intervals after which the correction has fallen to 1 / e.

    Raises:
        ValueError: If one is out of its range.
    """

    period: int = 48
    decay: float = 3.0

    def __post_init__(self) -> None:
        if self.period < 1:
            raise ValueError(f"period must be at least 1 interval, got {self.period}")
        if not self.decay > 0:
            raise ValueError(f"decay must be above 0 intervals, got {self.decay}")

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        return self._rows(np.asarray(values, float), np.arange(len(values)), horizon)

    def newest(self, values: FloatArray, horizon: int) -> FloatArray:
        newest: FloatArray = self._rows(np.asarray(values, float), np.arange(len(values) - 1, len(values)), horizon)[0]
        return newest

    def _rows(self, values: FloatArray, rows: IntArray, horizon: int) -> FloatArray:
        ahead = np.arange(1, horizon + 1)
        before = rows[:, None] - self.period * np.ceil(ahead / self.period).astype(np.int64)
        at = before + ahead
        known = before >= 0
        then, since = values[np.maximum(at, 0)], values[np.maximum(before, 0)]
        now = values[rows, None]
        # The change since then is expected to fade.
        change = (now - since) * np.exp(-ahead / self.decay)
        return np.where(known, then + change, now)


@dataclass(frozen=True, slots=True)
class Autoregressive:
    """Forecasts each value as a linear function of those before it, refitted regularly by least squares.

    A small ridge pulls it towards the last value: a constant series determines no coefficients.

    Args:
        order: Number of previous values used.
        window: Number of recent intervals to fit to.
        refit: Intervals between two fits.

    Raises:
        ValueError: If one is out of its range.
    """

    order: int = 6
    window: int = WINDOW
    refit: int = REFIT

    def __post_init__(self) -> None:
        if self.order < 1 or self.refit < 1:
            raise ValueError(f"order and refit must be at least 1, got {self.order} and {self.refit}")
        if self.window < 4 * self.order:
            raise ValueError(f"window must be at least 4 times the order = {4 * self.order}, got {self.window}")

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        values = np.asarray(values, float)
        found = LastValue().table(values, horizon)
        weights: FloatArray | None = None
        for now in range(len(values)):
            if now % self.refit == 0:
                weights = self._fit(values[max(now + 1 - self.window, 0) : now + 1])
            if weights is None or now + 1 < self.order:
                continue
            found[now] = self._continue(values[now + 1 - self.order : now + 1], weights, horizon)
        lowest, highest = np.minimum.accumulate(values)[:, None], np.maximum.accumulate(values)[:, None]
        return np.clip(found, lowest, highest)

    def newest(self, values: FloatArray, horizon: int) -> FloatArray:
        values = np.asarray(values, float)
        begin = (len(values) - 1) // self.refit * self.refit
        weights = self._fit(values[max(begin + 1 - self.window, 0) : begin + 1])
        if weights is None:
            return LastValue().newest(values, horizon)
        following = self._continue(values[-self.order :], weights, horizon)
        return np.clip(following, values.min(), values.max())

    def _continue(self, recent: FloatArray, weights: FloatArray, horizon: int) -> FloatArray:
        """Return the values that follow ``order`` recent ones."""
        known = list(recent)
        for _ in range(horizon):
            known.append(known[-1] + float(weights @ (np.array(known[-self.order :]) - known[-1])))
        return np.array(known[self.order :])

    def _fit(self, seen: FloatArray) -> FloatArray | None:
        if len(seen) < 4 * self.order:
            return None
        past = sliding_window_view(seen, self.order)[:-1]
        last = past[:, -1]
        x, y = past - last[:, None], seen[self.order :] - last
        gram = x.T @ x
        ridge = 1e-3 * (np.trace(gram) / self.order + 1e-9)
        weights: FloatArray = np.linalg.solve(gram + ridge * np.eye(self.order), x.T @ y)
        return weights


@dataclass(frozen=True, slots=True)
class Trend:
    """Extrapolates a line through the last intervals, fitted by weighted least squares.

    Args:
        points: Number of recent intervals used.
        decay: Weight of each interval relative to the next one.
    """

    points: int = 4
    decay: float = 0.7

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        values = np.asarray(values, float)
        found = LastValue().table(values, horizon)
        if self.points < 2 or len(values) < self.points:
            return found
        at = np.arange(1 - self.points, 1.0)
        weights = self.decay**-at
        mean_at = (weights @ at) / weights.sum()
        seen = sliding_window_view(values, self.points)
        mean = seen @ weights / weights.sum()
        slope = (seen - mean[:, None]) @ (weights * (at - mean_at)) / (weights @ (at - mean_at) ** 2)
        ahead = np.arange(1, horizon + 1) - mean_at
        found[self.points - 1 :] = mean[:, None] + slope[:, None] * ahead
        lowest, highest = np.minimum.accumulate(values)[:, None], np.maximum.accumulate(values)[:, None]
        # At most 1.5 times the highest value so far.
        return np.clip(found, np.minimum(lowest, 0.0), 1.5 * highest)


def errors(table: FloatArray, values: FloatArray) -> FloatArray:
    """Return the mean absolute errors of a table of forecasts by intervals ahead, shape ``(horizon,)``."""
    values, horizon = np.asarray(values, float), table.shape[1]
    true = Perfect().table(values, horizon)
    inside = np.arange(len(values))[:, None] + np.arange(1, horizon + 1) < len(values)
    mean: FloatArray = np.nanmean(np.where(inside, np.abs(table - true), np.nan), axis=0)
    return mean
