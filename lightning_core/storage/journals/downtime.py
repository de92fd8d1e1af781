"""Downtime: times without a scheduler, from its last sign of life until its workers were declared lost.

Pure, for everything that reads a journal: the summary of a run, and the views.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lightning_core.core.codec import decode_event
from lightning_core.core.events import Close, Event, Tick, WorkersLost
from lightning_core.storage.journals.journal_database import LEFT_OUT_BEFORE, JournalEntry

# Seconds that the scheduler may be late, on a busy machine, before that counts as a gap.
MAX_LATENESS = 1.5
# Beginnings of the events that determine downtime: the others need not be decoded for it.
_EVENTS = tuple(f'{{"kind":"{kind}"' for kind in ("tick", "close", "workers_lost"))


class Down(NamedTuple):
    """A time without a scheduler."""

    since: float
    """Scheduler time of the start."""
    until: float
    """Scheduler time of the end."""
    by: str
    """Cause of the shutdown, such as ``"Ctrl-C"``; empty after a crash."""


class Downtime:
    """Finds the times without a scheduler in the events of a journal, taken one after the other.

    A scheduler that resumes from a journal may handle ticks before it hears that its workers are lost. So downtime is
    the longest gap between events since the last event that was not a tick.

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

    def skip(self, now: float) -> None:
        """Take note that events up to ``now`` were left out, and that there was no downtime among them."""
        self._last, self._longest = now, (now, now)

    def take(self, event: Event | None, now: float) -> Down | None:
        """Take one event and return the downtime that ends with it, if one does.

        Args:
            event: The event; None stands for one that is neither ``Close`` nor ``WorkersLost`` nor ``Tick``.
            now: Scheduler time.
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


def seconds_down(entries: Iterable[JournalEntry]) -> float:
    """Return the seconds of downtime within the span of a journal's entries."""
    downtime, seconds = Downtime(), 0.0
    for entry in entries:
        if entry.digest == LEFT_OUT_BEFORE:
            downtime.skip(entry.now)
        event = decode_event(entry.event) if entry.event.startswith(_EVENTS) else None
        if (down := downtime.take(event, entry.now)) is not None:
            seconds += down.until - down.since
    return seconds
