"""The view of the pool that a controller gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lightning_core.core.answers import JobStatus
from lightning_core.core.arrays import FloatArray
from lightning_core.core.jobs import Job


class PoolView(Protocol):
    """The pool after the event that a controller handles."""

    @property
    def closing(self) -> bool:
        """Whether the pool is shutting down."""

    @property
    def locations(self) -> Sequence[str]:
        """Location of each device; empty if the pool has no locations."""

    def names(self) -> Sequence[str]:
        """Return the names of the jobs that have not ended."""

    def is_active(self, name: str) -> bool:
        """Return whether there is a job of a name that has not ended."""

    def status(self, name: str) -> JobStatus | None:
        """Return the status of the newest job of a name; None if it is not remembered."""

    def job(self, name: str) -> Job:
        """Return a job that has not ended, with its present terms."""

    def throughputs(self, name: str) -> Mapping[int, float]:
        """Return its expected batches per second by number of devices; empty while unknown."""

    def resize_seconds(self, name: str) -> float | None:
        """Return the seconds that it loses when it is moved or resized; None while unknown."""

    def forecast_work(self, name: str) -> FloatArray:
        """Return the batches from its beginning that a job will need that has a loss to reach, as far as that is known.

        Returns:
            Quantiles at :data:`~lightning_core.core.arrays.LEVELS`, increasing, shape ``(20,)``: until its target is
            met, or until its training ends by itself. inf where it never does, NaN while nothing is known.
        """
