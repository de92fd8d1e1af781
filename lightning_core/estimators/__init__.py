"""Estimators: where a loss curve is going. One file each; an estimator is a bank with one row per job."""

from __future__ import annotations

from functools import partial

from lightning_core.core.protocols import Estimator
from lightning_core.core.specs import Family
from lightning_core.estimators.kalman import Kalman
from lightning_core.estimators.least_squares import LeastSquares
from lightning_core.estimators.posterior import Posterior

ESTIMATORS: Family[Estimator] = Family("estimator", {
    "least_squares": partial(LeastSquares, gamma=1.0),
    "weighted": partial(LeastSquares, gamma=0.9),
    "log_time": LeastSquares,
    "kalman": partial(Kalman, order=0, process=1e-4),
    "dkf": Kalman,
    "posterior": Posterior,
}, outside="estimators", methods=("grow", "observe", "predict", "first_passage"))  # fmt: skip

__all__ = ["ESTIMATORS", "Kalman", "LeastSquares", "Posterior"]
