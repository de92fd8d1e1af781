"""The scheduler: one door, pure.

Rules

1. All that moves it goes through ``handle(event, now)``; what it wants done comes back as directives.
2. It reads no clock and draws no random number: the same events at the same times give the same directives.
3. ``wakeup()`` says when it wants to be asked again (a :class:`Tick`). Whoever forgets loses time, not correctness.
4. It plans all jobs together. A round costs O(n log n): arrays throughout, one Python object for each changed grant.
5. Nothing a worker sends can raise here: what is stale, repeated or unknown is answered, not obeyed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from lightning_core.estimators import ESTIMATORS
from lightning_core.policies import POLICIES
from lightning_core.protocols import Estimator, Policy
from lightning_core.reasons import CODES, Reason
from lightning_core.table import JobTable
from lightning_core.types import (
    BatchTarget,
    Cancel,
    Directive,
    End,
    Event,
    FloatArray,
    Grant,
    IntArray,
    Job,
    JobStatus,
    JobView,
    Report,
    Submit,
    Tick,
    Verdict,
    WorkerLeft,
)

# One device for now: a grant names it.
DEVICES = (0,)
# Cells that may arrive ahead of a missing one before they are dropped (whoever sent them sends them again).
MOST_WAITING = 1000


@dataclass(frozen=True, slots=True)
class Settings:
    """All that decides how a scheduler behaves; written to the journal, so that a replay builds the same one.

    Args:
        policy: a name in :data:`lightning_core.policies.POLICIES`.
        policy_args: its arguments.
        estimator: a name in :data:`lightning_core.estimators.ESTIMATORS`.
        estimator_args: its arguments.
        period: seconds between two rounds.
        window: cells whose mean must come down to a target loss.
        judge_after: cells that a loss curve must have shown before its job is given a verdict.

    Raises:
        ValueError: if a name is unknown or an argument out of its range.
    """

    policy: str = "edf"
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    estimator: str = "least_squares"
    estimator_args: Mapping[str, Any] = field(default_factory=dict)
    period: float = 1.0
    window: int = 5
    judge_after: int = 10

    def __post_init__(self) -> None:
        if not self.period > 0:
            raise ValueError(f"period must be positive, got {self.period}")
        if self.window < 1:
            raise ValueError(f"window must be at least 1 cell, got {self.window}")
        if self.judge_after < 0:
            raise ValueError(f"judge_after must be at least 0 cells, got {self.judge_after}")
        self.make_policy()
        self.make_estimator()

    def make_policy(self) -> Policy:
        policy: Policy = _make("policy", POLICIES, self.policy, self.policy_args)
        return policy

    def make_estimator(self) -> Estimator:
        estimator: Estimator = _make("estimator", ESTIMATORS, self.estimator, self.estimator_args)
        return estimator

    def to_dict(self) -> dict[str, Any]:
        return {f.name: dict(v) if isinstance(v := getattr(self, f.name), Mapping) else v for f in fields(self)}


def _make(kind: str, known: Mapping[str, Callable[..., Any]], name: str, args: Mapping[str, Any]) -> Any:
    if name not in known:
        raise ValueError(f"{kind} must be one of {', '.join(sorted(known))}, got {name!r}")
    try:
        return known[name](**args)
    except TypeError as error:
        raise ValueError(f"{kind} {name}: {error}") from None


class Scheduler:
    """Decides what each job may hold.

    Args:
        settings: policy, estimator and constants.

    Example::

        >>> scheduler = Scheduler(Settings(policy="fifo"))
        >>> [grant] = scheduler.handle(Submit((Job("a", deadline=60.0, target=BatchTarget(100)),)), now=0.0)
        >>> grant.duty, str(grant.reason)
        (1.0, 'first in line')
        >>> [end] = scheduler.handle(Report("a", 1, number=1, version=1, batches=100, busy=8.0), now=9.0)
        >>> end.verdict, str(end.reason)
        (<Verdict.MET: 'met'>, 'target met with 51.0s to spare')
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._policy = self.settings.make_policy()
        self._estimator = self.settings.make_estimator()
        self._table = JobTable(self.settings.window)
        self._now = 0.0
        self._next_round: float | None = None
        self._changed: list[Directive] = []

    # ------------------------------------------------------------------------------------------------ the door

    def handle(self, event: Event, now: float) -> list[Directive]:
        """Takes in what has happened; answers what must change.

        Args:
            event: what has happened.
            now: scheduler time in seconds; a time before the last one counts as the last one.

        Returns:
            The directives that are new, and for a report of a worker under an old grant the newest of its job.
        """
        self._now = now = max(now, self._now)
        self._changed = []
        match event:
            case Tick():
                self._round(now)
            case Report():
                self._report(event, now)
            case Submit(jobs):
                self._submit(jobs, now)
            case WorkerLeft():
                self._worker_left(event, now)
            case Cancel(name):
                self._cancel(name, now)
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
            if job.name in table.row_of:  # submitted before: the first one stands
                self._changed.append(table.directives[table.row_of[job.name]])
            else:
                table.add(job, now, Grant(job.name, 0, 0.0, (), Reason("submitted")))
        self._estimator.grow(len(table))
        self._round(now)

    def _report(self, report: Report, now: float) -> None:
        table = self._table
        row = table.row_of.get(report.job)
        if row is None:
            self._changed.append(End(report.job, 0, Verdict.CANCELLED, Reason("unknown_job")))
            return
        if report.incarnation != table.incarnation[row]:
            self._changed.append(End(report.job, 0, Verdict.CANCELLED, Reason("superseded")))
            return
        if table.active[row] and report.number > table.last_report[row]:
            table.last_report[row] = report.number
            table.progress(row, max(report.batches, 0), max(report.busy, 0.0), report.rejected, report.began)
            self._take_cells(row, report)
            if self._is_met(row):
                spare = float(table.deadline[row] - now)
                if spare >= 0:  # else the round finds that the deadline has passed
                    self._end(row, now, Verdict.MET, Reason("target_met", (spare,)))
                self._round(now)
        directive = table.directives[row]
        if directive.version > report.version and directive not in self._changed:
            self._changed.append(directive)

    def _take_cells(self, row: int, report: Report) -> None:
        """Consumes cells in their order; those ahead of a missing one wait for it."""
        table = self._table
        waiting = table.waiting[row]
        for number, batches, loss in report.cells:
            if number > table.cells[row] and len(waiting) < MOST_WAITING:
                waiting.setdefault(number, (batches, loss))
        at = np.array([row])
        while (cell := waiting.pop(int(table.cells[row]) + 1, None)) is not None:
            batches, loss = cell
            table.cells[row] += 1
            if batches > table.last_position[row] and 0.0 < loss < np.inf:
                table.last_position[row] = batches
                table.recent[row].append(loss)
                self._estimator.observe(at, np.array([float(batches)]), np.array([float(loss)]))
            else:
                table.rejected_cells[row] += 1

    def _is_met(self, row: int) -> bool:
        table = self._table
        target = table.jobs[row].target
        if isinstance(target, BatchTarget):
            return bool(table.batches[row] >= target.batches)
        recent = table.recent[row]
        return len(recent) == self.settings.window and sum(recent) / len(recent) <= target.at_most

    def _worker_left(self, event: WorkerLeft, now: float) -> None:
        table = self._table
        row = table.row_of.get(event.job)
        if row is None or event.incarnation != table.incarnation[row] or not table.active[row]:
            return
        if event.crashed:
            table.details[row] = event.detail
            last_line = event.detail.strip().rsplit("\n", 1)[-1]
            self._end(row, now, Verdict.CRASHED, Reason("crashed", text=last_line or "the worker died"))
        else:
            self._end(row, now, Verdict.MISSED, Reason("training_ended"))
        self._round(now)

    def _cancel(self, name: str, now: float) -> None:
        row = self._table.row_of.get(name)
        if row is not None and self._table.active[row]:
            self._end(row, now, Verdict.CANCELLED, Reason("cancelled"))
            self._round(now)

    def _end(self, row: int, now: float, verdict: Verdict, reason: Reason) -> None:
        table = self._table
        end = End(table.jobs[row].name, table.directives[row].version + 1, verdict, reason)
        table.end(row, now, end)
        self._changed.append(end)

    # ------------------------------------------------------------------------------------------------ the round

    def _round(self, now: float) -> None:
        """Ends what is over, forecasts all, plans all, grants what has changed."""
        table = self._table
        rows = table.active_rows()
        over = rows[table.deadline[rows] <= now]
        if len(over):
            for row in over.tolist():
                given_up = table.verdict(row) is Verdict.INFEASIBLE
                verdict = Verdict.INFEASIBLE if given_up else Verdict.MISSED
                self._end(row, now, verdict, Reason("never_feasible" if given_up else "deadline_passed"))
            rows = table.active_rows()
        if not len(rows):
            self._next_round = None
            return
        view = self._forecast(rows)
        plan = self._policy.plan(view, now)
        self._judge(rows, view, plan.finish, now)
        self._grant(rows, plan.duty, plan.codes, plan.numbers)
        self._next_round = min(now + self.settings.period, float(view.deadline.min()))

    def _forecast(self, rows: IntArray) -> JobView:
        """Work left: exact for batches, forecast with its uncertainty for a loss."""
        table = self._table
        batches = table.batches[rows].astype(np.float64)
        exact = table.exact[rows]
        low = np.where(exact, table.goal[rows] - batches, np.nan)
        mid, high = low.copy(), low.copy()
        forecast = ~exact
        if forecast.any():
            at = rows[forecast]
            passage = self._estimator.first_passage(at, table.goal[at])
            for left, position in zip((low, mid, high), passage, strict=True):
                left[forecast] = position - batches[forecast]
        # An unfinished job has work left, whatever its curve says.
        low, mid, high = (np.maximum(left, 1.0) for left in (low, mid, high))
        throughput = table.throughput(rows)
        with np.errstate(invalid="ignore"):
            work = mid / throughput
            table.work_low[rows] = low / throughput
            table.work_mid[rows] = work
            table.work_high[rows] = high / throughput
        return JobView(rows, table.deadline[rows], table.batches[rows], table.cells[rows], exact, mid, throughput, work)

    def _judge(self, rows: IntArray, view: JobView, finish: FloatArray, now: float) -> None:
        """Verdicts: infeasible if even alone and by the optimistic forecast too late, feasible if planned in time."""
        table = self._table
        spare = view.deadline - now
        table.spare[rows] = spare
        table.finish[rows] = finish
        table.verdict_known[rows] = ~np.isnan(view.work) & (view.exact | (view.cells >= self.settings.judge_after))
        table.infeasible[rows] = table.work_low[rows] > spare
        table.feasible[rows] = finish <= view.deadline

    def _grant(self, rows: IntArray, duty: FloatArray, codes: IntArray, numbers: FloatArray) -> None:
        table = self._table
        changed = np.abs(duty - table.duty[rows]) > 1e-9
        new = ~changed & (codes != table.code[rows])
        table.duty[rows] = duty
        table.code[rows] = codes
        directives = table.directives
        names = table.names
        append = self._changed.append
        spot = np.flatnonzero(changed)
        for row, part, code, pair in zip(
            rows[spot].tolist(), duty[spot].tolist(), codes[spot].tolist(), numbers[spot].tolist(), strict=True
        ):
            grant = Grant(names[row], directives[row][1] + 1, part, DEVICES, Reason(CODES[code], tuple(pair)))
            directives[row] = grant
            append(grant)
        # The share stays, its reason does not: no new version, nobody need be told, but whoever asks hears it.
        for at in np.flatnonzero(new).tolist():
            row = int(rows[at])
            directives[row] = directives[row]._replace(reason=Reason(CODES[codes[at]], tuple(numbers[at].tolist())))

    # ------------------------------------------------------------------------------------------------ to look at

    def names(self, *, active: bool = False) -> list[str]:
        """Jobs in the order of submission, all or only those not ended."""
        table = self._table
        return [name for name, row in table.row_of.items() if not active or table.active[row]]

    def status(self) -> list[JobStatus]:
        """Every job as of the last event, in the order of submission."""
        return [self._table.status(row, self._now) for row in range(len(self._table))]

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken; tests call it after every step."""
        table = self._table
        duty = table.duty[: len(table)]
        active = table.active[: len(table)]
        _holds(float(duty.sum()) <= 1.0 + 1e-6, f"the device is oversold: {duty.sum()}")
        _holds(bool(np.all((duty >= 0) & (duty <= 1))), f"a duty is outside 0 to 1: {duty}")
        _holds(not np.any(duty[~active]), "an ended job holds a share")
        for row in range(len(table)):
            directive = table.directives[row]
            _holds(isinstance(directive, End) != bool(active[row]), f"{table.names[row]}: active and ended at once")
            _holds(isinstance(directive, End) or directive.duty == duty[row], f"{table.names[row]}: grant and table")
            target = table.jobs[row].target
            _holds(not (active[row] and self._is_met(row)), f"{table.names[row]}: met but not ended: {target}")
        if active.any():
            _holds(self._next_round is not None, "jobs are active and nobody will look after them")
            _holds(self._next_round is None or self._next_round <= float(table.deadline[: len(table)][active].min()),
                   "a deadline would be slept over")  # fmt: skip


def _holds(condition: bool, story: str) -> None:
    if not condition:
        raise AssertionError(story)
