"""A pool in one future: it plans and allocates as the scheduler does, by the same code, and nothing of it is real.

What differs is when: the scheduler plans each period, and here a plan holds for longer. Devices are allocated anew
whenever a job has ended or may begin, by the plan made last. Controllers are woken when they want to be.
"""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import replace
from math import inf

import numpy as np

from lightning_core.core.arrays import LEVELS, BoolArray, FloatArray, IntArray
from lightning_core.core.control import rights_of
from lightning_core.core.events import Tick
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.speedup import SpeedUp
from lightning_core.scheduler.allocation import Caps, Devices
from lightning_core.scheduler.asking.controllers import tell_controllers
from lightning_core.scheduler.forecasting import MID, between
from lightning_core.scheduler.grants import FIRST_DEVICE, allocate
from lightning_core.scheduler.past_jobs import PastJobs
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.state import SchedulerState
from lightning_core.scheduler.tables.table import NO_TRIAL, JobTable


class FuturePool:
    """The jobs of a scheduler that have not ended, as they go on in one future. Arrays have shape ``(n,)``.

    Args:
        state: State of the scheduler; it is copied.
        view: Its jobs as the policy sees them now.
        work: Quantiles of the seconds of work that each has left alone on its devices, shape ``(n, 20)``.
        deadline: When each must have met its target, scheduler time.
        starts: Seconds that a start, a resume and a move of each takes.
        now: Scheduler time in seconds.
        period: Seconds for which a plan holds; no turn of an owner is shorter.

    Attributes:
        late: Whether each job's deadline has passed and it goes on, or is held.
        rate: Seconds of its work that each does in a second, with what it holds, once its process is up.
        up_at: When its process can train, scheduler time.
    """

    def __init__(
        self, state: SchedulerState, view: JobView, work: FloatArray, deadline: FloatArray, starts: FloatArray,
        now: float, period: float,
    ) -> None:  # fmt: skip
        self._state, self._view, self._work, self._deadline = forked(state), view, work, deadline
        self._table = self._state.table
        self._rows = view.row
        self._counted = counted_sizes(state, view)
        self._ratios: dict[tuple[int, int], float] = {}
        if self._state.owners is not None:
            time = self._state.owners.time
            time.turn = max(time.turn, period)
        n = len(view)
        self._throughput = np.where(np.isfinite(view.throughput), view.throughput, 1.0)
        self._share, self.rate = np.zeros(n), np.zeros(n)
        self._starts, self.up_at = starts, up_at(self._table, self._rows, starts, now)
        self.late: BoolArray = self._table.late[self._rows].copy()
        self._learns = learns_memory(self._state, self._rows)
        self._usual_memory = usual_memory(self._table, self._rows)
        self._plan: Plan | None = None
        self._caps: Caps | None = None
        self._planned: IntArray = np.arange(n)

    @property
    def active(self) -> BoolArray:
        """Whether each has not ended."""
        return self._table.active[self._rows]

    def end(self, job: int) -> None:
        """End a job: it gives up its devices."""
        row = int(self._rows[job])
        self._table.active[row], self._table.share[row] = False, 0.0
        self._table.home[row], self._share[job], self.rate[job] = (), 0.0, 0.0

    def miss(self, job: int) -> None:
        """Note that the deadline of a job has passed, and that it goes on or is held."""
        self.late[job] = self._table.late[self._rows[job]] = True

    def train(self, seconds: float) -> None:
        """Let time pass for the jobs that hold devices."""
        self._table.busy[self._rows] += self._share * seconds

    def wakes(self, now: float) -> float:
        """Return when a job may begin that may not yet, or a controller wants to be woken, scheduler time; or inf."""
        state = self._state
        wakeups = (one.wakeup() for by, one in state.controllers.items() if by not in state.cloud.failed)
        times = np.append(self._table.wakes(self._rows[self.active]), [at for at in wakeups if at is not None])
        return float(times[times > now].min(initial=inf))

    def plan(self, now: float, done: FloatArray) -> None:
        """Wake the controllers, and plan anew.

        Args:
            now: Scheduler time in seconds.
            done: Seconds of its work that each job has done by then.
        """
        if self._state.controllers:
            tell_controllers(self._state, Tick(), now)
        self._planned = np.flatnonzero(self.active)
        this = self._round(now)
        self._plan, self._caps = self._state.plan(this, self._view_at(self._planned, done, this))

    def allocate(self, now: float, done: FloatArray) -> None:
        """Allocate the devices by the plan made last; ``rate`` then says what each job does with them."""
        assert self._plan is not None
        active = self.active
        stays, some = active[self._planned], np.flatnonzero(active)
        if not stays.all():
            self._plan, self._caps = plan_of(self._plan, stays), caps_of(self._caps, stays)
            self._planned = some
        this, table = self._round(now), self._table
        if self._learns.any():
            self._learn(done)
        given = allocate(this, self._plan, self._caps)
        homes: list[Devices] = [FIRST_DEVICE] * len(some) if given.homes is None else given.homes
        rows, share = self._rows[some], given.share
        before = [table.home[row] for row in rows.tolist()]
        for at in [at for at, home in enumerate(homes) if home != before[at]]:
            row, job, home = int(rows[at]), int(some[at]), homes[at]
            table.home[row], table.placed[row], table.trained_at[row] = home, bool(home), inf
            self.up_at[job] = now + self._starts[job]
        table.share[rows] = share
        served = np.flatnonzero(share > 0).tolist()
        begins = rows[(share > 0) & np.isinf(table.trained_at[rows])]
        table.trained_at[begins] = now
        self._share[:], self.rate[:] = 0.0, 0.0
        self._share[some] = share
        for at in served:
            job, size = int(some[at]), len(homes[at])
            table.size[rows[at]] = size
            self.rate[job] = share[at] * self._ratio(job, size)
        if self._state.owners is not None:
            self._state.owners.count(table, now)

    def _learn(self, done: FloatArray) -> None:
        """Take in what jobs need of a device's memory that have trained: as much as the others."""
        trained = self._learns & (done > 0)
        self._table.memory[self._rows[trained]] = self._usual_memory
        self._learns &= ~trained

    def _round(self, now: float) -> Round:
        state = self._state
        return Round(self._table, state.settings, now, state.unavailable, state.closing)

    def _view_at(self, some: IntArray, done: FloatArray, this: Round) -> JobView:
        """Return the view of some jobs when they have done some of their work."""
        view, table, rows = self._view.only(some), self._table, self._rows[some]
        left, size, throughput = left_of(self._work[some], done[some]), table.size[rows], self._throughput[some]
        batches = view.batches + (done[some] * throughput).astype(np.int64)
        if not len(view.speedup):  # the policy sees the work on as many devices as a job has
            speed = np.array([self._ratio(job, n) for job, n in zip(some.tolist(), size.tolist(), strict=True)])
            left, throughput = left / speed[:, None], throughput * speed
        work = between(left, MID)
        more = {}
        if len(view.speedup):
            held = table.share[rows] * np.array([len(table.home[row]) for row in rows.tolist()])
            fixed = np.where(table.fixed_until[rows] > this.now, table.good_size[rows], table.told_size[rows])
            more = {"held_devices": held, "trained_since": table.trained_at[rows], "fixed_size": np.maximum(fixed, 0)}
        return replace(
            view, devices=this.devices, deadline=self._deadline[some], size=size, batches=batches,
            remaining=work * throughput, throughput=throughput, work=work, quantiles=left,
            acknowledged=np.ones(len(some), np.bool_), **more,
        )  # fmt: skip

    def _ratio(self, job: int, size: int) -> float:
        """Return how fast a job does its work on a number of devices, relative to that by which it is counted."""
        if size == self._counted[job]:
            return 1.0
        if (job, size) not in self._ratios:
            speed = known_or_assumed(self._table.speedups[int(self._rows[job])])
            self._ratios[job, size] = speed.throughput(size) / speed.throughput(self._counted[job])
        return self._ratios[job, size]


