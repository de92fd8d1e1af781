"""Two trainings that take turns by a file, as a scheduler would have it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from lightning_core.core.answers import Directive, End, Grant, JobForecast, Verdict
from lightning_core.core.events import Report, WorkerExited
from lightning_core.core.reasons import Reason
from lightning_core.storage.atomic_files import write_whole

# Batches of a turn by default, and seconds between two looks at the file.
BATCHES, POLL = 30, 0.005


class Turns:
    """Client of one of the trainings: it trains in every second turn and is held in the others.

    Args:
        number: 0 for the one that begins, otherwise 1.
        file: File with the number of the turn, which begins to exist with the second.
        last: Number of turns, after which both trainings are ended.
        batches: Batches of a turn, at least.
    """

    def __init__(self, number: int, file: Path, last: int, batches: int = BATCHES) -> None:
        self.report_period = 0.0
        self.reports: list[Report] = []
        self._number, self._file, self._last, self._batches = number, file, last, batches
        self._began_at: tuple[int, int] | None = None

    def report(self, report: Report) -> Directive | None:
        """Keep a report; end this training's turn once it has trained enough batches in it."""
        self.reports.append(report)
        turn = self._turn()
        if turn % 2 == self._number and turn < self._last:
            if self._began_at is None or self._began_at[0] != turn:
                self._began_at = turn, report.batches
            if report.batches >= self._began_at[1] + self._batches:
                write_whole(self._file, str(turn + 1))
        return self._newer(report.version)

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        """Return what is newer than a version as soon as it is there."""
        until = time.monotonic() + timeout
        while (found := self._newer(version)) is None and time.monotonic() < until:
            time.sleep(POLL)
        return found

    def job_forecast(self, job: str) -> JobForecast | None:
        """Return none."""
        return None

    def left(self, event: WorkerExited) -> None:
        """Ignore the event."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _turn(self) -> int:
        return int(self._file.read_text()) if self._file.exists() else 0

    def _newer(self, version: int) -> Directive | None:
        turn = self._turn()
        if turn + 1 <= version:
            return None
        if turn >= self._last:
            return End("job", turn + 1, Verdict.CANCELLED, Reason("cancelled"))
        return Grant("job", turn + 1, float(turn % 2 == self._number), (0,), Reason("fixed_share"))


def gaps_between_turns(stamps: Sequence[np.ndarray]) -> list[float]:
    """Return the seconds from the last batch of each turn to the first of the next.

    Example::

        >>> gaps_between_turns([np.array([1.0, 2.0, 9.0]), np.array([4.0, 5.0])])
        [2.0, 4.0]
    """
    batches = sorted((float(when), owner) for owner, times in enumerate(stamps) for when in times)
    return [after - before for (before, one), (after, other) in pairwise(batches) if one != other]
