"""Queue of future actions in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any], None]


class EventQueue:
    """Actions to come; of two at one instant the one that was scheduled first is first.

    Attributes:
        now: Virtual time in seconds: that of the last action taken.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action, Any]] = []
        self._count = 0

    def at(self, when: float, action: Action, argument: Any) -> int:
        """Schedule an action; return the number of its entry."""
        self._count += 1
        heappush(self._heap, (when, self._count, action, argument))
        return self._count

    @property
    def next_at(self) -> float:
        """Time of the next action; inf if none is left."""
        return self._heap[0][0] if self._heap else math.inf

    def take(self) -> tuple[int, Action, Any]:
        """Take the next action, and advance to its time; return the number of its entry, the action, its argument."""
        self.now, number, action, argument = heappop(self._heap)
        return number, action, argument
