"""Where is this loss curve going? One estimator a file, each a bank of rows."""

from __future__ import annotations

from lightning_core.estimators.least_squares import LeastSquares

ESTIMATORS = {"least_squares": LeastSquares}

__all__ = ["ESTIMATORS", "LeastSquares"]
