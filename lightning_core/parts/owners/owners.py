"""The owners of a pool's jobs: a policy for the jobs of each, and what each has had of the pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lightning_core.bundle.problems import Problems
from lightning_core.core.arrays import IntArray
from lightning_core.core.jobs import Job
from lightning_core.core.limits import check_at_most
from lightning_core.core.plans import JobView, Plan
from lightning_core.parts.owners.by_owner import Entitled, plan_by_owner
from lightning_core.parts.owners.device_time import DeviceTime
from lightning_core.parts.owners.owner_terms import MAX_OWNERS, OTHERS, OwnerTerms, check_quotas, owner_terms
from lightning_core.parts.owners.owners_section import owners_section, read_owners
from lightning_core.scheduler.allocation import Caps
from lightning_core.scheduler.divider import Membership, PolicyOf
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.tables.table import JobTable

HOUR = 3600.0


class Owners:
    """Owners that are told apart. Jobs of whom the owner is unknown are those of one, with an empty name.

    Args:
        terms: Arguments of :class:`OwnerTerms` by the name of the owner, and for all others under ``"*"``.

    Attributes:
        time: What each owner has had.

    Raises:
        ValueError: If a name or an argument is wrong.
    """

    group_word = "owner"
    time: DeviceTime

    def __init__(self, terms: Mapping[str, Mapping[str, Any]]) -> None:
        check_at_most("the number of owners", len(terms), MAX_OWNERS)
        self._named = owner_terms(terms)
        self._terms: list[OwnerTerms] = []
        self._index: dict[str, int] = {}

    @classmethod
    def read(cls, section: Any, problems: Problems, devices: int | None) -> dict[str, Any]:
        """Read the terms from a file; see :func:`~lightning_core.parts.owners.owners_section.read_owners`."""
        return read_owners(section, problems, devices)

    @classmethod
    def section(cls, terms: Mapping[str, Any]) -> dict[str, Any]:
        """Return the terms as in a file."""
        return owners_section(terms)

    def join(self, settings: Settings) -> None:
        """Join a pool, whose devices must suffice for the quotas."""
        check_quotas(self._named, settings.devices)
        self.time = DeviceTime(settings.turn)

    def admit(self, job: Job) -> Membership:
        """Return the owner of a job, and what it may have."""
        terms = self.terms_of(job.owner)
        return Membership(job.owner, terms.cap, terms.devices)

    def terms_of(self, owner: str) -> OwnerTerms:
        """Return the terms of an owner, named or not."""
        return self._named.get(owner) or self._named.get(OTHERS) or OwnerTerms()

    def plan(self, round: Round, view: JobView, policy_of: PolicyOf) -> tuple[Plan, Caps]:
        """Plan a round; return what each owner may have at most with the plan.

        Args:
            round: The round.
            view: Its jobs.
            policy_of: Returns the policy of an owner's jobs.
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
        policies = [policy_of(time.names[owner]) for owner in every.tolist()]
        time.share = np.zeros(len(time.names))
        if len(every) == 1 and owners.cap[0] >= round.devices and not owners.spent[0]:
            plan, limited = round.plan(policies[0], view), np.array([np.inf])
        else:
            plan, share, content, limits = plan_by_owner(round, view, owners, policies)
            time.share[every] = np.where(content, 0.0, share)
            limited = np.where(limits, share, np.inf)
        return plan, Caps(of.tolist(), owners.cap.tolist(), limited.tolist())

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
        time, every = self.time, np.arange(len(table))
        rows = every[table.trains(every)]
        time.advance(self._terms, now)
        time.held = np.zeros(len(time.names))
        for row, share in zip(rows.tolist(), table.held_share(rows).tolist(), strict=True):
            time.held[self._index[table.jobs[row].owner]] += share * len(table.home[row])

    def describe(self, jobs: Iterable[Job], now: float) -> list[dict[str, Any]]:
        """Return what each owner has and may have, as JSON values.

        Args:
            jobs: Jobs that have not ended.
            now: Scheduler time.
        """
        used = self.time.used_until(self._terms, now).tolist()
        listed = [job.owner for job in jobs]
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
        rows = table.active_rows()
        for row, share in zip(rows.tolist(), table.held_share(rows).tolist(), strict=True):
            owner = table.jobs[row].owner
            held[owner] = held.get(owner, 0.0) + share * len(table.home[row])
        for owner, devices in held.items():
            cap = self.terms_of(owner).cap
            if devices > cap + 1e-6:
                raise AssertionError(f"{owner or 'the unknown owner'} holds {devices} devices, and may have {cap}")

    def _take_terms(self, name: str) -> None:
        self._index[name] = len(self._terms)
        self._terms.append(self.terms_of(name))

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"time": self.time.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        self.time.restore(state["time"])
        for name in self.time.names:
            self._take_terms(name)
