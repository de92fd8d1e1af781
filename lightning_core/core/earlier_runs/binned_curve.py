"""The loss curve of a job of any length, in at most 128 points that are evenly spaced in the logarithm of batches."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from lightning_core.core.earlier_runs.earlier_run import MAX_POINTS
from lightning_core.core.saved_state import decode, encode

# Width of a bin in the logarithm of batches; it doubles when there would be too many bins.
FIRST_WIDTH = 0.05
# Relative difference below which two means are the same.
SAME = 1e-6


class BinnedCurve:
    """A loss curve, in bins of log position.

    Example::

        >>> curve = BinnedCurve()
        >>> for batches in (10, 300, 302, 900):
        ...     curve.add(batches, 1.0 / batches)
        >>> curve.points()
        ((10, 301, 900), (0.1, 0.003322296, 0.001111111))
    """

    __slots__ = ("_batches", "_bins", "_counts", "_losses", "_width")

    def __init__(self) -> None:
        self._width = FIRST_WIDTH
        # Arrays take a quarter of the memory of lists: a pool remembers thousands of curves.
        self._bins, self._counts = array("q"), array("q")
        self._batches, self._losses = array("d"), array("d")  # sums over the cells of each bin

    def __len__(self) -> int:
        return len(self._bins)

    def add(self, batches: int, loss: float) -> None:
        """Add a loss cell, at a later position than all before it.

        Args:
            batches: Batches done, at least 1.
            loss: Loss as the estimator sees it, finite.
        """
        place = int(math.log(batches) / self._width)
        if not self._bins or place != self._bins[-1]:
            if len(self._bins) == MAX_POINTS:
                self._widen()
                self.add(batches, loss)
                return
            self._open(place)
        self._counts[-1] += 1
        self._batches[-1] += batches
        self._losses[-1] += loss

    def points(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return the batches, increasing, and the mean loss of each bin, with seven digits."""
        counts = self._counts
        batches = tuple(round(total / n) for total, n in zip(self._batches, counts, strict=True))
        losses = tuple(float(f"{total / n:.7g}") for total, n in zip(self._losses, counts, strict=True))
        return batches, losses

    def falls(self) -> bool:
        """Return whether the newer half of its points lies below the older one; true of fewer than two points."""
        half = len(self) // 2
        if not half:
            return True
        means = np.frombuffer(self._losses) / np.frombuffer(self._counts, np.int64)
        older, newer = float(means[:half].mean()), float(means[half:].mean())
        return older - newer > SAME * abs(older)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values: arrays, which are smaller than lists."""
        counts = np.array([self._bins, self._counts], np.int64)
        return {"width": self._width, "counts": encode(counts), "sums": encode(np.array([self._batches, self._losses]))}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take on a state that :meth:`state` returned."""
        self._width = float(state["width"])
        self._bins, self._counts = (array("q", column) for column in decode(state["counts"]).tolist())
        self._batches, self._losses = (array("d", column) for column in decode(state["sums"]).tolist())

    def _open(self, place: int) -> None:
        self._bins.append(place)
        self._counts.append(0)
        self._batches.append(0.0)
        self._losses.append(0.0)

    def _widen(self) -> None:
        """Make each bin twice as wide."""
        self._width *= 2.0
        before = list(zip(self._bins, self._counts, self._batches, self._losses, strict=True))
        for column in (self._bins, self._counts, self._batches, self._losses):
            del column[:]
        for place, count, batches, loss in before:
            if not self._bins or self._bins[-1] != place // 2:
                self._open(place // 2)
            self._counts[-1] += count
            self._batches[-1] += batches
            self._losses[-1] += loss
