"""Looks at jobs until they have ended, and shows them; whoever waits may be interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from lightning_core.core.answers import JobStatus, State

POLL = 0.25


class Watcher(Protocol):
    """Is shown the jobs of a run."""

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """The jobs as of scheduler time ``now``."""

    def close(self) -> None:
        """The run is over."""


def follow(
    look: Callable[[], tuple[float, list[JobStatus]]], stops: Callable[[], object], watcher: Watcher | None = None
) -> tuple[float, list[JobStatus]]:
    """The jobs as they ended, or as they were when it was stopped.

    Args:
        look: answers scheduler time and the jobs.
        stops: answers what is true once nobody should go on waiting.
        watcher: is shown each look.
    """
    while True:
        now, jobs = look()
        if watcher is not None:
            watcher.update(now, jobs)
        if stops() or all(job.state is State.ENDED for job in jobs):
            return now, jobs
        time.sleep(POLL)
