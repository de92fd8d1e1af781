"""Records of ended jobs: the curve, the time at which the target was met, and the throughput."""

from __future__ import annotations

from collections.abc import Collection
from math import isnan
from typing import NamedTuple

import numpy as np

from lightning_core.core.answers import End, Verdict
from lightning_core.core.earlier_runs import MAX_ON_KINDS
from lightning_core.core.jobs import Job
from lightning_core.scheduler.kinds.places import speedup_together
from lightning_core.scheduler.state import SchedulerState
from lightning_core.scheduler.tables.table import JobTable


class EndedRun(NamedTuple):
    """A job that has ended, with what it did."""

    job: Job
    verdict: Verdict
    batches: tuple[int, ...]
    """Points of its curve, as of an :class:`~lightning_core.core.earlier_runs.EarlierRun`."""
    losses: tuple[float, ...]
    met_at: int | None
    """Batches done when it met its target, in time or late; None if it did not."""
    throughputs: tuple[tuple[int, float], ...]
    """Numbers of devices, increasing, and the batches per second on each that it trained on."""
    trained: float
    """Seconds that it trained; of those beside others, as many as the same work takes alone."""
    submitted: float
    """Scheduler time."""
    ended: float
    """Scheduler time."""
    memory: int | None
    """Bytes of each device's memory that its process had at its peak; None if it did not report them."""
    on_kinds: tuple[tuple[str, int, float], ...] = ()
    """Kinds of devices in a pool of several, also apart on several machines, on which trainings of its family were
    measured, each with a number of devices and the batches per second."""


def ended_runs(state: SchedulerState, names: Collection[str] | None = None) -> list[EndedRun]:
    """Return what jobs did that have ended, but for those that did nothing.

    Args:
        state: State of the scheduler.
        names: Names, of each of which the newest job is wanted; None for all jobs that are remembered.
    """
    if names is None:
        places = [(table, row) for table in (state.past.table, state.table) for row in range(len(table))]
    else:
        places = [found for name in names if (found := state.find(name)) is not None]
    return [run for place in places if (run := _ended_run(state, *place)) is not None]


def _ended_run(state: SchedulerState, table: JobTable, row: int) -> EndedRun | None:
    end = table.directives[row]
    batches, losses = table.curves[row].points()
    if not isinstance(end, End) or not (batches if end.verdict is Verdict.CANCELLED else table.batches[row]):
        return None
    met = end.reason.code in ("target_met", "target_met_late")
    return EndedRun(
        table.jobs[row], end.verdict, batches, losses, int(table.batches[row]) if met else None,
        _throughputs(table, row), float(table.alone_seconds[row]), float(table.submitted[row]),
        float(table.ended_at[row]), None if isnan(table.memory[row]) else int(table.memory[row]),
        state.rates.measured(table.jobs[row].family)[:MAX_ON_KINDS],
    )  # fmt: skip


def _throughputs(table: JobTable, row: int) -> tuple[tuple[int, float], ...]:
    """Return what a job did on devices of one machine; what it did on those of several is known by its family."""
    speed = speedup_together(table, row)
    if speed is None:
        return ()
    if len(speed.sizes) > 1:
        return tuple((size, speed.throughput(size)) for size in speed.sizes if speed.seen(size) > 0)
    measured = float(table.throughput(np.array([row]))[0])
    return () if isnan(measured) else ((int(table.size[row]), measured),)
