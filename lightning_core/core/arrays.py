"""Array types of the core, and the levels at which a forecast gives quantiles."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


IntArray = npt.NDArray[np.int64]


BoolArray = npt.NDArray[np.bool_]


ObjectArray = npt.NDArray[np.object_]


# A forecast is so many quantiles, at these levels: shape ``(20,)``, evenly spread.
LEVELS: FloatArray = (np.arange(20) + 0.5) / 20


# ... and so those of a standard normal distribution.
NORMAL: FloatArray = np.array([NormalDist().inv_cdf(level) for level in LEVELS.tolist()])
