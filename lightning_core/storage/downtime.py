"""When no scheduler was there: from the last that the one before was heard of until its workers were given up.

Pure, for whoever reads a journal: the summary of a run, and the views.
"""

from __future__ import annotations

from typing import NamedTuple

from lightning_core.core.events import Close, Event, Tick, WorkersLost


class Down(NamedTuple):
    """A time without a scheduler."""

    since: float
    """Scheduler time."""
    until: float
    by: str
    """Who ended the scheduler before, in words such as ``"Ctrl-C"``; empty if it was a fault."""


class Downtime:
    """Reads off the events of a journal, one after the other, when no scheduler was there.

    A scheduler that goes on where a journal ends may wake itself before it hears that its workers are lost. So what
    counts is the longest time without an event since anybody but the clock was heard of.

    Example::

        >>> downtime = Downtime()
        >>> events = [(Close("Ctrl-C"), 4.0), (Tick(), 60.0), (Tick(), 61.0), (WorkersLost(), 61.5)]
        >>> [down for event, now in events if (down := downtime.take(event, now))]
        [Down(since=4.0, until=60.0, by='Ctrl-C')]
    """

    def __init__(self) -> None:
        self._last = 0.0
        self._longest = (0.0, 0.0)
        self._closed_by = ""

    def take(self, event: Event | None, now: float) -> Down | None:
        """Take in one event and return the time without a scheduler that ends with it, if one does.

        Args:
            event: any; None for one that neither closes nor opens the pool, and is no tick of the clock.
            now: scheduler time.
        """
        since, until = self._longest
        if now - self._last > until - since:
            self._longest = self._last, now
        self._last = now
        if isinstance(event, Tick):
            return None
        longest, self._longest = self._longest, (now, now)
        if isinstance(event, Close):
            self._closed_by = event.by
        if not isinstance(event, WorkersLost):
            return None
        by, self._closed_by = self._closed_by, ""
        return Down(*longest, by)
