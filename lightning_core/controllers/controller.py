"""The protocol of controllers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from lightning_core.core.control import Ask, PoolAnswer
from lightning_core.core.events import Event
from lightning_core.core.pool_view import PoolView


@runtime_checkable
class Controller(Protocol):
    """Decides something beside the policy: about jobs, nodes or money.

    The scheduler hosts it, and the journal replays it. It has no clock, and its state depends on the events of
    :meth:`handle` alone: the same events give the same answers.
    """

    def handle(self, event: Event, now: float, pool: PoolView) -> Sequence[Ask | PoolAnswer]:
        """Handle an event, and return the new requests for jobs and for the cloud.

        Args:
            event: The event.
            now: Scheduler time in seconds; it does not fall.
            pool: The pool after the event.

        Returns:
            One :class:`~lightning_core.core.control.Ask` at most for each job. Repeated requests cost nothing. It may
            also return requests for the pool (:data:`~lightning_core.core.control.PoolAnswer`), as far as
            its rights permit.
        """

    def wakeup(self) -> float | None:
        """Return when it wants a :class:`~lightning_core.core.events.Tick`, scheduler time; None for never."""

    def state(self) -> dict[str, Any]:
        """Return its state as JSON values."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take on a state that :meth:`state` returned."""


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
