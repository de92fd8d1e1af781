"""Following a pool by polling: the log of a job, and changes of its jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from lightning_core.core.answers import JobStatus
from lightning_core.regular_files import open_regular
from lightning_core.view.log_lines import LogLines

# Seconds between two looks at a log that is followed, and until a progress bar that is being drawn there is shown.
LOG_POLL, BAR_SECONDS = 0.5, 10.0
# Bytes of the end of a log that are read for its last lines: at first, and at most.
FIRST_END, MAX_END = 2**18, 2**26


class Change(NamedTuple):
    """A job whose status has changed."""

    time: float
    """Scheduler time in seconds."""
    before: JobStatus | None
    """None for a job that is new."""
    now: JobStatus


def follow_log(path: Path, last: int | None, ended: Callable[[], bool] | None) -> Iterator[str]:
    """Yield the lines of a log, progress bars as they finally stand.

    Args:
        path: Path of the log.
        last: Lines to begin with, counted from the end, as far as they are in its last 64 MiB; None for all of them.
        ended: Tells whether the job has ended, up to which the log is followed; None to stop at the end of the log.
    """
    with open_regular(path) as file:
        log, lines = _read(file, last)
        lines += log.rest() if ended is None else []
        yield from lines if last is None else lines[max(len(lines) - last, 0) :]
        quiet = 0.0
        while ended is not None:
            if lines := log.feed(file.read()):
                quiet = 0.0
            elif ended():
                yield from [*log.feed(file.read()), *log.rest()]  # what it printed in the meantime
                return
            elif (quiet := quiet + LOG_POLL) > BAR_SECONDS:  # a bar draws over itself for hours
                quiet, lines = 0.0, log.rest()
            yield from lines
            time.sleep(0.0 if lines else LOG_POLL)


def _read(file: IO[bytes], last: int | None) -> tuple[LogLines, list[str]]:
    """Return the lines of a log, of which only the end is read if only the last ones are asked for."""
    size = os.fstat(file.fileno()).st_size
    part = size if last is None else FIRST_END
    while True:
        log, start = LogLines(), max(size - part, 0)
        file.seek(start)
        lines = log.feed(file.read())[1 if start else 0 :]  # the first is not whole
        if not start or last is None or len(lines) > last or part >= MAX_END:
            return log, lines
        part *= 4


def follow_changes(look: Callable[[], tuple[float, list[JobStatus]]], poll: float) -> Iterator[Change]:
    """Yield every job as it is, then each job whenever something visible changes; this never ends by itself.

    Args:
        look: Returns scheduler time and the jobs.
        poll: Seconds between two looks.
    """
    known: dict[tuple[str, float], JobStatus] = {}
    while True:
        now, jobs = look()
        for told in jobs:
            key = told.name, told.submitted_at
            before = known.get(key)
            if before is None or _visible(before) != _visible(told):
                known[key] = told
                yield Change(now, before, told)
        time.sleep(poll)


def _visible(job: JobStatus) -> tuple[object, ...]:
    return job.state, job.verdict, job.share, job.beside, job.devices, job.deadline, job.paused, job.restarts, job.alert
