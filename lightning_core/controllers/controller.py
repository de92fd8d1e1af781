"""The protocol of controllers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from lightning_core.core.control import Asker, Rights, rights_of
from lightning_core.core.events import Event
from lightning_core.core.pool_view import PoolView


@runtime_checkable
class Controller(Protocol):
    """Decides something beside the policy.

    The scheduler hosts it, and the journal replays it. It has no clock, and its state depends on the events of
    :meth:`handle` alone: the same events give the same answers.

    It may have attributes: ``rights``, the :class:`~lightning_core.core.control.Rights` that it needs; ``kept_jobs``,
    the names of jobs that it still needs once they have ended; ``is_busy``, whether it is to be woken although no job
    trains or is held; ``must_continue``, whether a later pool of the folder has to continue its record; and the class
    method ``named_parts(arguments)``, which yields the family and the name of each part that it chooses by name.
    """

    def handle(self, event: Event, now: float, pool: PoolView) -> Sequence[Any]:
        """Handle an event, and return the new requests for jobs and for the cloud.

        Args:
            event: The event.
            now: Scheduler time in seconds; it does not fall.
            pool: The pool after the event.

        Returns:
            One :class:`~lightning_core.core.control.Ask` at most for each job, as far as its rights permit;
            repeated requests cost nothing. Besides, a :class:`~lightning_core.core.control.Note` about a job, and
            objects of the classes in :attr:`Part.answers <lightning_core.core.parts.Part>`.
        """

    def wakeup(self) -> float | None:
        """Return when it wants a :class:`~lightning_core.core.events.Tick`, scheduler time; None for never."""

    def state(self) -> dict[str, Any]:
        """Return its state as JSON values."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""


@runtime_checkable
class ChecksEvents(Protocol):
    """A controller that can refuse events of its part before they are journalled, and knows which are no news."""

    def check(self, event: Any, pool: PoolView) -> None:
        """Check that an event fits the controller and the pool; a ValueError says why not.

        Args:
            event: Object of one of the classes in :attr:`Part.events <lightning_core.core.parts.Part>`.
            pool: The pool before the event.
        """

    def changes(self, event: Any, pool: PoolView) -> bool:
        """Return whether an event is news; one that is not is neither journalled nor handled."""


@runtime_checkable
class Describes(Protocol):
    """A controller that tells users what it does now."""

    def describe(self) -> Any:
        """Return JSON values for ``about()`` of a pool."""


class PublishedLevel(NamedTuple):
    """Work that a controller requests of an actor; each level replaces the one before."""

    version: int
    """It rises with each change."""
    body: Any


@runtime_checkable
class Publishes(Protocol):
    """A controller that has an actor of its part carry out what it asks for."""

    def published(self, *, failed: bool, idle: bool) -> PublishedLevel:
        """Return what is wanted now.

        Args:
            failed: Whether the controller has raised and gets no more events; work that costs money must end then.
            idle: Whether all jobs of the pool have ended.
        """


def is_pure(by: Asker, controller: Controller) -> bool:
    """Return whether a replay asks a controller again."""
    rights = getattr(controller, "rights", None)
    return (rights if isinstance(rights, Rights) else rights_of(by)).is_pure
