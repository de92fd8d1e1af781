"""What is known of an earlier run: its loss curve, when it met its target, and how fast it trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from lightning_core.core.limits import (
    MAX_COUNT,
    MAX_DEVICES,
    MAX_MEMORY,
    check_at_most,
    check_factor,
    check_length,
    shown,
)

MAX_EARLIER_RUNS = 3
"""Earlier runs of one job; more do not make its forecast better."""
MAX_POINTS = 128
"""Points of a curve."""


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
