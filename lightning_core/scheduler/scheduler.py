"""The scheduler: one entry point, pure.

Rules

1. Everything that changes it goes through ``handle(event, now)``; what it wants done comes back as answers.
2. It reads no clock and draws no random number: the same events at the same times give the same answers.
3. ``wakeup()`` says when it wants a :class:`Tick`. A tick that comes late costs time, not correctness.
4. It plans all jobs together. A round costs O(n log n): arrays throughout, one Python object per changed grant.
5. Nothing that a worker sends can raise here: a stale, repeated or unknown report is answered, not obeyed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from lightning_core.controllers import Controller, Describes, PublishedLevel, Publishes
from lightning_core.core.answers import (
    Accepted,
    Answer,
    Directive,
    JobForecast,
    JobStatus,
    PartCall,
    Placement,
)  # fmt: skip
from lightning_core.core.arrays import FloatArray
from lightning_core.core.commands import (
    Cancel,
    Change,
    Command,
    Pause,
    Resume,
    SetDeadline,
    SetDevices,
    SetLocation,
    SetTerms,
)  # fmt: skip
from lightning_core.core.control import Ask, Asker
from lightning_core.core.earlier_runs import EarlierPace
from lightning_core.core.events import (
    Checkpoint,
    EarlierRuns,
    Event,
    LaunchTimedOut,
    PartEvent,
    Report,
    Submit,
    WorkerExited,
)
from lightning_core.core.jobs import Job
from lightning_core.core.speedup import SpeedUp
from lightning_core.core.targets.outside import ERRORS
from lightning_core.scheduler import part_events
from lightning_core.scheduler.alerts import check_stalls, discount_downtime
from lightning_core.scheduler.controller_calls import next_wakeup, tell_controllers
from lightning_core.scheduler.ended_runs import EndedRun, ended_runs
from lightning_core.scheduler.forecasting import forecast, forecast_work
from lightning_core.scheduler.grants import allocate, grant
from lightning_core.scheduler.reports import answer_report, take_report
from lightning_core.scheduler.requests import (
    answers_to_no_op,
    change,
    changed_job,
    steer,
    submit,
    take_ask,
    take_earlier_runs,
)  # fmt: skip
from lightning_core.scheduler.retry_budgets import launch_timed_out, placements, pool_changed, worker_exited
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.scheduler_view import SchedulerView
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.state import SchedulerState, restore_state, state_to_dict
from lightning_core.scheduler.status import job_forecast, judge
from lightning_core.scheduler.tables.table import JobTable

__all__ = ["Scheduler", "Settings"]


class Scheduler:
    """Decides what each job may hold.

    Args:
        settings: Policy, estimator and constants.

    Example::

        >>> from lightning_core.core.targets import BatchTarget
        >>> scheduler = Scheduler(Settings(policy="fifo"))
        >>> [grant] = scheduler.handle(Submit((Job("a", deadline=60.0, target=BatchTarget(100)),)), now=0.0)
        >>> grant.share, str(grant.reason)
        (1.0, 'first in line')
        >>> [end] = scheduler.handle(Report("a", 1, number=1, version=1, batches=100, busy=8.0), now=9.0)
        >>> end.verdict, str(end.reason)
        (<Verdict.MET: 'met'>, 'target met with 51.0s to spare')
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._state = SchedulerState(self.settings)
        self._table = self._state.table
        self._now = 0.0
        self._next_round: float | None = None
        self.rounds = 0
        """Rounds since it was made; for those who watch, and no part of its state."""

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values; a StateError says that the policy or the estimator cannot save its own."""
        return state_to_dict(self._state, self._now, self._next_round)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned, in a new scheduler of the same settings; else a StateError."""
        self._now, self._next_round = restore_state(self._state, state)

    # ------------------------------------------------------------------------------------------------ events

    def handle(self, event: Event, now: float) -> list[Answer]:
        """Take in what has happened; return what must change.

        Args:
            event: What has happened.
            now: Scheduler time in seconds; a time before the last one counts as the last one.

        Returns:
            The new directives and verdicts, alerts, and for a report under an old grant the newest directive.
        """
        state = self._state
        discount_downtime(self._table, self.settings, now - self._now)
        self._now = now = max(now, self._now)
        state.answers, state.accepted = [], []
        with state.calls.during_event():
            needs_round = self._take(event, now)
            if tell_controllers(state, event, now) or needs_round:
                self._round(now)
                state.let_go(now)
        if isinstance(event, Report):
            answer_report(state, event, state.answers)
        return state.answers

    def recall(self, calls: Sequence[PartCall]) -> None:
        """Use what parts from outside the library returned in the past for the event that is handled next."""
        self._state.calls.recall(calls)

    @property
    def calls(self) -> list[PartCall]:
        """What parts from outside the library returned for the last event; journals keep it for :meth:`recall`."""
        return self._state.calls.made

    @property
    def packages(self) -> Mapping[str, str]:
        """Package and version of each part from outside the library, by its kind and name, as the journal knows them.

        An event ``PartEvent(PACKAGES, ...)`` says that they have changed.
        """
        return self._state.calls.packages

    @property
    def failed_parts(self) -> Mapping[str, str]:
        """Error of each part that is not asked any more, by its kind and name."""
        controllers = {f"controller {by}": words for by, words in self._state.failed.items()}
        return self._state.calls.failed | controllers | {f"target {kind}": words for kind, words in ERRORS.items()}

    def _take(self, event: Event, now: float) -> bool:
        """Take in an event; return whether a round is needed."""
        state = self._state
        match event:
            case Report():
                return take_report(state, event, now)
            case WorkerExited():
                return worker_exited(state, event, now)
            case LaunchTimedOut():
                return launch_timed_out(state, event, now)
            case SetDeadline() | SetDevices() | SetLocation() | SetTerms():
                return change(state, event, now)
            case Cancel() | Pause() | Resume():
                return steer(state, event, now)
            case Ask():
                return take_ask(state, event, is_event=True)
            case PartEvent():
                state.calls.take(event)
                return False
            case EarlierRuns():
                return take_earlier_runs(state, event)
            case Submit(jobs):
                submit(state, jobs, now)
            case _:
                pool_changed(state, event, now)
        return True

    def answers_to_no_op(self, event: Event, now: float) -> list[Answer] | None:
        """Return the answers to an event that changes nothing, which need not be handled; None for any other event."""
        return answers_to_no_op(self._state, event, max(now, self._now))

    @property
    def accepted(self) -> list[Accepted]:
        """What was taken in of the last event, job by job; journals keep it, and views show nothing else."""
        return self._state.accepted

    def wakeup(self) -> float | None:
        """Return when a :class:`Tick` is wanted, scheduler time; None while there is nothing to do."""
        return next_wakeup(self._state, self._next_round, self._now)

    def check_command(self, event: Command, now: float) -> None:
        """Check that a command would change something, for callers that refuse it otherwise.

        Raises:
            ValueError: If the job is unknown, or the command does not fit the job or the pool.
        """
        if self._state.find(event.job) is None:
            raise ValueError(f"no job {event.job!r}")
        row = self._table.find_active(event.job)
        if isinstance(event, Change) and row is not None:
            changed_job(self._state, row, event, max(now, self._now))
        # A plan says which jobs should train, whether they were paused or not.
        if isinstance(event, Resume) and event.by == Asker.PERSON and self.answers_to_no_op(event, now) is not None:
            raise ValueError(f"{event.job} is not paused")

    def check_part_event(self, event: PartEvent, now: float) -> None:
        """Check that an event of a part fits the pool; a ValueError says why not."""
        part_events.check(self._state, event, SchedulerView(self._state, max(now, self._now)))

    # ------------------------------------------------------------------------------------------------ the round

    def _round(self, now: float) -> None:
        """End jobs whose time is over; forecast, plan, allocate and judge all others; grant what has changed."""
        state, table = self._state, self._table
        self.rounds += 1
        rows = table.active_rows()
        for row in rows[(table.deadline[rows] <= now) & ~table.late[rows]].tolist():
            state.miss(row, now)
        this = Round(table, self.settings, now, state.unavailable, state.closing, state.devices)
        if not len(this):
            self._next_round = None
            return
        state.answers += check_stalls(this)
        view = forecast(
            this, state.curves, state.rates, chooses_sizes=state.chooses_sizes, knows_names=state.knows_names
        )
        plan, caps = state.plan(this, view)
        allocation = allocate(this, plan, caps, state.rates)
        companies = state.forming.form(this, plan, view, allocation.share, allocation.homes, allocation.memory, caps)
        allocation = allocation._replace(share=companies.share, companies=companies)
        state.answers += grant(this, plan, allocation, state.rates)
        # Verdicts come last: the reason of one may be that of the grant, which must be the new one.
        state.answers += judge(this, view, companies.finish, state.curves)
        table.finish[this.rows[~this.planned]] = np.nan
        self._next_round = this.next_round(plan.replan_at)

    # ------------------------------------------------------------------------------------------------ queries

    def names(self, *, active: bool = False) -> list[str]:
        """Return the names of all jobs in the order of submission, or only of those that have not ended."""
        return self._state.names(active=active)

    def directive(self, name: str) -> Directive | None:
        """Return the current directive of a job; None if it was never submitted."""
        found = self._state.find(name)
        return None if found is None else found[0].directives[found[1]]

    def status(self) -> list[JobStatus]:
        """Return the status of every job as of the last event, in the order of submission."""
        return self._state.status(self._now)

    def last(self, name: str) -> JobStatus:
        """Return the status of the newest job of a name; a KeyError if there is none."""
        return self._state.job_status(*self._where(name), self._now)

    def job_forecast(self, name: str) -> JobForecast | None:
        """Return what the user of a job is told of its forecast; None if it was never submitted."""
        return None if self._state.find(name) is None else job_forecast(self.last(name), self._now)

    def ended_runs(self, names: Collection[str] | None = None) -> list[EndedRun]:
        """Return what jobs did that have ended: the newest ones of some names, or all that are remembered."""
        return ended_runs(self._state, names)

    def measured_paces(self, names: Collection[str] | None = None) -> list[EarlierPace]:
        """Return how fast trainings were beside others: those of the kinds of some jobs, or all."""
        places = [found for name in names or () if (found := self._state.find(name)) is not None]
        families = None if names is None else {table.jobs[row].family for table, row in places}
        return self._state.forming.paces.measured(families)

    def incarnation(self, name: str) -> int:
        """Return the current incarnation of a job; a KeyError if there is none."""
        table, row = self._where(name)
        return int(table.incarnation[row])

    def checkpoints(self, name: str) -> tuple[Checkpoint, ...]:
        """Return the checkpoints that a job may resume from, the newest first; a KeyError if there is none."""
        table, row = self._where(name)
        return table.checkpoints[row]

    def job(self, name: str) -> Job:
        """Return a job with its terms as they are now; a KeyError if there is none."""
        table, row = self._where(name)
        return table.jobs[row]

    def speedup(self, name: str) -> SpeedUp:
        """Return the throughput of a job by number of devices; a KeyError if there is none."""
        table, row = self._where(name)
        return table.speedups[row]

    def forecast_work(self, name: str) -> FloatArray:
        """Return quantiles of the batches that a job with a loss to reach will need, shape ``(20,)``; NaN for unknown.

        Raises:
            KeyError: If there is no such job that has not ended.
        """
        if (row := self._table.find_active(name)) is None:
            raise KeyError(name)
        return forecast_work(self._table, self._state.curves, row)

    @property
    def controllers(self) -> Mapping[Asker, Controller]:
        """What decides beside the policy."""
        return self._state.controllers

    def describe_controllers(self) -> dict[str, Any]:
        """Return what controllers say of themselves, as JSON values by name; one that says nothing is left out."""
        return {
            str(by): controller.describe()
            for by, controller in self._state.controllers.items()
            if isinstance(controller, Describes) and by not in self._state.failed
        }

    def shares(self) -> list[dict[str, Any]]:
        """Return what each group of jobs has and may have, as JSON values; none if nothing divides the pool."""
        division, table = self._state.division, self._table
        if division is None:
            return []
        return division.divider.describe([table.jobs[row] for row in table.active_rows()], self._now)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Name of the kind of each device; empty while all are alike."""
        return self._state.devices.kinds

    @property
    def unavailable_devices(self) -> frozenset[int]:
        """Devices that cannot have a worker now."""
        return self._state.unavailable

    @property
    def now(self) -> float:
        """Scheduler time of the last event."""
        return self._now

    @property
    def must_continue(self) -> bool:
        """Whether a controller has a record that a later pool of the folder has to continue."""
        return any(getattr(controller, "must_continue", False) for controller in self.controllers.values())

    def published(self, by: str) -> PublishedLevel | None:
        """Return what a controller wants done outside the scheduler, a level; None if it publishes none."""
        controller, table = self.controllers.get(Asker(by)), self._table
        if not isinstance(controller, Publishes):
            return None
        is_idle = not table.active[: len(table)].any()
        return controller.published(failed=by in self._state.failed, idle=is_idle)

    def placements(self) -> list[Placement]:
        """Return the launched jobs that should have a worker on each of their devices."""
        return placements(self._table, self.settings.device_memory)

    def check(self) -> None:
        """Check the invariants, for tests after every event; an AssertionError names one that does not hold."""
        self._state.check(self._next_round, self._now)

    def _where(self, name: str) -> tuple[JobTable, int]:
        if (found := self._state.find(name)) is None:
            raise KeyError(name)
        return found
