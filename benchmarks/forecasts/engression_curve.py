"""Engression as an estimator of learning curves, fitted offline: the third that LARA compares with (section 4.4).

Shen and Meinshausen, "Engression: Extrapolation through the Lens of Distributional Regression", 2023: a small network
with noise at its input, trained on the energy score. It has the default settings of its authors' package, as in LARA.
LARA does not say what it is fitted to: the losses by the batches, or LARA's own linear form (eq. 3.2), the logarithms
of both. Both are here. The first forecasts negative losses far ahead, the second falls too slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from lightning_core.core.arrays import FloatArray

# A passage is searched from the last cell seen to so many times as many batches, on a grid of so many points.
FARTHEST, POINTS = 1000.0, 400
SAMPLES = 100


def package() -> ModuleType:
    """Return the package, which is imported late: it brings torch along.

    Raises:
        ModuleNotFoundError: If it is not installed.
    """
    try:
        return import_module("engression")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "the estimator engression needs the package engression, which is not installed; "
            "run pip install -c constraints.txt -e '.[bench]'",
            name="engression",
        ) from None


class EngressionCurve:
    """A fitted curve.

    Args:
        model: What the package fitted.
        logarithms: Whether that is the logarithm of the loss by the logarithm of the batches.
        last: Batches at the last cell.
        seed: Seed of the samples whose mean a forecast is.
    """

    def __init__(self, model: Any, logarithms: bool, last: float, seed: int) -> None:
        self._model, self._logarithms, self._last, self._seed = model, logarithms, last, seed

    def predict(self, s: FloatArray) -> FloatArray:
        """Return the loss after ``s`` batches (all positive), of the shape of ``s``; it may be negative."""
        column = np.reshape(s, (-1, 1))
        at = np.log(column) if self._logarithms else column
        mean = _seeded(lambda: self._model.predict(at, target="mean", sample_size=SAMPLES), self._seed)
        curve: FloatArray = np.asarray(mean, np.float64).reshape(np.shape(s))
        return np.exp(curve) if self._logarithms else curve

    def first_passage(self, threshold: float) -> float:
        """Return the batches until the loss is at ``threshold``, from the last cell on; inf if that is too far."""
        grid = np.geomspace(self._last, FARTHEST * self._last, POINTS)
        reached = self.predict(grid) <= threshold
        return float(grid[np.argmax(reached)]) if reached.any() else np.inf


def fit_engression(s: FloatArray, loss: FloatArray, seed: int = 0, *, logarithms: bool = False) -> EngressionCurve:
    """Fit a curve with the package's default settings.

    Args:
        s: Batches done, shape ``(n,)``, above 0.
        loss: Losses seen there, above 0.
        seed: Seed of the network and its noise.
        logarithms: Whether to fit the logarithms of both.

    Raises:
        ValueError: If there are fewer than 6 points, as many as M4 needs.
        ModuleNotFoundError: If the package is not installed.
    """
    if len(s) < 6:
        raise ValueError(f"engression needs at least 6 points, got {len(s)}")
    fit = package().engression
    x, y = ((np.log(values) if logarithms else values)[:, None] for values in (s, loss))
    return EngressionCurve(_seeded(lambda: fit(x, y, verbose=False), seed), logarithms, float(s[-1]), seed)


def _seeded(action: Callable[[], Any], seed: int) -> Any:
    """Return what an action returns that draws torch's random numbers, from a seed and with none drawn elsewhere."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return action()
