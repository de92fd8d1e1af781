"""The scheduler: one door, pure.

Rules

1. All that moves it goes through ``handle(event, now)``; what it wants done comes back as directives.
2. It reads no clock and draws no random number: the same events at the same times give the same directives.
3. ``wakeup()`` says when it wants to be asked again (a :class:`Tick`). Whoever forgets loses time, not correctness.
4. It plans all jobs together. A round costs O(n log n): arrays throughout, one Python object for each changed grant.
5. Nothing a worker sends can raise here: what is stale, repeated or unknown is answered, not obeyed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lightning_core.core.answers import (
    Alert,
    Answer,
    Directive,
    End,
    Grant,
    JobForecast,
    JobStatus,
    Placement,
    Verdict,
    VerdictChanged,
)
from lightning_core.core.arrays import BoolArray, IntArray
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
)
from lightning_core.core.events import (
    BadLosses,
    Checkpoint,
    Close,
    DevicesUnavailable,
    Event,
    ExitCause,
    Horizon,
    LaunchTimedOut,
    Report,
    SelectorFeedback,
    Submit,
    Tick,
    WorkerExited,
    WorkersLost,
)
from lightning_core.core.jobs import Job, OnMiss, OnNan
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import ChoosesSizes, LooksAtCurves
from lightning_core.core.reasons import Reason, index
from lightning_core.core.speedup import SpeedUp
from lightning_core.core.targets import LossTarget, is_loss
from lightning_core.estimators.above_floor import AboveFloor
from lightning_core.market.selector import Selector
from lightning_core.scheduler.alerts import forgive_absence, look_at_losses, look_for_stalls
from lightning_core.scheduler.endings import unmet
from lightning_core.scheduler.forecasting import forecast, judge
from lightning_core.scheduler.grants import deal, grant
from lightning_core.scheduler.invariants import check
from lightning_core.scheduler.retry_budgets import MOST, MOST_UNREADY, WORDS, final, pause, sound
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.table import INFEASIBLE, MISSED, NONE, UNKNOWN, JobTable

__all__ = ["Scheduler", "Settings"]

# How far ahead of a missing cell others are kept.
MOST_WAITING = 1000
# A round that a policy asks for comes after such a part of a period at the earliest.
SOON = 0.1


class Scheduler:
    """Decides what each job may hold.

    Args:
        settings: policy, estimator and constants.

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
        self._policy = self.settings.make_policy()
        self._curves = AboveFloor(self.settings.make_estimator)
        self._banks = list(self._policy.banks) if isinstance(self._policy, LooksAtCurves) else []
        self._chooses_sizes = isinstance(self._policy, ChoosesSizes)
        self._table = JobTable(self.settings.window)
        self._now = 0.0
        self._next_round: float | None = None
        self._closing = False
        terms = self.settings.market_terms()
        self._selector = None if terms is None else Selector(terms.policies, seed=terms.seed)
        self._awaiting_feedback: dict[str, float] = {}
        self.gone: frozenset[int] = frozenset()
        """Devices on which no worker can be had for now."""
        self._changed: list[Answer] = []

    # ------------------------------------------------------------------------------------------------ the door

    def handle(self, event: Event, now: float) -> list[Answer]:
        """Takes in what has happened; answers what must change.

        Args:
            event: what has happened.
            now: scheduler time in seconds; a time before the last one counts as the last one.

        Returns:
            The directives that are new, for a report of a worker under an old grant the newest of its job, and a
            notice for each job of which something else is believed than before.
        """
        forgive_absence(self._table, self.settings, now - self._now)
        self._now = now = max(now, self._now)
        self._changed = []
        match event:
            case Tick():
                self._round(now)
            case Report():
                self._report(event, now)
            case Submit(jobs):
                self._submit(jobs, now)
            case WorkerExited():
                self._worker_left(event, now)
            case LaunchTimedOut():
                self._unready(event, now)
            case WorkersLost():
                self._workers_lost(now)
            case DevicesUnavailable(devices):
                self.gone = frozenset(devices)
                self._round(now)
            case Close():
                self._closing = True
                self._round(now)
            case SetDeadline() | SetDevices() | SetLocation() | SetTerms():
                self._change(event, now)
            case SelectorFeedback():
                self._learn(event)
            case Cancel() | Pause() | Resume():
                self._steer(event, now)
        return self._changed

    def wakeup(self) -> float | None:
        """When a :class:`Tick` is wanted, scheduler time; None while there is nothing to do."""
        return self._next_round

    def directive(self, name: str) -> Directive | None:
        """What holds for a job now; None for one that was never submitted."""
        row = self._table.row_of.get(name)
        return None if row is None else self._table.directives[row]

    # ------------------------------------------------------------------------------------------------ events

    def _submit(self, jobs: tuple[Job, ...], now: float) -> None:
        table = self._table
        for job in jobs:
            before = table.row_of.get(job.name)
            if before is not None and table.active[before]:  # submitted before: the first one stands
                self._changed.append(table.directives[before])
                continue
            version, incarnation = 0, 1
            if before is not None:  # versions and incarnations of a name only grow
                version, incarnation = table.directives[before].version, int(table.incarnation[before]) + 1
            there = len(self.settings.devices_at(job.location))
            size = min(job.max_devices, there)
            if job.sizes:
                size = max((n for n in job.sizes if n <= size), default=size)
            grant = Grant(job.name, version, 0.0, (), Reason("submitted"))
            row = table.add(job, now, size, grant, incarnation)
            if self._selector is not None:
                self._awaiting_feedback.pop(job.name, None)  # its name means another one now
                table.spot[row] = _chosen(self._selector, row)
            if not there:
                self._end(row, now, Verdict.CANCELLED, Reason("no_such_location", text=job.location))
            elif size < job.min_devices:
                self._end(row, now, Verdict.CANCELLED, Reason("too_large", (job.min_devices, there), _at(job)))
            elif job.device is not None and not 0 <= job.device < self.settings.devices:
                self._end(row, now, Verdict.CANCELLED, Reason("no_such_device", (job.device, self.settings.devices)))
            elif (refusal := self.settings.refusal(job.target)) is not None:
                self._end(row, now, Verdict.CANCELLED, refusal)
            else:
                self._aim(row)
        self._curves.grow(len(table))
        for bank in self._banks:
            bank.grow(len(table))
        self._round(now)

    def _learn(self, lesson: SelectorFeedback) -> None:
        """The next job's policy is chosen by what this one has taught."""
        if self._selector is None or self._awaiting_feedback.pop(lesson.job, None) is None:
            return
        if len(lesson.utilities) == len(self._selector.names) and all(0 <= one <= 1 for one in lesson.utilities):
            self._selector.update(np.array(lesson.utilities))

    def _report(self, report: Report, now: float) -> None:
        table = self._table
        row = table.row_of.get(report.job)
        if row is None:
            self._changed.append(End(report.job, 0, Verdict.CANCELLED, Reason("unknown_job")))
            return
        if report.incarnation != table.incarnation[row]:
            self._changed.append(End(report.job, 0, Verdict.CANCELLED, Reason("superseded")))
            return
        if table.active[row] and report.number > table.last_report[row] and _countable(report):
            table.progress(row, report, now)
            table.obeys[row] = report.version >= table.directives[row].version
            table.accept(row, report.saved)
            sooner = table.set_horizon(row, report.horizon, now)
            self._take_cells(row, report)
            alerts, diverged = look_at_losses(table, row, report.bad)
            self._changed += alerts
            if table.is_met(row):
                self._met(row, now)
                self._round(now)
            elif diverged and table.jobs[row].on_nan is not OnNan.CONTINUE:
                self._diverged(row, now)
                self._round(now)
            elif sooner and table.exact[row] and table.goal[row] > table.ends_at[row]:
                self._round(now)  # nothing has to be seen of it to know that it will not do
            if table.incarnation[row] > report.incarnation:  # it was given up by what it has just said
                self._changed.append(End(report.job, 0, Verdict.CANCELLED, Reason("superseded")))
                return
        directive = table.directives[row]
        if directive.version > report.version and directive not in self._changed:
            self._changed.append(directive)

    def _take_cells(self, row: int, report: Report) -> None:
        """Consumes cells in their order; those ahead of a missing one wait for it."""
        table = self._table
        waiting = table.waiting[row]
        for number, batches, value in sorted(report.cells):
            if 0 <= number - int(table.next_cell[row]) < MOST_WAITING:
                waiting.setdefault(number, (batches, value))
            while (following := waiting.pop(int(table.next_cell[row]), None)) is not None:
                table.next_cell[row] += 1
                self._take_cell(row, *following)
                if not table.exact[row] and table.is_met(row):
                    return  # what came after it does not count

    def _take_cell(self, row: int, batches: int, value: float) -> None:
        table = self._table
        loss = table.jobs[row].target.falling(value)
        if not is_loss(value):
            table.rejected_cells[row] += 1
        elif table.last_position[row] < batches <= MOST:  # else seen before, by an incarnation that did not save
            table.add_cell(row, batches, value)
            self._curves.observe(row, float(batches), float(loss))
            if self._banks and loss > 0:  # they are of positive losses
                cell = np.array([row]), np.array([float(batches)]), np.array([float(loss)])
                for bank in self._banks:
                    bank.observe(*cell)

    def _aim(self, row: int) -> None:
        """Say to the estimator what a row's loss must come down to."""
        if isinstance(target := self._table.jobs[row].target, LossTarget):
            self._curves.aim(row, target.threshold)

    def _met(self, row: int, now: float) -> None:
        spare = float(self._table.deadline[row] - now)
        if spare >= 0:
            self._end(row, now, Verdict.MET, Reason("target_met", (spare,)))
        else:
            self._end(row, now, Verdict.MISSED, Reason("target_met_late", (-spare,)))

    def _worker_left(self, event: WorkerExited, now: float) -> None:
        table = self._table
        row = table.row_of.get(event.job)
        if row is None or event.incarnation != table.incarnation[row] or not table.active[row]:
            return
        if sound(event.saved):
            table.accept(row, event.saved)
        match event.cause:
            case ExitCause.RELEASED if table.launched[row]:
                table.come_back(row)
            case ExitCause.DONE | ExitCause.RELEASED:
                self._end(row, now, Verdict.MISSED, self._unmet(row, "training_ended", event.detail))
            case ExitCause.INTERRUPTED:
                self._end(row, now, Verdict.MISSED, self._unmet(row, "interrupted", event.detail or "a signal"))
            case _:
                self._fault(row, event.cause, event.detail, now)
        self._round(now)

    def _fault(self, row: int, cause: ExitCause, detail: str, now: float) -> None:
        """A job that was launched comes back as often as it may, after a pause; any other is over."""
        table = self._table
        job, text = table.jobs[row], detail.strip().rsplit("\n", 1)[-1] or "the worker died"
        table.details[row] = detail
        times = table.count(row, cause)
        over = final(cause, job, times, text) if table.launched[row] else Reason("crashed", text=text)
        if over is not None:
            self._end(row, now, Verdict.CRASHED, over)
            return
        table.set_back(row, WORDS[cause], now, text)
        if cause is not ExitCause.PREEMPTED:
            table.back_at[row] = now + pause(job.name, int(table.in_a_row[row]))

    def _diverged(self, row: int, now: float) -> None:
        """A job whose losses stay NaN or infinite is over, or goes back to what it saved before them."""
        table = self._table
        since = f"{table.bad[row].since:,}"
        if table.jobs[row].on_nan is OnNan.STOP or not table.launched[row]:
            self._end(row, now, Verdict.CRASHED, self._unmet(row, "diverged", since))
            return
        table.errors[row] += 1
        if table.errors[row] > max(table.jobs[row].retries, 1):
            self._end(row, now, Verdict.CRASHED, self._unmet(row, "diverged_again", since))
            return
        table.checkpoints[row] = tuple(save for save in table.checkpoints[row] if table.is_good(row, save))
        del table.bad[row], table.alerts[row]
        table.set_back(row, "diverged_back", now, since)
        table.back_at[row] = now + pause(table.names[row], int(table.in_a_row[row]))
        self._changed.append(Alert(table.names[row], table.faults[row]))

    def _unready(self, event: LaunchTimedOut, now: float) -> None:
        """What it was granted is given back, so that it blocks nobody, and it is tried again after a pause."""
        table = self._table
        row = table.row_of.get(event.job)
        if row is None or event.incarnation != table.incarnation[row] or not table.active[row]:
            return
        if not table.launched[row] or not table.home[row] or table.last_report[row]:
            return  # it was taken back already, or they came after all
        table.unready[row] += 1
        table.resize_failed(row, now)
        if table.unready[row] >= MOST_UNREADY:
            tries = float(table.unready[row])
            self._end(row, now, Verdict.CRASHED, Reason("unschedulable", (tries,), event.detail))
        else:
            table.faults[row] = Reason("unready", (), event.detail)
            table.back_at[row] = now + pause(event.job, int(table.unready[row]))
        self._round(now)

    def _workers_lost(self, now: float) -> None:
        table = self._table
        self._closing = False
        for row in table.active_rows().tolist():
            if table.launched[row] and table.last_report[row]:
                table.set_back(row, "pool_lost", now)
            elif table.launched[row]:
                table.come_back(row)
            else:  # a plain script joins again by itself, under its name
                self._end(row, now, Verdict.CANCELLED, Reason("workers_lost"))
        self._round(now)

    def _steer(self, event: Cancel | Pause | Resume, now: float) -> None:
        table = self._table
        row = table.row_of.get(event.job)
        if row is None or not table.active[row]:
            return
        match event:
            case Cancel():
                self._end(row, now, Verdict.CANCELLED, self._unmet(row, "cancelled"))
            case Pause(_, release, by):
                table.paused[row], table.paused_by[row] = True, by
                table.code[row] = -1  # the reason of its grant names who asked
                table.evicted[row] = release and table.launched[row]
            case Resume():
                table.paused[row] = table.evicted[row] = False
        self._round(now)

    def _change(self, event: Change, now: float) -> None:
        """Change one thing of a job; what does not fit the job or the pool changes nothing."""
        table = self._table
        row = table.row_of.get(event.job)
        if row is None or not table.active[row]:
            return
        try:
            job = self._changed_job(row, event, now)
        except ValueError:
            return
        if isinstance(event, SetDeadline):
            table.deadline[row] = event.deadline_at(float(table.submitted[row]), now)
        table.set_terms(row, job)
        if isinstance(event, SetDevices | SetLocation):
            self._set_size(row, event)
        self._aim(row)
        if table.late[row] and (table.deadline[row] > now or job.on_miss is OnMiss.STOP):
            table.late[row] = False
            table.belief[row] = UNKNOWN
        if table.is_met(row):
            self._met(row, now)
        self._round(now)

    def _changed_job(self, row: int, event: Change, now: float) -> Job:
        """Return the job as the command would have it.

        Raises:
            ValueError: If the command does not fit the job or the pool.
        """
        table = self._table
        job = table.jobs[row]
        match event:
            case SetDeadline():
                return event.apply(job, float(table.submitted[row]), now)
            case SetLocation(location=location):
                if not self._sizes_at(row, location):
                    raise ValueError(str(Reason("no_such_location", text=location)))
                return event.apply(job)
            case SetTerms():
                job = event.apply(job)
                if (refusal := self.settings.refusal(job.target)) is not None:
                    raise ValueError(str(refusal))
        return job

    def _sizes_at(self, row: int, location: str) -> list[int]:
        """Return the numbers of devices that a job can train on at a location."""
        there = len(self.settings.devices_at(location))
        return [size for size in self._table.speedups[row].sizes if size <= there]

    def _set_size(self, row: int, event: SetDevices | SetLocation) -> None:
        """Set the device count of a job: as requested, or as many as before if its location has as many."""
        table, devices = self._table, event.devices
        sizes = self._sizes_at(row, table.jobs[row].location)
        wanted = devices or int(table.told_size[row] or table.size[row])
        if devices is None and wanted in (*sizes, NONE):
            return
        table.told_size[row] = NONE if devices == 0 else max((n for n in sizes if n <= wanted), default=sizes[0])
        table.told_by[row] = event.by
        table.code[row] = -1  # the reason of its grant names who asked

    def check_command(self, event: Command, now: float) -> None:
        """Check that a command would change something, for whoever wants to refuse it otherwise.

        Raises:
            ValueError: If the job is unknown, or the command does not fit the job or the pool.
        """
        row = self._table.row_of.get(event.job)
        if row is None:
            raise ValueError(f"no job {event.job!r}")
        if isinstance(event, Change) and self._table.active[row]:
            self._changed_job(row, event, max(now, self._now))

    def _unmet(self, row: int, ended_by: str, text: str = "") -> Reason:
        return unmet(self._table, self._curves, self.settings, row, ended_by, text)

    def _end(self, row: int, now: float, verdict: Verdict, reason: Reason) -> None:
        table = self._table
        end = End(table.jobs[row].name, table.directives[row].version + 1, verdict, reason)
        table.end(row, now, end)
        self._changed.append(end)
        if self._selector is not None:
            self._awaiting_feedback[end.job] = max(float(table.deadline[row]), now)

    # ------------------------------------------------------------------------------------------------ the round

    def _round(self, now: float) -> None:
        """Ends what is over, forecasts all, plans all, deals the devices out, grants what has changed."""
        table = self._table
        rows = table.active_rows()
        over = rows[(table.deadline[rows] <= now) & ~table.late[rows]]
        if len(over):
            for row in over.tolist():
                self._miss(row, now)
            rows = table.active_rows()
        if not len(rows):
            self._next_round = None
            return
        self._changed += look_for_stalls(table, self.settings, rows, now)
        devices = max(self.settings.devices - len(self.gone), 1)  # the last one may come back
        view = forecast(table, self._curves, self.settings, rows, devices, self._chooses_sizes, now)
        begun = table.wakes(rows) <= now
        apart = table.paused[rows] | ~begun | (table.late[rows] & table.holds[rows]) | (table.told_size[rows] == NONE)
        if self._closing:
            apart |= table.launched[rows]
        planned = ~apart & ~table.late[rows]
        plan = self._plan(view, planned, apart, now)
        out = table.evicted[rows] | (self._closing & table.launched[rows]) | (table.back_at[rows] > now)
        share, homes = deal(table, self.settings, rows, plan, apart, out, self.gone, now)
        self._changed += grant(table, self.settings, rows, plan, share, homes, apart, self.gone, self._closing, now)
        # Afterwards: a verdict may be explained by the grant, and by no other than the one that holds now. A job that
        # is to stand still is judged as if it went on alone from now.
        judged = planned | (~table.late[rows] & (table.paused[rows] | (table.told_size[rows] == NONE)))
        finish = np.where(planned, plan.finish, now + view.work)[judged]
        self._changed += judge(table, self.settings, rows[judged], view.exact[judged], finish, now)
        table.finish[rows[~planned]] = np.nan
        self._next_round = self._next(rows, planned, begun, plan.again, now)

    def _next(self, rows: IntArray, planned: BoolArray, begun: BoolArray, again: float, now: float) -> float | None:
        """A round each period while something moves, or sooner; else when a deadline passes or a job may begin."""
        table = self._table
        soonest = float(
            np.concatenate([[np.inf], table.deadline[rows[~table.late[rows]]], table.wakes(rows[~begun])]).min()
        )
        if planned.any() or table.share[rows].any():
            soonest = min(soonest, now + self.settings.period, max(again, now + SOON * self.settings.period))
        return soonest if soonest < np.inf else None

    def _miss(self, row: int, now: float) -> None:
        """The deadline has passed."""
        table = self._table
        if table.jobs[row].on_miss is OnMiss.STOP:
            given_up = table.belief[row] == INFEASIBLE
            self._end(row, now, Verdict.MISSED, self._unmet(row, "never_feasible" if given_up else "deadline_passed"))
        else:
            table.late[row] = True
            table.belief[row] = MISSED
            self._changed.append(VerdictChanged(table.names[row], Verdict.MISSED, table.reason(row)))

    def _plan(self, view: JobView, planned: BoolArray, apart: BoolArray, now: float) -> Plan:
        """The policy's plan for those it may plan; behind them those whose deadline has passed, shortest work first."""
        if planned.all():
            return self._policy.plan(view, now)
        n = len(view)
        late = np.flatnonzero(~planned & ~apart)
        late = late[np.argsort(view.work[late], kind="stable")]  # NaN last
        share, finish, numbers = np.zeros(n), np.full(n, np.nan), np.zeros((n, 2))
        codes = np.full(n, index("late_goes_on"))
        waiting = codes.copy()
        among = np.flatnonzero(planned)
        order, fill = among, True
        size = capped = None
        again = np.inf
        if len(among):
            part = self._policy.plan(view.only(among), now)
            order, fill, again = among[part.order], part.fill, part.again
            if part.size is not None:
                # Nothing is filled up behind such a plan: who goes on late wants the least that it can train on.
                share[late] = 1.0
                size = np.array([speed.sizes[0] for speed in view.speedup], np.int64)
                size[among] = part.size
            if part.capped is not None:
                capped = np.zeros(n, np.bool_)
                capped[among] = part.capped
            share[among], finish[among], numbers[among] = part.share, part.finish, part.numbers
            codes[among], waiting[among] = part.codes, part.waiting
        order = np.concatenate([order, late, np.flatnonzero(apart)])
        return Plan(order, share, finish, codes, waiting, numbers, fill, size, capped, again)

    # ------------------------------------------------------------------------------------------------ to look at

    def names(self, *, active: bool = False) -> list[str]:
        """Jobs in the order of submission, all or only those not ended."""
        table = self._table
        return [name for name, row in table.row_of.items() if not active or table.active[row]]

    def status(self) -> list[JobStatus]:
        """Every job as of the last event, in the order of submission."""
        return [self._table.status(row, self._now) for row in range(len(self._table))]

    def job_forecast(self, name: str) -> JobForecast | None:
        """What may be told to the user of a job; None if it was never submitted."""
        row = self._table.row_of.get(name)
        if row is None:
            return None
        status = self._table.status(row, self._now)
        alert = "" if status.alert is None else str(status.alert)
        if status.finish is None:
            return JobForecast(status.verdict, str(status.reason), status.share, None, None, alert=alert)
        early, likely, late = (max(end - self._now, 0.0) for end in status.finish)
        spare = status.deadline - status.finish[1]
        return JobForecast(status.verdict, str(status.reason), status.share, likely, spare, early, late, alert)

    def incarnation(self, name: str) -> int:
        """Of a job that was submitted: which life of it may speak."""
        return int(self._table.incarnation[self._table.row_of[name]])

    def checkpoints(self, name: str) -> tuple[Checkpoint, ...]:
        """Checkpoints that a job which was submitted may go on from, the newest first: no others, wherever they lie."""
        return self._table.checkpoints[self._table.row_of[name]]

    def job(self, name: str) -> Job:
        """One that was submitted, with its terms as they are now."""
        return self._table.jobs[self._table.row_of[name]]

    def speedup(self, name: str) -> SpeedUp:
        """How fast a job that was submitted is on how many devices."""
        return self._table.speedups[self._table.row_of[name]]

    @property
    def awaiting_feedback(self) -> Mapping[str, float]:
        """Jobs that are over, of a pool with a market, and have not taught anything yet; when each deadline is over."""
        return self._awaiting_feedback

    def last(self, name: str) -> JobStatus:
        """The newest of a name that was submitted."""
        return self._table.status(self._table.row_of[name], self._now)

    def placements(self) -> list[Placement]:
        """The launched jobs that should have a worker on each of their devices."""
        table = self._table
        rows = table.active_rows()
        return [
            Placement(table.names[row], int(table.incarnation[row]), table.home[row])
            for row in rows[table.launched[rows]].tolist()
            if table.home[row]
        ]

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken; tests call it after every step."""
        check(self._table, self.settings, self.gone, self._next_round, self._now)


def _at(job: Job) -> str:
    return f" at {job.location}" if job.location else ""


def _chosen(selector: Selector, number: int) -> Reason:
    """A draw by the weights, and how much weight it has."""
    name = selector.choose(number)
    return Reason("spot_policy", (float(selector.weights[selector.names.index(name)]), selector.feedback_count), name)


def _countable(report: Report) -> bool:
    """Whether the numbers of a report can be counted with: whoever sends others has lost count."""
    batches, _, seconds = report.horizon or Horizon()
    since, cells, _ = report.bad or BadLosses(0)
    counts = (report.number, report.batches, report.began, report.rejected, report.busy, batches or 0, seconds or 0.0,
              since, cells)  # fmt: skip
    return all(0 <= count <= MOST for count in counts) and sound(report.saved)
