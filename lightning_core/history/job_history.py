"""The history of one job as series, built from the accepted data and the answers of each event."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lightning_core.core.answers import Accepted, Alert, End, Grant, JobAnswer, Verdict, VerdictChanged
from lightning_core.core.arrays import FloatArray
from lightning_core.core.commands import (
    UNCHANGED,
    Cancel,
    Change,
    Pause,
    Resume,
    SetDeadline,
    SetDevices,
    SetLocation,
    SetTerms,
)
from lightning_core.core.control import Ask, Asked, Asker, Note
from lightning_core.core.durations import format_duration
from lightning_core.core.events import ExitCause, LaunchTimedOut, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.reported import HyperParameters
from lightning_core.history.faults import WELL, Fault, down_words, exit_words, work_since
from lightning_core.history.moments import (
    Belief,
    FinishForecast,
    Holding,
    MetricPoint,
    Owned,
    Progress,
    Remark,
    Series,
    means_over,
)
from lightning_core.history.who_asked import command_words, sent_words, take_level
from lightning_core.storage.journals.downtime import Down


@dataclass(eq=False)
class JobHistory:
    """The history of a job, from its submission to its end. Times are seconds of scheduler time.

    Attributes:
        job: Job with its current terms.
        terms: Job as submitted.
        run_number: 1, or more for a name that was submitted again after its job had ended.
        submitted: Time of the submission.
        window: Number of observations whose mean counts against the target.
        deadlines: Each deadline with the time from which it held.
        points: Loss observations, the oldest first; empty for a target in batches.
        breaks: Places of the points before which others were left out, in a thinned journal.
        progress: One entry for each report.
        grants: Its grants, each with its start.
        owned: Parts of the time of its devices that count as its own, each with its start.
        beliefs: Changes of its verdict; the last one is its end.
        remarks: Commands, and events of its workers.
        faults: Faults of its workers.
        forecasts: Some forecasts over its training; see :func:`lightning_core.history.forecasts.fill_in`.
        ended: Time of its end; None if it has not ended.
        detail: Traceback of a job that crashed.
        evaluated: Whether each point is a whole evaluation.
        rejected: Number of losses that were NaN or infinite.
        version: Version of the newest directive.
        trains_since: Time from which it may train.
        levels: Current requests, by asker.
        hyper_parameters: Hyper-parameters, as reported by its training.
    """

    job: Job
    terms: Job
    run_number: int
    submitted: float
    window: int
    deadlines: list[tuple[float, float]]
    points: Series[MetricPoint] = field(default_factory=lambda: Series(MetricPoint))
    breaks: list[int] = field(default_factory=list)
    progress: Series[Progress] = field(default_factory=lambda: Series(Progress))
    grants: list[Holding] = field(default_factory=list)
    owned: list[Owned] = field(default_factory=list)
    beliefs: list[Belief] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    forecasts: list[FinishForecast] = field(default_factory=list)
    ended: float | None = None
    detail: str = ""
    evaluated: bool = False
    rejected: int = 0
    version: int = 0
    trains_since: float = 0.0
    levels: dict[Asker, Asked] = field(default_factory=dict)
    hyper_parameters: HyperParameters = ()

    @classmethod
    def of(cls, job: Job, now: float, window: int, before: JobHistory | None) -> JobHistory:
        """Return the history of a job that was submitted now; ``before`` is the last one of its name, if any."""
        new = cls(job, job, 1, now, window, [(now, now + job.deadline)])
        if before is not None:  # versions of a name only grow
            new.run_number, new.version = before.run_number + 1, before.version
        return new

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def deadline(self) -> float:
        """The newest deadline."""
        return self.deadlines[-1][1]

    @property
    def verdict(self) -> Verdict | None:
        """The newest verdict; None before the first."""
        return self.beliefs[-1].verdict if self.beliefs else None

    @property
    def reason(self) -> Reason:
        """Reason of the verdict; of the grant while there is no verdict."""
        if self.beliefs:
            return self.beliefs[-1].reason
        return self.grants[-1].reason if self.grants else Reason("submitted")

    def seen(self) -> FloatArray:
        """Return times and values as logged (or batches done) of all observations, shape ``(n, 2)``."""
        return self.points.table()[:, [0, 2]] if self.job.target.observes else self.progress.table()[:, [0, 1]]

    def curve(self) -> FloatArray:
        """Return times and values of the windowed mean that counts against the target, shape ``(n, 2)``."""
        seen = self.seen()
        if self.window == 1 or self.evaluated or not self.job.target.observes:
            return seen
        ends, means = means_over(seen[:, 1], self.window, self.breaks)
        return np.column_stack([seen[ends, 0], means])

    @property
    def reached(self) -> float | None:
        """The value that counts against the target, as in :class:`~lightning_core.core.answers.JobStatus`."""
        target = self.job.target
        if not self.progress:
            return None
        first = max(len(self.points) - self.window, *self.breaks[-1:], 0)
        recent = [point.value for point in self.points[first:]]
        return target.reached(self.progress[-1].batches, recent, self.evaluated, self.window)

    @property
    def goal(self) -> float:
        """The threshold as logged, or the number of batches."""
        return self.job.target.goal

    @property
    def size(self) -> int:
        """Largest number of devices that it trained on."""
        return max((len(held.devices) for held in self.grants if held.trains), default=1)

    @property
    def device_seconds(self) -> float:
        """Busy seconds, each times the devices that it had then, or its portion of them beside others."""
        devices = [(held.time, len(held.devices)) for held in self.grants if held.trains]
        if not devices or not self.progress:
            return 0.0
        since, size = _product(devices, [(own.time, own.portion) for own in self.owned])
        told = self.progress.table()
        # A report that was answered with a new level tells of the one before.
        had = size[np.maximum(np.searchsorted(since, told[:, 0], "left") - 1, 0)]
        return float(had @ np.diff(told[:, 2], prepend=0.0))

    # ------------------------------------------------------------------------------------------------ reading

    def progressed(self, accepted: Accepted, now: float, breaks: Sequence[int] = ()) -> None:
        """Record the accepted part of a report; others were left out before the cells at ``breaks``."""
        if accepted.batches_at_start is not None and self.faults and self.faults[-1].back is None:
            self._came_back(self.faults[-1], accepted.batches_at_start, now)
        self.evaluated = accepted.evaluated
        if cells := accepted.cells:
            heard = max(self.progress[-1].time if self.progress else self.submitted, self.trains_since)
            # A report brings all cells since the one before: they lie between the two. If some were left out, the
            # others lie in the part of that time which their batches are of those since then.
            lags = [k / len(cells) for k in range(len(cells) - 1, -1, -1)]
            if breaks:
                last, before = cells[-1][0], self.progress[-1].batches if self.progress else 0
                lags = [min((last - at) / max(last - before, 1), 1.0) for at, _ in cells]
            self.breaks += [len(self.points) + k for k in breaks]
            self.points.extend((now - lag * (now - heard), *cell) for lag, cell in zip(lags, cells, strict=True))
        self.progress.append(now, accepted.batches or 0, accepted.busy)
        self.rejected = accepted.rejected

    def answer(self, answer: JobAnswer, now: float) -> None:
        """Record an answer; a repeated directive is left out."""
        if self.ended is not None:
            return
        if isinstance(answer, Ask):
            self.ask(answer, now)
            return
        if isinstance(answer, Note):
            self.remarks.append(Remark(now, str(answer.by), str(answer.reason)))
            return
        if isinstance(answer, Alert):
            if answer.reason.code != "diverged_back":  # that one is shown as a fault
                self.remarks.append(Remark(now, "alert", str(answer.reason)))
            return
        if isinstance(answer, VerdictChanged):
            self.beliefs.append(Belief(now, answer.verdict, answer.reason))
            return
        if answer.version <= self.version:
            return
        self.version = answer.version
        fault = self.faults[-1] if self.faults and self.faults[-1].time == now else None
        if isinstance(answer, End):
            self.ended = now
            if fault is not None:
                fault.over = str(answer.reason)
                fault.batches, fault.work, fault.start, fault.restart = 0, 0.0, None, None
            self.beliefs.append(Belief(now, answer.verdict, answer.reason))
            return
        self._grant(answer, fault, now)

    def _grant(self, answer: Grant, fault: Fault | None, now: float) -> None:
        if fault is not None and answer.reason.code == "recovering":
            fault.pause = answer.reason.numbers[0]
        if answer.trains and not (self.grants and self.grants[-1].trains):
            self.trains_since = now
        self.grants.append(
            Holding(now, answer.share, answer.devices, answer.reason, answer.trains, answer.beside, answer.pace)
        )
        if not answer.beside:  # else it depends on the others: OwnTime
            self.own(Owned(now, answer.share))

    def own(self, owned: Owned) -> None:
        """Record which part of the time of its devices counts as its own from now on."""
        if self.owned and self.owned[-1].time == owned.time:
            self.owned.pop()
        if not self.owned or self.owned[-1][1:] != owned[1:]:
            self.owned.append(owned)

    def owned_at(self, time: float) -> Owned | None:
        """Return which part of the time of its devices counted as its own at a time; None before its first grant."""
        at = bisect_right(self.owned, time, key=lambda one: one.time)
        return self.owned[at - 1] if at else None

    def owned_before(self, time: float) -> Owned | None:
        """Return :meth:`owned_at` just before a time."""
        at = bisect_left(self.owned, time, key=lambda one: one.time)
        return self.owned[at - 1] if at else None

    def change(self, event: Change, now: float) -> None:
        """Record a command that changes one term of the job."""
        before = self.job
        match event:
            case SetDeadline():
                deadline = event.deadline_at(self.submitted, now)
                words = f"deadline {_since(self, self.deadline)} to {_since(self, deadline)}"
                self.job = event.apply(before, self.submitted, now)
                self.deadlines.append((now, deadline))
            case SetDevices(devices=devices):
                words = "number of devices: " + ("as planned" if devices is None else str(devices))
                words += take_level(self.levels, event)
            case SetLocation(devices=devices):
                words = f"location {_words(before.location)} to {_words(event.location)}"
                words += "" if devices is None else f", devices: {devices}"
                words += take_level(self.levels, event)
                self.job = event.apply(before)
            case SetTerms():
                changes = [
                    f"{name.replace('_', ' ')} {_words(getattr(before, name))} to {_words(value)}"
                    for name, value in event.terms().items()
                    if value != getattr(before, name) and name != "spec_sha256"
                ]
                changes += ["another spec"] if event.spec_sha256 is not UNCHANGED else []
                words = "new terms: " + (", ".join(changes) or "the same as before")
                self.job = event.apply(before)
        self.remarks.append(Remark(now, event.by, sent_words(event, words)))

    def command(self, event: Cancel | Pause | Resume, now: float) -> None:
        words = command_words(event)
        if isinstance(event, Cancel):
            self.remarks.append(Remark(now, Asker.PERSON, sent_words(event, words)))
        else:
            words += take_level(self.levels, event)
            self.remarks.append(Remark(now, event.by, sent_words(event, words)))

    def ask(self, ask: Ask, now: float) -> None:
        """Record a controller's request."""
        self.remarks.append(Remark(now, ask.by, ask.words + take_level(self.levels, ask)))

    def left(self, event: WorkerExited, accepted: Accepted, now: float) -> None:
        """Record the exit of a worker."""
        if event.cause in WELL:
            self.remarks.append(Remark(now, "worker", _farewell(event)))
            return
        self.detail = event.detail
        self.lost_worker(exit_words(event), accepted, now)

    def launch_timed_out(self, event: LaunchTimedOut, now: float) -> None:
        """Record a launch that timed out."""
        self.faults.append(Fault(now, f"its workers were not ready in time: {event.detail}"))

    def pool_lost(self, down: Down, accepted: Accepted, now: float) -> None:
        """Record a downtime of the pool; a worker that had saved and left before lost nothing."""
        if accepted.fault is not None:
            words = f"{down_words(down)} before it had left" if down.by else "the pool was lost, and its worker"
            self.lost_worker(words, accepted, now)
        elif down.by:
            away = format_duration(down.until - down.since)
            self.remarks.append(Remark(down.since, "pool", f"{down_words(down)}, resumed after {away}"))
        else:
            self.remarks.append(Remark(now, "worker", "the pool was down"))

    def lost_worker(self, what: str, accepted: Accepted, now: float) -> None:
        """Record a fault; the job restarts if ``accepted`` says from where."""
        if accepted.fault is None:
            self.faults.append(Fault(now, what))
            return
        start, repeated, *_ = map(int, accepted.fault.numbers)
        work = work_since(self.progress, start) if repeated else 0.0
        self.faults.append(Fault(now, what, repeated, work, start, accepted.restart))

    def _came_back(self, fault: Fault, began: int, now: float) -> None:
        fault.back = now
        if fault.start is not None and self.progress:  # the newest checkpoint may have been damaged
            done = self.progress[-1].batches
            fault.start, fault.batches = began, max(done - began, 0)
            fault.work = work_since(self.progress, began) if fault.batches else 0.0
        self.remarks.append(Remark(now, "worker", f"resumed from batch {began}"))


def _product(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> tuple[FloatArray, FloatArray]:
    """Return the times of two series of levels, and the products of the levels; the second is 1 before its first."""
    since, level = (np.array(column, np.float64) for column in zip(*one, strict=True))
    if all(value == 1.0 for _, value in other):
        return since, level
    at, factor = (np.array(column, np.float64) for column in zip(*other, strict=True))
    times = np.union1d(since, at[at >= since[0]])
    place = np.searchsorted(at, times, "right") - 1
    factors = np.where(place >= 0, factor[np.maximum(place, 0)], 1.0)
    return times, level[np.searchsorted(since, times, "right") - 1] * factors


def _since(job: JobHistory, time: float) -> str:
    return "none" if time == math.inf else format_duration(time - job.submitted)


def _words(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value) or "any"


def _farewell(event: WorkerExited) -> str:
    match event.cause:
        case ExitCause.RELEASED:
            return "saved and left its device"
        case ExitCause.INTERRUPTED:
            return f"left: interrupted by {event.detail or 'a signal'}"
        case _:
            return f"left: its training ended {event.detail}".rstrip()
