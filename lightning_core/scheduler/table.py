"""All jobs of a scheduler as columns: one row a job in the order of submission, rows are never reused."""

from __future__ import annotations

from collections import deque
from math import isclose, isfinite, isnan

import numpy as np

from lightning_core.core.answers import Directive, End, JobStatus, State, Verdict
from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.commands import Asker
from lightning_core.core.durations import FARTHEST
from lightning_core.core.events import BadLosses, Checkpoint, ExitCause, Horizon, Report
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.reasons import STANDS_STILL, Reason
from lightning_core.core.speedup import SpeedUp
from lightning_core.core.targets import BatchTarget, LossTarget

# What is believed of a job that has not ended, as a column.
UNKNOWN, FEASIBLE, AT_RISK, INFEASIBLE, MISSED = range(5)
BELIEFS = (None, Verdict.FEASIBLE, Verdict.AT_RISK, Verdict.INFEASIBLE, Verdict.MISSED)
# Throughput follows the last 30 busy seconds or so: long enough to be calm, short enough to notice a slower phase.
MEMORY = 30.0
# A worker that was busy for so many seconds before it was lost was not lost by what lost the one before it.
CALM = 60.0
# A pace is measured over so many seconds at least: reports may arrive on each other's heels.
LEAST_TIMED = 0.15
# For so many seconds a job is not resized again after a resize that failed.
FIXED = 60.0
# Checkpoints that a job may go on from: the newest, and one before it.
GENERATIONS = 2
# The end of a training, as its reports tell it, is the same if it differs by no more, seconds.
TREMBLES = 1.0
# A forecast of so many batches is none.
FARTHEST_BATCH = 1e12
# Told to train on no device for now.
NONE = -1


