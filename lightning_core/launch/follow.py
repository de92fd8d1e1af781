"""Looks at jobs until they have ended, and shows them; whoever waits may be interrupted."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from lightning_core.types import JobStatus, State

POLL = 0.25


class Watcher(Protocol):
    """Is shown the jobs of a run."""

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """The jobs as of scheduler time ``now``."""

    def close(self) -> None:
        """The run is over."""


def follow(
    look: Callable[[], tuple[float, list[JobStatus]]], received: list[int], watcher: Watcher | None = None
) -> tuple[float, list[JobStatus]]:
    """The jobs as they ended, or as they were when a signal came.

    Args:
        look: answers scheduler time and the jobs.
        received: signals so far, from :func:`signals`.
        watcher: is shown each look.
    """
    while True:
        now, jobs = look()
        if watcher is not None:
            watcher.update(now, jobs)
        if received or all(job.state is State.ENDED for job in jobs):
            return now, jobs
        time.sleep(POLL)


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM meanwhile; the second one is not collected but acts as ever."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def collect(number: int, frame: object) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, collect)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
