"""Locations of devices: a job trains at its requested location and size, and moves when these change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import Answer, End, Grant, Verdict
from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.commands import SetDevices, SetLocation
from lightning_core.core.events import (
    DevicesUnavailable,
    Event,
    ExitCause,
    LaunchTimedOut,
    Report,
    Submit,
    Tick,
    WorkerExited,
)
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.builders import PLANNER
from tests.examples import examples

EDGE = Settings(policy="fifo", devices=4, stay=10.0, locations=("a", "a", "b", "cloud"))


def job(name: str, location: str = "", sizes: tuple[int, ...] = (), **more: Any) -> Job:
    can = frozenset(
        {Capability.TIME_SLICE, Capability.HOLD, Capability.RELEASE} | ({Capability.RESIZE} if sizes else set())
    )
    terms = {"max_devices": max(sizes, default=1), **more}
    return Job(name, 1e4, BatchTarget(10_000), can=can, sizes=sizes, location=location, **terms)


def tell(scheduler: Scheduler, event: Event, now: float) -> list[Answer]:
    answers = scheduler.handle(event, now)
    scheduler.check()
    return answers


def where(scheduler: Scheduler) -> dict[str, tuple[int, ...]]:
    return {status.name: status.devices for status in scheduler.status() if status.share}


def test_each_job_trains_and_waits_at_its_location() -> None:
    scheduler = Scheduler(EDGE)
    tell(scheduler, Submit((job("one", "b"), job("two", "b"), job("three"), job("four", "cloud"))), 0.0)
    assert where(scheduler) == {"one": (2,), "three": (0,), "four": (3,)}
    waits = scheduler.last("two")
    assert str(waits.grant_reason) == "waiting for a device at its location: the pool has 1 there"
    tell(scheduler, WorkerExited("one", 1, ExitCause.DONE), 1.0)
    assert where(scheduler)["two"] == (2,)


def test_a_moved_job_saves_leaves_and_resumes_at_the_new_location() -> None:
    scheduler = Scheduler(EDGE)
    tell(scheduler, Submit((job("one", "a"),)), 0.0)
    tell(scheduler, Report("one", 1, 1, 1, 5, 0.5), 1.0)
    # It has only begun to train there; a user's command moves it nevertheless.
    answers = tell(scheduler, SetLocation("one", "cloud"), 2.0)
    assert [answer.devices for answer in answers if isinstance(answer, Grant)] == [(3,)]
    tell(scheduler, WorkerExited("one", 1, ExitCause.RELEASED), 2.5)
    [placed] = scheduler.placements()
    assert (placed.incarnation, placed.devices) == (2, (3,))


def test_a_requested_device_count_is_granted_where_it_exists() -> None:
    scheduler = Scheduler(EDGE)
    tell(scheduler, Submit((job("one", "a", (1, 2)), job("two", "b", (1, 2)))), 0.0)
    assert where(scheduler) == {"one": (0, 1), "two": (2,)}
    tell(scheduler, SetDevices("one", 1), 1.0)
    assert len(where(scheduler)["one"]) == 1
    with pytest.raises(ValueError, match="devices must be at most the pool's 2 at a, got 7"):
        scheduler.check_command(SetDevices("one", 7), 2.0)
    tell(scheduler, SetDevices("one", 7), 2.0)
    assert len(where(scheduler)["one"]) == 1
    tell(scheduler, SetDevices("one", 2), 2.0)
    assert where(scheduler)["one"] == (0, 1)
    tell(scheduler, SetLocation("one", "cloud"), 3.0)
    assert where(scheduler)["one"] == (3,)  # there is no more there
    tell(scheduler, SetLocation("two", "nowhere"), 4.0)
    assert scheduler.job("two").location == "b"


def test_a_requested_device_count_is_lowered_to_what_exists() -> None:
    scheduler = Scheduler(Settings(policy="fifo", devices=4, stay=10.0))
    tell(scheduler, Submit((job("one", sizes=(1, 2, 4)),)), 0.0)
    assert len(where(scheduler)["one"]) == 4
    tell(scheduler, DevicesUnavailable((1, 2, 3), "their nodes are gone"), 1.0)
    assert where(scheduler) == {"one": (0,)}
    tell(scheduler, SetDevices("one", 4), 2.0)
    assert where(scheduler) == {"one": (0,)}
    tell(scheduler, DevicesUnavailable((1,)), 3.0)
    assert len(where(scheduler)["one"]) == 2
    tell(scheduler, DevicesUnavailable((0, 1, 2)), 4.0)
    assert where(scheduler) == {"one": (3,)}
    tell(scheduler, DevicesUnavailable(()), 5.0)
    assert len(where(scheduler)["one"]) == 4


def test_a_job_that_cannot_grow_keeps_its_devices() -> None:
    scheduler = Scheduler(EDGE)
    tell(scheduler, Submit((job("one", "a"), job("two", "a", (1, 2)))), 0.0)
    assert where(scheduler) == {"one": (0,)}
    tell(scheduler, SetDevices("two", 1), 1.0)
    assert where(scheduler) == {"one": (0,), "two": (1,)}
    tell(scheduler, SetDevices("two", 2), 2.0)
    assert where(scheduler) == {"one": (0,), "two": (1,)}
    tell(scheduler, WorkerExited("one", 1, ExitCause.DONE), 20.0)
    assert where(scheduler) == {"two": (0, 1)}


def test_an_unknown_location_is_reported_at_once() -> None:
    scheduler = Scheduler(EDGE)
    ends = tell(scheduler, Submit((job("one", "moon"), job("two", "b", min_devices=2, max_devices=2))), 0.0)
    assert [str(end.reason) for end in ends if isinstance(end, End)] == [
        "requires location moon, where the pool has no device",
        "needs 2 devices, but the pool has 1 at b",
    ]
    assert all(end.verdict is Verdict.CANCELLED for end in ends if isinstance(end, End))
    with pytest.raises(ValueError, match="locations must name one location for each of 2 devices"):
        Settings(devices=2, locations=("a",))
    with pytest.raises(ValueError, match="location is for a job that can be released on any device, got 'a'"):
        replace(job("one"), can=frozenset({Capability.TIME_SLICE}), location="a")
    with pytest.raises(ValueError, match="devices must be at least 0, got -1"):
        SetDevices("one", -1)


def test_requests_about_locations_are_journalled() -> None:
    for said in (SetDevices("one", 2), SetLocation("one", "a", 2, PLANNER), SetLocation("one", "")):
        assert decode_event(encode_event(said)) == said
    assert Settings(**json.loads(json.dumps(EDGE.to_dict()))).locations == EDGE.locations


STEPS = st.tuples(
    st.integers(0, 4), st.sampled_from(["a", "b", "cloud", ""]), st.sampled_from([None, 1, 2, 4]),
    st.sampled_from(["move", "report", "left", "lost", "launch_timed_out", "tick"]),
)  # fmt: skip


@given(st.lists(STEPS, max_size=25), st.sampled_from(["fifo", "triage", "decor"]))
@settings(max_examples=examples(60), deadline=None)
def test_no_job_ever_trains_at_another_location(story: list[tuple[int, str, int | None, str]], policy: str) -> None:
    scheduler = Scheduler(replace(EDGE, policy=policy, resident=8))
    places = ("a", "b", "cloud", "", "a")
    tell(scheduler, Submit(tuple(job(f"j{k}", at, ((), (1, 2))[k % 2]) for k, at in enumerate(places))), 0.0)
    number = 0
    for now, (k, at, devices, what) in enumerate(story, 1):
        name, number = f"j{k}", number + 1
        status = scheduler.last(name)
        match what:
            case "move":
                tell(scheduler, SetLocation(name, at, devices), 5.0 * now)
            case "report":
                batches = status.batches + 10
                tell(scheduler, Report(name, status.incarnation, number, 1, batches, 0.1 * batches), 5.0 * now)
            case "left" | "lost":
                cause = ExitCause.RELEASED if what == "left" else ExitCause.LOST
                tell(scheduler, WorkerExited(name, status.incarnation, cause), 5.0 * now)
            case "launch_timed_out":
                tell(scheduler, LaunchTimedOut(name, status.incarnation, "slow"), 5.0 * now)
            case "tick":
                tell(scheduler, Tick(), 5.0 * now)
        for one in scheduler.status():
            wanted = scheduler.job(one.name).location
            assert set(one.devices) <= set(EDGE.devices_at(wanted))
