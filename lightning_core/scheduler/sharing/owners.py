"""The owners of a pool's jobs: a policy for the jobs of each, and what each has had of the pool."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import Policy
from lightning_core.core.saved_state import Saves, StateError
from lightning_core.scheduler.allocation import Caps
from lightning_core.scheduler.owner_terms import OwnerTerms
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.sharing.by_owner import Entitled, plan_by_owner
from lightning_core.scheduler.sharing.device_time import DeviceTime
from lightning_core.scheduler.tables.table import JobTable

HOUR = 3600.0


class Owners:
    """Owners that are told apart. Jobs of whom the owner is unknown are those of one, with an empty name.

    Args:
        settings: Settings of the scheduler.
        policy: The policy as it is before its first plan; each owner's jobs are planned by a copy of it.

    Attributes:
        time: What each owner has had.
        policies: The policy of each owner that has jobs.
    """

    def __init__(self, settings: Settings, policy: Policy) -> None:
        self._settings, self._policy = settings, policy
        self.time = DeviceTime(settings.turn)
        self.policies: dict[str, Policy] = {}
        self._terms: list[OwnerTerms] = []
        self._index: dict[str, int] = {}

    def policy_of(self, owner: str) -> Policy:
        """Return the policy of an owner's jobs."""
        if owner not in self.policies:
            self.policies[owner] = deepcopy(self._policy)
        return self.policies[owner]

    def forget(self, present: Collection[str]) -> None:
        """Forget the policies of owners that have no job in the table."""
        self.policies = {owner: policy for owner, policy in self.policies.items() if owner in present}

    def plan(self, round: Round, view: JobView) -> tuple[Plan, Caps]:
        """Plan a round; return what each owner may have at most with the plan.

        Args:
            round: The round.
            view: Its jobs.
        """
        time, now = self.time, round.now
        names = [round.table.jobs[row].owner for row in round.rows.tolist()]
        for name in dict.fromkeys(names):
            if name not in self._index:
                time.add(name)
                self._take_terms(name)
        time.advance(self._terms, now)
        every, of = np.unique([self._index[name] for name in names], return_inverse=True)
        owners = self._entitled(every, of, now)
        policies = [self.policy_of(time.names[owner]) for owner in every.tolist()]
        time.share = np.zeros(len(time.names))
        if len(every) == 1 and owners.cap[0] >= round.devices and not owners.spent[0]:
            plan, limited = round.plan(policies[0], view), np.full(len(of), np.inf)
        else:
            plan, share, content, limits = plan_by_owner(round, view, owners, policies)
            time.share[every] = np.where(content, 0.0, share)
            limited = np.where(limits, share, np.inf)[of]
        round.table.owner_share[round.rows] = limited
        return plan, Caps(of.tolist(), owners.cap.tolist())

    def _entitled(self, every: IntArray, of: IntArray, now: float) -> Entitled:
        terms = [self._terms[owner] for owner in every.tolist()]
        budget = np.array([np.inf if one.device_hours is None else one.device_hours for one in terms])
        return Entitled(
            of=of,
            quota=np.array([float(one.devices) for one in terms]),
            weight=np.array([one.weight for one in terms]),
            cap=np.array([one.cap for one in terms]),
            owed=self.time.lags()[every],
            spent=self.time.used[every] >= budget * HOUR,
            budget=budget,
            renewed=np.array([np.inf if one.per is None else one.per - now % one.per for one in terms]),
        )

    def count(self, table: JobTable, now: float) -> None:
        """Count the time until a round, and what each owner holds after it."""
        time, rows = self.time, np.flatnonzero(table.share[: len(table)] > 0).tolist()
        time.advance(self._terms, now)
        time.held = np.zeros(len(time.names))
        for row in rows:
            time.held[self._index[table.jobs[row].owner]] += table.share[row] * len(table.home[row])

    def status(self, jobs: Iterable[str], now: float) -> list[dict[str, Any]]:
        """Return what each owner has and may have, as JSON values.

        Args:
            jobs: Owner of each job that has not ended.
            now: Scheduler time.
        """
        used = self.time.used_until(self._terms, now).tolist()
        listed = list(jobs)
        return [
            {
                "owner": name,
                "jobs": listed.count(name),
                "held": held,
                "weight": terms.weight,
                "quota": terms.devices,
                "borrowed": max(held - terms.devices, 0.0),
                "max_devices": terms.max_devices,
                "device_hours": seconds / HOUR,
                "budget": terms.device_hours,
                "per": terms.per,
            }
            for name, held, seconds, terms in zip(
                self.time.names, self.time.held.tolist(), used, self._terms, strict=True
            )
        ]

    def check(self, table: JobTable) -> None:
        """Check that no owner holds more than it may; an AssertionError names one that does."""
        held: dict[str, float] = {}
        for row in table.active_rows().tolist():
            owner = table.jobs[row].owner
            held[owner] = held.get(owner, 0.0) + float(table.share[row]) * len(table.home[row])
        for owner, devices in held.items():
            cap = self._settings.terms_of(owner).cap
            if devices > cap + 1e-6:
                raise AssertionError(f"{owner or 'the unknown owner'} holds {devices} devices, and may have {cap}")

    def _take_terms(self, name: str) -> None:
        self._index[name] = len(self._terms)
        self._terms.append(self._settings.terms_of(name))

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        policies: dict[str, Any] = {}
        for name, policy in self.policies.items():
            if not isinstance(policy, Saves):
                raise StateError(f"{type(policy).__name__} must have the methods state and restore, to be saved")
            policies[name] = policy.state()
        return {"time": self.time.state(), "policies": policies}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take on a state that :meth:`state` returned."""
        self.time.restore(state["time"])
        for name in self.time.names:
            self._take_terms(name)
        for name, saved in state["policies"].items():
            policy = self.policy_of(name)
            assert isinstance(policy, Saves)  # its copy has saved itself
            policy.restore(saved)
