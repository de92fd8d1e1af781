"""Array types of the core, and the levels of forecast quantiles."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


IntArray = npt.NDArray[np.int64]


BoolArray = npt.NDArray[np.bool_]


ObjectArray = npt.NDArray[np.object_]


# Levels of the quantiles of every forecast, evenly spaced, shape ``(20,)``.
LEVELS: FloatArray = (np.arange(20) + 0.5) / 20


# Quantiles of the standard normal distribution at those levels, shape ``(20,)``.
NORMAL: FloatArray = np.array([NormalDist().inv_cdf(level) for level in LEVELS.tolist()])
