"""Durations and points in time as users write them: ``90s``, ``2 hours``, ``02:30:00``, ``18:00``, an ISO timestamp.

Of numbers with colons, two parts are a time of day and three a duration. There is no clock here: the caller passes the
current time when a point in time is resolved.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from numbers import Real
from typing import NamedTuple

from lightning_core.core.limits import shown

When = str | float | timedelta | datetime | time
"""Accepted forms of a deadline: a duration, a time of day, or a date with a time."""

# Forecasts of curves that hardly fall may say anything; beyond this the figure is of no use.
MAX_FORECAST = 30 * 365 * 86400.0
# A forecast of more than this multiple of the available time or batches is not shown as a number.
FAR = 10.0
# Longer durations are shown as more than a year: of a forecast that far ahead, only that is of use.
YEAR = 365 * 86400.0
# Longest duration that may be asked for.
MAX_DURATION = 10 * 365.25 * 86400.0
# Libraries that construct objects from YAML: LightningCLI does so with the first one.
READERS = ("jsonargparse", "hydra", "omegaconf")

_UNITS = {
    "w(?:eeks?|ks?)?": 604800.0,
    "d(?:ays?)?": 86400.0,
    "h(?:(?:ou)?rs?)?": 3600.0,
    "m(?:in(?:ute)?s?)?": 60.0,
    "s(?:ec(?:ond)?s?)?": 1.0,
}
# Below this many seconds, a forecast is shown in steps of this many.
_FORECAST_STEPS = ((600.0, 10.0), (3600.0, 60.0), (36000.0, 600.0), (172800.0, 3600.0), (864000.0, 7200.0),
                   (math.inf, 86400.0))  # fmt: skip
_NUMBER = r"\d+(?:\.\d+)?"
_BETWEEN = r"\s*(?:,\s*)?(?:and\s+)?"
_PARTS = re.compile(_BETWEEN.join(rf"(?:({_NUMBER})\s*{unit}(?![a-z]))?" for unit in _UNITS), re.ASCII | re.IGNORECASE)
_CLOCK = re.compile(rf"(?:(\d+)(?:-|\s*days?,?\s+))?(\d+):([0-5]?\d):([0-5]?{_NUMBER})", re.ASCII)
_ZONE = r"\s*(Z|[+-]\d\d:?\d\d)?"
_TIME_OF_DAY = re.compile(rf"(\d\d?):(\d\d){_ZONE}", re.ASCII | re.IGNORECASE)
_TIMESTAMP = re.compile(
    rf"(\d{{4}}-\d\d-\d\d)(?:[T ]\s*(\d\d?):(\d\d)(?::(\d\d)(?:\.\d+)?)?{_ZONE})?", re.ASCII | re.IGNORECASE
)


def parse_duration(value: object) -> float:
    """Return the seconds of a duration.

    Args:
        value: Text such as ``"90s"``, ``"1h30m"``, ``"2 hours"`` or ``"02:30:00"``, a ``timedelta``, or a number of
            seconds. A text that is a bare number is in seconds too.

    Raises:
        ValueError: If it is none, not positive, or longer than ten years.

    Example::

        >>> [parse_duration(value) for value in ("1h30m", "2 hours", "02:30:00", 90, timedelta(minutes=1))]
        [5400.0, 7200.0, 9000.0, 90.0, 60.0]
        >>> parse_duration("18:00")
        Traceback (most recent call last):
            ...
        ValueError: duration must be such as '90s', '1h30m' or '02:30:00', got '18:00', which is a time of day
    """
    seconds = _seconds(value)
    if seconds is None:
        kind = ", which is a time of day" if isinstance(value, str) and _TIME_OF_DAY.fullmatch(value.strip()) else ""
        raise ValueError(f"duration must be such as '90s', '1h30m' or '02:30:00', got {shown(value, 100)}{kind}")
    if not seconds > 0:
        raise ValueError(f"duration must be positive, got {shown(value, 100)}")
    if seconds > MAX_DURATION:
        raise ValueError(f"duration must be at most 10 years, got {shown(value, 100)}")
    return seconds


def parse_limit(value: object) -> float | None:
    """Return the seconds of a duration; None for None and for ``"off"``, which YAML reads as False.

    Raises:
        ValueError: If it is none of these; see :func:`parse_duration`.

    Example::

        >>> parse_limit("10m"), parse_limit("off")
        (600.0, None)
    """
    return None if value is None or value is False or value == "off" else parse_duration(value)


def parse_deadline(value: object) -> float | WallTime:
    """Parse a deadline with :func:`parse_when`.

    Raises:
        ValueError: If it is neither; the message says that the deadline is wrong.

    Example::

        >>> parse_deadline("soon")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: deadline: must be a duration such as ..., got 'soon'
    """
    try:
        return parse_when(value)
    except ValueError as error:
        raise ValueError(f"deadline: {error}") from None


def parse_when(value: object) -> float | WallTime:
    """Return the seconds of a duration, or the point in time that is meant.

    Args:
        value: A duration, see :func:`parse_duration`; or ``"18:00"``, ``"2026-11-23T18:00"``, with ``Z`` or an offset
            such as ``+01:00`` if it is not of the machine's time zone; or a ``datetime`` or ``time``.

    Raises:
        ValueError: If it is neither.

    Example::

        >>> parse_when("2h"), parse_when("18:00").text
        (7200.0, '18:00')
    """
    if isinstance(value, datetime):
        return WallTime(value.isoformat(), value.date(), value.timetz())
    if isinstance(value, time):
        return WallTime(value.isoformat("minutes" if value.second == 0 else "auto"), None, value)
    text = value.strip() if isinstance(value, str) else ""
    if match := _TIME_OF_DAY.fullmatch(text):
        hours, minutes, zone = match.groups()
        return WallTime(text, None, _time(text, hours, minutes, "0", zone))
    if match := _TIMESTAMP.fullmatch(text):
        day, hours, minutes, seconds, zone = match.groups()
        if hours is None:
            raise ValueError(f"a date needs a time of day too, such as {day}T18:00, got {text!r}")
        try:
            return WallTime(text, date.fromisoformat(day), _time(text, hours, minutes, seconds or "0", zone))
        except ValueError as error:
            raise ValueError(f"not a date and time ({error}), got {text!r}") from None
    if _seconds(value) is None:
        raise ValueError(
            "must be a duration such as '90s', '1h30m' or '02:30:00', or a time such as '18:00' or "
            f"'2026-11-23T18:00', got {shown(value, 100)}"
        )
    return parse_duration(value)


def _seconds(value: object) -> float | None:
    """Return the seconds of a duration; None if the value is none."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            return math.inf
        return None if math.isnan(seconds) else seconds
    if not isinstance(value, str) or len(value) > 100:
        return None
    text = " ".join(value.split())
    if text.startswith("-") and not text.startswith("--"):
        forward = _seconds(text[1:])
        return None if forward is None else -forward
    if re.fullmatch(_NUMBER, text, re.ASCII):
        return float(text)
    if match := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds_ = match.groups()
        if float(seconds_) >= 60:
            return None
        return 86400.0 * float(days or 0) + 3600.0 * float(hours) + 60.0 * float(minutes) + float(seconds_)
    if not text or not (match := _PARTS.fullmatch(text)) or not any(match.groups()):
        return None
    return sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS.values(), strict=True) if part)


