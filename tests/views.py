"""Jobs as a policy sees them, made from short lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_core.types import JobView


def view(
    work: Sequence[float],
    deadline: Sequence[float],
    *,
    place: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    cells: Sequence[int] | None = None,
    exact: Sequence[bool] | None = None,
    throughput: Sequence[float] | None = None,
    spread: Sequence[float] | None = None,
    weight: Sequence[float] | None = None,
    size: Sequence[int] | None = None,
    devices: int = 1,
) -> JobView:
    """Jobs that have shown 100 cells at 10 batches a second, unless said otherwise; work NaN: not even their speed."""
    n = len(work)

    def column(given: Sequence[Any] | None, usual: Any, kind: type) -> Any:
        return np.full(n, usual, kind) if given is None else np.array(given, kind)

    seconds = np.array(work, float)
    speed = np.where(np.isnan(seconds), np.nan, 10.0) if throughput is None else np.array(throughput, float)
    return JobView(
        place=np.arange(n) if place is None else np.array(place),
        deadline=np.array(deadline, float),
        batches=column(batches, 0, int),
        cells=column(cells, 100, int),
        exact=column(exact, False, bool),
        remaining=seconds * speed,
        throughput=speed,
        work=seconds,
        spread=column(spread, 0.0, float),
        weight=column(weight, 1.0, float),
        size=column(size, 1, int),
        devices=devices,
    )