def forked(state: SchedulerState) -> SchedulerState:
    """Return a copy of a scheduler's state that can go on by itself, without its curves and the jobs of the past.

    It has no controllers that rent nodes: the devices that there are stay, and so does what these asked of jobs. What
    cannot change without an event that is not played is shared.
    """
    other = copy(state)
    other.table = state.table.copied()
    known = {id(state.settings): state.settings}
    controllers = {by: controller for by, controller in state.controllers.items() if not rights_of(by).rents}
    other.policy, other.owners, other.controllers, other.cloud = deepcopy(
        (state.policy, state.owners, controllers, state.cloud), known
    )
    other.past, other.answers, other.accepted = PastJobs(state.settings.window, 1), [], []
    other.selector, other.awaiting_feedback = None, {}
    return other


def learns_memory(state: SchedulerState, rows: IntArray) -> BoolArray:
    """Return whether nothing is known of the memory that each job needs, so that it has to be tried, shape ``(n,)``.

    One that has run out of memory keeps its devices for itself.
    """
    table = state.table
    unknown: BoolArray = np.isnan(table.memory[rows]) & np.isnan(table.told_memory[rows]) & table.launched[rows]
    learns: BoolArray = unknown & (table.trial_until[rows] == NO_TRIAL) & (state.settings.device_memory is not None)
    return learns


