"""Earlier runs for the jobs of a bundle: other recordings of the same task, as a pool would remember them.

A recording of the same configuration with another seed is no earlier run here, and neither is a copy under another
name: with these, a forecast would be looking up the answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

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


def earlier_runs(
    recording: Recording, pool: Sequence[Recording], runs: int, draw: np.random.Generator, *, wrong: bool = False
) -> tuple[EarlierRun, ...]:
    """Draw earlier runs of a recording.

    Args:
        recording: The recording.
        pool: Recordings to draw from.
        runs: Number of runs; fewer if there are fewer.
        draw: Random numbers.
        wrong: Whether the runs are of other tasks: what a job gets whose `like` names the wrong one.
    """
    found = [one for one in pool if _task(one) != _task(recording)] if wrong else like(recording, pool)
    chosen: list[int] = draw.choice(len(found), min(runs, len(found)), replace=False).tolist() if found else []
    return tuple(_remembered(found[at]) for at in chosen)


def _task(recording: Recording) -> tuple[str, str]:
    metric = _METRIC.search(recording.curve.name)
    return recording.curve.family, metric[1] if metric else ""


def _is_copy(one: Recording, other: Recording) -> bool:
    cells = min(len(one.loss), len(other.loss), SAME_CELLS)
    return bool(np.allclose(one.loss[:cells], other.loss[:cells], rtol=1e-9))


def _remembered(recording: Recording) -> EarlierRun:
    name, position, loss = recording.curve.name, recording.position, recording.loss
    return _as_run(name, tuple(position.tolist()), tuple(loss.tolist()))


@lru_cache(maxsize=1000)
def _as_run(name: str, position: tuple[float, ...], loss: tuple[float, ...]) -> EarlierRun:
    curve = BinnedCurve()
    for batches, one in zip(position, loss, strict=True):
        curve.add(int(batches), one)
    return EarlierRun(name, *curve.points())
