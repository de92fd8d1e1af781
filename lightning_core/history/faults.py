"""Faults of jobs and of the pool as text: the fault, the loss, and the response."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.durations import format_duration
from lightning_core.core.events import ExitCause, WorkerExited
from lightning_core.core.reasons import Reason

if TYPE_CHECKING:
    from lightning_core.storage.journals.downtime import Down

# Text of a device whose worker starts, which is no fault.
STARTS = "its worker is starting"
# Causes of an exit that are not faults.
WELL = (ExitCause.DONE, ExitCause.INTERRUPTED, ExitCause.RELEASED)


@dataclass
class Fault:
    """A fault of a job.

    Attributes:
        time: Scheduler time at which it was detected.
        what: Description of the fault.
        batches: Batches to repeat.
        work: Busy seconds that they had taken.
        start: Batches from which the job restarts; None if it had not begun.
        restart: Number of this restart; None if the job does not restart.
        pause: Seconds until the restart; None if unknown.
        back: Scheduler time at which the next worker began.
        over: Reason why the job does not restart.
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
        """Return the loss as text.

        Example::

            >>> Fault(9.0, "its worker died", 38, 12.0).lost, Fault(9.0, "its node was preempted").lost
            ('38 batches (12.0s of work) to repeat', 'nothing')
        """
        if self.over is not None:
            return "the job"
        return f"{repeated_words(self.batches, self.work)} to repeat" if self.batches else "nothing"

    @property
    def done(self) -> str:
        """Return the response as text.

        Example::

            >>> Fault(9.0, "its worker died", 38, 12.0, start=4200, restart=2, pause=4.0).done
            'resumes from batch 4200 in 4.0s (restart 2)'
        """
        if self.over is not None:
            return "not restarted"
        if self.start is None:
            return "retried" + ("" if self.pause is None else f" in {format_duration(self.pause)}")
        restart = "" if self.restart is None else f" (restart {self.restart})"
        if self.back is not None:
            return f"resumed from batch {self.start} after {format_duration(self.back - self.time)}{restart}"
        when = "" if self.pause is None else f" in {format_duration(self.pause)}"
        return f"resumes from batch {self.start}{when}{restart}"

    def __str__(self) -> str:
        lost = "" if self.start is None else f"; lost: {self.lost}"
        return f"{self.what}{lost}; {self.done}"


class Gap(NamedTuple):
    """A time in which the pool made no decisions: because of a fault, or because it was stopped in order."""

    since: float
    until: float
    what: str


def down_words(down: Down) -> str:
    """Return the cause of the scheduler's last end.

    Example::

        >>> from lightning_core.storage.journals.downtime import Down
        >>> down_words(Down(4.0, 60.0, "Ctrl-C")), down_words(Down(4.0, 60.0, ""))
        ('stopped by Ctrl-C', 'the pool was down')
    """
    return f"stopped by {down.by}" if down.by else "the pool was down"


@dataclass
class DeviceOutage:
    """A time in which a device of the pool had no worker.

    Attributes:
        device: Number of the device.
        since: Scheduler time at which it began.
        what: Cause, as text.
        until: Scheduler time at which it ended; None if it has not.
    """

    device: int
    since: float
    what: str
    until: float | None = None

    def __str__(self) -> str:
        until = "not back yet" if self.until is None else f"back after {format_duration(self.until - self.since)}"
        return f"no worker available (device {self.device}: {self.what}); {until}"


def outage_words(detail: str, device: int) -> str:
    """Return why one of several devices has no worker; the whole text if that device is not mentioned.

    Example::

        >>> outage_words("device 1: its node is gone; device 12: no node provides it", 1)
        'its node is gone'
        >>> outage_words("its nodes are gone", 1)
        'its nodes are gone'
    """
    found = re.search(rf"(?:^|; )device {device}: (.*?)(?=; device [0-9]+: |$)", detail, re.DOTALL)
    return found[1] if found else detail


def exit_words(event: WorkerExited) -> str:
    """Return the fault with which a worker exited.

    Example::

        >>> exit_words(WorkerExited("a", 1, ExitCause.RAISED, "Traceback\\nValueError: no"))
        'its code raised ValueError: no'
    """
    last = event.detail.strip().rsplit("\n", 1)[-1]
    match event.cause:
        case ExitCause.RAISED:
            return f"its code raised {last or 'an error'}"
        case ExitCause.UNUSABLE:
            return f"it cannot be built: {last}"
        case ExitCause.BROKEN:
            return f"its worker can train no job: {last}"
        case ExitCause.PREEMPTED:
            return "its node was preempted" + (f": {last}" if last else "")
        case _:
            return last or "its worker died"


def total_words(faults: Sequence[Fault]) -> str:
    """Return the number of faults and their total cost.

    Example::

        >>> total_words([Fault(9.0, "its worker died", 38, 12.0, start=4200), Fault(20.0, "its node was preempted")])
        '2 faults, 38 batches (12.0s of work) repeated'
    """
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    batches = sum(fault.batches for fault in faults)
    return f"{count}, {repeated_words(batches, sum(f.work for f in faults))} repeated" if batches else count


def repeated_words(batches: int, seconds: float | None) -> str:
    """Return a number of batches and the seconds of work in them, as text."""
    count = "1 batch" if batches == 1 else f"{batches} batches"
    return count if seconds is None else f"{count} ({format_duration(seconds)} of work)"


def fault_words(job: JobStatus) -> list[str]:
    """Return the alert and the faults of a job that still matter."""
    waits = [] if job.alert is None else [str(job.alert)]
    waits += [str(job.grant_reason)] if job.grant_reason.code == "device_gone" and job.state is not State.ENDED else []
    if job.fault is None:
        return waits
    if job.state is State.ENDED or (job.state is not State.RECOVERING and job.fault.code != "launch_timed_out"):
        return waits + ([restarts_words(job)] if job.restarts else [])
    parts = [str(job.fault)]
    again = job.fault.numbers[1] if len(job.fault.numbers) > 1 else 0
    if again and job.throughput:
        parts[0] += f" ({format_duration(again / job.throughput)} of work)"
    if job.restarts:
        parts.append(f"restart {job.restarts}" + _when(job.grant_reason))
    return parts + waits


def restarts_words(job: JobStatus) -> str:
    """Return the restarts of a job and the work that it repeated, as text."""
    times = "once" if job.restarts == 1 else f"{job.restarts} times"
    seconds = job.lost_batches / job.throughput if job.throughput else None
    return f"restarted {times}" + (
        f", {repeated_words(job.lost_batches, seconds)} repeated" if job.lost_batches else ""
    )


def _when(why: Reason) -> str:
    # The pause as it was when it began.
    return f" after a pause of {format_duration(why.numbers[0])}" if why.code == "recovering" else ""


def work_since(progress: Sequence[tuple[float, int, float]], start: int) -> float:
    """Return the busy seconds since a job was last at a number of batches.

    Args:
        progress: Times, batches done and busy seconds, one entry for each report.
        start: Number of batches.

    Example::

        >>> work_since([(1.0, 10, 1.0), (2.0, 20, 2.0), (3.0, 30, 3.0)], 15)
        1.5
    """
    for k in range(len(progress) - 1, 0, -1):
        (_, before, then), (_, after, busy) = progress[k - 1], progress[k]
        if before <= start:  # an incarnation begins with a report of its first batch
            return progress[-1][2] - then - (start - before) / max(after - before, 1) * (busy - then)
    return progress[-1][2] if progress else 0.0
