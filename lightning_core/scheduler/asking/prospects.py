"""What a scheduler expects of its jobs: the work that each has left, and the policy that divides the pool among them.

They answer what the policy would plan at a later time, if some jobs had done some of their work and others had ended.
They are a copy, for simulations of what is to come: nothing that is asked of them reaches the scheduler.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import LEVELS, BoolArray, FloatArray, IntArray
from lightning_core.core.jobs import OnMiss
from lightning_core.core.plans import JobView
from lightning_core.core.protocols import Policy
from lightning_core.scheduler.forecasting import MID, USER_ERROR, between, forecast
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.state import SchedulerState
from lightning_core.scheduler.tables.table import JobTable


class Asks(NamedTuple):
    """What a plan asks for one job, in the order of who is served first."""

    job: int
    """Place of the job in the prospects."""
    share: float
    """Share of its devices, in (0, 1]."""
    size: int
    """Number of devices."""
    throughput: float
    """Batches per second on them alone, as a fraction of that by which its work is counted."""


class Prospects:
    """What a scheduler expects of the jobs that have not ended.

    Args:
        settings: Settings of the scheduler.
        policy: Its policy as it is.
        table: Its jobs.
        view: Those that have not ended, as the policy sees them.
        now: Scheduler time in seconds.
        unavailable: Devices that cannot have a worker.
        closing: Whether the pool is being taken down.

    Attributes:
        names: Name of each job, in the order of submission.
        devices: Number of devices that there are.
        deadline: When each must have met its target, scheduler time; inf for never; shape ``(n,)``.
        work: Quantiles of the seconds of work that each has left alone on its devices, shape ``(n, 20)``.
        known: Whether anything is known of the work of each. Where nothing is, it is taken to be that of the others,
            wrong by half, as a user's estimate.
    """

    def __init__(
        self, settings: Settings, policy: Policy, table: JobTable, view: JobView, now: float,
        unavailable: frozenset[int], closing: bool,
    ) -> None:  # fmt: skip
        self.settings, self.now, self.devices = settings, now, view.devices
        self._policy, self._table, self._view = policy, table, view
        self._unavailable, self._closing = unavailable, closing
        self._late = table.late[view.row]
        self.names = [table.names[row] for row in view.row.tolist()]
        self.deadline = view.deadline.copy()
        self.known: BoolArray = np.all(~np.isnan(view.quantiles), axis=1)
        self.work = view.quantiles.copy()
        middle = np.median(self.work[self.known, MID]) if self.known.any() else np.nan
        self.work[~self.known] = middle * USER_ERROR

    @classmethod
    def of(cls, state: SchedulerState, now: float) -> Prospects:
        """Return the prospects of a scheduler; they share no part of it."""
        table = deepcopy(state.table)
        this = Round(table, state.settings, now, state.unavailable, state.closing)
        view = forecast(this, state.curves, chooses_sizes=state.chooses_sizes)
        return cls(state.settings, deepcopy(state.policy), table, view, now, state.unavailable, state.closing)

    def with_deadline(self, name: str, deadline: float) -> Prospects:
        """Return the prospects if a job had another deadline.

        Args:
            name: Name of the job.
            deadline: Scheduler time; inf for none.

        Raises:
            KeyError: If there is no such job that has not ended.
        """
        other, at = deepcopy(self), self._at(name)
        other._table.deadline[self._view.row[at]] = other.deadline[at] = deadline
        other._late[at] = deadline <= self.now
        return other

    def with_devices(self, devices: int) -> Prospects:
        """Return the prospects if the pool had another number of devices."""
        other = deepcopy(self)
        other.devices = devices
        return other

    def begin(self) -> Policy:
        """Return the policy as it is now, for a course of what is to come."""
        return deepcopy(self._policy)

    def late(self) -> BoolArray:
        """Return which jobs go on, or are held, after their deadline; shape ``(n,)``."""
        return self._late.copy()

    def stops(self, job: int) -> bool:
        """Return whether a job ends when its deadline passes."""
        return self._table.jobs[int(self._view.row[job])].on_miss is OnMiss.STOP

    def plan(self, policy: Policy, now: float, done: FloatArray, active: BoolArray, late: BoolArray) -> list[Asks]:
        """Return what the policy would ask for at a later time, the first to be served first.

        Args:
            policy: The policy, from :meth:`begin`; it remembers this plan.
            now: Scheduler time in seconds.
            done: Seconds of its work that each job has done by then, shape ``(n,)``.
            active: Whether each has not ended by then.
            late: Whether each goes on after its deadline.
        """
        table, some = self._table, np.flatnonzero(active)
        rows = self._view.row
        table.active[rows], table.late[rows] = active, late
        this = Round(table, self.settings, now, self._unavailable, self._closing)
        this.devices = self.devices
        view = self._view_at(some, done, now)
        plan = this.plan(policy, view)
        excluded, sizes = this.excluded.tolist(), this.sizes(plan.size)
        size = (view.size if sizes is None else sizes).tolist()
        share = plan.share.tolist()
        found = []
        for k in plan.order.tolist():
            wants = share[k] or float(plan.work_conserving)
            if wants and not excluded[k]:
                found.append(Asks(int(some[k]), wants, size[k], self._throughput(view, k, size[k])))
        return found

    def _view_at(self, some: IntArray, done: FloatArray, now: float) -> JobView:
        """Return the view of some jobs when they have done some of their work."""
        view = self._view.only(some)
        left = left_of(self.work[some], done[some])
        work = between(left, MID)
        throughput = np.where(np.isfinite(view.throughput), view.throughput, 1.0)
        return replace(
            view, devices=self.devices, deadline=self.deadline[some],
            batches=view.batches + (done[some] * throughput).astype(np.int64), remaining=work * throughput,
            throughput=throughput, work=work, quantiles=left, acknowledged=np.ones(len(some), np.bool_),
        )  # fmt: skip

    def _throughput(self, view: JobView, k: int, size: int) -> float:
        return 1.0 if not len(view.speedup) else float(view.speedup[k].throughput(size) / view.throughput[k])

    def _at(self, name: str) -> int:
        if name not in self.names:
            raise KeyError(name)
        return self.names.index(name)


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
