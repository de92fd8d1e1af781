"""Curves that are fitted offline, such as M4's, as estimators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from benchmarks.forecasts.m4 import fit_m4
from lightning_core.core.arrays import LEVELS, FloatArray, IntArray


class FittedCurve(Protocol):
    """A curve that has been fitted to cells."""

    def predict(self, s: FloatArray) -> FloatArray:
        """Return the loss after ``s`` batches."""

    def first_passage(self, threshold: float) -> float:
        """Return the batches until the loss is at ``threshold``; inf if never."""


class Offline:
    """An offline fit as an estimator: keeps all cells and fits them again at every query. All quantiles are equal.

    Args:
        fit: Fits a curve to the batches and losses of all cells; raises ValueError if it cannot.
        remember: Whether a fit is kept until the next cell, of a curve that takes long to fit.
    """

    def __init__(
        self, fit: Callable[[FloatArray, FloatArray], FittedCurve] = fit_m4, *, remember: bool = False
    ) -> None:
        self._fit_cells, self._remember = fit, remember
        self._cells: list[list[tuple[float, float]]] = []
        self._fits: dict[int, FittedCurve | None] = {}

    def grow(self, rows: int) -> None:
        self._cells += [[] for _ in range(rows - len(self._cells))]

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        for row, *cell in zip(rows.tolist(), position.tolist(), loss.tolist(), strict=True):
            self._cells[row].append((cell[0], cell[1]))
            self._fits.pop(row, None)

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        curves = map(self._fit, rows.tolist())
        return np.array([c.predict(s) if c else np.nan for c, s in zip(curves, position, strict=True)])

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        curves = map(self._fit, rows.tolist())
        asked = zip(curves, threshold.tolist(), strict=True)
        return np.repeat([[c.first_passage(goal) if c else np.nan] for c, goal in asked], len(LEVELS), axis=1)

    def _fit(self, row: int) -> FittedCurve | None:
        if row in self._fits:
            return self._fits[row]
        s, loss = np.array(self._cells[row]).reshape(-1, 2).T
        try:
            curve = self._fit_cells(s, loss)
        except ValueError:  # too few cells, or all the same
            curve = None
        if self._remember:
            self._fits[row] = curve
        return curve
