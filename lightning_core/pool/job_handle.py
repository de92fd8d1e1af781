"""Handles of the jobs of a pool."""

from __future__ import annotations

import math
import time
from typing import NamedTuple, Protocol

from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.pool.pool_errors import StillTrainingError


class JobsAsked(Protocol):
    """What a handle asks of its pool, by the name of the job."""

    def status(self, job: str) -> JobStatus: ...
    def best_model(self, job: str) -> str: ...
    def cancel(self, job: str) -> None: ...


class JobResult(NamedTuple):
    """The outcome of a job that has ended."""

    verdict: Verdict
    reason: str
    value: float | None
    """Value that its target compares; of a job that met it, the one that met it. None if there was none."""
    best: float | None
    """Best of these values."""
    batches: int
    """Batches done."""
    best_model: str
    """Path of its best model on the pool's machine; empty if none is kept (``keep_best``)."""


class JobHandle:
    """A job of a pool, to wait for and to cancel.

    It stands for the newest job of its name until that has ended, and for that one ever after.

    Args:
        pool: Pool of the job.
        name: Name of the job.

    Example::

        vit, cnn = pool.submit("bundle.yaml")
        cnn.cancel()
        print(vit.result().best_model)
    """

    def __init__(self, pool: JobsAsked, name: str) -> None:
        self.name = name
        """Name of the job."""
        self._pool = pool
        self._ended: JobStatus | None = None
        self._best_model = ""

    def __repr__(self) -> str:
        return f"JobHandle({self.name!r})"

    def status(self) -> JobStatus:
        """Return the job's state, verdict, reasons, progress and share as they are now, or at its end.

        Raises:
            UnknownJobError: If the pool has no job of this name, or has forgotten one that ended long ago.
        """
        if self._ended is not None:
            return self._ended
        status = self._pool.status(self.name)
        if status.state is State.ENDED:
            self._best_model = self._pool.best_model(self.name)  # before another job has the name
            self._ended = status
        return status

    def wait(self, timeout: float | None = None, *, poll: float = 0.5) -> JobStatus:
        """Wait until the job has ended, and return its status.

        Args:
            timeout: Seconds to wait at most; None for any time.
            poll: Seconds between two looks.

        Raises:
            StillTrainingError: If it has not ended by then; it is a ``TimeoutError``.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        while (status := self.status()).state is not State.ENDED:
            left = until - time.monotonic()
            if left <= 0:
                raise StillTrainingError(f"{self.name} is {status.state} and has not ended after {timeout:g} s")
            time.sleep(min(poll, left))
        return status

    def result(self, timeout: float | None = None) -> JobResult:
        """Wait until the job has ended, and return its outcome.

        Args:
            timeout: Seconds to wait at most; None for any time.

        Raises:
            StillTrainingError: If it has not ended by then; it is a ``TimeoutError``.
        """
        job = self.wait(timeout)
        assert job.verdict is not None  # there is one of each job that has ended
        return JobResult(job.verdict, str(job.reason), job.value, job.best, job.batches, self._best_model)

    def cancel(self) -> None:
        """End the job; a launched one is saved first.

        Raises:
            JobEndedError: If it has ended.
        """
        self._pool.cancel(self.name)
