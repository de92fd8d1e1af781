"""How much will come in within the next steps of a quarter of an hour: from three or four of them, two or three ahead.

Each is told beside persistence, which is the one to beat (:func:`~lightning_core.planning.time_series.errors`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.planning.time_series import Autoregressive, Forecaster, LastValue, Trend, errors

PREDICTORS: Mapping[str, Forecaster] = MappingProxyType(
    {"persistence": LastValue(), "autoregression": Autoregressive(order=4, window=192), "trend": Trend(4)}
)
"""By name: all goes on as it is; a linear function of the last four steps, fitted to two days; a line through them."""


def relative_errors(series: Sequence[FloatArray], horizon: int = 3) -> dict[str, FloatArray]:
    """Mean absolute errors of each, in those of persistence, by steps ahead: shape ``(horizon,)``; 1 if it has none.

    Args:
        series: shape ``(T,)`` each.
        horizon: steps ahead.
    """
    wrong: dict[str, FloatArray] = {
        name: np.mean([errors(one.table(values, horizon), values) for values in series], axis=0)
        for name, one in PREDICTORS.items()
    }
    least = wrong["persistence"]
    return {name: np.where(least > 0, one / np.where(least > 0, least, 1.0), 1.0) for name, one in wrong.items()}
