"""A policy on a pool whose devices differ: each job is placed on a kind, and each kind is planned as a pool of its own.

Any policy works on several kinds so, by its own rule. One that serves jobs in an order lets each take, in that order,
the kind on which it ends first; for the others :mod:`lightning_core.planning.kinds` places the jobs so that many end in
time. Both hope for the best where a rate is not measured, so that kinds are tried where that may pay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import numpy as np

from lightning_core.core.arrays import NORMAL, BoolArray, FloatArray, IntArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import Estimator, KeepsRows, LooksAtCurves, Policy, Queues
from lightning_core.core.reasons import index
from lightning_core.core.saved_state import Saves, StateError
from lightning_core.planning.kinds import KindNeeds, in_order, place
from lightning_core.planning.merged_plans import joined

# Seconds that a job is counted with which is not seen to reach its target.
NEVER = 1e15
# Part of the time that is left that a job of unknown work is counted with.
UNKNOWN_WORK = 0.5
# Spreads by which a rate that was never measured is hoped to exceed what is expected. A hope that is vain ends within
# seconds, once the job trains there; a kind that is taken for slow would never be tried.
HOPE = 1.0
# Spread of a rate that counts as measured.
MEASURED = 0.2


class ByKind:
    """The policy of a pool of several kinds of devices: a copy of one policy for each.

    Args:
        policy: The policy, which becomes that of the first kind.
    """

    def __init__(self, policy: Policy) -> None:
        self.policies: list[Policy] = [policy]

    def grow(self, kinds: int) -> None:
        """Make a copy of the policy for each kind that has none."""
        self.policies += [deepcopy(self.policies[0]) for _ in range(kinds - len(self.policies))]

    def plan(self, jobs: JobView, now: float) -> Plan:
        """Place the jobs on kinds, and return the plans of all kinds as one."""
        kind = self._place(jobs, now)
        devices = _devices(jobs)
        rows = [np.flatnonzero(kind == k) for k in range(len(jobs.kinds))]
        plans, used = [], []
        for k, its in enumerate(rows):
            if len(its):
                plans.append(self.policies[k].plan(_on_kind(jobs, its, k, devices[k]), now))
                used.append(its)
        if len(nowhere := np.flatnonzero(kind < 0)):
            plans.append(_nothing_for(len(nowhere)))
            used.append(nowhere)
        return replace(joined(jobs, plans, used), kind=kind)

    def _place(self, jobs: JobView, now: float) -> IntArray:
        """Return the kind of each job, with hope for rates that are not measured: so jobs try kinds where that may pay.

        Of jobs that are alike, one at a time tries a kind; for the others the rate there is what is expected.
        """
        hope = np.where(jobs.doubt > MEASURED, HOPE * jobs.doubt, 0.0)
        kind = self._place_with(jobs, now, hope)
        for _ in jobs.kinds:
            if not (second := _second_trials(jobs, kind, hope)).any():
                break
            hope[second, kind[second]] = 0.0
            kind = self._place_with(jobs, now, hope)
        return kind

    def _place_with(self, jobs: JobView, now: float, hope: FloatArray) -> IntArray:
        slack = np.maximum(jobs.deadline - now, 1e-9)
        may = jobs.pace > 0
        work = np.where(np.isnan(jobs.work), UNKNOWN_WORK * slack, np.minimum(jobs.work, NEVER))
        with np.errstate(divide="ignore"):
            by_kind = np.where(may, work[:, None] / jobs.pace, np.inf) * np.exp(-hope)
        started = jobs.batches > 0
        move = np.where(started, jobs.resize_seconds, 0.0)
        needs = KindNeeds(by_kind, slack, _sizes(jobs), jobs.weight, _devices(jobs), jobs.kind, move)
        policy = self.policies[0]
        if not isinstance(policy, Queues):
            return place(needs).kind
        if policy.keeps_devices:
            stays = (jobs.kind >= 0) & np.take_along_axis(may, np.maximum(jobs.kind, 0)[:, None], 1)[:, 0]
            elsewhere = stays[:, None] & (np.arange(len(jobs.kinds)) != jobs.kind[:, None])
            needs = needs._replace(work=np.where(elsewhere, np.inf, by_kind))
        return in_order(needs, policy.queue(jobs))

    # ---------------------------------------------------------------------------------------------- as one policy

    @property
    def banks(self) -> Sequence[Estimator]:
        """Estimators of the policies of all kinds: a job may come to any of them."""
        return [bank for policy in self.policies if isinstance(policy, LooksAtCurves) for bank in policy.banks]

    def keep(self, stays: BoolArray) -> None:
        """Drop rows of ended jobs."""
        for policy in self.policies:
            if isinstance(policy, KeepsRows):
                policy.keep(stays)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        for policy in self.policies:
            if not isinstance(policy, Saves):
                raise StateError(f"{type(policy).__name__} must have the methods state and restore, to be saved")
        return {"policies": [cast(Saves, policy).state() for policy in self.policies]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        if len(state["policies"]) != len(self.policies):
            raise StateError(f"a saved policy must be for {len(self.policies)} kinds, got {len(state['policies'])}")
        for policy, saved in zip(self.policies, state["policies"], strict=True):
            cast(Saves, policy).restore(saved)


def _second_trials(jobs: JobView, kind: IntArray, hope: FloatArray) -> BoolArray:
    """Return which jobs are placed on a kind in hope, while one like them tries it; shape ``(n,)``.

    One that is there tries it before one that has not begun, and that before one that would have to move.
    """
    tries = (kind >= 0) & (np.take_along_axis(hope, np.maximum(kind, 0)[:, None], 1)[:, 0] > 0)
    some = np.flatnonzero(tries)
    order = some[np.lexsort((jobs.deadline[some], jobs.batches[some] > 0, jobs.kind[some] != kind[some]))]
    trials = np.stack([jobs.training[order], kind[order]], axis=1)
    tries[order[np.unique(trials, axis=0, return_index=True)[1]]] = False
    return tries


def _nothing_for(n: int) -> Plan:
    """Return the plan of ``n`` jobs that can be on no device that there is now."""
    reason = np.full(n, index("no_room"))
    return Plan(np.arange(n), np.zeros(n), np.full(n, np.inf), reason, reason.copy(), np.zeros((n, 2)))


def _devices(jobs: JobView) -> IntArray:
    """Return the devices of each kind that jobs may have, shape ``(k,)``: fewer than there are if a group has fewer."""
    devices = np.array(jobs.kinds, np.int64)
    while (over := int(devices.sum()) - jobs.devices) > 0:
        devices[np.argmax(devices)] -= min(over, max(int(np.ptp(devices)), 1))
    return devices


def _sizes(jobs: JobView) -> IntArray:
    """Return the devices that each job needs at least, shape ``(n,)``."""
    if not len(jobs.speedup):
        return jobs.size
    return np.array([speed.sizes[0] for speed in jobs.speedup], np.int64)


def _on_kind(jobs: JobView, rows: IntArray, k: int, devices: int) -> JobView:
    """Return the view of some jobs as it is on a kind of its own, with that kind's devices."""
    some = jobs.only(rows)
    pace: FloatArray = np.where(some.pace[:, k] > 0, some.pace[:, k], 1.0)
    best = np.take_along_axis(some.doubt, np.argmax(some.pace, axis=1)[:, None], 1)[:, 0]  # that of the quantiles
    columns: dict[str, Any] = {
        "work": some.work / pace,
        "quantiles": some.quantiles / pace[:, None] * np.exp((some.doubt[:, k] - best)[:, None] * NORMAL),
        "throughput": some.throughput * pace,
        "devices": max(int(devices), 1),
        "kinds": (),
        "kind": np.zeros(0, np.int64),
        "pace": np.zeros(0),
        "doubt": np.zeros(0),
        "training": np.zeros(0, np.int64),
        "speedups": np.zeros(0, np.object_),
    }
    if len(some.speedup):
        there = some.kind == k
        columns["speedup"] = some.speedups[:, k]
        columns["held_devices"] = np.where(there, some.held_devices, 0.0)
        columns["trained_since"] = np.where(there, some.trained_since, np.inf)
    return replace(some, **columns)