class JobTable:
    """The columns and, beside them, what does not fit in an array.

    Args:
        window: cells whose mean is the current loss.
    """

    active: BoolArray
    exact: BoolArray  # target in batches
    goal: FloatArray  # target loss or number of batches
    deadline: FloatArray
    submitted: FloatArray
    begin: FloatArray
    weight: FloatArray
    size: IntArray  # devices that it takes; of one that can be resized, as of its last grant
    told_size: IntArray  # requested device count; 0 if unset, NONE to hold no devices
    good_size: IntArray  # on which it has trained last, 0 if it has not
    fixed_until: FloatArray  # it is not resized before, after a resize that failed
    expected: FloatArray  # seconds of work by a person's estimate, NaN if there is none
    holds: BoolArray  # is held when its deadline has passed
    pinned: BoolArray  # cannot leave its device
    launched: BoolArray  # can be released and live anywhere, so it is ours to start
    paused: BoolArray
    evicted: BoolArray  # paused, and its memory freed
    late: BoolArray  # its deadline has passed and it goes on, or is held
    incarnation: IntArray
    recovering: BoolArray  # its worker was lost, and the next has not reported
    back_at: FloatArray  # not before, after a fault
    restarts: IntArray  # after faults
    losses: IntArray  # of workers
    errors: IntArray  # of its own code
    in_a_row: IntArray  # faults without a calm time between them
    unready: IntArray  # how often its workers were not there in time, since one of them last reported
    lost: IntArray  # batches that had to be done again
    last_report: IntArray
    obeys: BoolArray  # its worker has reported under its newest grant, or there is none
    heard: FloatArray  # when it last told its progress
    moved_at: FloatArray  # since when it has told none though it might train
    aside: BoolArray  # it is at something else than its batches, which may take long
    timed_version: IntArray  # of the grant since whose first report its pace is measured, -1 if it is not
    timed_at: FloatArray
    timed_batches: IntArray
    resizing_since: FloatArray  # when it was sent to other devices, NaN if it trains
    resizing_from: IntArray  # the incarnation that was sent
    resize: FloatArray  # seconds that this costs it, NaN until measured
    batches: IntArray
    busy: FloatArray
    busy_before: FloatArray  # of earlier incarnations
    recent_batches: FloatArray  # discounted sums for the throughput
    recent_busy: FloatArray
    cells: IntArray
    next_cell: IntArray  # number within this incarnation
    evaluated: BoolArray  # a cell is a whole evaluation
    last_position: IntArray
    loss: FloatArray  # mean over the last cells as a number that falls, NaN before the first
    best: FloatArray  # of what counted against the target, as logged; NaN before the first
    rejected: IntArray  # losses, by this incarnation's worker
    rejected_cells: IntArray  # by us, and by the workers before
    share: FloatArray
    capped: BoolArray
    code: IntArray
    housed: BoolArray  # may live on some device
    trained_at: FloatArray  # since when it has trained where it lives, inf if not yet
    ends_at: FloatArray  # batches at which its training ends by itself, inf if none do
    ends_by: FloatArray  # when its max_time ends it, scheduler time, inf if it has none
    reach: FloatArray  # batches at which its target is forecast, wherever its training ends; NaN while unknown
    work_low: FloatArray
    work_mid: FloatArray
    work_high: FloatArray
    finish: FloatArray
    spare: FloatArray
    belief: IntArray
    ended_at: FloatArray

    def __init__(self, window: int) -> None:
        self._window = window
        self.row_of: dict[str, int] = {}
        self.names: list[str] = []
        self.jobs: list[Job] = []
        self.directives: list[Directive] = []
        self.home: list[tuple[int, ...]] = []
        self.recent: list[deque[float]] = []
        self.waiting: list[dict[int, tuple[int, float]]] = []
        self.details: dict[int, str] = {}
        self.faults: dict[int, Reason] = {}
        self.spot: dict[int, Reason] = {}
        self.paused_by: dict[int, Asker] = {}
        self.told_by: dict[int, Asker] = {}  # who set told_size
        self.bad: dict[int, BadLosses] = {}  # the newest run of losses that are NaN or infinite
        self.alerted: dict[int, int] = {}  # of which run of them people were told: its first batch
        self.alerts: dict[int, Reason] = {}  # what is wrong for now
        self.limits: dict[int, str] = {}  # what ends a training after so many batches
        self.checkpoints: list[tuple[Checkpoint, ...]] = []
        self.speedups: list[SpeedUp] = []
        for name, kind in _COLUMNS.items():
            setattr(self, name, np.zeros(16, kind))

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, job: Job, now: float, size: int, directive: Directive, incarnation: int = 1) -> int:
        """A new row; its number. A name that was there before now means the new row."""
        row = len(self)
        if row == len(self.active):
            for name, kind in _COLUMNS.items():
                setattr(self, name, np.concatenate([getattr(self, name), np.zeros(row, kind)]))
        self.row_of.pop(job.name, None)  # names stand in the order of their newest rows
        self.row_of[job.name] = row
        self.names.append(job.name)
        self.jobs.append(job)
        self.directives.append(directive)
        self.home.append(())
        self.recent.append(deque())
        self.waiting.append({})
        self.checkpoints.append(())
        self.speedups.append(SpeedUp(job.sizes or (size,), job.throughputs))
        self.active[row] = True
        self.submitted[row] = now
        self.size[row] = size
        self.launched[row] = job.is_launched
        self.pinned[row] = job.device is not None
        self.incarnation[row] = incarnation
        self.obeys[row] = True
        self.next_cell[row] = 1
        self.trained_at[row] = np.inf
        self.timed_version[row] = self.code[row] = -1
        self.resizing_since[row] = np.nan
        self.resize[row] = np.nan if job.resize_seconds is None else job.resize_seconds
        self.loss[row] = self.best[row] = np.nan
        self.ends_at[row] = self.ends_by[row] = np.inf
        self.reach[row] = np.nan
        self.deadline[row] = now + job.deadline
        self.set_terms(row, job)
        return row

    def set_terms(self, row: int, job: Job) -> None:
        """Set the terms that may change while the job runs, all but its deadline."""
        before, target = self.jobs[row].target, job.target
        alike = (before.metric, before.grows) == (target.metric, target.grows)
        if not alike:  # what was seen of another metric does not count
            self.loss[row] = self.best[row] = np.nan
        seen = self.recent[row] if alike else ()
        self.recent[row] = deque(seen, max(self._window, target.for_evaluations))
        self.jobs[row] = job
        self.exact[row] = isinstance(job.target, BatchTarget)
        self.goal[row] = job.target.batches if isinstance(job.target, BatchTarget) else job.target.threshold
        self.begin[row] = self.submitted[row] + job.begin
        self.weight[row] = job.weight
        self.holds[row] = job.on_miss is OnMiss.HOLD
        self.expected[row] = np.nan if job.work is None else job.work

    def end(self, row: int, now: float, end: End) -> None:
        self.alerts.pop(row, None)
        self.directives[row] = end
        self.active[row] = False
        self.share[row] = 0.0
        self.ended_at[row] = now
        self.home[row] = ()
        self.waiting[row].clear()

    def come_back(self, row: int) -> None:
        """The job's worker is gone and the job is not over: the next one is another incarnation."""
        self.incarnation[row] += 1
        self.last_report[row] = 0
        self.obeys[row] = True
        self.next_cell[row] = 1
        self.busy_before[row] = self.busy[row]
        self.rejected_cells[row] += self.rejected[row]
        self.rejected[row] = 0
        self.trained_at[row] = np.inf
        self.timed_version[row] = -1
        self.waiting[row].clear()

    def set_back(self, row: int, code: str, now: float, text: str = "") -> None:
        """The job has lost its worker by a fault, and comes back from what it saved."""
        self.resize_failed(row, now)
        start = self.checkpoints[row][0].batches if self.checkpoints[row] else 0
        again = max(int(self.batches[row]) - start, 0)
        self.faults[row] = Reason(code, (float(start), float(again)), text)
        calm = self.busy[row] - self.busy_before[row] > CALM
        self.in_a_row[row] = 1 if calm else self.in_a_row[row] + 1
        self.restarts[row] += 1
        self.recovering[row] = True
        self.come_back(row)

    def resize_failed(self, row: int, now: float) -> None:
        """If the job was on its way to other devices, it stays for a while with as many as it had trained on."""
        if not isnan(self.resizing_since[row]) and self.good_size[row]:
            self.fixed_until[row] = now + FIXED
        self.resizing_since[row] = np.nan

    def count(self, row: int, cause: ExitCause) -> int:
        """How often the job has had this fault, now once more; of what nobody counts, 0."""
        column = {ExitCause.LOST: self.losses, ExitCause.RAISED: self.errors}.get(cause)
        if column is None:
            return 0 if cause is ExitCause.PREEMPTED else 1
        column[row] += 1
        return int(column[row])

    def accept(self, row: int, save: Checkpoint | None) -> None:
        """The newest saves are what the job may go on from."""
        if save is None or not self.launched[row] or save in self.checkpoints[row]:
            return
        kept = self.checkpoints[row]
        if self.is_bad(row):  # what was saved before that must not be displaced
            kept = tuple(one for one in kept if self.is_good(row, one))[:1] or kept
        self.checkpoints[row] = (save, *kept)[:GENERATIONS]

    def is_bad(self, row: int) -> bool:
        """Whether the job's losses are NaN or infinite for now."""
        bad = self.bad.get(row)
        return bad is not None and not bad.over

    def is_good(self, row: int, save: Checkpoint) -> bool:
        """Whether a loss that is a number followed on a checkpoint: the first that is none tells of the step before."""
        return save.batches < self.bad[row].since - 1

    def set_horizon(self, row: int, horizon: Horizon | None, now: float) -> bool:
        """Take in where a training ends by itself; whether that ends it earlier than was known."""
        batches, by, seconds = horizon or Horizon()
        before, self.ends_at[row] = float(self.ends_at[row]), np.inf if batches is None else float(batches)
        self.limits[row] = by
        known, until = float(self.ends_by[row]), np.inf if seconds is None else now + seconds
        # Reports take longer or shorter to arrive; a deadline that trembles would be a new one each time.
        self.ends_by[row] = known if isclose(until, known, rel_tol=0.0, abs_tol=TREMBLES) else until
        return bool(self.ends_at[row] < before)

    def due(self, rows: IntArray, now: float) -> FloatArray:
        """When each must have met its target: by its deadline, and before its training ends; shape ``(n,)``."""
        return np.minimum(self.deadline[rows], np.maximum(self.ends_by[rows], now))

    def ends_first(self, row: int) -> bool:
        """Whether the job's training ends by itself before its target is reached by forecast."""
        return bool(self.reach[row] > self.ends_at[row])

    def wakes(self, rows: IntArray) -> FloatArray:
        """When each may train at the earliest, scheduler time."""
        return np.maximum(self.begin[rows], self.back_at[rows])

    def active_rows(self) -> IntArray:
        return np.flatnonzero(self.active[: len(self)])

    def progress(self, row: int, report: Report, now: float) -> None:
        """Cumulative counts of one incarnation; batches from before it began cost it no time."""
        batches, busy, began = report.batches, report.busy, report.began
        if not self.last_report[row]:
            self.recovering[row] = False
            self.unready[row] = 0
            if began < self.batches[row]:  # what the last incarnation did not save is to be done again
                self.lost[row] += int(self.batches[row]) - began
                self.batches[row] = began
        self.last_report[row] = report.number
        more_batches = max(batches - int(self.batches[row]), 0)
        more_busy = max(busy + float(self.busy_before[row]) - float(self.busy[row]), 0.0)
        keep = np.exp(-more_busy / MEMORY)
        timed = max(batches - max(int(self.batches[row]), began), 0)
        self.recent_batches[row] = keep * self.recent_batches[row] + timed
        self.recent_busy[row] = keep * self.recent_busy[row] + more_busy
        self.batches[row] += more_batches
        self.busy[row] += more_busy
        self.rejected[row] = max(int(self.rejected[row]), report.rejected)
        self.evaluated[row] |= report.evaluated  # before its first evaluation a new incarnation cannot tell
        self.heard[row] = now
        self.aside[row] = report.aside
        if timed or more_busy > 0:
            self.moved_at[row] = now
        if timed and not isnan(self.resizing_since[row]) and self.incarnation[row] > self.resizing_from[row]:
            rate = self.speedups[row].rate(len(self.home[row]))
            trained = min(report.busy, timed / rate) if rate > 0 else 0.0  # since it was there; the rest is the cost
            took = max(now - float(self.resizing_since[row]) - trained, 0.0)
            self.resize[row] = took if isnan(self.resize[row]) else 0.5 * (took + self.resize[row])
            self.resizing_since[row] = np.nan
        if timed and isnan(self.resizing_since[row]):  # else it is the life before that speaks
            self.good_size[row] = len(self.home[row])
        self._time(row, report.version, now)

    def _time(self, row: int, version: int, now: float) -> None:
        """Learns how fast the job is with what it was granted, from one report under a grant to the next."""
        batches, directive = int(self.batches[row]), self.directives[row]
        held = float(self.share[row]) * len(self.home[row])
        if version != directive.version or not held or not (self.capped[row] or self.share[row] == 1.0):
            self.timed_version[row] = -1
            return
        if self.timed_version[row] == version:
            more, seconds = batches - int(self.timed_batches[row]), now - float(self.timed_at[row])
            if more < 1 or seconds < LEAST_TIMED:
                return
            self.speedups[row].observe(held, more, seconds)
        self.timed_version[row], self.timed_at[row], self.timed_batches[row] = version, now, batches

    def costs(self, rows: IntArray, usual: float) -> FloatArray:
        """Seconds that a resize costs each: measured, or as much as the others', or ``usual``; shape ``(n,)``."""
        known = self.resize[: len(self)]
        known = known[~np.isnan(known)]
        guess = float(np.mean(known)) if len(known) else usual
        return np.where(np.isnan(self.resize[rows]), guess, self.resize[rows])

    def add_cell(self, row: int, batches: int, value: float) -> None:
        """Takes in an observation as logged, further on than all before it."""
        target, recent = self.jobs[row].target, self.recent[row]
        recent.append(value)
        self.cells[row] += 1
        self.last_position[row] = batches
        newest = list(recent)[-self._window :]
        self.loss[row] = target.falling(sum(newest) / len(newest))
        if isinstance(target, LossTarget) and (self.evaluated[row] or len(newest) == self._window):
            reached, best = target.reached(recent, bool(self.evaluated[row]), self._window), float(self.best[row])
            self.best[row] = reached if isnan(best) else target.better(reached, best)

    def is_met(self, row: int) -> bool:
        """Whether the target is reached: by batches, by whole evaluations, or by the mean over the window."""
        target = self.jobs[row].target
        if isinstance(target, BatchTarget):
            return bool(self.batches[row] >= target.batches)
        return target.is_met(self.recent[row], bool(self.evaluated[row]), self._window)

    def throughput(self, rows: IntArray) -> FloatArray:
        """Batches per busy second, shape ``(n,)``; NaN until the first batch."""
        batches, busy = self.recent_batches[rows], self.recent_busy[rows]
        known = (batches > 0) & (busy > 1e-9)
        return np.where(known, batches / np.where(known, busy, 1.0), np.nan)

    # ------------------------------------------------------------------------------------------------ to look at

    def verdict(self, row: int) -> Verdict | None:
        """Made from the columns when somebody looks: a round must not make an object a job."""
        directive = self.directives[row]
        return directive.verdict if isinstance(directive, End) else BELIEFS[self.belief[row]]

    def reason(self, row: int) -> Reason:
        """Of the verdict: why the job is believed to make it or not; of the end, once it has ended."""
        directive = self.directives[row]
        if isinstance(directive, End):
            return directive.reason
        timed = self.ends_by[row] < self.deadline[row]
        early = min(float(self.deadline[row]), float(self.ends_by[row])) - float(self.finish[row])
        belief = self.belief[row]
        if belief == UNKNOWN:
            return Reason("too_early")
        if belief == MISSED:
            return Reason("late_held" if self.holds[row] else "late_goes_on")
        if belief in (INFEASIBLE, AT_RISK) and self.ends_first(row) and self.reach[row] < FARTHEST_BATCH:
            code = "ends_before_known" if self.exact[row] else "ends_before"
            return Reason(code, (float(self.ends_at[row]), float(self.reach[row])), self.limits[row])
        if belief == INFEASIBLE:
            least, code = float(self.work_low[row]), "too_long_for_end" if timed else "too_long"
            return Reason(code, (least, float(self.spare[row]))) if least < FARTHEST else Reason("flat")
        if directive.reason.code in STANDS_STILL:
            needs = float(self.work_mid[row])
            return Reason("stands_still", (needs, float(self.spare[row]))) if needs < FARTHEST else Reason("unsure")
        if not isfinite(early):  # the policy cannot say
            return directive.reason
        if belief == FEASIBLE:
            return Reason("on_time", (early,))
        return Reason("late_for_end" if timed else "late", (-early,))

    def state(self, row: int) -> State:
        directive = self.directives[row]
        if isinstance(directive, End):
            return State.ENDED
        if self.recovering[row]:
            return State.RECOVERING
        if directive.share > 0:
            return State.RUNNING if self.last_report[row] else State.QUEUED
        if not self.batches[row]:
            return State.QUEUED
        return State.HELD if self.home[row] or not self.launched[row] else State.RELEASED

    def status(self, row: int, now: float) -> JobStatus:
        directive = self.directives[row]
        ended = isinstance(directive, End)
        throughput = float(self.throughput(np.array([row]))[0])
        value, best, loss = self._reached(row)
        return JobStatus(
            name=self.names[row],
            state=self.state(row),
            verdict=self.verdict(row),
            reason=self.reason(row),
            target=self.jobs[row].target,
            value=value,
            best=best,
            loss=loss,
            batches=int(self.batches[row]),
            cells=int(self.cells[row]),
            rejected=int(self.rejected[row] + self.rejected_cells[row]),
            share=float(self.share[row]),
            throughput=None if isnan(throughput) else throughput,
            busy=float(self.busy[row]),
            submitted_at=float(self.submitted[row]),
            deadline=float(self.deadline[row]),
            finish=None if ended else self._finish(row, now),
            finished_at=float(self.ended_at[row]) if ended else None,
            detail=self.details.get(row, ""),
            why=directive.reason,
            devices=self.home[row],
            incarnation=int(self.incarnation[row]),
            weight=float(self.weight[row]),
            paused=bool(self.paused[row]),
            restarts=int(self.restarts[row]),
            lost=int(self.lost[row]),
            saved=self.checkpoints[row][0].batches if self.checkpoints[row] else None,
            fault=self.faults.get(row),
            alert=self.alerts.get(row),
            spot=self.spot.get(row),
        )

    def _reached(self, row: int) -> tuple[float | None, float | None, float | None]:
        """Return the value against the target and the best one, both in the target's sense, and the current loss."""
        target, recent = self.jobs[row].target, self.recent[row]
        loss = None if isnan(mean := float(self.loss[row])) else mean
        if isinstance(target, BatchTarget):
            done = float(self.batches[row])
            return done, done, loss
        value = target.reached(recent, bool(self.evaluated[row]), self._window) if recent else None
        best = None if isnan(most := float(self.best[row])) else most
        return value, best, None if target.grows else value

    def _finish(self, row: int, now: float) -> tuple[float, float, float] | None:
        """Early, likely, late: the planned end, give or take what the forecast of the work is unsure of."""
        finish = float(self.finish[row])
        low, mid, high = (float(column[row]) for column in (self.work_low, self.work_mid, self.work_high))
        if self.belief[row] == UNKNOWN or not mid < FARTHEST:
            return None
        if not isfinite(finish):
            finish = now + mid  # not planned for: the end it would have alone
        share = float(self.share[row]) or 1.0
        return finish - min((mid - low) / share, finish - now), finish, finish + (high - mid) / share


# The columns and their types stand once, in the class.
_KINDS = {"BoolArray": np.bool_, "FloatArray": np.float64, "IntArray": np.int64}
_COLUMNS = {name: _KINDS[kind] for name, kind in JobTable.__annotations__.items()}
