"""The calendar: at which hours nothing trains, in the scheduler, its journal, a restarted host and the simulator."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.bundle.pool_section import PoolSection, pool_to_dict, read_calendar, read_pool, with_pool
from lightning_core.bundle.problems import Position, Problems
from lightning_core.controllers import Calendar
from lightning_core.controllers.calendar import WEEK, Closed
from lightning_core.core.answers import Answer, End, Grant, Verdict
from lightning_core.core.codec import decode_answers, decode_event, encode_answers, encode_event
from lightning_core.core.commands import Pause, Resume
from lightning_core.core.control import Ask, WallClock
from lightning_core.core.events import ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Capability, Job, OnMiss
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.history.history import History
from lightning_core.scheduler.scheduler import Scheduler, Settings
from lightning_core.server.clocks import INTERVAL, WallClockWatch, wall_clock
from lightning_core.server.host import EventNotPersistedError, Host
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.testing.controller_conformance import MadeUpPool, check_controller
from lightning_core.view.why import why
from tests.examples import examples

HOUR, DAY = 3600.0, 86400.0
# Monday, 2026-11-23, 00:00 UTC.
MONDAY = 1_795_392_000.0
NIGHT = "not between 22:00 and 06:00"
POOL = Settings(policy="fifo", controllers={"calendar": {"closed": [NIGHT]}})
LAUNCHED = Job("vit", 2 * DAY, BatchTarget(10**6), can=frozenset(Capability))
SCRIPT = Job("script", 2 * DAY, BatchTarget(10**6), can=frozenset({Capability.TIME_SLICE}))


def opened(at: float = 21 * HOUR, *jobs: Job, pool: Settings = POOL) -> Scheduler:
    """A scheduler at a time of Monday."""
    scheduler = Scheduler(pool)
    scheduler.handle(Submit(jobs or (LAUNCHED,)), 0.0)
    scheduler.handle(WallClock(MONDAY + at), 0.0)
    return scheduler


def asks(answers: Sequence[Answer]) -> list[tuple[str, bool | None]]:
    return [(answer.job, answer.hold) for answer in answers if isinstance(answer, Ask)]


def test_at_night_jobs_are_saved_and_leave_and_in_the_morning_they_go_on() -> None:
    scheduler = opened()
    scheduler.handle(Report("vit", 1, 1, 1, 10, 1.0), 10.0)
    while (at := scheduler.wakeup()) is not None and at < HOUR:
        scheduler.handle(Tick(), at)
    assert scheduler.wakeup() == HOUR
    answers = scheduler.handle(Tick(), HOUR)
    assert asks(answers) == [("vit", True)]
    [grant] = [answer for answer in answers if isinstance(answer, Grant)]
    assert (grant.share, grant.devices) == (0.0, ())
    assert str(grant.reason) == "paused by the calendar: not between 22:00 and 06:00"
    scheduler.handle(WorkerExited("vit", 1, ExitCause.RELEASED), HOUR + 5)
    assert scheduler.placements() == []
    assert scheduler.wakeup() == 9 * HOUR
    answers = scheduler.handle(Tick(), 9 * HOUR)
    assert asks(answers) == [("vit", None)]
    assert [answer.share for answer in answers if isinstance(answer, Grant)] == [1.0]


def test_a_job_that_is_submitted_at_night_waits_and_a_person_can_let_it_train() -> None:
    scheduler = opened(23 * HOUR)
    assert scheduler.last("vit").paused
    answers = scheduler.handle(Submit((SCRIPT,)), 60.0)
    assert asks(answers) == [("script", True)]
    scheduler.handle(Resume("script"), 61.0)
    assert not scheduler.last("script").paused
    assert scheduler.last("script").share == 1.0
    assert scheduler.last("vit").paused


def test_a_person_s_word_against_a_hold_ends_with_the_hold() -> None:
    scheduler = opened(23 * HOUR)
    scheduler.handle(Resume("vit"), 1.0)
    assert not scheduler.last("vit").paused
    scheduler.handle(WallClock(MONDAY + 6 * HOUR), 7 * HOUR)  # the morning
    scheduler.handle(WallClock(MONDAY + 22 * HOUR), 23 * HOUR)  # the next night
    assert scheduler.last("vit").paused


def test_a_job_that_a_person_paused_frees_its_memory_at_night_too() -> None:
    scheduler = opened(21 * HOUR)
    scheduler.handle(Pause("vit"), 1.0)
    assert scheduler.last("vit").devices == (0,)
    scheduler.handle(WallClock(MONDAY + 23 * HOUR), 2.0)
    assert scheduler.last("vit").devices == ()


def test_a_late_job_that_is_held_goes_on_when_the_hours_open() -> None:
    scheduler = opened(23 * HOUR, replace(LAUNCHED, deadline=100.0))
    scheduler.handle(Tick(), 101.0)
    assert scheduler.wakeup() == 7 * HOUR
    scheduler.handle(Tick(), 7 * HOUR)
    assert scheduler.last("vit").share == 1.0


def test_the_clock_is_told_again_after_a_disk_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    wall = WallClockWatch(lambda: WallClock(MONDAY + 23 * HOUR + now[0]))
    host = Host(POOL, tmp_path / "journal.db", lambda: now[0], wall_time=wall)
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "commit", full)
        with pytest.raises(EventNotPersistedError):
            host.handle(Submit((LAUNCHED,)))
        with pytest.raises(EventNotPersistedError):
            host.handle(Submit((LAUNCHED,)))
    now[0] = 60.0
    host.handle(Submit((LAUNCHED,)))
    assert host.scheduler.last("vit").paused
    host.close()


def full(_: Journal) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_an_edge_that_floats_cannot_tell_from_now_is_later_than_now() -> None:
    for at in range(4000):
        calendar = Calendar([NIGHT])
        calendar.handle(WallClock(MONDAY + 21 * HOUR), at * 1.7e-3 + 4e6, MadeUpPool())
        edge = calendar.wakeup()
        assert edge is not None
        calendar.handle(Tick(), edge, MadeUpPool())
        assert (later := calendar.wakeup()) is not None
        assert later > edge


def test_before_the_clock_on_the_wall_is_known_nothing_is_held() -> None:
    scheduler = Scheduler(POOL)
    assert asks(scheduler.handle(Submit((LAUNCHED,)), 0.0)) == []
    assert scheduler.last("vit").share == 1.0
    assert asks(scheduler.handle(WallClock(MONDAY + 3 * HOUR), 1.0)) == [("vit", True)]
    # The clock was wrong, or daylight saving time began: the new hour counts at once.
    assert asks(scheduler.handle(WallClock(MONDAY + 3 * HOUR, 4 * HOUR), 2.0)) == [("vit", None)]


def test_what_the_calendar_asks_is_journalled_replayed_and_told(tmp_path: Path) -> None:
    time, wall = [0.0], [MONDAY + 21 * HOUR]
    clock = lambda: time[0]  # noqa: E731
    host = Host(POOL, tmp_path / "journal.db", clock, wall_time=WallClockWatch(lambda: WallClock(wall[0] + time[0])))
    host.handle(Submit((LAUNCHED,)))
    time[0] = HOUR + 1
    host.catch_up()
    assert host.scheduler.last("vit").paused
    host.close()
    time[0] = 0.0  # a new process, whose clock begins anew
    wall[0] = MONDAY + DAY + 7 * HOUR
    host = Host(POOL, tmp_path / "journal.db", clock, wall_time=WallClockWatch(lambda: WallClock(wall[0] + time[0])))
    assert host.scheduler.last("vit").paused
    host.catch_up()  # it is told the time before anything else
    assert not host.scheduler.last("vit").paused
    host.close()
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        again = replay(journal, whole=True)
        assert again.after == 0
        assert again.scheduler.last("vit").share == 1.0
        history = History.read(journal, "vit")
        assert [(remark.kind, remark.words) for remark in history.of("vit").remarks] == [
            ("calendar", "hold, and free its memory: not between 22:00 and 06:00"),
            ("calendar", "request withdrawn"),
        ]
        text = "\n".join(why(history, "vit"))
    assert "calendar" in text
    assert "paused by the calendar: not between 22:00 and 06:00" in text


def test_the_simulator_keeps_the_hours() -> None:
    """Four hours of work that begin two hours before the night end eight hours later."""
    cells = [600.0 * k for k in range(1, 30)]
    target = LossTarget("loss", 0.75)
    job = SimulatedJob(Job("vit", DAY, target, can=frozenset(Capability)), cells,
                       [1.0 - 0.25 * k / 24 for k in range(1, 30)], 1.0)  # fmt: skip
    without = Settings(policy="fifo", window=1, period=60.0)
    pool = replace(without, controllers=POOL.controllers)
    [alone] = Simulation(without, [job]).run().jobs
    simulation = Simulation(pool, [job], check=True, wall_clock=WallClock(MONDAY + 20 * HOUR))
    [held] = simulation.run().jobs
    assert alone.verdict is held.verdict is Verdict.MET
    assert alone.finished_at == pytest.approx(4 * HOUR)
    assert held.finished_at == pytest.approx(12 * HOUR, abs=700.0)


def test_asks_and_the_clock_go_through_the_journal() -> None:
    for event in (WallClock(MONDAY, -3600.0), WallClock(0.0)):
        assert decode_event(encode_event(event)) == event
    answers = opened(23 * HOUR).handle(Submit((SCRIPT,)), 1.0)
    assert decode_answers(encode_answers(answers)) == answers
    for seconds, offset, words in ((-1.0, 0.0, "seconds must be at least 0"), (float("nan"), 0.0, "seconds"),
                                   (0.0, 1e6, "utc_offset must be at most 86400 seconds, got 1000000.0")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            WallClock(seconds, offset)


def test_the_host_tells_the_time_again_only_where_the_clock_was_set() -> None:
    now, offset, ahead = [0.0], [3600.0], [0.0]
    watch = WallClockWatch(lambda: WallClock(MONDAY + now[0] + ahead[0], offset[0]))
    assert watch.news(0.0) == WallClock(MONDAY, 3600.0)
    for seconds in (1.0, INTERVAL, 10 * INTERVAL):
        now[0] = seconds
        assert watch.news(seconds) is None
    now[0], ahead[0] = 11 * INTERVAL, 30.0  # the machine slept for half a minute
    assert watch.news(now[0]) == WallClock(MONDAY + now[0] + 30.0, 3600.0)
    now[0], offset[0] = 12 * INTERVAL, 0.0  # winter time
    assert watch.news(now[0]) is not None
    watch.forget()
    assert watch.news(now[0]) is not None
    assert abs(wall_clock().utc_offset) <= 14 * HOUR


def test_the_calendar_passes_the_suite_of_controllers() -> None:
    check_controller(lambda: Calendar([NIGHT, "not between 12:00 and 13:00 on sun"]))


class Forgetful(Calendar):
    STATE = ("_now", "_monday")  # type: ignore[assignment]


class Eager(Calendar):
    def wakeup(self) -> float | None:
        return self._now


@pytest.mark.parametrize(
    ("broken", "rule"),
    [(Forgetful, "restore\\(\\) must bring"), (Eager, "wakeup\\(\\) must be later than the last event")],
)
def test_the_suite_finds_a_broken_controller(broken: type[Calendar], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_controller(lambda: broken([NIGHT]))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("between 22:00 and 06:00", "must be such as 'not between 22:00 and 06:00'"),
        ("not between 22:00 and 22:00", "must begin and end at different times"),
        ("not between 25:00 and 06:00", "must have times from 00:00 to 23:59, got 25:00"),
        ("not between 22:00 and 06:00 on xyz", "must have days of mon, tue, wed, thu, fri, sat, sun, got 'xyz'"),
        (7, "must be a rule or a list of rules, got 7"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_with_its_place(rule: object, words: str) -> None:
    problems = Problems(Position("bundle.yaml"))
    read_pool({"calendar": rule}, problems.at("pool"))
    [message] = problems.messages
    assert words in message
    assert "calendar" in message


def test_the_calendar_of_a_bundle_is_in_the_settings_and_in_the_copy_of_a_run() -> None:
    for rule in (NIGHT, [NIGHT, "not between 08:00 and 18:00 on mon-fri"]):
        problems = Problems(Position("bundle.yaml"))
        section = read_pool({"calendar": rule}, problems)
        assert problems.messages == []
        pool = with_pool(Settings(), section)
        assert pool.controllers == {"calendar": {"closed": [rule] if isinstance(rule, str) else rule}}
        assert read_calendar(pool_to_dict(pool, "cpu")["calendar"]) == section.calendar
        assert Settings(**pool.to_dict()).controllers == pool.controllers
    assert with_pool(Settings(), PoolSection("cpu", 1, 1, None)).controllers == {}
    with pytest.raises(ValueError, match="got 'calender'; did you mean 'calendar'"):
        Settings(controllers={"calender": {}})
    with pytest.raises(ValueError, match="closed must be a list of rules, got"):
        Settings(controllers={"calendar": {"closed": NIGHT}})


def test_a_rule_is_read_as_days_and_hours() -> None:
    whole = Closed.parse("Not between 9:05 and 23:59")
    assert (whole.days, whole.begin, whole.length) == (tuple(range(7)), 9 * HOUR + 300, 14 * HOUR + 54 * 60)
    night = Closed.parse("not between 23:59 and 0:00 on fri-mon, wed")
    assert (night.days, night.begin, night.length) == ((0, 2, 4, 5, 6), 86340.0, 60.0)
    assert Closed.parse("not between 1:00 and 2:00 on tue-thu").days == (1, 2, 3)
    assert Closed.parse("not between 1:00 and 2:00 on sun").starts() == [6 * DAY + HOUR]
    with pytest.raises(ValueError, match="must have times from 00:00 to 23:59, got 22:60"):
        Closed.parse("not between 22:60 and 06:00")


RULES = st.builds(
    lambda begin, length, days: f"not between {begin // 60:02}:{begin % 60:02} and "
    f"{(begin + length) % 1440 // 60:02}:{(begin + length) % 60:02}" + (f" on {days}" if days else ""),
    st.integers(0, 1439), st.integers(1, 1439), st.sampled_from(["", "mon", "sat-sun", "fri-mon", "tue, thu"]),
)  # fmt: skip


@given(st.lists(RULES, min_size=1, max_size=3), st.floats(0.0, WEEK))
@settings(max_examples=examples(60), deadline=None)
def test_between_two_wakeups_what_is_held_does_not_change(rules: list[str], at: float) -> None:
    closed = [Closed.parse(rule) for rule in rules]
    calendar = Calendar(rules)
    calendar.handle(WallClock(MONDAY + at), 0.0, MadeUpPool())
    wakeup = calendar.wakeup()
    assert wakeup is not None
    assert 0 < wakeup <= WEEK
    held = {any(one.holds(at + part * wakeup) for one in closed) for part in (0.01, 0.3, 0.7, 0.99)}
    assert len(held) == 1
    week = 7 * 1440
    by_hand = {
        (day * 1440 + int(one.begin // 60) + k) % week
        for one in closed for day in one.days for k in range(int(one.length // 60))
    }  # fmt: skip
    minute = int((at + 0.5 * wakeup) // 60) % week
    assert (minute in by_hand) == any(one.holds(minute * 60.0) for one in closed)


def test_an_end_at_night_is_told_as_ever() -> None:
    scheduler = opened(23 * HOUR, replace(LAUNCHED, deadline=100.0, on_miss=OnMiss.STOP))
    answers = scheduler.handle(Tick(), 101.0)
    assert [answer.verdict for answer in answers if isinstance(answer, End)] == [Verdict.MISSED]
