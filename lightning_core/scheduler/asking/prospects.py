"""Prospects of a scheduler's jobs: the remaining work of each, and the pool that they share.

They are a copy, for simulations of what is to come: nothing that is asked of them reaches the scheduler.
"""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray
from lightning_core.core.commands import SetDevices
from lightning_core.core.control import NOTHING, Asker, rights_of
from lightning_core.core.jobs import OnMiss
from lightning_core.core.plans import JobView
from lightning_core.estimators.above_floor import AboveFloor
from lightning_core.scheduler import asked_levels
from lightning_core.scheduler.asking.future_pool import FuturePool, forked, learns_memory, usual_memory
from lightning_core.scheduler.forecasting import MID, USER_ERROR, forecast, resize_seconds
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.state import SchedulerState
from lightning_core.scheduler.tables.table import NONE


class Resized(NamedTuple):
    """A job on another number of devices."""

    name: str
    devices: int
    """Number of devices that it takes."""
    measured: bool
    """Whether its throughput on so many was measured, here or in earlier runs, or is known from its user."""


class Kept(NamedTuple):
    """What a market holds, where it is not played."""

    devices: int
    """Devices that there are now."""
    without: int
    """Jobs for which it holds no device now."""


class Assumed(NamedTuple):
    """What futures rest on beside the forecasts."""

    starts: tuple[float, float] | None = None
    """Fewest and most seconds that a start, a resume or a move of a job takes, as measured; None if none was."""
    starts_any: bool = False
    """Whether any job has a process that the pool starts."""
    tries: int = 0
    """Jobs of which it is not known yet how much of a device's memory they need."""
    usual_memory: float | None = None
    """Bytes that these need once they have trained, the median of the others; None: each has its devices alone."""
    resized: Resized | None = None
    """The job that is to train on another number of devices; None for none."""
    kept: Kept | None = None
    """What a market holds now, which is kept to the end; None without one."""