def usual_memory(table: JobTable, rows: IntArray) -> float:
    """Return the bytes of a device that a job needs of which nothing is known: the median of others; NaN for none."""
    known = np.fmax(table.memory[rows], table.told_memory[rows])
    known = known[~np.isnan(known)]
    return float(np.median(known)) if len(known) else np.nan


def up_at(table: JobTable, rows: IntArray, starts: FloatArray, now: float) -> FloatArray:
    """Return when the process of each job can train, scheduler time, shape ``(n,)``; -inf if it is up.

    Of one that moves it is known since when. Any other that has not reported yet is taken to have just been started.
    """
    since = np.where(np.isnan(table.resizing_since[rows]), now, table.resizing_since[rows])
    starting = table.launched[rows] & (np.isfinite(table.resizing_since[rows]) | (table.last_report[rows] == 0))
    return np.where(starting, since + starts, -inf)


def counted_sizes(state: SchedulerState, view: JobView) -> list[int]:
    """Return the number of devices on which the work of each job is counted."""
    if not state.chooses_sizes:
        return [int(size) for size in view.size]  # the job may have another size in this future
    table, rows = state.table, view.row
    most = np.minimum(table.owner_cap[rows], view.devices).astype(np.int64).tolist()
    return [table.speedups[row].best(up_to) or 1 for row, up_to in zip(rows.tolist(), most, strict=True)]


def known_or_assumed(speedup: SpeedUp) -> SpeedUp:
    """Return the throughput of a job by number of devices; as is assumed of any job if nothing is known of it."""
    if speedup.known:
        return speedup
    assumed = SpeedUp(speedup.sizes)
    assumed.expect({speedup.sizes[-1]: 1.0})
    return assumed


def plan_of(plan: Plan, stays: BoolArray) -> Plan:
    """Return a plan without the jobs that do not stay."""
    place = np.cumsum(stays) - 1
    columns = {name: column[stays] for name in ("share", "finish", "codes", "waiting", "numbers", "size", "capped",
                                                "yields") if (column := getattr(plan, name)) is not None}  # fmt: skip
    return replace(plan, order=place[plan.order[stays[plan.order]]], **columns)


def caps_of(caps: Caps | None, stays: BoolArray) -> Caps | None:
    """Return what the owners of the jobs that stay may have."""
    if caps is None:
        return None
    return Caps([owner for owner, one in zip(caps.of, stays.tolist(), strict=True) if one], caps.most)


def left_of(work: FloatArray, done: FloatArray) -> FloatArray:
    """Return quantiles of the work left, of jobs that have not ended although they have done some of it.

    Args:
        work: Quantiles of the work as it was forecast, shape ``(n, 20)``.
        done: What has been done of it since, shape ``(n,)``.

    Returns:
        Quantiles of the same levels, shape ``(n, 20)``, positive. Who has done all that was forecast needs a tenth
        more.

    Example::

        >>> left_of(np.linspace(1.0, 20.0, 20)[None], np.array([10.0]))[0, [0, 10, 19]]
        array([ 1.,  6., 10.])
    """
    left = work - done[:, None]
    gone = (left <= 0).mean(axis=1)[:, None]
    at = np.minimum((gone + (1 - gone) * LEVELS) * len(LEVELS), len(LEVELS) - 1).astype(np.int64)
    found: FloatArray = np.take_along_axis(left, at, axis=1)
    return np.where(found > 0, found, 0.1 * np.maximum(done, 1.0)[:, None])
