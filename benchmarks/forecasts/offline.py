"""M4 as an estimator."""

from __future__ import annotations

import numpy as np

from benchmarks.forecasts.m4 import M4, fit_m4
from lightning_core.core.arrays import LEVELS, FloatArray, IntArray


class Offline:
    """M4 as an estimator: keeps all cells and fits them again at every query. All of its quantiles are equal."""

    def __init__(self) -> None:
        self._cells: list[list[tuple[float, float]]] = []

    def grow(self, rows: int) -> None:
        self._cells += [[] for _ in range(rows - len(self._cells))]

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        for row, *cell in zip(rows.tolist(), position.tolist(), loss.tolist(), strict=True):
            self._cells[row].append((cell[0], cell[1]))

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        curves = map(self._fit, rows.tolist())
        return np.array([c.predict(s) if c else np.nan for c, s in zip(curves, position, strict=True)])

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        curves = map(self._fit, rows.tolist())
        asked = zip(curves, threshold.tolist(), strict=True)
        return np.repeat([[c.first_passage(goal) if c else np.nan] for c, goal in asked], len(LEVELS), axis=1)

    def _fit(self, row: int) -> M4 | None:
        s, loss = np.array(self._cells[row]).reshape(-1, 2).T
        try:
            return fit_m4(s, loss)
        except ValueError:  # too few cells, or all the same
            return None
