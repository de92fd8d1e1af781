"""A journal as series of each job, for charts, reports and ``why``.

Rules

1. One reader: everything that shows a journal uses this one.
2. It shows the data that the scheduler accepted (:class:`~lightning_core.core.answers.Accepted`), and has no rules of
   its own for stale or repeated data, or data of an older incarnation.
3. Times are seconds of scheduler time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from lightning_core.core.answers import Accepted, Alert, Answer, Grant
from lightning_core.core.codec import accepted_from_dicts, answers_from_dicts, decode_calls, decode_event
from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline, SetDevices, SetLocation, SetTerms
from lightning_core.core.control import Ask, PartAnswer
from lightning_core.core.events import (
    DevicesFound,
    DevicesUnavailable,
    EarlierRuns,
    Event,
    LaunchTimedOut,
    PartEvent,
    Report,
    Submit,
    WorkerExited,
    WorkersLost,
)
from lightning_core.core.jobs import Job
from lightning_core.core.parts import all_of, guarded
from lightning_core.core.validation import loads
from lightning_core.history.faults import DeviceOutage, Gap, down_words, outage_words
from lightning_core.history.job_history import JobHistory
from lightning_core.history.moments import Remark
from lightning_core.history.own_time import OwnTime
from lightning_core.scheduler.pool_devices import PoolDevices
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.downtime import MAX_LATENESS, Down, Downtime
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import KEPT_ON, LEFT_OUT_BEFORE, JournalEntry, JournalPart
from lightning_core.storage.journals.journal_errors import reading
from lightning_core.storage.journals.thinning import AFTER_A_BREAK

_REPORT = '{"kind":"report"'
# A key of answers that accepted parts do not have.
_ANSWER = '"kind":'
# A key of calls that raised.
_RAISED = '"raised":'


class Taken(NamedTuple):
    """An entry in the form that a history reads."""

    event: Event
    answers: list[Answer]
    accepted: list[Accepted]
    breaks: tuple[int, ...] = ()
    """Places of the cells of a report before which others were left out: a thinned journal has few."""


def read_entry(entry: JournalEntry) -> Taken:
    """Return an entry in the form that a history reads.

    Raises:
        ValueError: If a value is of another type or out of its range; AttributeError, KeyError or TypeError where the
            texts have another form.
    """
    event, parts = decode_event(entry.event), loads(entry.answers)
    breaks: tuple[int, ...] = ()
    if isinstance(event, Report) and entry.digest in (KEPT_ON, LEFT_OUT_BEFORE):  # thinned: numbers of cells are marks
        breaks = tuple(k for k, cell in enumerate(event.cells) if cell.number == AFTER_A_BREAK)
    return Taken(event, answers_from_dicts(parts), accepted_from_dicts(parts, event), breaks)


def says_nothing_of(entry: JournalEntry, job: str) -> bool:
    """Return whether an entry is the report of another job, and was only accepted."""
    name = json.dumps(job)
    return entry.event.startswith(_REPORT) and f'"job":{name}' not in entry.event and _ANSWER not in entry.answers


class History:
    """All jobs of a journal.

    Attributes:
        settings: Settings of the scheduler.
        jobs: All jobs in the order of submission; a name that was used again has several.
        last: Time of the last event.
        events: Number of events.
        gaps: Times in which the pool should have made decisions and did not.
        stops: Times between an orderly stop of the run or pool and its resumption.
        part_of: Pool in which the jobs ran beside others; None if the journal has all jobs.
        outages: Times in which devices had no worker.
        kinds: Kind of each device, as it was known last; empty where all are alike.
        parts: What parts read from the journal (:class:`~lightning_core.core.supplies.PartHistory`), by their names.
        failed: Error of each part from outside the library that failed, by what was asked of it.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.jobs: list[JobHistory] = []
        self.last = 0.0
        self.events = 0
        self.gaps: list[Gap] = []
        self.stops: list[Gap] = []
        self.outages: list[DeviceOutage] = []
        self.kinds = settings.kinds
        self.failed: dict[str, str] = {}
        made = {name: self._asked(name, partial(make, settings)) for name, make in all_of("histories").items()}
        self.parts: dict[str, Any] = {name: one for name, one in made.items() if one is not None}
        self.part_of: JournalPart | None = None
        self._newest: dict[str, JobHistory] = {}
        self._devices = PoolDevices(settings)
        self._downtime = Downtime()
        self._own_time = OwnTime()

    @classmethod
    def read(cls, journal: Journal, only: str = "") -> History:
        """Read a journal from its beginning to its end.

        Args:
            journal: Journal to read.
            only: Name of the jobs that are read completely, as in :meth:`of`; reports of other jobs that
                were only accepted are skipped. Empty for all jobs.
        """
        history, only = cls(journal.settings()), only.partition("@")[0]
        history.part_of = journal.part_of
        with reading(journal.path):
            for entry in journal.entries():
                history.take_entry(entry, only)
        return history

    def take_entry(self, entry: JournalEntry, only: str = "") -> None:
        """Record the next entry of the journal; see :meth:`read`."""
        # In a part of the journal of a pool, times count from the submission of its jobs.
        now = entry.now - (0.0 if self.part_of is None else self.part_of.submitted_at)
        if entry.digest == LEFT_OUT_BEFORE:
            self.skip(now)
        if _RAISED in entry.answers:
            self.failed |= {call.part: call.raised for call in decode_calls(entry.answers) if call.raised}
        if only and says_nothing_of(entry, only):
            self.pass_time(now)
        else:
            event, answers, accepted, breaks = read_entry(entry)
            self.take(event, now, answers, accepted, breaks)

    def skip(self, now: float) -> None:
        """Take note that events up to ``now`` were left out, and that there was no gap among them."""
        self.last = max(now, self.last)
        self._downtime.skip(self.last)

    def take(
        self,
        event: Event,
        now: float,
        answers: Sequence[Answer],
        accepted: Sequence[Accepted],
        breaks: Sequence[int] = (),
    ) -> None:
        """Record an event, its accepted part and its answers.

        Args:
            event: The event.
            now: Its time.
            answers: Answers of the scheduler.
            accepted: The accepted part of the event.
            breaks: Places of the cells of a report before which others were left out.
        """
        down = self.pass_time(now, event)
        now = self.last
        told = event.decoded() if isinstance(event, PartEvent) and self.parts else event
        self._tell_parts(lambda part: part.take(told, now))
        if isinstance(event, Submit):
            added = {one.job for one in accepted}
            for job in event.jobs:
                if job.name in added:
                    self._submit(job, now)
        elif isinstance(event, DevicesUnavailable):
            self._note_outages(event, now)
        elif isinstance(event, DevicesFound):
            self._note_kinds(event)
        else:
            for one in accepted:
                if (job_history := self._newest.get(one.job)) is not None and job_history.ended is None:
                    _tell(job_history, event, one, answers, down, now, breaks)
        for answer in answers:
            self._answer(answer, now)
        for job_history in self._own_time.divide(now):
            self._hold(job_history)

    def pass_time(self, now: float, event: Event | None = None) -> Down | None:
        """Advance to the time of an event, and return the downtime that ends with it; None for one that is not read."""
        now = max(now, self.last)
        down = self._look_for_gap(event, now)
        self.last = now
        self.events += 1
        return down

    def of(self, name: str) -> JobHistory:
        """Return the newest job of a name, or with ``name@1`` the first one of that name.

        Raises:
            KeyError: If there is no such job; the message names the existing ones.
        """
        if name in self._newest:
            return self._newest[name]
        for job in self.jobs:
            if name == f"{job.name}@{job.run_number}":
                return job
        raise KeyError(f"no job {name!r}; there are {', '.join(self._newest) or 'none'}")

    def label(self, job: JobHistory) -> str:
        """Return the name by which :meth:`of` finds a job: with a number if the name was used again later."""
        return job.name if self._newest[job.name] is job else f"{job.name}@{job.run_number}"

    @property
    def wall(self) -> float:
        """Time at which the last job ended; of the last event while a job has not ended."""
        ends = [job.ended for job in self.jobs]
        return max((end for end in ends if end is not None), default=self.last) if None not in ends else self.last

    def _answer(self, answer: Answer, now: float) -> None:
        if isinstance(answer, PartAnswer):
            told = answer.decoded()
            self._tell_parts(lambda part: part.answer(told, now))
        elif job_history := self._newest.get(answer.job):
            job_history.answer(answer, now)
            if self.kinds and isinstance(answer, Grant) and answer.devices:
                job_history.grants[-1] = job_history.grants[-1]._replace(kind=self.kinds[answer.devices[0]])
            self._own_time.note(job_history)
            self._hold(job_history)

    def _hold(self, job: JobHistory) -> None:
        self._tell_parts(lambda part: part.hold(job))

    def _tell_parts(self, tell: Callable[[Any], None]) -> None:
        """Tell each part something; one that raises is left out from then on."""
        for name, part in list(self.parts.items()):
            self._asked(name, partial(tell, part))
            if f"history {name}" in self.failed:
                del self.parts[name]

    def _asked(self, name: str, call: Callable[[], Any]) -> Any:
        return guarded(f"the history of {name}", call, partial(self.failed.__setitem__, f"history {name}"))

    def _note_outages(self, event: DevicesUnavailable, now: float) -> None:
        lasting = {outages.device: outages for outages in self.outages if outages.until is None}
        for device in lasting.keys() - set(event.devices):
            lasting[device].until = now
        self.outages += [
            DeviceOutage(device, now, outage_words(event.detail, device))
            for device in event.devices
            if device not in lasting
        ]

    def _note_kinds(self, event: DevicesFound) -> None:
        self._devices.find(event.kinds, event.machines)
        self.kinds = self._devices.kinds if self._devices.differ else ()

    def _look_for_gap(self, event: Event | None, now: float) -> Down | None:
        """Return the downtime that ends with an event; note a gap if the scheduler woke too late."""
        due = self.last + self.settings.period + MAX_LATENESS
        down = self._downtime.take(event, now)
        if down is not None:
            # Until it learned that its workers were lost, it seemed to have been silent.
            self.gaps = [gaps for gaps in self.gaps if gaps.since < down.since]
            (self.stops if down.by else self.gaps).append(Gap(down.since, down.until, down_words(down)))
        elif now > due and any(job.ended is None and job.grants and job.grants[-1].trains for job in self.jobs):
            self.gaps.append(Gap(self.last, now, "the scheduler did not answer"))
        return down

    def _submit(self, job: Job, now: float) -> None:
        new = JobHistory.of(job, now, self.settings.window, self._newest.get(job.name))
        self.jobs.append(new)
        self._newest[job.name] = new


