"""Jobs of a scheduler as columns: one row per job in the order of submission.

The rows of jobs that have long ended leave (:mod:`.past_jobs`), and the others close up.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from dataclasses import replace
from math import isclose

import numpy as np

from lightning_core.core.answers import Directive, End
from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.control import Asked, Asker
from lightning_core.core.earlier_runs import BinnedCurve
from lightning_core.core.events import BadLosses, Checkpoint, Horizon
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.reasons import Reason, index
from lightning_core.core.speedup import SpeedUp
from lightning_core.core.targets import newest

# What is believed of a job that has not ended, as a column.
UNKNOWN, FEASIBLE, AT_RISK, INFEASIBLE, MISSED = range(5)
# Checkpoints that a job may resume from: the newest, and the one before it.
MAX_KEPT_CHECKPOINTS = 2
# Reported ends of a training that differ by no more seconds are the same.
END_TOLERANCE = 1.0
# Characters of what ends a training by itself, such as `max_epochs=3`.
MAX_LIMIT_LENGTH = 200
# Costs of a resize that are remembered of jobs that have left the table.
MAX_PAST_RESIZES = 100
# Stands for the name of another owner's job.
OTHER_OWNERS = "another owner's job"
# `told_size` of a job that must hold no devices for now.
NONE = -1
# `trial_until` of a job that has never run out of memory.
NO_TRIAL = -1


class JobTable:
    """The columns, and the lists and dictionaries for what does not fit into an array.

    Args:
        window: Number of cells whose mean is the current loss.
    """

    active: BoolArray
    ordinal: IntArray  # jobs submitted before it
    exact: BoolArray  # whether the target is a number of batches
    goal: FloatArray  # target loss or number of batches
    deadline: FloatArray
    submitted: FloatArray
    begin: FloatArray
    weight: FloatArray
    kind: IntArray  # kind of devices on which it was last; -1 before that, or where all are alike
    apart: IntArray  # whether these were on several machines, 1 or 0; -1 before that, or where all are on one
    size: IntArray  # device count; of a job that can be resized, as of its last grant
    told_size: IntArray  # requested device count; 0 if unset, NONE to hold no devices
    good_size: IntArray  # device count on which it last trained; 0 before that
    fixed_until: FloatArray  # no resize before this time, after one that failed
    expected: FloatArray  # seconds of work by the user's estimate; NaN if there is none
    holds: BoolArray  # whether it is held once its deadline has passed
    pinned: BoolArray  # whether it cannot leave its device
    launched: BoolArray  # whether the pool starts its workers, so that it can be released and moved
    paused: BoolArray
    evicted: BoolArray  # paused, and its memory is freed
    late: BoolArray  # its deadline has passed and it goes on or is held
    incarnation: IntArray
    recovering: BoolArray  # its worker was lost and the next one has not reported
    back_at: FloatArray  # earliest start after a fault
    restarts: IntArray  # after faults
    losses: IntArray  # workers lost
    errors: IntArray  # exceptions raised by its own code
    in_a_row: IntArray  # faults without a calm period between them
    launch_timeouts: IntArray  # launches in vain since a worker last reported
    lost_batches: IntArray  # batches that had to be repeated
    last_report: IntArray  # of this incarnation; 0 before the first one, and once the worker of an ended job has left
    obeys: BoolArray  # whether its worker has reported under its newest grant, or there is no worker
    heard: FloatArray  # time of its last report
    moved_at: FloatArray  # time of its last progress
    in_slow_phase: BoolArray  # whether it is busy with something other than batches, which may take long
    timed_version: IntArray  # version of the grant whose throughput is being measured; -1 if none is
    timed_at: FloatArray
    timed_batches: IntArray
    resizing_since: FloatArray  # time at which it was sent to other devices; NaN while it trains
    resizing_from: IntArray  # incarnation that was sent
    resize: FloatArray  # seconds that a resize costs; NaN until measured
    batches: IntArray
    busy: FloatArray
    busy_before: FloatArray  # of earlier incarnations
    recent_batches: FloatArray  # discounted sums for the throughput
    recent_busy: FloatArray
    recent_used: FloatArray  # seconds of these in which it used its device; NaN if unknown
    used: FloatArray  # seconds that this incarnation has used its device; NaN if unknown
    usual_throughput: FloatArray  # of earlier runs of its task on as many devices; NaN if unknown
    history_share: FloatArray  # part of the belief in its forecast that rests on them
    cells: IntArray
    next_cell: IntArray  # number within this incarnation
    evaluated: BoolArray  # whether a cell is a whole evaluation
    last_position: IntArray
    loss: FloatArray  # mean over the last cells as a number that falls; NaN before the first
    best: FloatArray  # best value so far that counted against the target, as logged; NaN before the first
    rejected: IntArray  # losses rejected by the worker of this incarnation
    rejected_cells: IntArray  # losses rejected by the scheduler and by earlier workers
    share: FloatArray
    capped: BoolArray
    beside: IntArray  # number of the group of jobs beside which it trains; 0 if alone
    pace: FloatArray  # expected throughput there as a fraction of that alone; 1 alone
    portion: FloatArray  # part of the group's time that counts as its own; 1 alone
    company_version: IntArray  # version of the grant since which it trains beside the same jobs, or alone
    counts_from: BoolArray  # whether all since its last report was trained under that or a later one
    company_batches: IntArray  # batches done by then
    company_since: FloatArray  # time since which it trains beside the same jobs
    alone_at: FloatArray  # time at which its throughput was last measured alone; -inf before that
    trial_since: FloatArray  # time at which it was first given time to be measured alone; NaN before that
    device_seconds: FloatArray  # seconds of its devices that count as its own
    alone_seconds: FloatArray  # seconds that what it has done would have taken alone
    code: IntArray
    number: FloatArray  # numbers of the reason of its grant, as of the last round
    number_2: FloatArray
    placed: BoolArray  # whether it has devices
    trained_at: FloatArray  # time since which it has trained on its devices; inf before that
    ends_at: FloatArray  # batches at which its training ends by itself; inf if none do
    ends_by: FloatArray  # time at which max_time ends it; inf if it has none
    reach: FloatArray  # batches at which its target is forecast, wherever its training ends; NaN while unknown
    work_low: FloatArray
    work_mid: FloatArray
    work_high: FloatArray
    finish: FloatArray
    spare: FloatArray
    belief: IntArray
    chance: FloatArray  # average trusted chance to be in time alone, by its curve; NaN before its first verdict
    stated_at: IntArray  # batches at its last stated forecast; 0 before the first
    stated_low: FloatArray  # batches by which that forecast reaches its target, early and likely
    stated_mid: FloatArray
    memory: FloatArray  # bytes of a device that its process had at its peak; NaN until reported
    held_memory: FloatArray  # bytes that it keeps while it is held; NaN until reported
    told_memory: FloatArray  # bytes that it needs by its user or by earlier runs; NaN if neither says
    trial_until: IntArray  # batches done when it ran out of memory; NO_TRIAL if it never has
    group_share: FloatArray  # devices that are its group's, if its jobs can use more; inf otherwise
    group_cap: FloatArray  # devices that its group may have; inf for any number
    judged_at: IntArray  # batches at the last cell that it counts
    ended_at: FloatArray

    def __init__(self, window: int) -> None:
        self.window = window
        self.submissions = 0
        self.row_of: dict[str, int] = {}
        self.names: list[str] = []
        self.jobs: list[Job] = []
        self.directives: list[Directive] = []
        self.home: list[tuple[int, ...]] = []  # devices on which the process may keep its memory
        self.recent: list[deque[float]] = []
        self.waiting: list[dict[int, tuple[int, float]]] = []
        self.details: dict[int, str] = {}
        self.faults: dict[int, Reason] = {}
        self.notes: dict[int, dict[str, Reason]] = {}  # what controllers tell of a job
        self.bad_losses: dict[int, BadLosses] = {}  # the newest run of losses that are NaN or infinite
        self.alerted: dict[int, int] = {}  # first batch of the run of bad losses that was alerted
        self.alerts: dict[int, dict[str, Reason]] = {}  # what is wrong now, by code, the newest last
        self.limits: dict[int, str] = {}  # what ends a training at `ends_at`
        self.at_least: dict[int, int] = {}  # batches that a training does even if its target is met before
        self.met_at: dict[int, float] = {}  # when its target was met, while it goes on all the same
        self.checkpoints: list[tuple[Checkpoint, ...]] = []
        self.speedups: list[SpeedUp] = []
        self.elsewhere: dict[int, dict[int, SpeedUp]] = {}  # on devices of other kinds, or together instead of apart
        self.curves: list[BinnedCurve] = []  # all cells that counted, as the estimator sees them
        self.asked: dict[int, dict[Asker, Asked]] = {}  # what each who asks something asks of it
        self.own_location: dict[int, str] = {}  # location that it was submitted for, once it was asked to be elsewhere
        self.earlier: dict[int, tuple[str, ...]] = {}  # names of the earlier runs that it was given
        self.leaving: dict[int, tuple[int, ...]] = {}  # devices that its process was told to leave, until it has
        self.past_resizes: deque[float] = deque(maxlen=MAX_PAST_RESIZES)  # costs of jobs that have left
        self.group_word = "group"  # what divides the pool calls a group of its jobs
        for name, kind in COLUMNS.items():
            setattr(self, name, np.zeros(16, kind))

    def __len__(self) -> int:
        return len(self.jobs)

    def copied(self) -> JobTable:
        """Return a copy whose columns, lists and dictionaries are its own; what stands in them is shared."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray | list | dict):
                setattr(other, name, value.copy())
        return other

    def find(self, name: str, incarnation: int) -> int | None:
        """Return the row of a job if this incarnation of it is the current one."""
        row = self.row_of.get(name)
        if row is None or incarnation != self.incarnation[row]:
            return None
        return row

    def find_active(self, name: str, incarnation: int | None = None) -> int | None:
        """Return the row of a job that has not ended, if it is in this incarnation; in any for None."""
        row = self.row_of.get(name)
        if row is None or not self.active[row] or incarnation not in (None, self.incarnation[row]):
            return None
        return row

    def active_rows(self) -> IntArray:
        """Return the rows of the jobs that have not ended."""
        return np.flatnonzero(self.active[: len(self)])

    # ------------------------------------------------------------------------------------------------ life of a job

    def add(self, job: Job, now: float, size: int, directive: Directive, incarnation: int = 1) -> int:
        """Add a job; return its row. The name now means this row, even if an ended job had it before."""
        row = len(self)
        if row == len(self.active):
            for name, kind in COLUMNS.items():
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
        self.curves.append(BinnedCurve())
        self.ordinal[row], self.submissions = self.submissions, self.submissions + 1
        self.submitted[row], self.size[row] = now, size
        self.launched[row] = job.is_launched
        self.pinned[row] = job.device is not None
        self.kind[row] = self.apart[row] = -1
        self.incarnation[row] = incarnation
        self.active[row] = self.obeys[row] = True
        self.next_cell[row] = 1
        self.timed_version[row] = self.code[row] = -1
        self.resizing_since[row] = np.nan
        self.resize[row] = np.nan if job.resize_seconds is None else job.resize_seconds
        self.loss[row] = self.best[row] = self.reach[row] = self.usual_throughput[row] = np.nan
        self.memory[row] = self.held_memory[row] = self.recent_used[row] = self.used[row] = np.nan
        self.told_memory[row] = np.nan if job.memory is None else job.memory
        self.trial_until[row] = NO_TRIAL
        self.ends_at[row] = self.ends_by[row] = self.trained_at[row] = np.inf
        self.pace[row] = self.portion[row] = 1.0
        self.company_version[row], self.counts_from[row] = -1, True
        self.alone_at[row], self.trial_since[row] = -np.inf, np.nan
        self.group_share[row] = self.group_cap[row] = np.inf
        self.deadline[row] = now + job.deadline
        self.set_terms(row, job)
        return row

    def set_terms(self, row: int, job: Job) -> None:
        """Set the terms that may change while the job runs, all but its deadline."""
        before, target = self.jobs[row].target, job.target
        same_metric = (before.observed, before.quantity, before.grows) == (
            target.observed, target.quantity, target.grows,
        )  # fmt: skip
        if not same_metric:  # values of another metric do not count
            self.loss[row] = self.best[row] = np.nan
            self.curves[row] = BinnedCurve()
        seen = self.recent[row] if same_metric else ()
        self.recent[row] = newest(target, self.window, seen)
        self.jobs[row] = job
        self.exact[row] = not target.observes
        self.goal[row] = target.threshold if target.work is None else target.work  # NaN: batches, not known how many
        self.begin[row] = self.submitted[row] + job.begin
        self.weight[row] = job.weight
        self.holds[row] = job.on_miss is OnMiss.HOLD
        self.expected[row] = np.nan if job.work is None else job.work
        self.chance[row] = np.nan  # other terms are judged anew
        self.stated_at[row] = 0

    def grant_reason(self, row: int) -> Reason:
        """Return the reason of a job's directive, with the numbers of the last round, which made no object of it."""
        reason = self.directives[row].reason
        if self.code[row] != index(reason.code) or isinstance(self.directives[row], End):
            return reason
        return reason._replace(numbers=(float(self.number[row]), float(self.number_2[row])))

    def end(self, row: int, now: float, end: End) -> None:
        """End a job; it gives up its devices."""
        for known in (self.alerts, self.at_least, self.met_at):
            known.pop(row, None)
        self.directives[row] = end
        self.active[row] = False
        self.share[row] = self.number[row] = self.number_2[row] = 0.0
        self.beside[row] = 0
        self.ended_at[row] = now
        self.leave(row)
        self.home[row] = ()
        self.waiting[row].clear()

    def leave(self, row: int, home: tuple[int, ...] = ()) -> None:
        """Record that the process of a launched job, if there is one, was told to leave its devices.

        Args:
            row: Row of the job.
            home: Devices that it is to have; if its process is still there, it stays.
        """
        if self.leaving.get(row) == home:
            del self.leaving[row]
        elif self.launched[row] and self.last_report[row] and self.home[row]:
            self.leaving.setdefault(row, self.home[row])

    def is_met(self, row: int) -> bool:
        """Return whether the target is reached: by batches, by whole evaluations, or by the mean over the window."""
        target = self.jobs[row].target
        if target.watches and self.evaluated[row] and self.last_position[row] < self.batches[row]:
            return False  # the evaluation of the last batches is to come
        return target.is_met(int(self.batches[row]), self.recent[row], bool(self.evaluated[row]), self.window)

    def is_trained(self, row: int) -> bool:
        """Return whether all epochs of a target that watches a metric are done, evaluated or not."""
        target = self.jobs[row].target
        return target.watches and target.is_met(int(self.batches[row]), (), False, self.window)

    # ------------------------------------------------------------------------------------------------ incarnations

    def next_incarnation(self, row: int) -> None:
        """Prepare a job whose worker has left for its next incarnation."""
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
        self.leaving.pop(row, None)
        self.alerts.get(row, {}).pop("hung", None)  # the next one has a process of its own

    # ------------------------------------------------------------------------------------------------ checkpoints

    def accept(self, row: int, checkpoint: Checkpoint | None) -> None:
        """Accept a checkpoint of a launched job as one that it may resume from."""
        if checkpoint is None or not self.launched[row] or checkpoint in self.checkpoints[row]:
            return
        kept = self.checkpoints[row]
        if self.is_bad(row):  # a checkpoint from before the bad losses must stay
            kept = tuple(one for one in kept if self.is_good(row, one))[:1] or kept
        self.checkpoints[row] = (checkpoint, *kept)[:MAX_KEPT_CHECKPOINTS]

    def is_bad(self, row: int) -> bool:
        """Return whether the losses of a job are NaN or infinite now."""
        bad = self.bad_losses.get(row)
        return bad is not None and not bad.over

    def is_good(self, row: int, checkpoint: Checkpoint) -> bool:
        """Return whether a finite loss followed a checkpoint: the first bad loss shows the step before it."""
        return checkpoint.batches < self.bad_losses[row].since - 1

    # ------------------------------------------------------------------------------------------------ times

    def set_epoch_batches(self, row: int, batches: int | None) -> bool:
        """Take in how many batches an epoch of a job has; return whether that changes the work of its target."""
        job = self.jobs[row]
        if batches is None or (target := job.target.resolved(batches)).work == job.target.work:
            return False
        self.set_terms(row, replace(job, target=target))
        return True

    def set_horizon(self, row: int, horizon: Horizon | None, now: float) -> bool:
        """Record where a training ends by itself; return whether that is earlier than was known."""
        batches, by, seconds, at_least = horizon or Horizon()
        self.at_least[row] = at_least
        before, self.ends_at[row] = float(self.ends_at[row]), np.inf if batches is None else float(batches)
        self.limits[row] = by[:MAX_LIMIT_LENGTH]
        known, until = float(self.ends_by[row]), np.inf if seconds is None else now + seconds
        # The time that a report takes varies; without a tolerance every report would bring a new end.
        self.ends_by[row] = known if isclose(until, known, rel_tol=0.0, abs_tol=END_TOLERANCE) else until
        return bool(self.ends_at[row] < before)

    def due(self, rows: IntArray, now: float) -> FloatArray:
        """Return when each must have met its target: at its deadline or the end of its training; shape ``(n,)``."""
        return np.minimum(self.deadline[rows], np.maximum(self.ends_by[rows], now))

    def ends_first(self, row: int) -> bool:
        """Return whether a training is forecast to end by itself before it reaches its target."""
        return bool(self.reach[row] > self.ends_at[row])

    def wakes(self, rows: IntArray) -> FloatArray:
        """Return the earliest time at which each may train; shape ``(n,)``."""
        return np.maximum(self.begin[rows], self.back_at[rows])

    def trains(self, rows: IntArray) -> BoolArray:
        """Return whether each may train now, on a share of its own or beside others; shape ``(n,)``."""
        return (self.share[rows] > 0) | (self.beside[rows] > 0)

    def held_share(self, rows: IntArray) -> FloatArray:
        """Return the share of its devices' time that counts as each job's own; shape ``(n,)``.

        The time of a group is divided by the work that each does there.
        """
        share, groups = self.share[rows], self.beside[rows]
        if not groups.any():
            return share
        share, portion = share.copy(), self.portion[rows]
        for group in np.unique(groups[groups > 0]).tolist():
            of_it = groups == group
            share[of_it] = float(self.share[self.members(group)].sum()) * portion[of_it]
        return share

    def members(self, group: int) -> IntArray:
        """Return the rows of the jobs that train beside each other in a group."""
        return np.flatnonzero(self.beside[: len(self)] == group)

    def counts(self, row: int, version: int) -> bool:
        """Return whether all since the last report of a job was trained in its present company, and note this one.

        Args:
            row: Row of the job.
            version: Version of the grant under which the report was sent.
        """
        before = bool(self.counts_from[row])
        self.counts_from[row] = version >= self.company_version[row]
        if self.beside[row] and not self.obeys[row] and version >= self.directives[row].version:
            others = self.members(int(self.beside[row]))
            self.counts_from[others[others != row]] = False  # until now they had less company
        return before and bool(self.counts_from[row])

    def beside_names(self, row: int) -> tuple[str, ...]:
        """Return the names of the jobs beside which one trains; those of other owners are not said."""
        if not (group := int(self.beside[row])):
            return ()
        others, owner = [other for other in self.members(group).tolist() if other != row], self.jobs[row].owner
        return tuple(self.names[other] if self.jobs[other].owner == owner else OTHER_OWNERS for other in others)

    def throughput(self, rows: IntArray) -> FloatArray:
        """Return batches per busy second, shape ``(n,)``; NaN until the first batch."""
        batches, busy = self.recent_batches[rows], self.recent_busy[rows]
        known = (batches > 0) & (busy > 1e-9)
        return np.where(known, batches / np.where(known, busy, 1.0), np.nan)


# The types of the columns by name, from the class.
_KINDS = {"BoolArray": np.bool_, "FloatArray": np.float64, "IntArray": np.int64}
COLUMNS = {name: _KINDS[kind] for name, kind in JobTable.__annotations__.items()}
# The numbers of reasons are saved apart: states that were saved before have none.
NUMBERS = ("number", "number_2")
SAVED = tuple(name for name in COLUMNS if name not in NUMBERS and name != "code")  # which is saved by name
