"""The terminal: one live line a job, plain lines where there is no terminal, a table at the end."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Literal, TextIO

from lightning_core.durations import format_duration
from lightning_core.summary import Summary
from lightning_core.types import BatchTarget, JobStatus, Verdict
from lightning_core.view.text import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NUMBERS = ("loss / target", "time / deadline", "share", "batches/s", "forecast end")
COLUMNS = ("job", "state", *NUMBERS, "verdict", "reason")
_COLOURS = {
    Verdict.MET: "green",
    Verdict.FEASIBLE: "green",
    Verdict.AT_RISK: "yellow",
    Verdict.INFEASIBLE: "red",
    Verdict.MISSED: "red",
    Verdict.CRASHED: "red",
}
# Without a terminal a job's line is printed when something in it changes that matters, or after so many seconds.
PLAIN_EVERY = 10.0


def line(now: float, job: JobStatus) -> tuple[str, ...]:
    """One job's cells, in the order of ``COLUMNS``."""
    if isinstance(job.target, BatchTarget):
        progress = f"{job.batches} / {job.target.batches} batches"
    else:
        progress = f"{'-' if job.loss is None else f'{job.loss:.4f}'} / {job.target.at_most:.4f}"
    until = now if job.finished_at is None else job.finished_at
    start = job.submitted_at
    if job.finish is None:
        end = "-"
    else:
        early, likely, late = (moment - start for moment in job.finish)
        spread = max(likely - early, late - likely)
        end = format_duration(likely) + (f" ±{format_duration(spread)}" if spread >= 0.05 else "")
    reason = clean(str(job.reason)) + (f" ({job.rejected} bad losses kept out)" if job.rejected else "")
    return (
        job.name,
        str(job.state),
        progress,
        f"{format_duration(until - start)} / {format_duration(job.deadline - start)}",
        f"{job.share:.2f}",
        "-" if job.throughput is None else f"{job.throughput:.0f}",
        end,
        "-" if job.verdict is None else str(job.verdict),
        reason,
    )


def jobs_table(now: float, jobs: list[JobStatus]) -> Table:
    """The jobs as a rich table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        # One line a job, also where the terminal is narrow: the reason is cut, `summary.json` has it whole.
        justify: Literal["right", "left"] = "right" if column in NUMBERS else "left"
        table.add_column(column, justify=justify, no_wrap=True, overflow="ellipsis")
    for job in jobs:
        *cells, verdict, reason = line(now, job)
        colour = _COLOURS.get(job.verdict, "") if job.verdict is not None else "dim"
        table.add_row(*(Text(cell) for cell in cells), Text(verdict, style=colour), Text(reason))
    return table


class LiveView:
    """Redraws the jobs in place.

    Args:
        console: of rich; None takes the terminal.
    """

    def __init__(self, console: Console | None = None) -> None:
        from rich.live import Live

        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._started = False

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        if not self._started:
            self._live.start()
            self._started = True
        self._live.update(jobs_table(now, jobs))

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
        self._printed: dict[str, tuple[object, float]] = {}

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        for job in jobs:
            what, when = self._printed.get(job.name, (None, 0.0))
            matters = (job.state, job.verdict)
            if matters != what or (job.finished_at is None and time.monotonic() - when >= self._every):
                self._printed[job.name] = (matters, time.monotonic())
                name, state, progress, clock, share, speed, end, verdict, reason = line(now, job)
                print(f"{clock}  {name}: {state}, {progress}, share {share}, {speed} batches/s, end {end}, "
                      f"{verdict}: {reason}", file=self._stream, flush=True)  # fmt: skip

    def close(self) -> None:
        """Nothing to put away."""


def view_for(stream: TextIO) -> LiveView | PlainView:
    """What suits the stream: live lines on a terminal if rich is installed, plain ones otherwise."""
    if stream.isatty():
        try:
            return LiveView()
        except ModuleNotFoundError:
            print("pip install 'lightning-core-learning[view]' for live progress", file=stream)
    return PlainView(stream)


def print_summary(summary: Summary, stream: TextIO) -> None:
    """The table at the end."""
    rows = [("job", "verdict", "finished", "deadline", "loss", "batches", "reason")]
    for job in summary.jobs:
        finished = "-" if job.finished_at is None else format_duration(job.finished_at - job.submitted_at)
        loss = "-" if job.loss is None else f"{job.loss:.4f}"
        deadline = format_duration(job.deadline - job.submitted_at)
        rows.append((job.name, str(job.verdict), finished, deadline, loss, str(job.batches), clean(str(job.reason))))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), file=stream)
    use = 100 * summary.figures["device_use"]
    print(f"{summary.policy}: {summary.met} of {len(summary.jobs)} met in {format_duration(summary.wall)}; "
          f"the device was busy {use:.0f} % of it", file=stream, flush=True)  # fmt: skip
