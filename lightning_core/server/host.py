"""Host of a live scheduler: its journal, its clock, and recovery.

A host is not thread-safe: the process makes one call at a time. Only :meth:`Host.commit` and :meth:`Host.keep_short`
may run in another thread meanwhile, one of them at a time.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_core.core.answers import Answer, Directive, End, JobStatus
from lightning_core.core.events import Event, PartEvent, Report, Submit, Tick
from lightning_core.core.parts import AbsentPartError
from lightning_core.errors import LightningCoreError
from lightning_core.scheduler.outside_calls import PACKAGES
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.clocks import WallClockWatch
from lightning_core.server.counters import Counters
from lightning_core.storage.failpoints import reach
from lightning_core.storage.journals.anchor import Anchor
from lightning_core.storage.journals.blocks import EVENTS_PER_BLOCK
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.journals.recovery import finish
from lightning_core.storage.journals.replay import replay
from lightning_core.storage.journals.snapshots import EVENTS_PER_SNAPSHOT
from lightning_core.storage.runs.pool_history import PoolHistory

log = logging.getLogger(__name__)

Clock = Callable[[], float]
# A full disk fails for the next event too, and each failure costs a replay. The next event is tried after this many
# seconds at least, and this many times the duration of the replay, so that queries can be answered in between.
MIN_RETRY_PAUSE, PAUSE_PER_REPLAY = 1.0, 10.0
# Events after which a block of old ones is thinned: twice as fast as they come, so that an upgraded journal catches up.
THIN_EVERY = EVENTS_PER_BLOCK // 2
# A snapshot is taken once the events behind the newest one have taken this many seconds, as a restart would again, and
# this many times as long as a snapshot takes: in a large pool both are more expensive. One is also taken after
# this many events, if snapshots are cheap.
SECONDS_TO_REPLAY, HANDLING_PER_SNAPSHOT = 0.5, 10.0


class EventNotPersistedError(LightningCoreError, RuntimeError):
    """An event was rejected because it could not be written to the journal; the sender should retry."""


class Host:
    """A scheduler with a clock and, if wanted, a journal.

    Args:
        settings: Settings of the scheduler; an existing journal's own settings take precedence.
        journal: Path of the journal to create or to resume from; None for no journal.
        clock: Monotonic clock, in seconds.
        history: Folder of the store of earlier runs; None for none.
        wall_time: The wall clock, which a scheduler with controllers learns.
    """

    def __init__(
        self, settings: Settings, journal: Path | None = None, clock: Clock = time.monotonic,
        history: Path | None = None, wall_time: WallClockWatch | None = None,
    ) -> None:  # fmt: skip
        self._clock, self._wall_time = clock, wall_time or WallClockWatch()
        self._trouble, self._refuses_until = "", -math.inf
        self._status: list[JobStatus] | None = None
        self._journal: Journal | None = None
        self._writing = threading.RLock()  # its holder may use the journal's file
        self._unwritten: Exception | None = None
        self._is_astray = self._thinning_due = False
        self._to_replay = self._snapshot_took = 0.0
        self._snapshot_due: tuple[Anchor, Mapping[str, Any]] | None = None
        past = 0.0
        if journal is not None:
            finish(journal)
        if journal is not None and journal.exists():
            self._journal = Journal.open(journal)
            started = time.thread_time()
            try:
                recovered = replay(self._journal)
            except AbsentPartError:  # nothing was written, and its package may be installed
                self._journal.close()
                raise
            self._to_replay = time.thread_time() - started
            self.scheduler = recovered.scheduler
            # Deadlines kept running while no scheduler did, since the newest event.
            past = recovered.now + (self._journal.age() if recovered.events else 0.0)
        else:
            self.scheduler = Scheduler(settings)
            if journal is not None:
                self._journal = Journal.create(journal, settings)
        self._origin = clock() - past
        here = self.scheduler.settings.packages_here()
        self._news: list[Event] = [] if here == self.scheduler.packages else [PartEvent(PACKAGES, here)]
        self.counters = Counters()
        """Decisions and commits since this process started."""
        told = self.scheduler.settings
        self.runs = PoolHistory(history, shared=told.share_history, cores=told.cores)
        self.runs.begin(self.scheduler.ended_runs(), self.now())

    def now(self) -> float:
        """Return the scheduler time, in seconds."""
        return self._clock() - self._origin

    def handle(self, event: Event) -> list[Answer]:
        """Catch up with the time, handle the event, and commit both before returning the answers."""
        return self._committed(self.decide(event))

    def catch_up(self) -> list[Answer]:
        """Wake the scheduler if it asked to be woken by now, and commit that."""
        return self._committed(self.decide_time())

    def decide(self, event: Event) -> list[Answer]:
        """Catch up with the time and handle the event; its answers must not leave before :meth:`commit` returns.

        An event that changes nothing is answered and not committed: a journal that replays without it is the same.

        Raises:
            EventNotPersistedError: If the journal could not be written a moment ago.
        """
        answers, now = self.decide_time(), self.now()
        known = self.scheduler.answers_to_no_op(event, now)
        if known is not None:
            return answers + known
        answers += self._decide(event, now)
        for found in self.runs.find(event.jobs) if isinstance(event, Submit) else ():
            if self.scheduler.answers_to_no_op(found, now) is None:
                answers += self._decide(found, now)
        return answers

    def decide_time(self) -> list[Answer]:
        """Wake the scheduler if it asked to be woken by now; see :meth:`decide`."""
        if self._is_astray:
            self._go_back()
        answers, now = list[Answer](), self.now()
        while self._news:
            answers += self._decide(self._news[0], now)
            self._news.pop(0)
        hears = self.scheduler.settings.controllers and self._clock() >= self._refuses_until
        if hears and (told := self._wall_time.news(now)):
            answers += self._decide(told, now)
        due = (wakeup := self.scheduler.wakeup()) is not None and now >= wakeup
        return answers + (self._decide(Tick(), now) if due else [])

    def commit(self) -> None:
        """Commit all that was decided so far.

        Raises:
            sqlite3.Error, OSError: If that failed; :meth:`undo` then reverts the events.
        """
        with self._writing:
            error, self._unwritten = self._unwritten, None
            if error is not None:
                raise error
            with self.runs.committing():
                started = time.perf_counter()
                if self._journal is not None and self._journal.commit():
                    self.counters.committed(time.perf_counter() - started)

    def undo(self, error: Exception) -> EventNotPersistedError | None:
        """Revert to the last commit, after an error of :meth:`commit`.

        Returns:
            The error for the senders of all other events; None if it is not the disk that failed.
        """
        began, self._trouble = self._clock(), f"the journal cannot be written: {error}"
        with self._writing:
            if self._journal is not None:
                self._journal.give_up()
            self._go_back()
        if not isinstance(error, sqlite3.Error | OSError):
            return None
        self._refuses_until = self._clock() + max(MIN_RETRY_PAUSE, PAUSE_PER_REPLAY * (self._clock() - began))
        return EventNotPersistedError(self._trouble)

    def seconds_to_wakeup(self) -> float | None:
        """Return the seconds until :meth:`catch_up` has something to do; None if only an event can cause it."""
        wakeup = self.scheduler.wakeup()
        return None if wakeup is None else max(0.0, wakeup - self.now())

    def newer(self, job: str, version: int) -> Directive | None:
        """Return the current directive of a job, if it is newer than ``version``."""
        directive = self.scheduler.directive(job)
        return directive if directive is not None and directive.version > version else None

    def directive_for(self, report: Report, answers: Sequence[Answer]) -> Directive | None:
        """Return the directive that answers a report: the newest one of its job, if the sender's is older.

        Args:
            report: The report.
            answers: Answers of the scheduler. An unknown job and an older incarnation get an end of version 0.
        """
        ends = (one for one in answers if isinstance(one, End) and (one.job, one.version) == (report.job, 0))
        return next(ends, None) or self.newer(report.job, report.version)

    @property
    def replay_share(self) -> float:
        """Time that the events behind the newest snapshot have taken, as a fraction of that which brings the next."""
        return self._to_replay / max(SECONDS_TO_REPLAY, HANDLING_PER_SNAPSHOT * self._snapshot_took)

    def status(self) -> list[JobStatus]:
        """Return the status of every job as of the last event: the same list until the next one."""
        if self._status is None:
            self._status = self.scheduler.status()
        return self._status

    def keep_short(self) -> None:
        """Keep runs, take a snapshot or thin old events, if due; all fail without harm: the events are committed."""
        with self._writing:
            self.runs.write()
            due, self._snapshot_due = self._snapshot_due, None
            if due is not None:
                self._write_snapshot(*due)
            elif self._thinning_due and self._journal is not None:
                self._thinning_due = False
                try:
                    self._journal.thin()
                except (sqlite3.Error, ValueError, JournalError) as error:
                    log.warning("old events were not thinned: %s", error)

    @property
    def is_long(self) -> bool:
        """Whether :meth:`keep_short` has work to do."""
        return self._snapshot_due is not None or self._thinning_due or self.runs.is_due

    def close(self) -> None:
        """Close the journal."""
        self.runs.note_paces(self.scheduler.measured_paces())
        self.commit()
        self.runs.write()
        if self._journal is not None:
            self._note_state(self._journal)
            self.keep_short()
            self._journal.close()
            self._journal = None
        self.runs.close()

    def _committed(self, answers: list[Answer]) -> list[Answer]:
        try:
            self.commit()
        except Exception as error:
            if (refusal := self.undo(error)) is not None:
                raise refusal from error
            raise
        self.keep_short()
        return answers

    def _decide(self, event: Event, now: float) -> list[Answer]:
        self._status = None
        if (left := self._refuses_until - self._clock()) > 0:
            raise EventNotPersistedError(f"{self._trouble}; the next attempt is in {left:.0f} s")
        try:
            rounds, started = self.scheduler.rounds, time.perf_counter()  # a thread's own clock would cost far more
            answers = self.scheduler.handle(event, now)
            seconds = time.perf_counter() - started
            self._to_replay += seconds
            self.counters.decided(event, seconds, self.scheduler.rounds - rounds, answers, self.scheduler.accepted)
            reach("host.decided")
            if self._journal is not None:
                self._journal.add(event, now, answers, self.scheduler.accepted, self.scheduler.calls)
                self._note_length(self._journal)
            if ended := {one.job for one in answers if isinstance(one, End)}:
                self.runs.note(self.scheduler.ended_runs(ended), now)
                self.runs.note_paces(self.scheduler.measured_paces(ended))
        except Exception:
            self._take_back()
            raise
        return answers

    def _take_back(self) -> None:
        """Restore the scheduler after an event that it could not handle; those before it stay."""
        with self._writing:
            try:
                self.commit()
            except (sqlite3.Error, OSError) as error:
                self._unwritten = error  # the next commit tells
            else:
                self._go_back()

    def _note_length(self, journal: Journal) -> None:
        """Note whether it is time for a snapshot, or to thin old events."""
        number, is_cheap = journal.newest.number, HANDLING_PER_SNAPSHOT * self._snapshot_took <= SECONDS_TO_REPLAY
        if (is_cheap and number % EVENTS_PER_SNAPSHOT == 0) or self.replay_share >= 1.0:
            self._note_state(journal)
        elif number % THIN_EVERY == 0 and not self.scheduler.settings.keep_all:
            self._thinning_due = True

    def _note_state(self, journal: Journal) -> None:
        """Note the present state for a snapshot."""
        started = time.thread_time()
        try:
            self._snapshot_due = journal.newest, self.scheduler.state()
            self._to_replay = 0.0
        except ValueError as error:  # a StateError is one
            log.warning("no snapshot was taken: %s", error)
        self._snapshot_took = time.thread_time() - started

    def _write_snapshot(self, after: Anchor, state: Mapping[str, Any]) -> None:
        """Take a snapshot. If that fails, a restart takes longer, and nothing else: the events are committed."""
        assert self._journal is not None
        started = time.thread_time()
        try:
            self._journal.take_snapshot(state, after)
        except (sqlite3.Error, ValueError) as error:
            log.warning("no snapshot was taken: %s", error)
        self._snapshot_took += time.thread_time() - started

    def _go_back(self) -> None:
        """Restore the scheduler from the journal: an event that is not in it has not happened."""
        self._snapshot_due = self._status = None
        self._wall_time.forget()
        self._is_astray = True  # if this fails, it is tried again before the next event
        if self._journal is not None:
            self.scheduler = replay(self._journal).scheduler
        self.runs.begin(self.scheduler.ended_runs(), self.now())
        self._is_astray = False
