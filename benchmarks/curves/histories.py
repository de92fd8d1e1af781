"""Earlier runs for the jobs of a bundle: other recordings of the same task, as a pool would remember them.

A recording of the same configuration with another seed is no earlier run here, and neither is a copy under another
name: with these, a forecast would be looking up the answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from benchmarks.curves.bundles import Recording
from lightning_core.core.earlier_runs import BinnedCurve, EarlierRun

# Losses of one algorithm that are different metrics.
_METRIC = re.compile(r"_(critic|imitator|actor)_loss$")
# Cells at the beginning by which copies are recognised.
SAME_CELLS = 50


def like(recording: Recording, pool: Sequence[Recording]) -> list[Recording]:
    """Return the recordings of the same task and metric with another configuration."""
    return [
        other
        for other in pool
        if _task(other) == _task(recording)
        and (other.curve.task, other.curve.method) != (recording.curve.task, recording.curve.method)
        and not _is_copy(other, recording)
    ]


def with_enough(pool: Sequence[Recording], runs: int) -> list[Recording]:
    """Return the recordings that have so many earlier runs."""
    return [one for one in pool if len(like(one, pool)) >= runs]


class Mismatch(NamedTuple):
    """How far earlier runs are not those of the job's task.

    Attributes:
        task: Whether they are of other tasks: what a job gets whose `like` names the wrong one.
        batches: Factor of their positions, as if they had had another batch size and that were not known.
        loss: Factor of their losses, as of a metric on another scale.
    """

    task: bool = False
    batches: float = 1.0
    loss: float = 1.0


MATCHING = Mismatch()


def earlier_runs(
    recording: Recording,
    pool: Sequence[Recording],
    runs: int,
    draw: np.random.Generator,
    mismatch: Mismatch = MATCHING,
) -> tuple[EarlierRun, ...]:
    """Draw earlier runs of a recording.

    Args:
        recording: The recording.
        pool: Recordings to draw from.
        runs: Number of runs; fewer if there are fewer.
        draw: Random numbers.
        mismatch: What is wrong with them.
    """
    found = [one for one in pool if _task(one) != _task(recording)] if mismatch.task else like(recording, pool)
    chosen: list[int] = draw.choice(len(found), min(runs, len(found)), replace=False).tolist() if found else []
    return tuple(_remembered(found[at], mismatch) for at in chosen)


def _task(recording: Recording) -> tuple[str, str]:
    metric = _METRIC.search(recording.curve.name)
    return recording.curve.family, metric[1] if metric else ""


def _is_copy(one: Recording, other: Recording) -> bool:
    cells = min(len(one.loss), len(other.loss), SAME_CELLS)
    return bool(np.allclose(one.loss[:cells], other.loss[:cells], rtol=1e-9))


def _remembered(recording: Recording, mismatch: Mismatch) -> EarlierRun:
    position, loss = recording.position * mismatch.batches, recording.loss * mismatch.loss
    return _as_run(recording.curve.name, tuple(position.tolist()), tuple(loss.tolist()))


@lru_cache(maxsize=1000)
def _as_run(name: str, position: tuple[float, ...], loss: tuple[float, ...]) -> EarlierRun:
    curve = BinnedCurve()
    for batches, one in zip(position, loss, strict=True):
        curve.add(max(int(batches), 1), one)
    return EarlierRun(name, *curve.points())
