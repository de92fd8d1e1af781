"""What befell a job, or the pool, in words: what happened, what was lost, what was done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.durations import format_duration
from lightning_core.core.events import ExitCause, WorkerExited
from lightning_core.core.reasons import Reason
from lightning_core.storage.downtime import Down

# Why a worker may leave without there being a fault.
WELL = (ExitCause.DONE, ExitCause.INTERRUPTED, ExitCause.RELEASED)


@dataclass
class Fault:
    """One fault of a job.

    Attributes:
        time: when it was known, scheduler time.
        what: happened.
        batches: that have to be done again.
        work: busy seconds that they had taken.
        start: batches that are done when it goes on; None if it had not begun.
        restart: how often it had to come back, this time among them; None if it does not.
        pause: seconds until it is tried again; None if nothing was said of it.
        back: when the next worker said that it is there.
        over: why it does not come back.
    """

    time: float
    what: str
    batches: int = 0
    work: float = 0.0
    start: int | None = None
    restart: int | None = None
    pause: float | None = None
    back: float | None = None
    over: str | None = None

    @property
    def lost(self) -> str:
        """In words.

        Example::

            >>> Fault(9.0, "its worker died", 38, 12.0).lost, Fault(9.0, "its node was taken away").lost
            ('38 batches, 12.0s of work, to be done again', 'nothing')
        """
        if self.over is not None:
            return "the job"
        return f"{lost_words(self.batches, self.work)}, to be done again" if self.batches else "nothing"

    @property
    def done(self) -> str:
        """In words.

        Example::

            >>> Fault(9.0, "its worker died", 38, 12.0, start=4200, restart=2, pause=4.0).done
            'comes back from batch 4200, restart 2, in 4.0s'
        """
        if self.over is not None:
            return "it does not come back"
        if self.start is None:
            return "tried again" + ("" if self.pause is None else f" in {format_duration(self.pause)}")
        restart = "" if self.restart is None else f", restart {self.restart}"
        if self.back is not None:
            return f"came back from batch {self.start}{restart}, after {format_duration(self.back - self.time)}"
        when = "" if self.pause is None else f", in {format_duration(self.pause)}"
        return f"comes back from batch {self.start}{restart}{when}"

    def __str__(self) -> str:
        lost = "" if self.start is None else f"; lost: {self.lost}"
        return f"{self.what}{lost}; {self.done}"


class Away(NamedTuple):
    """The pool decided nothing for a while: though it should have, or because it was left in order."""

    since: float
    until: float
    what: str


def down_words(down: Down) -> str:
    """What ended the scheduler before.

    Example::

        >>> down_words(Down(4.0, 60.0, "Ctrl-C")), down_words(Down(4.0, 60.0, ""))
        ('stopped by Ctrl-C', 'the pool was down')
    """
    return f"stopped by {down.by}" if down.by else "the pool was down"


@dataclass
class Gone:
    """A device of the pool on which no worker could be had.

    Attributes:
        device: its number.
        since: scheduler time.
        what: why.
        until: when there was one again; None if there is none yet.
    """

    device: int
    since: float
    what: str
    until: float | None = None

    def __str__(self) -> str:
        until = "not yet back" if self.until is None else f"back after {format_duration(self.until - self.since)}"
        return f"no worker can be had ({self.what}); {until}"


def what_happened(event: WorkerExited) -> str:
    """To a worker that left by a fault.

    Example::

        >>> what_happened(WorkerExited("a", 1, ExitCause.RAISED, "Traceback\\nValueError: no"))
        'its code raised ValueError: no'
    """
    last = event.detail.strip().rsplit("\n", 1)[-1]
    match event.cause:
        case ExitCause.RAISED:
            return f"its code raised {last or 'an error'}"
        case ExitCause.UNUSABLE:
            return f"it cannot be built: {last}"
        case ExitCause.PREEMPTED:
            return "its node was taken away" + (f": {last}" if last else "")
        case _:
            return last or "its worker died"


def in_all(faults: Sequence[Fault]) -> str:
    """What they have cost together.

    Example::

        >>> in_all([Fault(9.0, "its worker died", 38, 12.0, start=4200), Fault(20.0, "its node was taken away")])
        '2 faults, 38 batches, 12.0s of work done again'
    """
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    batches = sum(fault.batches for fault in faults)
    return f"{count}, {lost_words(batches, sum(f.work for f in faults))} done again" if batches else count


def lost_words(batches: int, seconds: float | None) -> str:
    """So many batches, and what work that was."""
    count = "1 batch" if batches == 1 else f"{batches} batches"
    return count if seconds is None else f"{count}, {format_duration(seconds)} of work"


def now_words(job: JobStatus) -> list[str]:
    """What befell a job, as far as whoever looks at it now should know."""
    waits = [] if job.alert is None else [str(job.alert)]
    waits += [str(job.why)] if job.why.code == "device_gone" and job.state is not State.ENDED else []
    if job.fault is None:
        return waits
    if job.state is State.ENDED or (job.state is not State.RECOVERING and job.fault.code != "unready"):
        return waits + ([came_back(job)] if job.restarts else [])
    parts = [str(job.fault)]
    again = job.fault.numbers[1] if len(job.fault.numbers) > 1 else 0
    if again and job.throughput:
        parts[0] += f", {format_duration(again / job.throughput)} of work"
    if job.restarts:
        parts.append(f"restart {job.restarts}" + _when(job.why))
    return parts + waits


def came_back(job: JobStatus) -> str:
    """How often a job had to come back, and what that cost."""
    times = "once" if job.restarts == 1 else f"{job.restarts} times"
    seconds = job.lost / job.throughput if job.throughput else None
    return f"came back {times}" + (f", {lost_words(job.lost, seconds)} done again" if job.lost else "")


def _when(why: Reason) -> str:
    # Said when the pause began, and not again while it lasts.
    return f" after a pause of {format_duration(why.numbers[0])}" if why.code == "recovering" else ""


def work_since(progress: Sequence[tuple[float, int, float]], start: int) -> float:
    """Busy seconds since the newest life of a job was at so many batches.

    Args:
        progress: times, batches done and busy seconds, one a report.
        start: batches.

    Example::

        >>> work_since([(1.0, 10, 1.0), (2.0, 20, 2.0), (3.0, 30, 3.0)], 15)
        1.5
    """
    for (_, before, then), (_, after, busy) in reversed(list(pairwise(progress))):
        if before <= start:  # a life begins with a report of what it began with
            return progress[-1][2] - then - (start - before) / max(after - before, 1) * (busy - then)
    return progress[-1][2] if progress else 0.0
