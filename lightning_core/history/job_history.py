"""One life of a job as series: read off events and answers, one after the other."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from lightning_core.core.answers import Alert, Answer, End, Verdict, VerdictChanged
from lightning_core.core.arrays import FloatArray
from lightning_core.core.commands import (
    Asker,
    Cancel,
    Change,
    Pause,
    Resume,
    SetDeadline,
    SetDevices,
    SetLocation,
    SetTerms,
)
from lightning_core.core.durations import format_duration
from lightning_core.core.events import Cell, ExitCause, LaunchTimedOut, Report, WorkerExited
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget, is_loss
from lightning_core.history.faults import WELL, Fault, down_words, what_happened, work_since
from lightning_core.history.moments import Belief, Forecast, Held, Point, Progress, Remark
from lightning_core.storage.downtime import Down


@dataclass
class JobHistory:
    """One life of a job, from its submission to its end.

    Attributes:
        job: as it was last amended.
        terms: as it was submitted.
        life: 1, or more for a name that was submitted again after its job had ended.
        submitted: when.
        window: observations whose mean counts against the target.
        deadlines: from when on which deadline held.
        points: its loss observations, oldest first; none for a target in batches.
        progress: one a report.
        grants: steps.
        beliefs: changes of its verdict; the end is the last one.
        remarks: what persons and workers did.
        faults: what befell its workers.
        forecasts: some, over its training; see :func:`lightning_core.history.forecasts.fill_in`.
        ended: when, if it has.
        detail: the traceback of a job that crashed.
        evaluated: whether each point is a whole evaluation.
        rejected: losses that were kept out.
    """

    job: Job
    terms: Job
    life: int
    submitted: float
    window: int
    deadlines: list[tuple[float, float]]
    points: list[Point] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    grants: list[Held] = field(default_factory=list)
    beliefs: list[Belief] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    forecasts: list[Forecast] = field(default_factory=list)
    ended: float | None = None
    detail: str = ""
    evaluated: bool = False
    rejected: int = 0
    _incarnation: int = 1
    _given_up: int = 0
    _version: int = 0
    _heard: float = 0.0
    _busy_before: float = 0.0
    _saved: int = 0
    _is_there: bool = False
    _next_cell: int = 1
    _waiting: dict[int, Cell] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, now: float, window: int, before: JobHistory | None) -> JobHistory:
        """A new life; ``before`` is the last one under its name, if there was one."""
        new = cls(job, job, 1, now, window, [(now, now + job.deadline)], _heard=now)
        if before is not None:  # what speaks of the old life does not speak of this one
            new.life, new._incarnation, new._version = before.life + 1, before._incarnation + 1, before._version
        return new

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def deadline(self) -> float:
        """The last one that held."""
        return self.deadlines[-1][1]

    @property
    def verdict(self) -> Verdict | None:
        """The last one; None if there was none yet."""
        return self.beliefs[-1].verdict if self.beliefs else None

    @property
    def reason(self) -> Reason:
        """Of the verdict; of the grant while there is none."""
        if self.beliefs:
            return self.beliefs[-1].reason
        return self.grants[-1].reason if self.grants else Reason("submitted")

    def seen(self) -> FloatArray:
        """Each observation: times and values as logged (or batches done), shape ``(n, 2)``."""
        target = self.job.target
        if isinstance(target, BatchTarget):
            return np.array([(p.time, p.batches) for p in self.progress], float).reshape(-1, 2)
        return np.array([(p.time, p.value) for p in self.points], float).reshape(-1, 2)

    def curve(self) -> FloatArray:
        """What counts against the target, the mean over the window: times and values, shape ``(n, 2)``."""
        seen = self.seen()
        if self.window == 1 or self.evaluated or isinstance(self.job.target, BatchTarget):
            return seen
        total = np.concatenate([[0.0], np.cumsum(seen[:, 1])])
        return np.column_stack(
            [seen[self.window - 1 :, 0], (total[self.window :] - total[: -self.window]) / self.window]
        )

    @property
    def reached(self) -> float | None:
        """What counts against the target, in its own sense, as in :class:`~lightning_core.core.answers.JobStatus`."""
        target = self.job.target
        if isinstance(target, BatchTarget):
            return float(self.progress[-1].batches) if self.progress else None
        recent = [point.value for point in self.points[-self.window :]]
        return target.reached(recent, self.evaluated, self.window) if recent else None

    @property
    def goal(self) -> float:
        """The threshold as logged, or the number of batches."""
        return self.job.target.goal

    @property
    def size(self) -> int:
        """Devices that it trained on, at most."""
        return max((len(held.devices) for held in self.grants if held.share), default=1)

    @property
    def device_seconds(self) -> float:
        """Busy seconds on all its devices."""
        return self.size * self.progress[-1].busy if self.progress else 0.0

    # ------------------------------------------------------------------------------------------------ reading

    def report(self, report: Report, now: float) -> None:
        if self.ended is not None or report.incarnation < self._incarnation or report.incarnation == self._given_up:
            return
        done, busy = (self.progress[-1].batches, self.progress[-1].busy) if self.progress else (0, 0.0)
        if report.incarnation > self._incarnation:
            self._incarnation = report.incarnation
            self._busy_before, self._next_cell = busy, 1
            self._waiting.clear()
            if self.faults and self.faults[-1].back is None:
                self._came_back(self.faults[-1], report.began, now)
            done = min(done, report.began)  # what was not saved is done again
        self._is_there = True
        if report.saved is not None:
            self._saved = report.saved.batches
        self.evaluated = self.evaluated or report.evaluated
        self._take_cells(report, now)
        busy = max(busy, self._busy_before + report.busy)
        self.progress.append(Progress(now, max(done, report.batches), busy))
        self.rejected = max(self.rejected, report.rejected)
        self._heard = now

    def _take_cells(self, report: Report, now: float) -> None:
        for cell in report.cells:
            if cell.number >= self._next_cell:
                self._waiting.setdefault(cell.number, cell)
        new: list[Cell] = []
        while (cell_now := self._waiting.pop(self._next_cell, None)) is not None:
            new.append(cell_now)
            self._next_cell += 1
        # A report brings all cells since the one before: they lie between the two.
        times = np.linspace(self._heard, now, len(new) + 1)[1:].tolist()
        for time, (_, batches, value) in zip(times, new, strict=True):
            if is_loss(value) and (not self.points or batches > self.points[-1].batches):
                self.points.append(Point(time, batches, value))
                if self._is_met():
                    return  # what came after it does not count

    def _is_met(self) -> bool:
        target = self.job.target
        if isinstance(target, BatchTarget):
            return False
        recent = [point.value for point in self.points[-max(self.window, target.for_evaluations) :]]
        return target.is_met(recent, self.evaluated, self.window)

    def answer(self, answer: Answer, now: float) -> None:
        if self.ended is not None:
            return
        if isinstance(answer, Alert):
            if answer.reason.code == "diverged_back":  # it was ended for that, and comes back
                self._given_up = self._incarnation
                self._saved = int(answer.reason.numbers[0])
                self._set_back(f"its losses were NaN or infinite from batch {answer.reason.text} on", now)
            else:
                self.remarks.append(Remark(now, "alert", str(answer.reason)))
            return
        if isinstance(answer, VerdictChanged):
            self.beliefs.append(Belief(now, answer.verdict, answer.reason))
            return
        if answer.version <= self._version:  # said before, or to a worker that is no longer this job's
            return
        self._version = answer.version
        fault = self.faults[-1] if self.faults and self.faults[-1].time == now else None
        if isinstance(answer, End):
            self.ended = now
            if fault is not None:
                fault.over = str(answer.reason)
                fault.batches, fault.work, fault.start, fault.restart = 0, 0.0, None, None
            self.beliefs.append(Belief(now, answer.verdict, answer.reason))
            return
        if fault is not None and answer.reason.code == "recovering":
            fault.pause = answer.reason.numbers[0]
        if answer.share and not (self.grants and self.grants[-1].share):
            self._heard = now  # it did nothing while it was held
        self.grants.append(Held(now, answer.share, answer.devices, answer.reason))

    def change(self, event: Change, now: float) -> None:
        """Take in a command that changes one thing of the job."""
        before = self.job
        match event:
            case SetDeadline():
                deadline = event.deadline_at(self.submitted, now)
                words = f"deadline {_since(self, self.deadline)} to {_since(self, deadline)}"
                with suppress(ValueError):  # the job may not begin before it: the scheduler has refused it
                    self.job = event.apply(before, self.submitted, now)
                    self.deadlines.append((now, deadline))
            case SetDevices(devices=devices):
                words = f"to train on devices: {devices}"
            case SetLocation(devices=devices):
                words = f"location {_words(before.location)} to {_words(event.location)}"
                words += "" if devices is None else f", devices: {devices}"
                self.job = event.apply(before)
            case SetTerms():
                changes = [
                    f"{name.replace('_', ' ')} {_words(getattr(before, name))} to {_words(value)}"
                    for name, value in event.terms().items()
                    if value != getattr(before, name)
                ]
                words = "new terms: " + (", ".join(changes) or "the same as before")
                self.job = event.apply(before)
        self.remarks.append(Remark(now, event.by, words))

    def command(self, event: Cancel | Pause | Resume, now: float) -> None:
        by = Asker.PERSON if isinstance(event, Cancel) else event.by
        self.remarks.append(Remark(now, by, _command(event)))

    def left(self, event: WorkerExited, now: float) -> None:
        if event.incarnation < self._incarnation or event.incarnation == self._given_up:
            return
        if event.saved is not None:
            self._saved = event.saved.batches
        if event.cause in WELL:
            self.remarks.append(Remark(now, "worker", _farewell(event)))
        else:
            self.detail = event.detail
            self._set_back(what_happened(event), now)
        self._is_there = False

    def unready(self, event: LaunchTimedOut, now: float) -> None:
        if event.incarnation >= self._incarnation:
            self.faults.append(Fault(now, f"its workers were not ready in time: {event.detail}"))

    def pool_lost(self, down: Down, now: float) -> None:
        """Lose the worker, unless it had saved and left before."""
        if self.launched and self._is_there:
            words = f"{down_words(down)} before it had left" if down.by else "the pool was lost, and its worker"
            self._set_back(words, now)
        elif down.by:
            away = format_duration(down.until - down.since)
            self.remarks.append(Remark(down.since, "pool", f"{down_words(down)}, resumed after {away}"))
        else:
            self.remarks.append(Remark(now, "worker", "the pool was down"))
        self._is_there = False

    @property
    def launched(self) -> bool:
        """Whether the pool has started it, and starts it again."""
        return Capability.RELEASE in self.job.can and self.job.device is None

    def _set_back(self, what: str, now: float) -> None:
        done = self.progress[-1].batches if self.progress else 0
        start = min(self._saved, done)
        restarts = sum(fault.restart is not None for fault in self.faults) + 1
        self.faults.append(Fault(now, what, done - start, work_since(self.progress, start), start, restarts))

    def _came_back(self, fault: Fault, began: int, now: float) -> None:
        fault.back = now
        if fault.start is not None and self.progress:  # what was saved last may have been damaged
            done = self.progress[-1].batches
            fault.start, fault.batches = began, max(done - began, 0)
            fault.work = work_since(self.progress, began) if fault.batches else 0.0
        self.remarks.append(Remark(now, "worker", f"is there again, from batch {began}"))


def _since(job: JobHistory, time: float) -> str:
    return format_duration(time - job.submitted)


def _words(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value) or "any"


def _command(event: Cancel | Pause | Resume) -> str:
    match event:
        case Cancel():
            return "cancel"
        case Pause(release=True):
            return "pause, and free its memory"
        case Pause():
            return "pause"
        case Resume():
            return "resume"


def _farewell(event: WorkerExited) -> str:
    match event.cause:
        case ExitCause.RELEASED:
            return "saved and left its device"
        case ExitCause.INTERRUPTED:
            return f"left: interrupted by {event.detail or 'a signal'}"
        case _:
            return f"left: its training ended {event.detail}".rstrip()
