"""A journal read as series, one set a job: what pictures, reports and answers to "why" are made from.

Rules

1. One reader: whoever shows a journal takes it from here.
2. It shows what the scheduler says it accepted (:class:`~lightning_core.core.answers.Accepted`), and has no rules of
   its own for what is stale, repeated or of an older incarnation.
3. Times are seconds of scheduler time.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_core.core.answers import Accepted, Alert, Answer
from lightning_core.core.codec import decode_accepted, decode_answers, decode_event
from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline, SetDevices, SetLocation, SetTerms
from lightning_core.core.events import (
    DevicesUnavailable,
    Event,
    LaunchTimedOut,
    Report,
    Submit,
    WorkerExited,
    WorkersLost,
)
from lightning_core.core.jobs import Job
from lightning_core.history.faults import Away, Gone, down_words
from lightning_core.history.job_history import JobHistory
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.downtime import Down, Downtime
from lightning_core.storage.journal import Journal, PartOf

# How late the scheduler may wake without anybody's being told, seconds: machines are busy.
LATE = 1.5


class History:
    """All jobs of a journal.

    Attributes:
        settings: of the scheduler.
        jobs: every life of every job, in the order of submission.
        last: time of the last event.
        away: when the pool decided nothing though it should have.
        left: when the run was left, or the pool taken down, in order.
        part_of: the pool that its jobs ran in, beside others; None if the journal has all jobs.
        gone: devices on which no worker could be had, and when.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.jobs: list[JobHistory] = []
        self.last = 0.0
        self.away: list[Away] = []
        self.left: list[Away] = []
        self.gone: list[Gone] = []
        self.part_of: PartOf | None = None
        self._newest: dict[str, JobHistory] = {}
        self._downtime = Downtime()

    @classmethod
    def read(cls, journal: Journal) -> History:
        """Reads a journal from its beginning to its end."""
        history = cls(journal.settings())
        history.part_of = journal.part_of
        # Of a part of a pool's journal, times count from the submission of its jobs.
        start = 0.0 if history.part_of is None else history.part_of.submitted_at
        for entry in journal.entries():
            history.take(
                decode_event(entry.event),
                entry.now - start,
                decode_answers(entry.answers),
                decode_accepted(entry.answers),
            )
        return history

    def take(self, event: Event, now: float, answers: Sequence[Answer], accepted: Sequence[Accepted]) -> None:
        """Take in one event, what the scheduler accepted of it, and what followed from it."""
        now = max(now, self.last)
        down = self._look_for_gap(event, now)
        self.last = now
        if isinstance(event, Submit):
            added = {one.job for one in accepted}
            for job in event.jobs:
                if job.name in added:
                    self._submit(job, now)
        elif isinstance(event, DevicesUnavailable):
            self._gone(event, now)
        else:
            for one in accepted:
                if (job_history := self._newest.get(one.job)) is not None and job_history.ended is None:
                    _tell(job_history, event, one, answers, down, now)
        for answer in answers:
            if job_history := self._newest.get(answer.job):
                job_history.answer(answer, now)

    def of(self, name: str) -> JobHistory:
        """The newest life of a job.

        Raises:
            KeyError: if there is no job of that name; the message names those that there are.
        """
        if name not in self._newest:
            raise KeyError(f"no job {name!r}; there are {', '.join(self._newest) or 'none'}")
        return self._newest[name]

    def label(self, job: JobHistory) -> str:
        """Its name; an earlier life of a name that was used again is told apart."""
        return job.name if self._newest[job.name] is job else f"{job.name} (run {job.life})"

    @property
    def wall(self) -> float:
        """Until the last job ended; until the last event while one has not."""
        ends = [job.ended for job in self.jobs]
        return max((end for end in ends if end is not None), default=self.last) if None not in ends else self.last

    def _gone(self, event: DevicesUnavailable, now: float) -> None:
        lasting = {gone.device: gone for gone in self.gone if gone.until is None}
        for device in lasting.keys() - set(event.devices):
            lasting[device].until = now
        self.gone += [Gone(device, now, event.detail) for device in event.devices if device not in lasting]

    def _look_for_gap(self, event: Event, now: float) -> Down | None:
        """While a job trains, the scheduler wakes itself each period."""
        due = self.last + self.settings.period + LATE
        down = self._downtime.take(event, now)
        if down is not None:
            # Before it heard that its workers were lost, it seemed to have been silent.
            self.away = [away for away in self.away if away.since < down.since]
            (self.left if down.by else self.away).append(Away(down.since, down.until, down_words(down)))
        elif now > due and any(job.ended is None and job.grants and job.grants[-1].share for job in self.jobs):
            self.away.append(Away(self.last, now, "the scheduler did not answer"))
        return down

    def _submit(self, job: Job, now: float) -> None:
        new = JobHistory.of(job, now, self.settings.window, self._newest.get(job.name))
        self.jobs.append(new)
        self._newest[job.name] = new


def _tell(
    job: JobHistory, event: Event, accepted: Accepted, answers: Sequence[Answer], down: Down | None, now: float
) -> None:
    """Tell the history of a job what was accepted of an event."""
    match event:
        case Report() if accepted.fault is None:
            job.progressed(accepted, now)
        case Report():
            alert = next(one for one in answers if isinstance(one, Alert) and one.reason.code == "diverged_back")
            job.lost_worker(f"its losses were NaN or infinite from batch {alert.reason.text} on", accepted, now)
        case WorkersLost() if down is not None:
            job.pool_lost(down, accepted, now)
        case Cancel() | Pause() | Resume():
            job.command(event, now)
        case SetDeadline() | SetDevices() | SetLocation() | SetTerms():
            job.change(event, now)
        case WorkerExited():
            job.left(event, accepted, now)
        case LaunchTimedOut():
            job.launch_timed_out(event, now)