class Prospects:
    """What a scheduler expects of the jobs that have not ended.

    Args:
        state: State of the scheduler, which is not changed.
        view: Its jobs that have not ended, as the policy sees them.
        now: Scheduler time in seconds.

    Attributes:
        names: Name of each job, in the order of submission.
        deadline: When each must have met its target, scheduler time; inf for never; shape ``(n,)``.
        work: Quantiles of the seconds of work that each has left alone on its devices, shape ``(n, 20)``.
        known: Whether anything is known of the work of each. Where nothing is, it is taken to be that of the others,
            wrong by half, as a user's estimate.
        starts: Seconds that a start, a resume and a move of each takes: as its moves were measured, or those of all
            jobs; 0 if none was.
        played: When each met its target, scheduler time, in each of the futures that were played; none is played twice.
    """

    def __init__(self, state: SchedulerState, view: JobView, now: float) -> None:
        self._state, self._view, self.now = state, view, now
        self.names = [state.table.names[row] for row in view.row.tolist()]
        self.deadline = view.deadline.copy()
        self.known: BoolArray = np.all(~np.isnan(view.quantiles), axis=1)
        self.work = view.quantiles.copy()
        middle = np.median(self.work[self.known, MID]) if self.known.any() else np.nan
        self.work[~self.known] = middle * USER_ERROR
        launched = state.table.launched[view.row]
        self._resized: Resized | None = None
        self.played: list[FloatArray] = []
        self.starts = np.array([resize_seconds(state.table, row) or 0.0 for row in view.row.tolist()]) * launched

    @classmethod
    def of(cls, state: SchedulerState, now: float) -> Prospects:
        """Return the prospects of a scheduler; they share no part of it."""
        own = forked(state)
        own.table = deepcopy(state.table)
        this = Round(own.table, own.settings, now, own.unavailable, own.closing)
        view = forecast(this, state.curves, chooses_sizes=state.chooses_sizes)
        own.curves = AboveFloor(own.settings.make_estimator)
        return cls(own, view, now)

    @property
    def devices(self) -> int:
        """Number of devices of the pool."""
        return self._state.settings.devices

    def assumed(self) -> Assumed:
        """Return what its futures rest on."""
        launched = self._state.table.launched[self._view.row]
        starts = self.starts[launched & (self.starts > 0)]
        usual = usual_memory(self._state.table, self._view.row)
        return Assumed(
            (float(starts.min()), float(starts.max())) if len(starts) else None,
            bool(launched.any()),
            int(learns_memory(self._state, self._view.row).sum()),
            None if np.isnan(usual) else usual,
            self._resized,
            self._kept(),
        )

    def _kept(self) -> Kept | None:
        """Return what a market holds; None without one."""
        state, table = self._state, self._state.table
        if not is_on_market(state.settings):
            return None
        asked = [table.asked.get(row, {}).get(Asker.MARKET, NOTHING) for row in self._view.row.tolist()]
        none = table.told_size[self._view.row] == NONE
        without = sum(one.devices == 0 and bool(has_none) for one, has_none in zip(asked, none, strict=True))
        return Kept(state.settings.devices - len(state.unavailable), without)

    @property
    def has_owners(self) -> bool:
        """Whether owners of jobs have shares of their own."""
        return self._state.owners is not None

    def with_deadline(self, name: str, deadline: float) -> Prospects:
        """Return the prospects if a job had another deadline.

        Args:
            name: Name of the job.
            deadline: Scheduler time; inf for none.

        Raises:
            KeyError: If there is no such job that has not ended.
        """
        other, at = self._other(), self._at(name)
        row, table = int(self._view.row[at]), other._state.table
        table.deadline[row] = deadline
        table.late[row] = deadline <= self.now
        other.deadline[at] = table.due(self._view.row[[at]], self.now)[0]
        return other

    def with_devices(self, devices: int) -> Prospects:
        """Return the prospects if the pool had another number of devices.

        Processes on devices that are gone must start elsewhere. A job that takes more devices than are left takes as
        many as it can use of them; of one that cannot, no future trains.

        Args:
            devices: Number of devices.

        Raises:
            ValueError: If the settings of the pool do not allow for it.
        """
        if devices == self.devices:
            return self
        other = self._other()
        other._state.settings = resized(self._state.settings, devices)
        other._state.unavailable = frozenset(one for one in self._state.unavailable if one < devices)
        table = other._state.table
        for row in self._view.row.tolist():
            if any(device >= devices for device in table.home[row]) or (table.jobs[row].device or 0) >= devices:
                table.home[row], table.placed[row], table.pinned[row], table.share[row] = (), False, False, 0.0
            if table.size[row] > devices:
                table.size[row] = max((n for n in table.speedups[row].sizes if n <= devices), default=table.size[row])
        return other

    def with_devices_of(self, name: str, devices: int) -> Prospects:
        """Return the prospects if a person said on how many devices a job trains.

        Args:
            name: Name of the job.
            devices: Number of devices, at least 1: the job takes the largest size that it supports and that is not
                above it.

        Raises:
            KeyError: If there is no such job that has not ended.
            ValueError: If the job trains on one number of devices only.
        """
        other, row = self._other(), int(self._view.row[self._at(name)])
        table = other._state.table
        speedup = table.speedups[row]
        if len(speedup.sizes) == 1:
            only = speedup.sizes[0]
            raise ValueError(f"{name} trains on {only} device{'s' * (only != 1)} only, as it was submitted")
        asked_levels.take(other._state, row, SetDevices(name, devices))
        told = int(table.told_size[row])
        other._resized = Resized(name, told, speedup.seen(told) > 0)
        return other

    def begin(self, period: float) -> FuturePool:
        """Return the pool as it is now, for a future.

        Args:
            period: Seconds for which a plan holds in it.
        """
        return FuturePool(self._state, self._view, self.work, self.deadline, self.starts, self.now, period)

    def late(self) -> BoolArray:
        """Return which jobs go on, or are held, after their deadline; shape ``(n,)``."""
        return self._state.table.late[self._view.row]

    def stops(self, job: int) -> bool:
        """Return whether a job ends when its deadline passes."""
        return self._state.table.jobs[int(self._view.row[job])].on_miss is OnMiss.STOP

    def _other(self) -> Prospects:
        """Return a copy that can be changed."""
        other = copy(self)
        other._state, other.deadline, other.played = forked(self._state), self.deadline.copy(), []
        return other

    def _at(self, name: str) -> int:
        if name not in self.names:
            raise KeyError(name)
        return self.names.index(name)


def resized(settings: Settings, devices: int) -> Settings:
    """Return the settings of a pool with another number of devices, as many processes resident on each.

    Raises:
        ValueError: If they do not allow for it.
    """
    if is_on_market(settings):
        raise ValueError("the market decides how many devices this pool has, and it is not simulated here")
    if settings.locations:
        raise ValueError("the devices of this pool are at locations, so their number alone says too little")
    slots = settings.slots_per_device
    return replace(settings, devices=devices, resident=None if slots is None else slots * devices)


def is_on_market(settings: Settings) -> bool:
    """Return whether a pool rents its nodes."""
    return bool(settings.market) or any(rights_of(Asker(name)).rents for name in settings.controllers)
