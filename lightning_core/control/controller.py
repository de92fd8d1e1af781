"""What a controller is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from lightning_core.core.control import Ask
from lightning_core.core.events import Event


@runtime_checkable
class Controller(Protocol):
    """Decides something about jobs beside the policy. The scheduler hosts it, and the journal replays it.

    It has no clock, and no state but what :meth:`handle` was given: the same events give the same answers.
    """

    def handle(self, event: Event, now: float, jobs: Callable[[], Sequence[str]]) -> Sequence[Ask]:
        """Take in what has happened, and return what is asked of jobs from now on.

        Args:
            event: What has happened.
            now: Scheduler time in seconds; it does not fall.
            jobs: Function that returns the names of the jobs that have not ended, with those that the event submits.

        Returns:
            One :class:`~lightning_core.core.control.Ask` at most for each job. What is asked again costs nothing.
        """

    def wakeup(self) -> float | None:
        """Return when it wants a :class:`~lightning_core.core.events.Tick`, scheduler time; None for never."""

    def state(self) -> dict[str, Any]:
        """Return what it remembers as JSON values."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take on a state that :meth:`state` returned."""
