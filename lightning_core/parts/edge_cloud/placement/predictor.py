"""Predictors of arrivals within the next steps of a quarter of an hour: four steps in, three out.

These are the horizons of the published predictor ("three or four time steps" in, "two or three" out; section IV-B).

Errors are relative to persistence, the predictor to beat (:func:`~lightning_core.planning.time_series.errors`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.planning.time_series import Autoregressive, Forecaster, LastValue, Trend, errors

# Steps ahead.
HORIZON = 3
PREDICTORS: Mapping[str, Forecaster] = MappingProxyType(
    {"persistence": LastValue(), "autoregression": Autoregressive(order=4, window=192), "trend": Trend(4)}
)
"""Predictors by name: persistence, a linear function of four steps (fitted to two days), a line through four steps."""


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
