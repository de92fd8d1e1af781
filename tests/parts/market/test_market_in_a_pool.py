"""A market in a scheduler: its journal replays, is thinned and excerpted, and its state can be saved at any time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import Grant, Verdict
from lightning_core.core.codec import decode_answers, decode_event, encode_answers, encode_event
from lightning_core.core.commands import Cancel, Pause, Resume
from lightning_core.core.control import part_objects
from lightning_core.core.events import Close, Event, Report, Submit, Tick, WorkersLost
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.history.history import History
from lightning_core.parts.market.cloud_events import (
    CloudEvent,
    CloudPart,
    CloudTrouble,
    IntervalEnded,
    NodesSeen,
    NodesWanted,
    Quoted,
)
from lightning_core.scheduler.scheduler import Scheduler, Settings
from lightning_core.server import host as host_module
from lightning_core.server.host import Host
from lightning_core.storage.journals import blocks, excerpt, snapshots
from lightning_core.storage.journals import journal as journal_module
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import JournalPart
from lightning_core.storage.journals.replay import replay
from lightning_core.testing.checks import saved_and_restored
from lightning_core.view.why import rows, why
from tests.examples import day_and_night, examples
from tests.parts.market.market_pool import MARKET, MarketPool
from tests.parts.market.market_world import CACHES, elastic
from tests.parts.market.messages import event_of

CONTROLLERS: dict[str, Any] = {
    "calendar": {"closed": ["not between 22:00 and 06:00"]}, "market": MARKET | {"budget": 30.0},
}  # fmt: skip
POLICIES = ["max-spot", "all-or-nothing", "ahap"]
TRANSIENT = ("answers", "accepted", "_status", "rounds", *CACHES)


@pytest.fixture(autouse=True)
def back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "age", lambda journal: 0.0)


def story(made: MarketPool) -> Iterator[None]:
    """Two jobs, of which one is paused; nodes that do not come and nodes that are lost; a pool that goes idle."""
    made.quote(0.4, 4)
    made.submit(elastic("a", 500, 400.0), elastic("b", 60, 90.0))
    made.live(12.0)
    yield
    made.quote(0.5, 3)
    made.tell(CloudTrouble(CloudPart.NODES, "no capacity"))
    made.spot = 1
    made.live(9.0)
    made.see(0, 0)
    made.tell(Pause("a"))
    made.live(14.0)
    yield
    made.tell(Resume("a"))
    made.tell(CloudTrouble(CloudPart.NODES))
    made.spot = 4
    made.submit(elastic("c", 20, 22.0, on_miss=OnMiss.STOP))
    made.live(20.0)
    made.quote(0.3, 4)
    made.live(30.0)
    yield
    made.live(40.0)
    made.tell(Cancel("a"))
    made.live(5.0)


def state_of(scheduler: Scheduler) -> dict[str, Any]:
    """The state; of the jobs what is shown of them, because speed-ups are fitted only when they are asked for."""
    return scheduler.state() | {"table": repr(scheduler.status()), "past": None}


def whole_story(path: Path, *, stops: bool) -> MarketPool:
    made = MarketPool(CONTROLLERS, path)
    for _ in story(made):
        if stops:
            made.host.close()
            made.open()
    made.host.close()
    return made


def test_the_story_has_rows_nodes_and_an_end(tmp_path: Path) -> None:
    made = whole_story(tmp_path / "journal.db", stops=False)
    assert {name: made.scheduler.last(name).verdict for name in "abc"} == {
        "a": Verdict.CANCELLED, "b": Verdict.MET, "c": Verdict.MET,
    }  # fmt: skip
    assert [row.number for row in made.rows] == list(range(len(made.rows)))
    assert sum(row.batches for row in made.rows) == sum(made.scheduler.last(name).batches for name in "abc")
    assert {(row.price, row.available) for row in made.rows} == {(0.4, 4), (0.5, 3), (0.3, 4)}
    assert sum(row.cost for row in made.rows) == pytest.approx(made.market.spent)
    assert made.wanted == (0, 0)
    assert made.scheduler.wakeup() is None


@pytest.mark.promise("R28")
@pytest.mark.parametrize("stops", day_and_night([False, True], [True]))
def test_a_journal_with_a_market_replays(stops: bool, tmp_path: Path) -> None:
    made = whole_story(path := tmp_path / "journal.db", stops=stops)
    with Journal.open(path, read_only=True) as journal:
        for again in (replay(journal), replay(journal, whole=True)):
            assert state_of(again.scheduler) == state_of(made.scheduler)
        assert replay(journal, whole=True).after == 0
        kinds = [entry.event.split('"')[3] for entry in journal.entries()]
        assert {"part_event", "submit", "report", "tick", "wall_clock"} <= set(kinds)
        history = History.read(journal)
        assert [job.name for job in history.jobs] == ["a", "b", "c"]
        for job in history.jobs:
            assert rows(job)
            assert any("are held for it" in line for line in why(history, job.name))


@pytest.mark.promise("R24")
def test_a_pool_that_was_stopped_midway_decides_as_one_that_was_not(tmp_path: Path) -> None:
    one = whole_story(tmp_path / "one.db", stops=False)
    other = whole_story(tmp_path / "other.db", stops=True)
    assert one.rows == other.rows
    assert one.asks == other.asks


def test_what_follows_from_the_cloud_stays_where_a_journal_is_thinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "EVENTS_PER_SNAPSHOT", 50)
    monkeypatch.setattr(host_module, "THIN_EVERY", 20)
    monkeypatch.setattr(journal_module, "EVENTS_PER_BLOCK", 40)
    monkeypatch.setattr(snapshots, "STRETCH", 100)
    monkeypatch.setattr(blocks, "MERGED_AT_ONCE", 3)
    monkeypatch.setattr(blocks, "SMALL", 100)
    made = whole_story(path := tmp_path / "journal.db", stops=True)
    with Journal.open(path, read_only=True) as journal:
        thinned_to, _ = journal.end_of_blocks()
        entries = list(journal.entries())
        assert thinned_to > 50
        assert len(entries) < journal.newest.number
        answers = [answer for entry in entries for answer in part_objects(decode_answers(entry.answers))]
        assert [answer for answer in answers if isinstance(answer, IntervalEnded)] == made.rows
        versions = [answer.version for answer in answers if isinstance(answer, NodesWanted)]
        assert versions == list(range(1, len(versions) + 1))
        assert state_of(replay(journal).scheduler) == state_of(made.scheduler)
        History.read(journal)


def test_an_excerpt_of_one_job_has_nothing_of_the_cloud(tmp_path: Path) -> None:
    whole_story((folder := tmp_path) / "journal.db", stops=False)
    part = JournalPart(str(folder), ("a", "b"), submitted_at=0.0)
    assert excerpt.write(part, folder / "part.db")
    with Journal.open(folder / "part.db", read_only=True) as journal:
        excerpt.compare(journal, part)
        texts = [entry.event + entry.answers for entry in journal.entries()]
        assert not [text for text in texts if "quoted" in text or "nodes_seen" in text or "nodes_wanted" in text]
        history = History.read(journal)
        assert [job.name for job in history.jobs] == ["a", "b"]
        assert any("are held for it" in line for line in why(history, "b"))


def test_events_of_the_cloud_change_nothing_in_a_pool_without_a_market(tmp_path: Path) -> None:
    host = Host(Settings("fifo"), tmp_path / "journal.db", lambda: 0.0)
    for event in (NodesSeen(("a",), (), 1), Quoted(0.4, 3), CloudTrouble(CloudPart.QUOTES, "no answer")):
        assert host.scheduler.answers_to_no_op(event_of(event), 0.0) == []
        host.handle(event_of(event))
    host.close()
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        assert not [entry for entry in journal.entries() if "wall_clock" not in entry.event]


def test_what_is_seen_again_needs_no_place_in_the_journal() -> None:
    scheduler = Scheduler(Settings("fifo", controllers={"market": MARKET}))
    seen, trouble = NodesSeen(("a",), ("b",), 2), CloudTrouble(CloudPart.NODES, "no capacity")
    assert scheduler.answers_to_no_op(event_of(CloudTrouble(CloudPart.NODES)), 0.0) == []  # there was none
    for event in (event_of(seen), event_of(trouble)):
        assert scheduler.answers_to_no_op(event, 0.0) is None
        scheduler.handle(event, 0.0)
        assert scheduler.answers_to_no_op(event, 0.0) == []
    assert scheduler.answers_to_no_op(event_of(Quoted(0.4, 3)), 0.0) is None  # it is as new as its time
    assert scheduler.describe_controllers()["market"]["trouble"] == {"nodes": "no capacity"}
    scheduler.handle(event_of(CloudTrouble(CloudPart.NODES)), 0.0)
    assert scheduler.describe_controllers()["market"]["trouble"] == {}


def test_jobs_that_are_late_and_held_do_not_keep_an_interval_open() -> None:
    made = MarketPool()
    made.quote(0.4, 4)
    made.submit(elastic("a", 3000, 15.0, on_miss=OnMiss.HOLD))
    made.live(19.0)
    assert made.wanted == (0, 4)
    made.live(12.0)
    assert made.wanted == (0, 0)
    assert made.rows[1].on_demand == 4


# ------------------------------------------------------------------------------------------------ any story


def any_event(scheduler: Scheduler, kind: int, amount: int, price: float) -> Event | CloudEvent:
    names = [*scheduler.names(active=True), "stranger"]
    name = names[amount % len(names)]
    match kind:
        case 0 | 1:
            job = elastic(f"job-{amount}", 10 + 30 * amount, 5.0 + 200.0 * price, begin=4.0 * (amount % 3))
            return Submit((job,))
        case 2:
            return NodesSeen(tuple(f"s{k}" for k in range(amount)), ("d0",) * (amount % 2), int(8 * price))
        case 3:
            return Quoted(price, amount, 1.0 + price)
        case 4:
            return Quoted(price, amount, interval=amount)
        case 5:
            return (Pause if amount % 2 else Resume)(name)
        case 6:
            return Cancel(name)
        case 7:
            return Close() if amount % 2 else WorkersLost()
        case 8 if name != "stranger" and isinstance(grant := scheduler.directive(name), Grant):
            batches = scheduler.last(name).batches + 5 * amount
            incarnation, busy = scheduler.incarnation(name), 0.5 * batches
            return Report(name, incarnation, 10**6 + batches, grant.version, batches, busy)
    return Tick()


EVENTS = st.tuples(
    st.integers(0, 9), st.integers(0, 8), st.floats(0.05, 1.0), st.sampled_from([0.0, 0.4, 3.0, 10.0, 47.0, 1000.0])
)


@pytest.mark.promise("R24")
@given(st.lists(EVENTS, min_size=3, max_size=30), st.sampled_from(POLICIES), st.booleans())
@settings(max_examples=examples(25), deadline=None)
def test_a_market_that_is_saved_and_restored_within_any_story_decides_as_before(
    story: list[tuple[int, int, float, float]], policy: str, known: bool
) -> None:
    terms = MARKET | {"policy": policy, "initial_throughput": 1.0 if known else None}
    chosen = Settings("fifo", devices=16, controllers={"market": terms | {"budget": 20.0}})
    scheduler, twin, now = Scheduler(chosen), Scheduler(chosen), 0.0
    for number, (kind, amount, price, seconds) in enumerate(story):
        now += seconds
        wakeup = scheduler.wakeup()
        event = event_of(any_event(scheduler, kind, amount, price))
        for happens in (Tick(), event) if wakeup is not None and wakeup <= now else (event,):
            answers = scheduler.handle(happens, now)
            scheduler.check()
            later = scheduler.wakeup()
            assert later is None or later > now
            again = twin.handle(decode_event(encode_event(happens)), now)
            assert encode_answers(again) == encode_answers(answers)
            assert decode_answers(encode_answers(answers)) == answers
        if number % 3 == amount % 3:
            twin = saved_and_restored(twin, Scheduler(chosen), TRANSIENT)
        assert twin.wakeup() == scheduler.wakeup()


def test_a_job_is_not_taken_for_the_one_that_had_its_name() -> None:
    made = MarketPool()
    made.quote(0.4, 4)
    made.submit(elastic("a", 300, 100.0))
    made.live(12.0)
    made.quote(0.4, 4)
    made.tell(Cancel("a"))
    made.submit(elastic("a", 30, 100.0))  # within the interval
    made.live(30.0)
    assert made.scheduler.last("a").verdict is Verdict.MET
    assert all(min(row.batches, row.incarnations, row.failures, row.lost) >= 0 for row in made.rows)
    assert [row.batches for row in made.rows] == [36, 12, 32]  # the second job is over by two


@pytest.mark.nightly
def test_far_deadlines_and_long_absences_cost_no_more_than_near_ones() -> None:
    made = MarketPool()
    made.quote(0.4, 4)
    made.submit(Job("a", 3e9, elastic("a", 10**6, 1.0).target, can=elastic("a", 1, 1.0).can))
    made.live(2.0)
    assert made.wanted == (1, 0)
    made.clock += 3e8  # three years without a scheduler
    made.live(2.0)
    assert len(made.rows) == 10_000
