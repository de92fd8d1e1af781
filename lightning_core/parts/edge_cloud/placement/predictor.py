"""Predictors of arrivals within the next steps of a quarter of an hour: four steps in, three out.

These are the horizons of the published predictor ("three or four time steps" in, "two or three" out; section IV-B).

Errors are relative to persistence, the predictor to beat (:func:`~lightning_core.planning.time_series.errors`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.planning.time_series import (
    REFIT,
    WINDOW,
    Autoregressive,
    Forecaster,
    LastValue,
    LiveForecaster,
    Trend,
    errors,
)

# Steps ahead.
HORIZON = 3
PREDICTORS: Mapping[str, Forecaster] = MappingProxyType(
    {"persistence": LastValue(), "autoregression": Autoregressive(order=4, window=192), "trend": Trend(4)}
)
"""Predictors by name: persistence, a linear function of four steps (fitted to two days), a line through four steps."""

# Steps of a series that its forecasts are made of: an autoregression is fitted to so many, every so often.
MAX_SEEN, FORGOTTEN = WINDOW + REFIT, REFIT


def keep_newest(series: list[float]) -> None:
    """Forget the oldest steps of a long series, as many at a time as lie between two fits."""
    if len(series) > MAX_SEEN:
        del series[: -(-(len(series) - MAX_SEEN) // FORGOTTEN) * FORGOTTEN]


def highest_ahead(forecaster: Forecaster, series: Sequence[float], steps: int) -> float:
    """Return the highest of the next values of a series, as they are forecast.

    Args:
        forecaster: Forecaster.
        series: What has been seen, at least one value, the newest last.
        steps: Steps ahead, at most ``HORIZON`` of which are looked at.

    Example::

        >>> highest_ahead(PREDICTORS["trend"], [15.0, 15.5, 16.0, 16.5], 2)
        17.5
    """
    values = np.asarray(series, float)
    if isinstance(forecaster, LiveForecaster):
        ahead = forecaster.newest(values, HORIZON)
    else:
        ahead = forecaster.table(values, HORIZON)[-1]
    return round(float(ahead[: max(steps, 1)].max()), 9)


def relative_errors(series: Sequence[FloatArray]) -> dict[str, FloatArray]:
    """Return mean absolute errors relative to persistence by steps ahead, shape ``(HORIZON,)``; 1 if it has none.

    Args:
        series: Series to predict, shape ``(T,)`` each.
    """
    wrong: dict[str, FloatArray] = {
        name: np.mean([errors(one.table(values, HORIZON), values) for values in series], axis=0)
        for name, one in PREDICTORS.items()
    }
    base = wrong["persistence"]
    return {name: np.where(base > 0, one / np.where(base > 0, base, 1.0), 1.0) for name, one in wrong.items()}
