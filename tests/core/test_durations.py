"""Durations and points in time as people write them, in time zones with and without summer time."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Iterator
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from lightning_core.core.durations import MAX_DURATION, WallTime, parse_duration, parse_limit, parse_when, seconds_until

BERLIN, KOLKATA = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("0.5s", 0.5),
        ("1d2h3m4s", 93_784),
        ("2 hours", 7200),
        ("2h 30m", 9000),
        ("2 Hours, 30 Minutes", 9000),
        ("1 hour and 5 seconds", 3605),
        ("1 week", 604_800),
        ("3 mins", 180),
        ("10 sec", 10),
        ("1.5 hrs", 5400),
        ("  1 day  ", 86_400),
        ("02:30:00", 9000),
        ("2:30:00", 9000),
        ("100:00:01.5", 360_001.5),
        ("1-02:30:00", 95_400),
        ("1 day, 2:30:00", 95_400),
        ("7200", 7200),
        (7200, 7200),
        (0.5, 0.5),
        (np.int64(7), 7),
        (np.float32(7), 7),
        (timedelta(hours=2, minutes=30), 9000),
    ],
)
def test_durations_are_parsed(text: object, seconds: float) -> None:
    assert parse_duration(text) == parse_when(text) == seconds


@pytest.mark.parametrize(
    "value",
    ["", " ", "5x", "s", "1m1h", "1 hour 30", "2h30", "3 months", "2mo", "3 ms", "1e3", "nan", "inf", "02:60:00",
     "02:30:60", "\uff15h", "5\u00b5s", "1" * 101, "5 " * 40, b"2h", [], None, True, math.nan, Decimal(5)],
)  # fmt: skip
def test_invalid_durations_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"duration must be such as .*got"):
        parse_duration(value)
    with pytest.raises(ValueError, match=r"must be a duration such as .*, or a time such as .*got"):
        parse_when(value)


@pytest.mark.parametrize("value", ["0s", 0, -5, "00:00:00", timedelta(0), timedelta(hours=-1), -math.inf])
def test_a_duration_is_positive(value: object) -> None:
    with pytest.raises(ValueError, match="duration must be positive, got"):
        parse_when(value)


@pytest.mark.parametrize(
    "value", ["11 weeks 9999d", MAX_DURATION + 1, math.inf, 10**400, "9" * 99, "9" * 90 + ":00:00"]
)
def test_a_duration_is_finite(value: object) -> None:
    with pytest.raises(ValueError, match=r"duration must be at most 10 years, got .{1,120}$"):
        parse_when(value)


@pytest.mark.parametrize(("value", "seconds"), [(None, None), (False, None), ("off", None), ("10m", 600.0), (5, 5.0)])
def test_a_limit_may_be_off(value: object, seconds: float | None) -> None:
    assert parse_limit(value) == seconds


@pytest.mark.parametrize("value", [True, 0, "no", "off "])
def test_a_limit_is_off_by_one_word(value: object) -> None:
    with pytest.raises(ValueError, match="duration must be"):
        parse_limit(value)


def test_a_duration_of_two_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="got '18:00', which is a time of day"):
        parse_duration("18:00")


NOON = datetime(2026, 11, 22, 12, 0, tzinfo=BERLIN)


@pytest.mark.parametrize(
    ("value", "now", "words"),
    [
        ("18:00", NOON, "18:00 CET, in 6h"),
        (time(18), NOON, "18:00 CET, in 6h"),
        ("9:30", NOON, "09:30 CET tomorrow, in 21h30m (09:30 today is past)"),
        ("12:00", NOON, "12:00 CET tomorrow, in 1d (12:00 today is past)"),
        ("18:00Z", NOON, "19:00 CET, in 7h"),
        ("02:00+05:30", NOON, "21:30 CET, in 9h30m"),  # the 23rd has begun there at 19:30 here
        ("18:00", NOON.astimezone(KOLKATA), "18:00 IST, in 1h30m"),
        ("18:00", datetime(2026, 11, 22, 12, tzinfo=timezone(timedelta(hours=-3))), "18:00 UTC-03:00, in 6h"),
        ("2026-11-22T18:00", NOON, "18:00 CET, in 6h"),
        ("2026-11-23 18:00:30", NOON, "18:00:30 CET tomorrow, in 1d6h"),
        ("2026-12-24T18:00", NOON, "2026-12-24 18:00 CET, in 32d6h"),
        ("2027-07-01T18:00", NOON, "2027-07-01 18:00 CEST, in 221d5h"),
        ("2026-11-22T18:00Z", NOON, "19:00 CET, in 7h"),
        ("2026-11-22t18:00:00.5+0100", NOON, "18:00 CET, in 6h"),
        (datetime(2026, 11, 22, 18), NOON, "18:00 CET, in 6h"),
        (datetime(2026, 11, 22, 18, tzinfo=KOLKATA), NOON, "13:30 CET, in 1h30m"),
    ],
)
def test_points_in_time_are_parsed(value: object, now: datetime, words: str) -> None:
    when = parse_when(value)
    assert isinstance(when, WallTime)
    assert str(when.resolve(now)) == words
    assert parse_when(when.text) == when or when.time.tzinfo is KOLKATA  # it is kept as text


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("24:00", "a time of day is 00:00 to 23:59, got '24:00'; for a duration write 2h30m or 02:30:00"),
        ("90:00", "a time of day is 00:00 to 23:59"),
        ("12:60", "a time of day is 00:00 to 23:59"),
        ("18:00+24:00", "an offset from UTC is less than 24 hours"),
        ("2026-11-23", "a date needs a time of day too, such as 2026-11-23T18:00"),
        ("2026-02-30T18:00", "not a date and time (day is out of range for month"),
        ("2026-13-01T18:00", "not a date and time (month must be in 1..12"),
    ],
)
def test_invalid_points_in_time_are_refused(text: str, rule: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        parse_when(text)
    assert rule in str(error.value)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("2026-11-22T11:00", "a time must be in the future, got '2026-11-22T11:00', which was 1h ago"),
        ("2026-11-22T12:00", "a time must be in the future, got '2026-11-22T12:00', which was 0.0s ago"),
        ("2020-01-01T00:00", "a time must be in the future, got '2020-01-01T00:00'"),
        ("0001-01-01T00:00", "a time must be in the future"),
        ("9999-12-31T23:59", "a time must be within 10 years, got '9999-12-31T23:59'"),
        ("2037-01-01T00:00", "a time must be within 10 years"),
    ],
)
def test_durations_beyond_the_maximum_are_refused(text: str, rule: str) -> None:
    with pytest.raises(ValueError, match="a time must be") as error:
        seconds_until(parse_when(text), NOON)
    assert rule in str(error.value)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's own time zone."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    clock.tzset()
    yield
    monkeypatch.undo()
    clock.tzset()


# In 2026 clocks are put forward on 29 March at 02:00 CET, and back on 25 October at 03:00 CEST.
@pytest.mark.parametrize(
    ("now", "text", "seconds", "words"),
    [
        ("2026-03-28T18:30", "18:00", 22.5 * 3600, "18:00 CEST tomorrow, in 22h30m (18:00 today is past)"),
        ("2026-10-24T18:30", "18:00", 24.5 * 3600, "18:00 CET tomorrow, in 1d (18:00 today is past)"),
        ("2026-03-29T01:00", "02:30", 1.5 * 3600, "03:30 CEST, in 1h30m"),  # there is no 02:30 on that day
        ("2026-10-25T02:00", "02:30", 0.5 * 3600, "02:30 CEST, in 30m"),  # twice: the first
        ("2026-10-25T02:45", "02:30", 0.75 * 3600, "02:30 CET, in 45m"),  # ... and the second
    ],
)
@pytest.mark.parametrize("own", [False, True], ids=["told", "machine"])
def test_points_in_time_follow_summer_time(
    now: str, text: str, seconds: float, words: str, own: bool, berlin: None
) -> None:
    here = datetime.fromisoformat(now) if own else datetime.fromisoformat(now).replace(tzinfo=BERLIN)
    when = parse_when(text)
    assert isinstance(when, WallTime)
    moment = when.resolve(here)
    assert moment.seconds == seconds
    assert str(moment) == words
