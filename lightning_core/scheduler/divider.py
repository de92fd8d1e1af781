"""Protocol of dividers: they divide a pool among groups of jobs, before the policy plans those of each group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from lightning_core.core.jobs import Job
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import Policy
from lightning_core.core.specs import Family
from lightning_core.scheduler.allocation import Caps


class Divider(Protocol):
    """Divides the devices of a pool among groups of jobs.

    A part of the library brings a class of it under the key of its terms in the section ``pool`` (:attr:`Part.dividers
    <lightning_core.core.parts.Part>`); a pool has at most one. It has no guard, and its answers are not recorded: the
    same rounds must give the same plans. So those of other packages are refused.

    Args:
        terms: What :meth:`read` has returned, checked; a ValueError says what is wrong.

    Attributes:
        policies: The policy of each group that has jobs, by its name.
    """

    policies: Mapping[str, Policy]

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

    def join(self, settings: Any, policy: Policy) -> None:
        """Join a scheduler.

        Args:
            settings: Its :class:`~lightning_core.scheduler.settings.Settings`.
            policy: The policy as it is before its first plan; the jobs of each group are planned by a copy of it.
        """

    def check_pool(self, devices: int) -> None:
        """Check the terms against the devices of a pool; a ValueError names the one that is wrong."""

    def policy_of(self, job: Job) -> Policy:
        """Return the policy of a job's group."""

    def cap_of(self, job: Job) -> float:
        """Return how many devices the group of a job may have at most; inf for any number."""

    def quota_of(self, job: Job) -> int:
        """Return how many devices are the group's of a job whenever it can use them; 0 if it has no such quota."""

    def plan(self, round: Any, view: JobView) -> tuple[Plan, Caps]:
        """Plan the jobs of a round; return what each group may have at most with the plan.

        Args:
            round: The :class:`~lightning_core.scheduler.round.Round`.
            view: Its jobs.
        """

    def count(self, table: Any, now: float) -> None:
        """Count the time until a round, and what each group holds after it.

        Args:
            table: The :class:`~lightning_core.scheduler.tables.table.JobTable`.
            now: Scheduler time.
        """

    def forget(self, jobs: Iterable[Job]) -> None:
        """Forget the policies of groups that have none of these jobs, which are all in the table."""

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
        """Take on a state that :meth:`state` returned."""


DIVIDERS: Family[Divider] = Family("divider", {}, outside="dividers", methods=("plan", "describe", "state", "restore"))
