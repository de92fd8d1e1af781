"""The terminal: one live line a job, plain lines where there is no terminal, a table at the end."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from lightning_core.core.answers import JobStatus
from lightning_core.core.durations import format_duration
from lightning_core.scheduler.summary import Summary
from lightning_core.view.job_line import _ending, _value, line
from lightning_core.view.text import clean

if TYPE_CHECKING:
    from rich.console import Console

# Without a terminal a job's line is printed when something in it changes that matters, or after so many seconds.
PLAIN_EVERY = 10.0


class LiveView:
    """Redraws the jobs in place.

    Args:
        console: of rich; None takes the terminal.
        title: of the pool, such as its policy.
        devices: of the pool; 0 if it is not known.

    Raises:
        ModuleNotFoundError: if rich is not installed.
    """

    def __init__(self, console: Console | None = None, title: str = "", devices: int = 0) -> None:
        from rich.live import Live

        from lightning_core.view.board import Board

        self._board = Board
        self._pool = (title, devices)
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._started = False

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        if not self._started:
            self._live.start()
            self._started = True
        self._live.update(self._board(now, jobs, *self._pool, one_screen=True))

    def close(self) -> None:
        self._live.stop()


class PlainView:
    """Prints lines that can be read in a log.

    Args:
        stream: to print to.
        every: seconds after which a job's line is printed again though nothing that matters has changed.
    """

    def __init__(self, stream: TextIO | None = None, every: float = PLAIN_EVERY) -> None:
        self._stream = stream or sys.stdout
        self._every = every
        self._printed: dict[tuple[str, float], tuple[object, float]] = {}

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        for job in jobs:
            key = (job.name, job.submitted_at)  # a name may be used again
            what, when = self._printed.get(key, (None, 0.0))
            matters = (job.state, job.verdict)
            if matters != what or (job.finished_at is None and time.monotonic() - when >= self._every):
                self._printed[key] = (matters, time.monotonic())
                name, state, progress, clock, share, devices, speed, end, verdict, reason = line(now, job)
                print(f"{clock}  {name}: {state}, {progress}, share {share} of device {devices}, {speed} batches/s, "
                      f"end {end}, {verdict}: {reason}", file=self._stream, flush=True)  # fmt: skip

    def close(self) -> None:
        """Nothing to put away."""


def view_for(stream: TextIO, title: str = "", devices: int = 0) -> LiveView | PlainView:
    """What suits the stream: live lines on a terminal if rich is installed, plain ones otherwise.

    Args:
        stream: to write to.
        title: of the pool, such as its policy.
        devices: of the pool; 0 if it is not known.
    """
    if stream.isatty():
        try:
            return LiveView(title=title, devices=devices)
        except ModuleNotFoundError:
            print("pip install 'lightning-core-learning[view]' for live progress", file=stream)
    return PlainView(stream)


def print_summary(summary: Summary, stream: TextIO) -> None:
    """The table at the end."""
    rows = [("job", "verdict", "finished", "deadline", "reached", "batches", "reason")]
    for job in summary.jobs:
        finished = "-" if job.finished_at is None else format_duration(job.finished_at - job.submitted_at)
        deadline = format_duration(job.deadline - job.submitted_at)
        name, reason = clean(job.name), _ending(job)
        rows.append((name, str(job.verdict), finished, deadline, _value(job), str(job.batches), reason))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), file=stream)
    use, wall = 100 * summary.figures["device_use"], format_duration(summary.wall)
    devices, it = ("devices were" if summary.devices > 1 else "device was"), "it"
    if summary.down:
        wall += f", {format_duration(summary.down)} of it stopped"
        it = "the rest"
    print(f"{summary.policy}: {summary.met} of {len(summary.jobs)} met in {wall}; "
          f"the {devices} busy {use:.0f} % of {it}", file=stream, flush=True)  # fmt: skip
