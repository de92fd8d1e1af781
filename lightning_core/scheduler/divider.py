"""Dividers: they divide a pool among groups of jobs, before the policy plans those of each group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from math import inf
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from lightning_core.core.jobs import Job
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import Policy
from lightning_core.core.saved_state import Saves, StateError
from lightning_core.core.specs import Family
from lightning_core.scheduler.allocation import Caps


class Membership(NamedTuple):
    """What a divider says of a new job."""

    group: str = ""
    """Name of its group."""
    cap: float = inf
    """How many devices the group may have at most; inf for any number."""
    quota: int = 0
    """How many devices are the group's whenever it can use them; 0 if it has no such quota."""


PolicyOf = Callable[[str], Policy]
"""Returns the policy of a group by its name: a copy of the pool's."""


class Divider(Protocol):
    """Divides the devices of a pool among groups of jobs.

    A part brings a class of it under the key of its terms in the section ``pool`` (:attr:`Part.dividers
    <lightning_core.core.parts.Part>`); a pool has at most one. One of another package that raises divides no more: all
    jobs are planned together.

    Args:
        terms: What :meth:`read` has returned, checked; a ValueError says what is wrong.

    Attributes:
        group_word: Word for a group in reasons: ``owner`` of "in its owner's share".
    """

    group_word: str

    @classmethod
    def read(cls, section: Any, problems: Any, devices: int | None) -> dict[str, Any]:
        """Read the terms from the section ``pool`` of a file.

        Args:
            section: Their value in the file.
            problems: :class:`~lightning_core.bundle.problems.Problems` at them.
            devices: Devices of the pool; None if their number is wrong.

        Returns:
            The terms as JSON values.
        """

    @classmethod
    def section(cls, terms: Mapping[str, Any]) -> Any:
        """Return the terms as in a file; :meth:`read` reads them."""

    def join(self, settings: Any) -> None:
        """Join a pool, before anything else is asked.

        Args:
            settings: Its :class:`~lightning_core.scheduler.settings.Settings`.

        Raises:
            ValueError: If a term does not fit the pool; the message names it.
        """

    def admit(self, job: Job) -> Membership:
        """Return the group of a job, which stays the same, and what the group may have."""

    def plan(self, round: Any, view: JobView, policy_of: PolicyOf) -> tuple[Plan, Caps]:
        """Plan the jobs of a round; return what each group may have at most with the plan.

        The plan asks for no more than each group may have: a share of 0 for jobs that it has no room for. The caps
        limit what a group gets beyond that of what others leave.

        Args:
            round: The :class:`~lightning_core.scheduler.round.Round`.
            view: Its jobs.
            policy_of: Returns the policy of a group. ``round.only(rows).plan(policy, view.only(rows))`` plans those
                jobs alone, and
            :func:`~lightning_core.planning.merged_plans.joined` makes one plan of several.
        """

    def count(self, table: Any, now: float) -> None:
        """Count the time until a round, and what each group holds after it.

        Args:
            table: The :class:`~lightning_core.scheduler.tables.table.JobTable`.
            now: Scheduler time.
        """

    def check(self, table: Any) -> None:
        """Check that no group holds more than it may; an AssertionError names one that does."""

    def describe(self, jobs: Iterable[Job], now: float) -> list[dict[str, Any]]:
        """Return what each group has and may have, as JSON values.

        An entry with an ``owner`` is shown to those alone who may see the jobs of that owner.

        Args:
            jobs: Jobs that have not ended.
            now: Scheduler time.
        """

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""


DIVIDERS: Family[Divider] = Family(
    "divider", {}, outside="dividers",
    methods=("read", "section", "join", "admit", "plan", "count", "check", "describe", "state", "restore"),
)  # fmt: skip


def divider_class(name: str) -> type[Divider]:
    """Return the class of a divider by its name.

    Raises:
        AbsentPartError: If no part brings it.
    """
    return cast(type[Divider], DIVIDERS.factory(name))


class Division:
    """A divided pool: its divider, with the policy of each group that has jobs.

    Args:
        divider: The divider.
        policy: The policy before its first plan.
        table: The jobs.

    Attributes:
        divider: The divider.
        policies: The policy of each group that has jobs, by its name.
    """

    def __init__(self, divider: Divider, policy: Policy, table: Any) -> None:
        self.divider = divider
        self.policies: dict[str, Policy] = {}
        self._policy, self._table = policy, table
        self._groups: dict[str, str] = {}
        table.group_word = divider.group_word

    def admit(self, job: Job) -> Membership:
        """Add a job to its group."""
        membership = self.divider.admit(job)
        self._groups[job.name] = membership.group
        self._policy_of(membership.group)
        return membership

    def replace_policies(self, change: Callable[[Policy], Policy]) -> None:
        """Replace the policy of each group, and that of new groups, by what a function returns for it."""
        self._policy = change(deepcopy(self._policy))
        self.policies = {group: change(policy) for group, policy in self.policies.items()}

    def policy_of(self, job: str) -> Policy:
        """Return the policy of the group of a job."""
        return self._policy_of(self._group_of(job))

    def _group_of(self, job: str) -> str:
        """Return the group of a job; all are in one once the divider has failed."""
        return Membership().group if getattr(self.divider, "has_failed", False) else self._groups[job]

    def _policy_of(self, group: str) -> Policy:
        if group not in self.policies:
            policy = self.policies[group] = deepcopy(self._policy)
            for bank in getattr(policy, "banks", ()):
                bank.grow(len(self._table))
        return self.policies[group]

    def plan(self, round: Any, view: JobView) -> tuple[Plan, Caps]:
        """Plan the jobs of a round; return what each group may have at most with the plan."""
        plan, caps = self.divider.plan(round, view, self._policy_of)
        self._table.group_share[round.rows] = np.array(caps.share)[np.array(caps.of)]
        return plan, caps

    def forget(self) -> None:
        """Forget the groups that have no job in the table."""
        self._groups = {name: self._groups[name] for name in self._table.names}
        present = set(map(self._group_of, self._groups))
        self.policies = {group: policy for group, policy in self.policies.items() if group in present}

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        policies: dict[str, Any] = {}
        for group, policy in self.policies.items():
            if not isinstance(policy, Saves):
                raise StateError(f"{type(policy).__name__} must have the methods state and restore, to be saved")
            policies[group] = policy.state()
        return {"divider": self.divider.state(), "groups": self._groups, "policies": policies}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        self.divider.restore(state["divider"])
        self._groups = {str(job): str(group) for job, group in state["groups"].items()}
        for group, saved in state["policies"].items():
            policy = self._policy_of(group)
            assert isinstance(policy, Saves)  # its copy has saved itself
            policy.restore(saved)
