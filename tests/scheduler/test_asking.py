"""What is asked of a job: levels, whose words stand above whose, and what is left when one is withdrawn."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import Accepted
from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.commands import Pause, Resume, SetDevices, SetLocation
from lightning_core.core.control import NOTHING, Ask, Asked, Asker, rights_of
from lightning_core.core.events import Event, Submit
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.reasons import Reason
from lightning_core.core.saved_state import restored
from lightning_core.core.targets import BatchTarget
from lightning_core.history.history import History
from lightning_core.scheduler.scheduler import Scheduler, Settings
from lightning_core.scheduler.scheduler_view import SchedulerView
from tests.builders import PLANNER, SIZER
from tests.examples import examples

POOL = Settings(policy="fifo", devices=6, locations=("edge", "edge", "cloud", "cloud", "cloud", "cloud"))
ALL = frozenset(Capability)
JOB = Job("a", 600.0, BatchTarget(1000), can=ALL, sizes=(1, 2, 4), max_devices=4)
WHY = Reason("part", text="planned for the morning")


def pool(settings: Settings = POOL, *events: Event) -> Scheduler:
    scheduler = Scheduler(settings)
    for now, event in enumerate((Submit((JOB,)), *events)):
        scheduler.handle(event, float(now))
        scheduler.check()
    return scheduler


def holds(scheduler: Scheduler) -> tuple[str, int, bool]:
    """Where job a is, on how many devices it trains, and whether it is paused."""
    status = scheduler.last("a")
    return scheduler.job("a").location, len(status.devices) if status.share else 0, status.paused


def test_a_person_stands_above_the_plan_and_the_plan_above_the_market_whichever_speaks_last() -> None:
    market, plan = Ask("a", SIZER, devices=4), Ask("a", PLANNER, devices=2, reason=WHY)
    person = SetDevices("a", 1)
    for events in ((market, plan, person), (person, plan, market), (plan, person, market)):
        assert holds(pool(POOL, *events))[1] == 1
    assert holds(pool(POOL, plan, market))[1] == 2
    assert holds(pool(POOL, market))[1] == 4


def test_controllers_see_the_throughputs_that_are_known() -> None:
    told = replace(JOB, throughputs=(1.0, 1.9, 3.6))
    for job, seen in ((JOB, {}), (told, {1: 1.0, 2: 1.9, 4: 3.6})):
        scheduler = Scheduler(POOL)
        scheduler.handle(Submit((job,)), 0.0)
        assert SchedulerView(scheduler._state, 0.0).throughputs("a") == seen


def test_what_is_withdrawn_leaves_what_the_others_ask() -> None:
    scheduler = pool(POOL, Ask("a", SIZER, devices=1), SetLocation("a", "edge", 2))
    assert holds(scheduler) == ("edge", 2, False)
    scheduler.handle(SetDevices("a", None), 10.0)  # the person leaves it to the market, and the location too
    assert holds(scheduler) == ("", 1, False)
    scheduler.handle(Ask("a", SIZER), 11.0)
    assert holds(scheduler) == ("", 4, False)  # as it was submitted


def test_a_level_replaces_all_that_its_asker_asked_before() -> None:
    held = Ask("a", PLANNER, hold=True, release=True, reason=Reason("part", text="not planned for the night"))
    scheduler = pool(POOL, held)
    assert holds(scheduler)[2]
    assert str(scheduler.last("a").grant_reason) == "paused by the planner: not planned for the night"
    scheduler.handle(Ask("a", PLANNER, location="cloud", devices=2, reason=WHY), 5.0)
    assert holds(scheduler) == ("cloud", 2, False)


def test_a_job_that_is_held_keeps_its_devices_unless_its_memory_is_freed_too() -> None:
    for release, devices in ((False, 4), (True, 0)):
        scheduler = pool(POOL, Ask("a", Asker.CALENDAR, hold=True, release=release, reason=WHY))
        assert (scheduler.last("a").share, len(scheduler.last("a").devices)) == (0.0, devices)


def test_a_size_that_is_withdrawn_is_left_to_a_policy_that_chooses_sizes() -> None:
    decor = Settings(policy="decor", devices=4)
    scheduler = pool(decor, Ask("a", SIZER, devices=1, reason=WHY))
    assert scheduler._table.told_size[0] == 1
    scheduler.handle(Ask("a", SIZER), 5.0)
    assert scheduler._table.told_size[0] == 0
    scheduler.check()


def test_a_pause_of_a_person_outlasts_the_plan() -> None:
    scheduler = pool(POOL, Pause("a"), Ask("a", PLANNER, hold=False, location="cloud", reason=WHY))
    assert holds(scheduler)[2]
    scheduler.handle(Resume("a"), 5.0)
    assert holds(scheduler)[2] is False


def test_a_person_takes_a_pause_back_and_then_overrules_who_holds_the_job() -> None:
    held = Ask("a", Asker.CALENDAR, hold=True, reason=Reason("part", text="not planned for the night"))
    scheduler = pool(POOL, held, Pause("a"))
    scheduler.handle(Resume("a"), 5.0)
    assert str(scheduler.last("a").grant_reason) == "paused by the calendar: not planned for the night"
    scheduler.handle(Resume("a"), 6.0)
    assert holds(scheduler)[2] is False
    scheduler.handle(Ask("a", Asker.CALENDAR, hold=True, reason=WHY), 7.0)  # the same, for another reason
    assert holds(scheduler)[2] is False
    scheduler.handle(Pause("a"), 8.0)
    scheduler.handle(Resume("a"), 9.0)  # what was overruled is so no more
    assert holds(scheduler)[2]


def test_what_changes_nothing_needs_no_place_in_the_journal() -> None:
    ask = Ask("a", PLANNER, location="cloud", devices=2, reason=WHY)
    scheduler = pool(POOL, ask)
    for event in (ask, replace(ask, job="unknown"), replace(ask, location="moon"), Ask("a", SIZER)):
        assert scheduler.answers_to_no_op(event, 5.0) == []
        before = scheduler.state()["table"]
        assert scheduler.handle(event, 5.0) == []
        assert scheduler.state()["table"] == before
    assert scheduler.answers_to_no_op(replace(ask, devices=1), 5.0) is None


def test_an_ask_goes_through_the_journal_and_its_words_say_who_overruled_it() -> None:
    ask = Ask("a", SIZER, devices=3, reason=Reason("part", text="2 and 1 nodes"))
    assert decode_event(encode_event(ask)) == ask
    history = History(POOL)
    history.take(Submit((JOB,)), 0.0, [], [Accepted("a")])
    history.take(ask, 1.0, [], [Accepted("a")])
    history.take(Pause("a"), 2.0, [], [Accepted("a")])
    history.take(Ask("a", PLANNER, hold=False, reason=WHY), 3.0, [], [Accepted("a")])
    history.take(Ask("a", PLANNER), 4.0, [], [Accepted("a")])
    assert [(remark.kind, remark.words) for remark in history.of("a").remarks] == [
        ("sizer", "devices 3: 2 and 1 nodes"),
        ("command", "pause"),
        ("planner", "train: planned for the morning (overruled by a person)"),
        ("planner", "request withdrawn"),
    ]


def test_levels_are_saved() -> None:
    events = Pause("a", release=True), Ask("a", SIZER, devices=2, reason=Reason("part", text="2 and 0 nodes"))
    scheduler = pool(POOL, *events)
    state = scheduler.state()
    again = restored(Scheduler(POOL), state)
    assert again.state() == state
    again.handle(Resume("a"), 9.0)
    assert holds(again) == ("", 2, False)


LEVELS = st.builds(
    Asked, hold=st.sampled_from([None, True, False]), location=st.sampled_from([None, "edge", "cloud", ""]),
    devices=st.sampled_from([None, 0, 1, 2, 4]),
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from([PLANNER, SIZER, Asker.CALENDAR]), LEVELS), max_size=12))
@settings(max_examples=examples(80), deadline=None)
def test_in_whatever_order_they_speak_what_counts_is_what_each_said_last(story: list[tuple[Asker, Asked]]) -> None:
    scheduler, last = pool(), dict[Asker, Asked]()
    for now, (by, level) in enumerate(story, start=1):
        rights = rights_of(by)
        level = Asked(
            level.hold if rights.holds else None, False, level.location if rights.places else None,
            level.devices if rights.sizes else None,
        )  # fmt: skip
        scheduler.handle(Ask("a", by, level.hold, False, level.location, level.devices), float(now))
        scheduler.check()
        last[by] = level
    said = [last.get(by, NOTHING) for by in (Asker.CALENDAR, PLANNER, SIZER)]
    hold = next((one.hold for one in said if one.hold is not None), False)
    location = next((one.location for one in said if one.location is not None), "")
    devices = next((one.devices for one in said if one.devices is not None), 4)
    assert holds(scheduler)[::2] == (location, hold)
    if not hold:
        there = {"edge": 2, "cloud": 4, "": 6}[location]
        assert holds(scheduler)[1] == (0 if devices == 0 else max(n for n in (1, 2, 4) if n <= min(devices, there)))
