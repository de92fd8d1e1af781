"""What a controller is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from lightning_core.core.control import Ask, PoolAnswer
from lightning_core.core.events import Event
from lightning_core.core.pool_view import PoolView


@runtime_checkable
class Controller(Protocol):
    """Decides something beside the policy: about jobs, nodes or money.

    The scheduler hosts it, and the journal replays it. It has no clock, and no state but what :meth:`handle` was given:
    the same events give the same answers.
    """

    def handle(self, event: Event, now: float, pool: PoolView) -> Sequence[Ask | PoolAnswer]:
        """Take in what has happened, and return what is asked of jobs, and wanted of the cloud, from now on.

        Args:
            event: What has happened.
            now: Scheduler time in seconds; it does not fall.
            pool: The pool, with what the event has changed.

        Returns:
            One :class:`~lightning_core.core.control.Ask` at most for each job. What is asked again costs nothing. What
            is wanted beside that (:data:`~lightning_core.core.control.PoolAnswer`), and may be:
            :data:`~lightning_core.core.control.RIGHTS` says which controller may want what.
        """

    def wakeup(self) -> float | None:
        """Return when it wants a :class:`~lightning_core.core.events.Tick`, scheduler time; None for never."""

    def state(self) -> dict[str, Any]:
        """Return what it remembers as JSON values."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take on a state that :meth:`state` returned."""