def _time(text: str, hours: str, minutes: str, seconds: str, zone: str | None) -> time:
    if int(hours) > 23 or int(minutes) > 59:
        raise ValueError(f"a time of day is 00:00 to 23:59, got {text!r}; for a duration write 2h30m or 02:30:00")
    tz: timezone | None = None
    if zone is not None:
        sign, digits = (-1 if zone[0] == "-" else 1), zone[1:].replace(":", "") or "0000"
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        if offset >= timedelta(hours=24):
            raise ValueError(f"an offset from UTC is less than 24 hours, got {text!r}")
        tz = timezone(sign * offset) if offset else UTC
    return time(int(hours), int(minutes), int(seconds), tzinfo=tz)


@dataclass(frozen=True)
class WallTime:
    """A point in wall-clock time, as it was written.

    Args:
        text: Original text.
        day: Date; None for whichever day comes first.
        time: Time of day; without a time zone it is local to the time that resolves it.
    """

    text: str
    day: date | None
    time: time

    def resolve(self, now: datetime) -> ResolvedTime:
        """Return when that is.

        Args:
            now: The present time. A naive one is in the machine's time zone, as ``datetime.now()`` is.

        Raises:
            ValueError: If it is past, or more than ten years ahead.

        Example::

            >>> from zoneinfo import ZoneInfo
            >>> now = datetime(2026, 11, 22, 14, 48, tzinfo=ZoneInfo("Europe/Berlin"))
            >>> print(parse_when("18:00").resolve(now))
            18:00 CET, in 3h12m
            >>> print(parse_when("9:00").resolve(now))
            09:00 CET tomorrow, in 18h12m (09:00 today is past)
        """
        if self.day is not None and not now.year - 1 <= self.day.year <= now.year + 11:
            raise ValueError(f"a time must be {'in the future' if self.day.year < now.year else 'within 10 years'}, "
                             f"got {self.text!r}")  # fmt: skip
        today = (now if self.time.tzinfo is None else now.astimezone(self.time.tzinfo)).date()
        for day in (today, today + timedelta(days=1)) if self.day is None else (self.day,):
            for fold in (0, 1):  # in autumn a clock shows some times twice
                at = datetime.combine(day, self.time, self.time.tzinfo or now.tzinfo).replace(fold=fold)
                seconds = at.timestamp() - now.timestamp()  # of a naive one in the machine's time zone
                if 0 < seconds <= MAX_DURATION:
                    at = datetime.fromtimestamp(at.timestamp(), UTC).astimezone(now.tzinfo)
                    return ResolvedTime(seconds, at, now, day != today and at.date() > now.date() and self.day is None)
        if seconds > 0:
            raise ValueError(f"a time must be within 10 years, got {self.text!r}")
        raise ValueError(f"a time must be in the future, got {self.text!r}, "
                         f"which was {format_duration(abs(seconds))} ago")  # fmt: skip


