"""Follows jobs until they have ended; a signal can interrupt the wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from lightning_core.core.answers import JobStatus, State

# Seconds between two looks at the jobs.
POLL = 0.25


class Watcher(Protocol):
    """Object that is shown the jobs of a run."""

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """Show the jobs as of scheduler time ``now``."""

    def close(self) -> None:
        """End the display: the run is over."""


Look = Callable[[], tuple[float, list[JobStatus]]]


def remembering(look: Look) -> Look:
    """Return a function that returns the last status of each job: a large pool forgets ended jobs in time."""
    seen: dict[str, JobStatus] = {}

    def again() -> tuple[float, list[JobStatus]]:
        now, jobs = look()
        seen.update({job.name: job for job in jobs})
        return now, list(seen.values())

    return again


def follow(
    look: Look, stops: Callable[[], object], watcher: Watcher | None = None, *, waits: bool = False
) -> tuple[float, list[JobStatus]]:
    """Wait until all jobs have ended.

    Args:
        look: Function that returns the scheduler time and the jobs.
        stops: Function that returns a true value to stop waiting.
        watcher: Object that is shown the jobs at each look.
        waits: Whether to wait for a first job while there is none.

    Returns:
        Scheduler time and jobs at the end.
    """
    while True:
        now, jobs = look()
        if watcher is not None:
            watcher.update(now, jobs)
        if stops() or (all(job.state is State.ENDED for job in jobs) and (jobs or not waits)):
            return now, jobs
        time.sleep(POLL)
