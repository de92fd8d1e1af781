"""Counters of a scheduler's process since its start, for monitoring."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lightning_core.core.answers import Accepted, Answer, End
from lightning_core.core.codec import kind_of
from lightning_core.core.events import Event

# Upper bounds of the histogram of decisions, in seconds: a report takes a tenth of a millisecond, a round of thousands
# of jobs some tenths of a second.
BOUNDS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class Counters:
    """Counters of one process; an event stays counted even if its commit fails.

    Example::

        >>> from lightning_core.core.events import Tick
        >>> counters = Counters()
        >>> counters.decided(Tick(), 0.002, 1, [], [])
        >>> counters.to_dict()["events"], counters.to_dict()["decisions"]["seconds"]
        ({'tick': 1}, 0.002)
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._events = Counter[type[Event]]()
        self._ends, self._faults = Counter[str](), Counter[str]()
        self._decisions = [0] * (len(BOUNDS) + 1)
        self._decision_seconds = self._commit_seconds = 0.0
        self._round_seconds = 0.0
        self._commits = self._rounds = 0

    def decided(
        self, event: Event, seconds: float, rounds: int, answers: Sequence[Answer], accepted: Iterable[Accepted]
    ) -> None:
        """Count an event that the scheduler has handled, which took it some seconds and some rounds."""
        self._events[type(event)] += 1
        self._decision_seconds += seconds
        if rounds:
            self._rounds += rounds
            self._round_seconds += seconds
        self._decisions[bisect_left(BOUNDS, seconds)] += 1
        for answer in answers:
            if isinstance(answer, End) and answer.version:  # version 0: its incarnation is over, or it is unknown
                self._ends[answer.verdict] += 1
        for one in accepted:
            if one.fault is not None:
                self._faults[one.fault.code] += 1

    def committed(self, seconds: float) -> None:
        """Count a commit of the journal, which took some seconds; called by the thread that commits."""
        self._commits += 1
        self._commit_seconds += seconds

    def to_dict(self) -> dict[str, Any]:
        """Return all counts as JSON values. Times are in seconds; of decisions, the count at or below each bound."""
        at_or_below = [sum(self._decisions[: k + 1]) for k in range(len(BOUNDS))]
        return {
            "age": time.monotonic() - self._started, "events": {kind_of(kind): n for kind, n in self._events.items()},
            "decisions": {"seconds": self._decision_seconds, "count": sum(self._decisions),
                          "at_or_below": dict(zip(map(str, BOUNDS), at_or_below, strict=True))},
            "rounds": self._rounds, "round_seconds": self._round_seconds,
            "commits": self._commits, "commit_seconds": self._commit_seconds,
            "ends": dict(self._ends), "faults": dict(self._faults),
        }  # fmt: skip


def journal_bytes(journal: Path) -> int:
    """Return the bytes of a journal on disk, its write-ahead log included; 0 if there is none."""
    files = (journal, journal.with_name(f"{journal.name}-wal"))
    return sum(path.stat().st_size for path in files if path.exists())
