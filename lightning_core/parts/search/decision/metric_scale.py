"""The scale on which the values of a search are forecast: smaller is better, with improvements of equal size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray

Mode = Literal["min", "max"]
# Constant added to the error 1 - value of a share, so that a perfect one is finite.
PERFECT = 0.01
# Units of the linear scale beyond which all that is bad is as bad: how bad tells nothing.
WORST = 20.0
_TINY = 1e-12


class MetricScale(NamedTuple):
    """A monotone map of metric values.

    Losses above zero are taken by their logarithm; shares in [0, 1] that are maximised by the logarithm of their
    distance to 1; all others by their difference, in units of the spread between trials.
    """

    kind: Literal["log", "share", "linear"]
    sign: float = 1.0
    middle: float = 0.0
    unit: float = 1.0

    @classmethod
    def of(cls, values: Sequence[float], mode: Mode) -> MetricScale:
        """Return the scale that fits the values seen.

        Args:
            values: All values, finite.
            mode: Whether the metric is minimised or maximised.
        """
        if mode == "min" and all(value > 0.0 for value in values):
            return cls("log")
        if mode == "max" and all(0.0 <= value <= 1.0 for value in values):
            return cls("share")
        middle = float(np.median(values))
        spread = float(np.median(np.abs(np.asarray(values) - middle)))
        return cls("linear", 1.0 if mode == "min" else -1.0, middle, spread or abs(middle) or 1.0)

    def covers(self, value: float) -> bool:
        """Return whether a value is in the domain of the scale."""
        return {"log": value > 0.0, "share": 0.0 <= value <= 1.0, "linear": True}[self.kind]

    def scaled(self, values: Sequence[float] | FloatArray | float) -> FloatArray:
        """Return values on the scale.

        Example::

            >>> MetricScale("log").scaled([1.0, 0.5]).round(3)
            array([ 0.   , -0.693])
            >>> MetricScale("share").scaled([0.9, 0.95]).round(3)
            array([-2.207, -2.813])
            >>> MetricScale.of([-3.0, -1.0, 1.0], "max").scaled([-3.0, -1.0, 1.0])
            array([ 1., -0., -1.])
        """
        array = np.asarray(values, dtype=np.float64)
        if self.kind == "log":
            array = np.log(np.maximum(array, _TINY))
        elif self.kind == "share":
            array = np.log(1.0 + PERFECT - array)
        else:
            array = np.minimum(self.sign * (array - self.middle) / self.unit, WORST)
        return array
