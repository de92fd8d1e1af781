"""The view of a scheduler that controllers get."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_core.core.answers import JobStatus
from lightning_core.core.arrays import FloatArray
from lightning_core.core.jobs import Job
from lightning_core.scheduler.forecasting import forecast_work, resize_seconds
from lightning_core.scheduler.state import SchedulerState


class SchedulerView:
    """A :class:`~lightning_core.core.pool_view.PoolView` of a scheduler, as of one event.

    Args:
        state: State of the scheduler.
        now: Scheduler time of the event.
    """

    def __init__(self, state: SchedulerState, now: float) -> None:
        self._state, self._now = state, now

    @property
    def closing(self) -> bool:
        return self._state.closing

    @property
    def locations(self) -> tuple[str, ...]:
        return self._state.settings.locations

    def names(self) -> list[str]:
        return self._state.names(active=True)

    def is_active(self, name: str) -> bool:
        return self._state.table.find_active(name) is not None

    def status(self, name: str) -> JobStatus | None:
        found = self._state.find(name)
        return None if found is None else self._state.job_status(*found, self._now)

    def job(self, name: str) -> Job:
        table = self._state.table
        return table.jobs[table.row_of[name]]

    def throughputs(self, name: str) -> Mapping[int, float]:
        speed = self._state.table.speedups[self._state.table.row_of[name]]
        return {size: speed.throughput(size) for size in speed.sizes} if speed.known else {}

    def resize_seconds(self, name: str) -> float | None:
        return resize_seconds(self._state.table, self._state.table.row_of[name])

    def forecast_work(self, name: str) -> FloatArray:
        return forecast_work(self._state.table, self._state.curves, self._state.table.row_of[name])
