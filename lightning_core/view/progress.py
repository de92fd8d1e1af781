"""Progress of jobs: the live board on a terminal, plain lines elsewhere, and a table at the end."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TextIO

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.durations import format_duration
from lightning_core.scheduler.summary import Summary
from lightning_core.view.group_lines import is_listed
from lightning_core.view.job_line import _ending, _value, line, several_owners
from lightning_core.view.text import clean

if TYPE_CHECKING:
    from rich.console import Console

# Without a terminal, seconds after which the line of a job is printed again although nothing has changed.
PLAIN_EVERY = 10.0


class LiveView:
    """The board, redrawn in place.

    Args:
        console: Console of rich; None for the terminal.
        title: Title of the pool, such as its policy.
        devices: Number of devices of the pool; 0 if unknown.
        owner: Owner to whom all the jobs belong; None if those of all are shown.
        unavailable: Function that returns the devices that the scheduler does not plan on now.
        device_memory: Bytes of each device's memory that jobs may have; None if unknown.
        group: Group to which all the jobs belong, as ``(part, name)``; None if other jobs are shown too.
        lists_all: Whether to list the jobs of groups that are paused or have ended, too.
        kinds: Kind of each device; empty where all are alike.

    Raises:
        ModuleNotFoundError: If rich is not installed.
    """

    def __init__(
        self,
        console: Console | None = None,
        title: str = "",
        devices: int = 0,
        owner: str | None = None,
        unavailable: Callable[[], Collection[int]] = tuple,
        device_memory: int | None = None,
        group: tuple[str, str] | None = None,
        lists_all: bool = False,
        kinds: Sequence[str] = (),
    ) -> None:
        from rich.live import Live

        from lightning_core.view.board import Board

        self._board = Board
        self._pool = (title, devices)
        self._owner, self._unavailable, self._device_memory = owner, unavailable, device_memory
        self._group, self._lists_all, self._kinds = group, lists_all, kinds
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._started = False

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        if not self._started:
            self._live.start()
            self._started = True
        lost = self._unavailable()
        only = jobs if self._lists_all else list(filter(is_listed, jobs))
        board = self._board(now, jobs, *self._pool, only=only, owner=self._owner, group=self._group,
                            unavailable=lost, one_screen=True, device_memory=self._device_memory,
                            kinds=self._kinds)  # fmt: skip
        self._live.update(board)

    def close(self) -> None:
        self._live.stop()


class PlainView:
    """Lines that can be read in a log, in the order of time, which counts from the first submission.

    Args:
        stream: Stream to print to; None for standard output.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._printed: dict[tuple[str, float], tuple[object, float]] = {}
        self._latest = -math.inf

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        several, lines = several_owners(jobs), list[tuple[float, str]]()
        start = min((job.submitted_at for job in jobs), default=0.0)
        for job in jobs:
            until = now if job.finished_at is None else job.finished_at
            key = (job.name, job.submitted_at)  # a name may be used again
            before, when = self._printed.get(key, (None, 0.0))
            important = (job.state, job.verdict)
            if important != before or (job.finished_at is None and time.monotonic() - when >= PLAIN_EVERY):
                self._printed[key] = (important, time.monotonic())
                lines.append((until, self._line(now, job, several)))
        for until, words in sorted(lines, key=lambda one: one[0]):
            self._latest = max(until, self._latest)
            print(f"{format_duration(self._latest - start)}  {words}", file=self._stream, flush=True)

    @staticmethod
    def _line(now: float, job: JobStatus, several: bool) -> str:
        """Return the description of a job, without empty columns."""
        name, owner, state, progress, clock, share, devices, memory, throughput, end, verdict, reason = line(now, job)
        parts = [state, progress, clock]
        if devices != "-":
            parts.append(
                f"share {share} of device {devices}" if job.share or not job.beside else f"on device {devices}"
            )
        if job.memory_needed is not None and job.state is not State.ENDED:
            parts.append(f"{memory} of memory")
        if throughput != "-":
            parts.append(f"{throughput} batches/s")
        if end != "-":
            parts.append(f"likely end {end}")
        if verdict != "-":
            parts.append(verdict)
        return f"{name}{f' of {owner}' if several else ''}: {', '.join(parts)}: {reason}"

    def close(self) -> None:
        """Do nothing: there is nothing to restore."""


def view_for(
    stream: TextIO,
    title: str = "",
    devices: int = 0,
    owner: str | None = None,
    unavailable: Callable[[], Collection[int]] = tuple,
    device_memory: int | None = None,
    group: tuple[str, str] | None = None,
    lists_all: bool = False,
    kinds: Sequence[str] = (),
) -> LiveView | PlainView:
    """Return the view that suits a stream: the live board on a terminal if rich is installed, else plain lines.

    Args:
        stream: Stream to write to.
        title: Title of the pool, such as its policy.
        devices: Number of devices of the pool; 0 if unknown.
        owner: Owner to whom all the jobs belong; None if those of all are shown.
        unavailable: Function that returns the devices that the scheduler does not plan on now.
        device_memory: Bytes of each device's memory that jobs may have; None if unknown.
        group: Group to which all the jobs belong, as ``(part, name)``; None if other jobs are shown too.
        lists_all: Whether to list the jobs of groups that are paused or have ended, too.
        kinds: Kind of each device; empty where all are alike.
    """
    if stream.isatty():
        try:
            return LiveView(None, title, devices, owner, unavailable, device_memory, group, lists_all, kinds)
        except ModuleNotFoundError:
            print("pip install -c constraints.txt '.[view]' in the clone for live progress", file=stream)
    return PlainView(stream)


def print_summary(summary: Summary, stream: TextIO) -> None:
    """Print a table of how the jobs ended."""
    rows = [("job", "verdict", "finished", "deadline", "reached", "batches", "reason")]
    for job in summary.jobs:
        finished = "-" if job.finished_at is None else format_duration(job.finished_at - job.submitted_at)
        deadline = format_duration(job.deadline - job.submitted_at)
        name, reason = clean(job.name), _ending(job)
        verdict = "-" if job.verdict is None else str(job.verdict)
        rows.append((name, verdict, finished, deadline, _value(job), str(job.batches), reason))
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