def _tell(
    job: JobHistory,
    event: Event,
    accepted: Accepted,
    answers: Sequence[Answer],
    down: Down | None,
    now: float,
    breaks: Sequence[int],
) -> None:
    """Pass the accepted part of an event to the history of its job."""
    match event:
        case Report() if accepted.fault is None:
            if event.epoch_batches is not None:
                job.job = replace(job.job, target=job.job.target.resolved(event.epoch_batches))
            job.hyper_parameters = event.hyper_parameters or job.hyper_parameters
            job.progressed(accepted, now, breaks)
        case Report():
            alert = next(one for one in answers if isinstance(one, Alert) and one.reason.code == "diverged_back")
            job.lost_worker(f"its losses were NaN or infinite from batch {alert.reason.text} on", accepted, now)
        case WorkersLost() if down is not None:
            job.pool_lost(down, accepted, now)
        case EarlierRuns():
            runs = next(event.of(places) for name, places in event.found if name == job.name)
            names = " and ".join(dict.fromkeys(run.name for run in runs))
            job.remarks.append(Remark(now, "pool", f"forecast from its first batch by earlier runs: like {names}"))
        case Cancel() | Pause() | Resume():
            job.command(event, now)
        case Ask():
            job.ask(event, now)
        case SetDeadline() | SetDevices() | SetLocation() | SetTerms():
            job.change(event, now)
        case WorkerExited():
            job.left(event, accepted, now)
        case LaunchTimedOut():
            job.launch_timed_out(event, now)
