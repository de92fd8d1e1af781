"""The calendar controller: outside the hours of a pool, its jobs are saved, leave their devices, and wait."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from lightning_core.core.control import Ask, Asker
from lightning_core.core.control.wall_clock import WallClock
from lightning_core.core.events import Event, Submit
from lightning_core.core.limits import check_at_most, check_length, shown
from lightning_core.core.pool_view import PoolView
from lightning_core.core.reasons import Reason
from lightning_core.core.saved_state import Stateful

DAY, WEEK = 86400.0, 604800.0
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MAX_RULES = 50
# The epoch began on a Thursday.
_FIRST_DAY = 3
_RULE = re.compile(r"not between (\d\d?):(\d\d) and (\d\d?):(\d\d)(?: on ([a-z, -]+))?")


class Closed(NamedTuple):
    """Hours of a week at which nothing trains.

    Example::

        >>> Closed.parse("not between 22:00 and 06:00 on fri-sun").days
        (4, 5, 6)
        >>> Closed.parse("between 22:00 and 06:00")
        Traceback (most recent call last):
        ...
        ValueError: must be such as 'not between 22:00 and 06:00' or '... on sat, sun', got 'between 22:00 and 06:00'
    """

    rule: str
    days: tuple[int, ...]
    """Days on which they begin; 0 is Monday."""
    begin: float
    """Seconds since midnight."""
    length: float
    """Seconds."""

    @classmethod
    def parse(cls, rule: str) -> Closed:
        """Return a rule as text.

        Raises:
            ValueError: If it is none.
        """
        if not isinstance(rule, str) or (found := _RULE.fullmatch(" ".join(rule.lower().split()))) is None:
            raise ValueError(f"must be such as 'not between 22:00 and 06:00' or '... on sat, sun', got {shown(rule)}")
        check_length("a rule of the calendar", rule)
        *times, days = found.groups()
        begin, end = (_time(*pair) for pair in ((times[0], times[1]), (times[2], times[3])))
        if begin == end:
            raise ValueError(f"must begin and end at different times, got {shown(rule)}")
        return cls(rule, _days(days) if days else tuple(range(7)), begin, (end - begin) % DAY)

    def starts(self) -> list[float]:
        """Return when they begin, in seconds since Monday, midnight."""
        return [day * DAY + self.begin for day in self.days]

    def holds(self, at: float) -> bool:
        """Return whether a time, in seconds since some Monday, midnight, lies within them."""
        return any((at - start) % WEEK < self.length for start in self.starts())


def _time(hours: str, minutes: str) -> float:
    if int(hours) > 23 or int(minutes) > 59:
        raise ValueError(f"must have times from 00:00 to 23:59, got {hours}:{minutes}")
    return int(hours) * 3600.0 + int(minutes) * 60.0


def _days(text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = (one.strip() for one in part.partition("-"))
        for name in (first, last or first):
            if name not in DAYS:
                raise ValueError(f"must have days of {', '.join(DAYS)}, got {shown(name)}")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found |= {(begin + k) % 7 for k in range((end - begin) % 7 + 1)}
    return tuple(sorted(found))


class Calendar(Stateful):
    """Holds all jobs at certain hours of the day or the week.

    It reads the hour from the newest :class:`~lightning_core.core.control.WallClock`, and makes no requests before the
    first one. Local time counts, and a change to or from daylight saving time takes effect when it happens.

    Args:
        closed: Rules such as ``not between 22:00 and 06:00`` or ``not between 08:00 and 18:00 on mon-fri``. The day is
            the one on which the hours begin.

    Raises:
        ValueError: If there is no rule, or one cannot be read.

    Example::

        >>> from lightning_core.testing.controller_conformance import MadeUpPool
        >>> from lightning_core.core.events import Tick
        >>> calendar, pool = Calendar(["not between 22:00 and 06:00"]), MadeUpPool(["vit"])
        >>> calendar.handle(WallClock(21.5 * 3600.0), 100.0, pool), calendar.wakeup()
        ([], 1900.0)
        >>> [ask] = calendar.handle(Tick(), 1900.0, pool)
        >>> ask.hold, str(ask.reason), calendar.wakeup()
        (True, 'not between 22:00 and 06:00', 30700.0)
    """

    STATE = ("_monday", "_now", "_rule")

    def __init__(self, closed: Sequence[str]) -> None:
        if not isinstance(closed, list | tuple) or not closed:
            raise ValueError(f"closed must be a list of rules, got {shown(closed)}")
        check_at_most("rules of the calendar", len(closed), MAX_RULES)
        self._closed = [Closed.parse(rule) for rule in closed]
        self._monday: float | None = None  # scheduler time of some Monday, midnight
        self._now = 0.0
        self._rule = ""  # the one that holds jobs now

    def handle(self, event: Event, now: float, pool: PoolView) -> Sequence[Ask]:
        self._now = now
        if isinstance(event, WallClock):
            self._monday = now - (event.seconds + event.utc_offset + _FIRST_DAY * DAY) % WEEK
        if self._monday is None:
            return []
        before, at = self._rule, now - self._monday
        self._rule = next((closed.rule for closed in self._closed if closed.holds(at)), "")
        if self._rule != before:
            names = pool.names()
        else:
            names = [job.name for job in event.jobs] if self._rule and isinstance(event, Submit) else []
        if not self._rule:
            return [Ask(name, Asker.CALENDAR) for name in names]
        reason = Reason("closed", text=self._rule)
        return [Ask(name, Asker.CALENDAR, hold=True, release=True, reason=reason) for name in names]

    def wakeup(self) -> float | None:
        if self._monday is None:
            return None
        at = self._now - self._monday
        starts = [(start, closed.length) for closed in self._closed for start in closed.starts()]
        edges = chain.from_iterable((start, start + length) for start, length in starts)
        wakeup = self._now + min((edge - at) % WEEK or WEEK for edge in edges)
        return max(wakeup, math.nextafter(self._now, math.inf))  # the edge may be nearer than a float can tell
