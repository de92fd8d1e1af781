"""A round of the scheduler: its jobs, those that the policy plans, and the time of the next round."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray, among
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import Policy
from lightning_core.core.reasons import index
from lightning_core.planning.best_effort import fewest, is_owed_a_turn, share_what_is_left, slowed
from lightning_core.scheduler.pool_devices import PoolDevices
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.tables.table import INFEASIBLE, NONE, JobTable

# A round that a policy asks for comes no earlier than this part of a second, or of a shorter period, after the last.
MIN_GAP = 0.1


class Round:
    """One round over all jobs that have not ended. Its arrays have shape ``(n,)``, one entry per job.

    Args:
        table: All jobs.
        settings: Settings of the scheduler.
        now: Scheduler time in seconds.
        unavailable: Devices that cannot have a worker.
        closing: Whether the pool is being taken down.
        pool: Kinds and machines of the devices; None for what the settings say.

    Attributes:
        rows: Rows of the jobs in the table.
        devices: Number of devices that the policy may count on.
        begun: Whether a job may train yet: its begin time, and the delay after a fault, have passed.
        excluded: Whether a job must hold nothing now.
        planned: Whether the policy plans a job: it is not excluded, and has a deadline that has not passed.
        evicted: Whether a job must leave its devices.
        judged: Whether a job is given a verdict. One that is paused, or may hold no device, is judged as if it trained
            alone from now.
        best_effort: Whether a job has no deadline.
        late: Whether a job goes on, or is held, after its deadline; or goes on although its target is met.
        goes_on: Whether a job goes on although its target is met.
        paused: Whether a job is held by a person, a controller or a program.
        told_none: Whether a job was told to hold no devices.
    """

    def __init__(
        self, table: JobTable, settings: Settings, now: float, unavailable: frozenset[int], closing: bool,
        pool: PoolDevices | None = None,
    ) -> None:  # fmt: skip
        self.table = table
        self.settings = settings
        self.now = now
        self.unavailable = unavailable
        self.closing = closing
        self.pool = PoolDevices(settings) if pool is None else pool
        self.rows: IntArray = table.active_rows()
        self._full: IntArray | None = None  # the full sizes, once they were asked for
        self.devices = max(settings.devices - len(unavailable), 1)  # the last one may come back
        rows = self.rows
        self.begun = table.wakes(rows) <= now
        self.late = table.late[rows]
        self.best_effort = np.isinf(table.deadline[rows])
        self.goes_on = among(rows, table.met_at)
        self.paused = table.paused[rows]
        self.told_none = table.told_size[rows] == NONE
        self.excluded = self.paused | ~self.begun | (self.late & table.holds[rows] & ~self.goes_on) | self.told_none
        self.evicted = table.evicted[rows] | (table.back_at[rows] > now)
        if closing:
            self.excluded |= table.launched[rows]
            self.evicted |= table.launched[rows]
        self.planned = ~self.excluded & ~self.late & ~self.best_effort
        self.judged = ~self.late & (~self.excluded | self.paused | self.told_none)

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, some: IntArray) -> Round:
        """Return the round restricted to some of its jobs."""
        part = copy(self)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                setattr(part, name, column[some])
        return part

    def sizes(self, planned: IntArray | None, *, are_kept: bool = True) -> IntArray | None:
        """Return the number of devices that each job should train on; None to leave all as they are.

        Where a plan keeps the present numbers, a job that can be resized has fewer while devices are not there.

        Args:
            planned: Numbers of devices that a plan says; None if it keeps the present ones.
            are_kept: Whether plans keep the present ones; otherwise they will say which.
        """
        if planned is not None:
            return planned
        table, rows = self.table, self.rows
        told = table.told_size[rows]
        if are_kept and (full := self.full_sizes()).any():
            # One that has fewer keeps them until there are more that no other job needs.
            present = np.array([len(table.home[row]) for row in rows.tolist()])
            there = np.where((present > 0) & (present < full), present, full)
            told = np.where((told == 0) & (there != table.size[rows]), there, told)
        if not told.any():
            return None
        failed = table.fixed_until[rows] > self.now
        return np.where(told > 0, np.where(failed, table.good_size[rows], told), table.size[rows])

    def full_sizes(self) -> IntArray:
        """Return the largest size of the devices that are there for each job that can be resized, and was not told one.

        The shape is ``(n,)``; 0 for the other jobs.
        """
        if self._full is not None:
            return self._full
        table, found = self.table, np.zeros(len(self.rows), np.int64)
        for at, row in enumerate(self.rows.tolist()):
            if len(sizes := table.speedups[row].sizes) > 1 and table.launched[row] and not table.told_size[row]:
                most = min(self.pool.most(table.jobs[row], self.unavailable), table.group_cap[row])
                found[at] = max((size for size in sizes if size <= most), default=0)
        self._full = found
        return found

    def plan(self, policy: Policy, view: JobView) -> Plan:
        """Return the policy's plan, with best-effort jobs before those that have no chance; last come the late jobs.

        Those whose deadline has passed come shortest work first.
        """
        if self.planned.all():
            return policy.plan(view, self.now)
        late = np.flatnonzero(self.late & ~self.excluded)
        late = late[np.argsort(view.work[late], kind="stable")]  # NaN last
        among, best = np.flatnonzero(self.planned), np.flatnonzero(self.best_effort & ~self.excluded & ~self.late)
        plan = self._policy_plan(policy, view, among, late, self.settings.best_effort if len(best) else 0.0)
        if len(best):
            plan = self._with_best_effort(plan, view, best)
        return replace(plan, order=np.concatenate([plan.order, late, np.flatnonzero(self.excluded)]))

    def _policy_plan(self, policy: Policy, view: JobView, among: IntArray, late: IntArray, kept: float) -> Plan:
        """Return the policy's plan of some jobs, with nothing for the others; its order has these jobs alone.

        Args:
            policy: The policy.
            view: All jobs.
            among: Rows of those that it plans.
            late: Rows of those that go on after their deadline.
            kept: Part of the time of all devices that is not for these jobs.
        """
        n = len(view)
        codes, numbers = np.full(n, index("late_goes_on")), np.zeros((n, 2))
        codes[self.goes_on] = index("met_goes_on")
        plan = Plan(among, np.zeros(n), np.full(n, np.nan), codes, codes.copy(), numbers)
        if not len(among):
            return plan
        part = policy.plan(slowed(view.only(among), kept) if kept else view.only(among), self.now)
        for name in ("share", "finish", "codes", "waiting", "numbers"):
            getattr(plan, name)[among] = getattr(part, name)
        size = None
        if part.size is not None:
            # Such a plan leaves nothing over: a job that goes on late asks for the fewest devices that it can use.
            plan.share[late] = 1.0
            size = fewest(view)
            size[among] = part.size
        return replace(plan, order=among[part.order], work_conserving=part.work_conserving, size=size,
                       capped=_spread(part.capped, among, n), yields=_spread(part.yields, among, n),
                       replan_at=part.replan_at, kind=_kinds(part.kind, among, n))  # fmt: skip

    def _with_best_effort(self, plan: Plan, view: JobView, best: IntArray) -> Plan:
        """Return a plan with what best-effort jobs have: what jobs with a chance leave, or a turn of what is kept.

        Jobs that were found infeasible come after them, until a round finds otherwise.
        """
        table, settings = self.table, self.settings
        hopeless = (table.belief[self.rows] == INFEASIBLE)[plan.order]
        last, left = plan.order[hopeless], self._serve_those_with_a_chance(plan, view, ~hopeless)
        served = (table.device_seconds[self.rows] / table.size[self.rows])[best]
        known = view.only(best), served, table.trains(self.rows[best]), self.now
        rest = share_what_is_left(left, *known, settings.turn)
        has_turn = len(plan.order) > 0 and is_owed_a_turn(*known, settings.turn, settings.best_effort)
        best = best[rest.order]
        plan.share[best] = rest.share
        plan.codes[best], plan.waiting[best] = index("best_effort"), index("best_effort_waits")
        plan.waiting[last] = index("infeasible_waits")
        yields = np.zeros(len(view), np.bool_) if plan.yields is None else plan.yields
        size = plan.size
        yields[best] = yields[last] = True
        if len(view.speedup):
            size = fewest(view) if size is None else size
            size[best] = rest.size
        order = np.concatenate([plan.order[~hopeless], best, last])
        if has_turn:
            first = best[0]
            plan.share[first], plan.codes[first] = 1.0, index("best_effort_turn")
            order = np.concatenate([[first], order[order != first]])
        return replace(plan, order=order, size=size, yields=yields)

    def _serve_those_with_a_chance(self, plan: Plan, view: JobView, chance: BoolArray) -> float:
        """Return the devices that jobs with a chance leave.

        Where the policy lets any job have what is left over, those that ask for nothing ask for whole devices of it.

        Args:
            plan: Plan of the jobs with deadlines; the shares of such jobs, and their reasons, are written.
            view: All jobs.
            chance: Whether each job of the plan's order has a chance.
        """
        rows = plan.order[chance]
        size = view.size if plan.size is None else plan.size
        left = view.devices - float((plan.share[rows] * size[rows]).sum())
        if plan.work_conserving:
            for row in rows[plan.share[rows] == 0].tolist():
                if size[row] <= left:
                    plan.share[row], plan.codes[row] = 1.0, index("left_over")
                    left -= float(size[row])
        return max(left, 0.0)

    def expected_finish(self, plan: Plan, view: JobView) -> FloatArray:
        """Return when each job is expected to reach its target: as planned, or alone from now if it is not planned."""
        return np.where(self.planned, plan.finish, self.now + view.work)

    def next_round(self, again: float) -> float | None:
        """Return when the next round is due; None if nothing is left to do.

        While anything trains there is a round each period, or when the policy asks for one. Otherwise the next round is
        due when a deadline passes or a job may begin.

        Args:
            again: When the policy wants to be asked again, scheduler time; inf if it does not say.
        """
        table, rows = self.table, self.rows
        times = [np.array([np.inf]), table.deadline[rows[~table.late[rows]]], table.wakes(rows[~self.begun])]
        soonest = float(np.concatenate(times).min())
        if self.planned.any() or table.share[rows].any():
            period = self.settings.period
            soonest = min(soonest, self.now + period, max(again, self.now + MIN_GAP * min(period, 1.0)))
        return soonest if soonest < np.inf else None


def _spread(flags: BoolArray | None, among: IntArray, n: int) -> BoolArray | None:
    """Return flags of some jobs as those of all: False for the others."""
    if flags is None:
        return None
    spread = np.zeros(n, np.bool_)
    spread[among] = flags
    return spread


def _kinds(kind: IntArray | None, among: IntArray, n: int) -> IntArray | None:
    """Return the kinds of devices of some jobs as those of all: -1, any, for the others."""
    if kind is None:
        return None
    spread = np.full(n, -1)
    spread[among] = kind
    return spread
