"""Access checks on a scheduler's jobs, made at the moment of the access.

A name may come to mean the job of another person while a request is on its way. So the owner is looked up where the
event is handed to the scheduler, with nothing in between.
"""

from __future__ import annotations

from collections.abc import Callable

from lightning_core.core.commands import Command
from lightning_core.core.events import Close, Event, PartEvent
from lightning_core.core.names import did_you_mean
from lightning_core.core.protocols import AccessRefusedError, JoinRefusedError
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.server.access.people import Person, Right


class Guard:
    """Checks requests about jobs.

    Args:
        scheduler: Function that returns the current scheduler.
    """

    def __init__(self, scheduler: Callable[[], Scheduler]) -> None:
        self._scheduler = scheduler

    def sees(self, job: str, person: Person) -> bool:
        """Return whether there is a job of this name, and the person may see it."""
        owner = self._owner(job)
        return owner is not None and person.sees(owner)

    def check_known(self, job: str, person: Person) -> None:
        """Check that there is a job of this name. For a user who may not see it, there is none.

        Raises:
            JoinRefusedError: If there is none; the message has the name that was probably meant.
        """
        if not self.sees(job, person):
            names = [name for name in self._scheduler().names() if self.sees(name, person)]
            raise JoinRefusedError(f"no job {job!r}{did_you_mean(job, names)}")

    def check(self, event: Event, person: Person) -> None:
        """Check that a user may send an event.

        Raises:
            JoinRefusedError: If it is about a job that the person does not see.
            AccessRefusedError: If the person has not the right to it.
        """
        if isinstance(event, Close | PartEvent):
            person.check(Right.STEER_ALL)
        if isinstance(event, Command):
            self.check_known(event.job, person)
            owner = self._owner(event.job) or ""
            if not person.steers(owner):
                right = Right.STEER_OWN if owner == person.name else Right.STEER_ALL
                raise AccessRefusedError(
                    f"{event.job} belongs to {owner or 'an unknown owner'}; to change it, {person.name} needs the "
                    f"right {right}, and has {person.words}"
                )

    def may_report(self, job: str, person: Person) -> bool:
        """Return whether a process of a user may report for a job: their own, or one that is unknown here."""
        return person.may(Right.STEER_ALL) or self._owner(job) in (None, person.name)

    def may_continue(self, job: str, person: Person) -> bool:
        """Return whether a process of a user may take over a job that another process has left."""
        owner = self._owner(job)
        return owner == person.name or (not owner and person.may(Right.STEER_ALL))

    def _owner(self, job: str) -> str | None:
        """Return the owner of the newest job of a name; None if there is no job of that name."""
        scheduler = self._scheduler()
        return None if scheduler.directive(job) is None else scheduler.job(job).owner
