"""How much will come in within the next steps of a quarter of an hour: from three or four of them, two or three ahead.

Each is told beside persistence, which is the one to beat (:func:`~lightning_core.series.errors`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lightning_core.series import Autoregressive, Forecaster, LastValue, Trend

PREDICTORS: Mapping[str, Forecaster] = MappingProxyType(
    {"persistence": LastValue(), "autoregression": Autoregressive(order=4, window=192), "trend": Trend(4)}
)
"""By name: all goes on as it is; a linear function of the last four steps, fitted to two days; a line through them."""
