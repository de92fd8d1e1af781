"""Forecasts of a series: of prices, of how many instances there are, of how much comes in.

A forecaster makes a table of a series: row ``t`` says what it believes, having seen slots ``0`` to ``t``, of the slots
behind it. Only :class:`Perfect` looks further, and is for comparison. The last value is the one to beat: :func:`errors`
are told beside its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lightning_core.core.arrays import FloatArray

# Slots of a series that an autoregression is fitted to, and after how many it is fitted again.
WINDOW, REFIT = 192, 24


class Forecaster(Protocol):
    """Makes a table of forecasts of a series."""

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        """What is believed at each slot of those behind it.

        Args:
            values: shape ``(T,)``.
            horizon: slots, at least 1.

        Returns:
            Shape ``(T, horizon)``; row ``t`` is of slots ``t + 1`` to ``t + horizon``.
        """


class LastValue:
    """All goes on as it is."""

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        return np.repeat(np.asarray(values, float)[:, None], horizon, axis=1)


class Perfect:
    """Knows the future; behind the end of a series all goes on as it is."""

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        values = np.asarray(values, float)
        padded = np.concatenate([values, np.full(horizon, values[-1])])
        future: FloatArray = sliding_window_view(padded, horizon)[1:]
        return future.copy()


@dataclass(frozen=True, slots=True)
class Seasonal:
    """As it was a day ago, and in between the last value the less the further ahead.

    Args:
        period: slots of a day.
        fades: after so many slots the last value counts for 1 / e.
    """

    period: int = 48
    fades: float = 3.0

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        values = np.asarray(values, float)
        ahead = np.arange(1, horizon + 1)
        before = np.arange(len(values))[:, None] - self.period * np.ceil(ahead / self.period).astype(np.int64)
        at = before + ahead
        known = before >= 0
        then, since = values[np.maximum(at, 0)], values[np.maximum(before, 0)]
        now = values[:, None]
        # What has changed since then is thought to pass.
        change = (now - since) * np.exp(-np.arange(1, horizon + 1) / self.fades)
        return np.where(known, then + change, now)


@dataclass(frozen=True, slots=True)
class Autoregressive:
    """Each value a linear function of those before it, fitted by least squares to the newest of them, now and again.

    A little ridge pulls it to the last value: a series that stood still tells nothing.

    Args:
        order: values that count.
        window: newest slots to fit to.
        refit: slots after which it is fitted again.
    """

    order: int = 6
    window: int = WINDOW
    refit: int = REFIT

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        values = np.asarray(values, float)
        found = LastValue().table(values, horizon)
        weights: FloatArray | None = None
        for now in range(len(values)):
            if now % self.refit == 0:
                weights = self._fit(values[max(now + 1 - self.window, 0) : now + 1])
            if weights is None or now + 1 < self.order:
                continue
            recent = list(values[now + 1 - self.order : now + 1])
            for ahead in range(horizon):
                following = recent[-1] + float(weights @ (np.array(recent[-self.order :]) - recent[-1]))
                recent.append(following)
                found[now, ahead] = following
        lowest, highest = np.minimum.accumulate(values)[:, None], np.maximum.accumulate(values)[:, None]
        return np.clip(found, lowest, highest)

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
    """All goes on as it went in the last slots: a line through them, by weighted least squares.

    Args:
        points: newest slots that count.
        fades: what each earlier one weighs, in the weight of the next.
    """

    points: int = 4
    fades: float = 0.7

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        values = np.asarray(values, float)
        found = LastValue().table(values, horizon)
        if self.points < 2 or len(values) < self.points:
            return found
        at = np.arange(1 - self.points, 1.0)
        weights = self.fades**-at
        mean_at = (weights @ at) / weights.sum()
        seen = sliding_window_view(values, self.points)
        mean = seen @ weights / weights.sum()
        slope = (seen - mean[:, None]) @ (weights * (at - mean_at)) / (weights @ (at - mean_at) ** 2)
        ahead = np.arange(1, horizon + 1) - mean_at
        found[self.points - 1 :] = mean[:, None] + slope[:, None] * ahead
        lowest, highest = np.minimum.accumulate(values)[:, None], np.maximum.accumulate(values)[:, None]
        # No more than half as much again as there ever was.
        return np.clip(found, np.minimum(lowest, 0.0), 1.5 * highest)


def errors(table: FloatArray, values: FloatArray) -> FloatArray:
    """Mean absolute errors of a table of forecasts by slots ahead, shape ``(horizon,)``."""
    values, horizon = np.asarray(values, float), table.shape[1]
    true = Perfect().table(values, horizon)
    inside = np.arange(len(values))[:, None] + np.arange(1, horizon + 1) < len(values)
    mean: FloatArray = np.nanmean(np.where(inside, np.abs(table - true), np.nan), axis=0)
    return mean
