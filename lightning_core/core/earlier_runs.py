"""Earlier runs of the same task, which a pool gives to a new job, and the binned loss curves that it keeps of them.

A binned curve holds a job of any length in at most 128 points, evenly spaced in the logarithm of batches.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from lightning_core.core.limits import (
    MAX_COUNT,
    MAX_DEVICES,
    MAX_MEMORY,
    MAX_NAME,
    check_at_most,
    check_factor,
    check_length,
    shown,
)
from lightning_core.core.saved_state import decode, encode

MAX_EARLIER_RUNS = 3
"""Earlier runs of one job; more do not make its forecast better."""
MAX_POINTS = 128
"""Points of a curve."""
MAX_PACES = 200
"""Earlier paces of one event."""
MAX_ON_KINDS = 64
"""Throughputs of one run on kinds of devices."""
MAX_BESIDE = 8
"""Trainings beside another."""
# Characters of a kind of trainings: of a model, and of a batch size.
MAX_FAMILY = MAX_NAME + 20
# Slowest and fastest pace that is remembered.
SLOWEST_PACE, FASTEST_PACE = 0.01, 100.0
# Width of a bin in the logarithm of batches; it doubles when there would be too many bins.
FIRST_WIDTH = 0.05
# Relative difference below which two means are the same.
SAME = 1e-6


class EarlierRun(NamedTuple):
    """An earlier run of the same task.

    Example::

        >>> run = EarlierRun("vit-3", (10, 20, 40), (2.3, 1.1, 0.6), met_at=38, throughputs=((1, 50.0), (2, 90.0)))
        >>> check_run(run)
        >>> check_run(run._replace(batches=(10, 40, 20)))
        Traceback (most recent call last):
        ...
        ValueError: vit-3: batches must increase from 1 to at most 1,000,000,000,000, got (10, 40, 20)
    """

    name: str
    """Name of its job."""
    batches: tuple[int, ...]
    """Batches done at each point of its curve, increasing, about evenly spaced in their logarithm; at most
    :data:`MAX_POINTS`. Of a run with another batch size they are scaled: the samples are the same."""
    losses: tuple[float, ...]
    """Mean loss up to each point, as the estimator sees losses: falling, also where the metric grows."""
    met_at: int | None = None
    """Batches done when its own target was met; None if it was missed."""
    throughputs: tuple[tuple[int, float], ...] = ()
    """Numbers of devices, increasing, and the batches per second on each; empty if unknown."""
    memory: int | None = None
    """Bytes of each device's memory that its process had at its peak, with as large a batch; None if unknown."""
    on_kinds: tuple[tuple[str, int, float], ...] = ()
    """Kinds of devices that it was on in a pool of several, each with a number of them and the batches per second."""


class EarlierPace(NamedTuple):
    """How fast trainings of a kind were beside others in an earlier pool.

    Example::

        >>> check_pace(EarlierPace("bert", ("resnet",), 0.8, 30.0))
        >>> check_pace(EarlierPace("bert", (), 0.8, 30.0))
        Traceback (most recent call last):
        ...
        ValueError: bert: trainings beside it must be 1 to 8, got 0
    """

    family: str
    """Kind of the training, as :attr:`~lightning_core.core.jobs.Job.family` names it."""
    others: tuple[str, ...]
    """Kinds of those beside it, sorted."""
    pace: float
    """Its throughput as a fraction of its throughput alone, the geometric mean."""
    seconds: float
    """Seconds of training that it was measured for."""


def check_pace(pace: EarlierPace) -> None:
    """Check the values of an earlier pace.

    Raises:
        ValueError: If one is out of its range; the message names the kind, the rule and the value.
    """
    for kind in (pace.family, *pace.others):
        check_length("kind of trainings", kind, MAX_FAMILY)
    if not 1 <= len(pace.others) <= MAX_BESIDE:
        raise ValueError(f"{pace.family}: trainings beside it must be 1 to {MAX_BESIDE}, got {len(pace.others)}")
    if list(pace.others) != sorted(pace.others):
        raise ValueError(f"{pace.family}: trainings beside it must be sorted, got {shown(pace.others)}")
    if not SLOWEST_PACE <= pace.pace <= FASTEST_PACE:
        raise ValueError(f"{pace.family}: pace must be {SLOWEST_PACE} to {FASTEST_PACE}, got {shown(pace.pace)}")
    if not 0 < pace.seconds <= MAX_COUNT:
        raise ValueError(f"{pace.family}: seconds must be above 0 to {MAX_COUNT:,}, got {shown(pace.seconds)}")


def check_run(run: EarlierRun) -> None:
    """Check the values of an earlier run.

    Raises:
        ValueError: If one is out of its range; the message names the run, the rule and the value.
    """
    check_length("name of an earlier run", run.name)
    try:
        _check_curve(run.batches, run.losses)
        if run.met_at is not None and not 1 <= run.met_at <= MAX_COUNT:
            raise ValueError(f"met_at must be 1 to {MAX_COUNT:,} batches, got {shown(run.met_at)}")
        _check_throughputs(run.throughputs)
        check_at_most("kinds of devices", len(run.on_kinds), MAX_ON_KINDS)
        for kind, devices, throughput in run.on_kinds:
            check_length("a kind of devices", kind)
            _check_throughputs(((devices, throughput),))
        if run.memory is not None and not 1 <= run.memory <= MAX_MEMORY:
            raise ValueError(f"memory must be 1 to {MAX_MEMORY:,} bytes, got {shown(run.memory)}")
    except ValueError as error:
        raise ValueError(f"{run.name}: {error}") from None


def _check_curve(batches: Sequence[int], losses: Sequence[float]) -> None:
    if len(batches) != len(losses):
        raise ValueError(f"there must be one loss for each of {len(batches)} positions, got {len(losses)}")
    check_at_most("points", len(batches), MAX_POINTS)
    if not _increase((0, *batches, MAX_COUNT + 1)):
        raise ValueError(f"batches must increase from 1 to at most {MAX_COUNT:,}, got {shown(batches)}")
    if not all(map(math.isfinite, losses)):
        raise ValueError(f"losses must be finite, got {shown(losses)}")


def _check_throughputs(throughputs: Sequence[tuple[int, float]]) -> None:
    if not _increase((0, *(devices for devices, _ in throughputs), MAX_DEVICES + 1)):
        raise ValueError(f"numbers of devices must increase from 1 to {MAX_DEVICES:,}, got {shown(throughputs)}")
    for _, throughput in throughputs:
        if not throughput > 0:
            raise ValueError(f"throughputs must be positive, got {shown(throughput)}")
        check_factor("throughputs", throughput)


def _increase(numbers: Sequence[int]) -> bool:
    return all(one < next_one for one, next_one in pairwise(numbers))


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
        """Restore a state that :meth:`state` returned."""
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