class ResolvedTime(NamedTuple):
    """A resolved point in time."""

    seconds: float
    """From then."""
    at: datetime
    """In the time zone of the time that resolved it."""
    now: datetime
    """Time at which it was resolved."""
    is_next_day: bool = False
    """Whether a time of day had passed, so that tomorrow's is meant."""

    def __str__(self) -> str:
        name = self.at.tzname() or ""
        clock = f"{self.at:%H:%M}{f':{self.at.second:02}' if self.at.second else ''}"
        zone = f"UTC{name}" if name[:1] in ("+", "-") else name
        days = (self.at.date() - self.now.date()).days
        day = {0: "", 1: " tomorrow"}.get(days, "")
        text = f"{clock} {zone}{day}" if 0 <= days <= 1 else f"{self.at:%Y-%m-%d} {clock} {zone}"
        past = f" ({clock} today is past)" if self.is_next_day else ""
        return f"{text}, in {format_duration(self.seconds)}{past}"


def seconds_until(when: float | WallTime, now: datetime) -> float:
    """Return the seconds of a duration, or from now to a point in time.

    Raises:
        ValueError: If that is past.
    """
    return when.resolve(now).seconds if isinstance(when, WallTime) else when


def format_duration(seconds: float) -> str:
    """Return a duration in its shortest form, of at most two parts.

    Example::

        >>> format_duration(5400), format_duration(42.31), format_duration(-3)
        ('1h30m', '42.3s', '-3.0s')
    """
    if seconds == math.inf:
        return "∞"
    if seconds > YEAR:
        return ">1y"
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 99.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts)


def rounded(number: float) -> float:
    """Return a number with two significant figures, which is all that a forecast has.

    Example::

        >>> rounded(13155), rounded(0.4567), rounded(0), rounded(math.inf)
        (13000.0, 0.46, 0.0, inf)
    """
    return float(f"{number:.2g}")


def format_forecast(seconds: float) -> str:
    """Return a forecast duration in its shortest form, of two figures in its unit.

    Example::

        >>> [format_forecast(seconds) for seconds in (0.43, 20.7, 108, 754, 4711, 49515, 9e5)]
        ['0.4s', '21s', '1m50s', '13m', '1h20m', '14h', '10d']
    """
    if seconds < 0:
        return f"-{format_forecast(-seconds)}"
    if seconds < 9.95 or seconds > YEAR:
        return format_duration(seconds)
    if seconds < 99.5:
        return f"{seconds:.0f}s"
    step = next(step for below, step in _FORECAST_STEPS if seconds < below)
    return format_duration(step * round(seconds / step))


def is_in_reach(seconds: float, limit: float) -> bool:
    """Return whether a forecast is shown as a number: within ten times the time available, and within a year."""
    return seconds <= min(FAR * limit, YEAR)


def format_end(seconds: float, limit: float) -> str:
    """Return a forecast end; not as a number if it is far beyond the available time.

    Example::

        >>> format_end(83.1, 60.0), format_end(601.0, 60.0)
        ('83s', 'beyond reach')
    """
    return format_forecast(seconds) if is_in_reach(seconds, limit) else "beyond reach"


def refuse_base_60(constructed: object, **durations: object) -> None:
    """Refuse a number that may have been a time, if a library that reads YAML constructs an object.

    There, 18:00 without quotes is 1080, in base 60. A bundle is read by :mod:`lightning_core.bundle.yaml_loader`, which
    sees the written text; a library that constructs objects from a configuration passes on the number alone, and then a
    number of seconds and a time look the same.

    Args:
        constructed: The object, whose ``__init__`` calls this.
        durations: Its arguments that are durations or points in time, as they were given.

    Raises:
        ValueError: If one is a number that base 60 can make; the message says how to write it.
    """
    if not _is_constructed_by_reader(constructed):
        return
    for name, value in durations.items():
        if isinstance(value, int | float) and value >= 60:
            raise ValueError(
                f"{name}: YAML reads {_in_base_60(value)} without quotes as {value:g} (base 60), so that a number may "
                f'have been a time; quote it, "{_in_base_60(value)}", or give a unit, {value:g}s'
            )


def _is_constructed_by_reader(constructed: object) -> bool:
    """Return whether the caller of the object's first ``__init__`` is such a library."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is constructed:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in READERS


def _in_base_60(value: float) -> str:
    """Return the text that YAML may have read, with as few colons as make a time of it.

    Example::

        >>> [_in_base_60(value) for value in (90, 1080, 5400, 90.5)]
        ['1:30', '18:00', '1:30:00', '1:30.5']
    """
    minutes, seconds = divmod(value, 60)
    least = f"{int(seconds):02}" if seconds == int(seconds) else f"{seconds:04.1f}"
    if minutes < 24:
        return f"{int(minutes)}:{least}"
    hours, minutes = divmod(minutes, 60)
    return f"{int(hours)}:{int(minutes):02}:{least}"
