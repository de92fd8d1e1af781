"""Numbers and texts that no real pool has are refused where they come in, by name and rule, at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lightning_core.agent.environment import read
from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.commands import SetDeadline, SetTerms
from lightning_core.core.control import WallClock
from lightning_core.core.control.wall_clock import MAX_OFFSET, MAX_WALL
from lightning_core.core.earlier_runs import EarlierRun, check_run
from lightning_core.core.events import (
    MAX_RUNS_AT_ONCE,
    Close,
    EarlierRuns,
    Event,
    LaunchTimedOut,
    Report,
    Submit,
    WorkerExited,
)
from lightning_core.core.jobs import Job
from lightning_core.core.limits import (
    MAX_ARGUMENT,
    MAX_COUNT,
    MAX_DEVICES,
    MAX_ITEMS,
    MAX_NAME,
    MAX_SECONDS,
    MAX_TEXT,
    check_arguments,
    format_bytes,
)
from lightning_core.core.targets import BatchTarget, LossTarget, parse_target
from lightning_core.core.validation import positive_int
from lightning_core.scheduler.settings import Settings

JOB = Job("a", 60.0, BatchTarget(9))
CENTURY = r"at most 100 years \(3155760000 seconds\)"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"devices": 10**9}, "devices must be at most 1,024, got 1000000000"),
        ({"devices": 10**5000}, "devices must be at most 1,024, got a number of more than 20 digits"),
        ({"resident": 10**9}, "resident must be at most 100,000"),
        ({"cores": 10**6}, "cores must be at most 4,096"),
        ({"window": 10**9}, "window must be at most 10,000"),
        ({"judge_after": 10**9}, "judge_after must be at most 10,000"),
        ({"period": 1e300}, f"period must be {CENTURY}"),
        ({"period": 1e-300}, "period must be at least 0.001 seconds"),
        ({"stay": math.inf}, f"stay must be {CENTURY}"),
        ({"resize": 1e10}, f"resize must be {CENTURY}"),
        ({"stall": 1e10}, f"stall must be {CENTURY}"),
        ({"quantum": 1e-300}, "quantum must be at least 1e-06"),
        ({"locations": ("a" * (MAX_NAME + 1),)}, "a location must have at most 200 characters, got 201"),
        ({"policy": "lara", "policy_args": {"explore": 10**400}}, "policy: numbers must be at most 1,000,000,000,000"),
        ({"policy": "fixed", "policy_args": {"shares": [0.5] * 10**4}}, "policy: must have at most 1,000 values"),
        ({"policy": "laira", "policy_args": {"dkf": {"noise": "x" * 9999}}}, "policy: a text must have at most 4,096"),
        ({"estimator": "posterior", "estimator_args": {"powers": [4.0] * 17}}, "powers must be at most 16"),
    ],
)
def test_settings_have_upper_bounds(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "a" * 999}, "job name must have at most 200 characters, got 999"),
        ({"location": "a" * 999}, "location must have at most 200"),
        ({"deadline": 1.7e308}, f"deadline must be {CENTURY}, got 1.7e\\+308"),
        ({"begin": 1e300, "deadline": 1e9}, f"begin must be {CENTURY}"),
        ({"weight": 1e300}, r"weight must be 1e-09 to 1e\+09, got 1e\+300"),
        ({"weight": 5e-324}, r"weight must be 1e-09 to 1e\+09, got 5e-324"),
        ({"work": 1e300}, f"work must be {CENTURY}"),
        ({"work": 5e-324}, "work must be at least 1e-09 seconds"),
        ({"deadline": 5e-324}, "deadline must be at least 1e-09 seconds"),
        ({"resize_seconds": 1e300}, f"resize_seconds must be {CENTURY}"),
        ({"restarts": 10**13}, "restarts must be at most 1,000,000,000,000"),
        ({"retries": 10**400}, "retries must be at most 1,000,000,000,000, got a number of more"),
        ({"max_devices": 1025}, "max_devices must be at most 1,024, got 1025"),
        ({"device": 10**9}, "device must be at most 1,024"),
        ({"target": "9" * 18 + " batches"}, "target batches must be a whole number from 1 to 1000000000000"),
    ],
)
def test_jobs_have_upper_bounds(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(JOB, **given)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BatchTarget(10**26), "whole number from 1 to 1000000000000, got a number of more than 20 digits"),
        (lambda: LossTarget("x" * 10**6, 0.1), "target metric must have at most 200 characters"),
        (lambda: parse_target("x" * 10**6), "target line must have at most 1,000 characters"),
        (lambda: SetDeadline("a", 1e300), f"deadline must be {CENTURY}"),
        (lambda: SetTerms("a", weight=1e300), "weight must be 1e-09"),
        (lambda: Submit((JOB,) * (MAX_ITEMS + 1)), "jobs of one submission must be at most 100,000"),
    ],
)
def test_targets_and_events_have_upper_bounds(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_bounds_themselves_are_allowed() -> None:
    Settings(devices=MAX_DEVICES, period=MAX_SECONDS)
    replace(JOB, deadline=MAX_SECONDS, max_devices=MAX_DEVICES, name="a" * MAX_NAME)


def test_texts_and_lists_of_events_are_bounded() -> None:
    assert encode_event(Close("x" * MAX_TEXT))
    with pytest.raises(ValueError, match="by: expected at most 8,192 characters, got 8,193"):
        encode_event(Close("x" * (MAX_TEXT + 1)))
    with pytest.raises(ValueError, match=r"by: expected characters of UTF-8, got 'a.ud800'"):
        encode_event(Close("a\ud800"))
    cells: Any = ((1, 1, 0.5),) * (MAX_ITEMS + 1)
    with pytest.raises(ValueError, match="cells: expected at most 100,000 values, got 100,001"):
        encode_event(Report("a", 1, 1, 1, 1, 1.0, cells))


@pytest.mark.parametrize(
    "make", [lambda text: WorkerExited("a", 1, detail=text), lambda text: LaunchTimedOut("a", 1, text)]
)
def test_the_end_of_a_long_detail_is_kept(make: Callable[[str], Event]) -> None:
    event: Any = make("x" * MAX_TEXT + "\nValueError: \ud800 it is the last line that counts")
    assert len(event.detail) == MAX_TEXT
    assert event.detail.startswith("[...]xxx")
    assert event.detail.endswith("ValueError: ? it is the last line that counts")
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("WEIGHT", "1e300", r"LIGHTNING_CORE_WEIGHT: weight must be 1e-09 to 1e\+09"),
        ("TARGET", "9" * 18 + " batches", "LIGHTNING_CORE_TARGET: target batches must be a whole number from 1 to"),
        ("TARGET", "a" * 10**5 + "<=1", "LIGHTNING_CORE_TARGET must have at most 4,096 characters"),
        ("DEADLINE", "9" * 50, "LIGHTNING_CORE_DEADLINE: duration must be at most 10 years"),
    ],
)
def test_variables_have_upper_bounds(variable: str, value: str, words: str) -> None:
    named = {"JOB": "a", "DEADLINE": "2h", "TARGET": "9 batches", variable: value}
    with pytest.raises(ValueError, match=words):
        read({f"LIGHTNING_CORE_{name}": text for name, text in named.items()})


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (1023, "1,023B"), (1024, "1KiB"), (100 * 2**10, "100KiB"), (99.94 * 2**20, "99.9MiB"), (3 * 2**20, "3MiB"),
        (999 * 2**30, "999GiB"), (2**40, "1TiB"), (2**51, "2,048TiB"),
    ],
)  # fmt: skip
def test_memory_in_words(amount: float, words: str) -> None:
    assert format_bytes(amount) == words


@pytest.mark.parametrize("number", [MAX_ARGUMENT, -MAX_ARGUMENT, math.inf])
def test_the_largest_argument_is_taken_and_infinity_is_for_the_policy(number: float) -> None:
    check_arguments("policy", {"explore": number})


@pytest.mark.parametrize(
    ("seconds", "utc_offset", "words"),
    [
        (-1.0, 0.0, "seconds must be at least 0 and finite, got -1"),
        (math.inf, 0.0, "seconds must be at least 0 and finite, got inf"),
        (MAX_WALL * 2, 0.0, "seconds must be at most"),
        (0.0, 10 * MAX_OFFSET, "utc_offset must be at most"),
        (0.0, math.nan, "utc_offset must be at most .* got nan"),
    ],
)
def test_a_clock_has_bounds(seconds: float, utc_offset: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        WallClock(seconds, utc_offset)
    assert WallClock(0.0, -MAX_OFFSET).utc_offset == -MAX_OFFSET
    assert WallClock(MAX_WALL, MAX_OFFSET).seconds == MAX_WALL


RUN = EarlierRun("old", (1, 9), (2.0, 1.0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"met_at": 0}, "old: met_at must be 1 to"),
        ({"met_at": MAX_COUNT + 1}, "old: met_at must be 1 to"),
        ({"throughputs": ((0, 1.0),)}, "old: numbers of devices must increase from 1 to 1,024"),
        ({"throughputs": ((2, 1.0), (2, 1.0))}, "old: numbers of devices must increase"),
        ({"throughputs": ((MAX_DEVICES + 1, 1.0),)}, "old: numbers of devices must increase"),
        ({"throughputs": ((1, 0.0),)}, "old: throughputs must be positive, got 0"),
        ({"throughputs": ((1, 1e300),)}, "old: throughputs must be 1e-09 to"),
        ({"memory": 0}, "old: memory must be 1 to"),
    ],
)
def test_an_earlier_run_has_bounds(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_run(RUN._replace(**change))


@pytest.mark.parametrize(
    "change", [{"met_at": 1}, {"met_at": MAX_COUNT}, {"throughputs": ((1, 2.0), (MAX_DEVICES, 9.0))}]
)
def test_the_bounds_of_an_earlier_run_are_allowed(change: dict[str, Any]) -> None:
    check_run(RUN._replace(**change))


def test_what_is_known_of_earlier_runs_is_bounded() -> None:
    with pytest.raises(ValueError, match="earlier runs at once must be at most"):
        EarlierRuns((RUN,) * (MAX_RUNS_AT_ONCE + 1), ())
    with pytest.raises(ValueError, match="jobs with earlier runs must be at most"):
        EarlierRuns((), (("a", ()),) * (MAX_ITEMS + 1))
    for place in (-1, 1):
        with pytest.raises(ValueError, match="a: places must be those of 1 runs"):
            EarlierRuns((RUN,), (("a", (place,)),))
    assert EarlierRuns((RUN,), (("a", (0,)),)).of((0,)) == (RUN,)


@pytest.mark.parametrize(
    ("value", "maximum", "limit"),
    [(0, None, "of at least 1"), (9, 8, "from 1 to 8"), (True, 8, "from 1 to 8"), ("2", None, "of at least 1")],
)
def test_a_count_is_a_whole_number_in_range(value: object, maximum: int | None, limit: str) -> None:
    with pytest.raises(ValueError, match=f"must be a whole number {limit}, got "):
        positive_int(value, maximum)
    assert (positive_int(1), positive_int(8, 8)) == (1, 8)
