"""Jobs as a policy sees them, made from short lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_core.core.arrays import NORMAL
from lightning_core.core.plans import JobView
from lightning_core.core.speedup import SpeedUp


def view(
    work: Sequence[float],
    deadline: Sequence[float],
    *,
    row: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    cells: Sequence[int] | None = None,
    exact: Sequence[bool] | None = None,
    throughput: Sequence[float] | None = None,
    spread: Sequence[float] | None = None,
    loss: Sequence[float] | None = None,
    goal: Sequence[float] | None = None,
    position: Sequence[float] | None = None,
    shown: Sequence[int] | None = None,
    acknowledged: Sequence[bool] | None = None,
    weight: Sequence[float] | None = None,
    size: Sequence[int] | None = None,
    devices: int = 1,
    speedup: Sequence[SpeedUp] | None = None,
    held_devices: Sequence[float] | None = None,
    trained_since: Sequence[float] | None = None,
    reported_at: Sequence[float] | None = None,
    resize_seconds: Sequence[float] | None = None,
    fixed_size: Sequence[int] | None = None,
    continues_late: Sequence[bool] | None = None,
    quantum: float = 1.0,
) -> JobView:
    """Return jobs that have shown 100 cells of 10 batches at 10 batches/s, at twice their goal, unless given otherwise.

    NaN in ``work`` makes the throughput unknown too. ``spread`` is that of the logarithm of work. Jobs that can be
    resized have a ``speedup``. By default they hold nothing, a resize costs 1 s, and they stop when they are late.
    """
    n = len(work)

    def column(given: Sequence[Any] | None, usual: Any, kind: type) -> Any:
        return np.full(n, usual, kind) if given is None else np.array(given, kind)

    seconds = np.array(work, float)
    speed = np.where(np.isnan(seconds), np.nan, 10.0) if throughput is None else np.array(throughput, float)
    speeds = np.empty(n, np.object_)
    speeds[:] = [SpeedUp((1,)) for _ in range(n)] if speedup is None else speedup
    known, seen = column(exact, False, bool), column(cells, 100, int)
    return JobView(
        row=np.arange(n) if row is None else np.array(row),
        deadline=np.array(deadline, float),
        batches=column(batches, 0, int),
        cells=seen,
        exact=known,
        remaining=seconds * speed,
        throughput=speed,
        work=seconds,
        quantiles=seconds[:, None] * np.exp(column(spread, 0.0, float)[:, None] * NORMAL),
        loss=np.where(seen > 0, 1.0, np.nan) if loss is None else np.array(loss, float),
        goal=np.where(known, np.nan, 0.5) if goal is None else np.array(goal, float),
        position=10.0 * seen if position is None else np.array(position, float),
        acknowledged=column(acknowledged, True, bool),
        weight=column(weight, 1.0, float),
        size=column(size, 1, int),
        devices=devices,
        shown=seen if shown is None else np.array(shown),
        speedup=speeds,
        submitted=np.zeros(n),
        reported_at=column(reported_at, 0.0, float),
        held_devices=column(held_devices, 0.0, float),
        trained_since=column(trained_since, np.inf, float),
        resize_seconds=column(resize_seconds, 1.0, float),
        fixed_size=column(fixed_size, 0, int),
        continues_late=column(continues_late, False, bool),
        quantum=quantum,
        name=np.array([f"job-{k}" for k in range(n)], np.object_),
    )
