"""Old events in blocks: what reports and restarts need of them stays, and damage is noticed."""

from __future__ import annotations

import math
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_core.cli.main import main
from lightning_core.core.answers import Accepted, End, Grant, Verdict
from lightning_core.core.codec import encode_answers, encode_event
from lightning_core.core.commands import Pause, Resume
from lightning_core.core.events import (
    Cell,
    Checkpoint,
    Close,
    Event,
    ExitCause,
    Report,
    Submit,
    Tick,
    WorkerExited,
    WorkersLost,
)
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.reported import LearningRates
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.estimators import Posterior
from lightning_core.history.forecasts import fill_in
from lightning_core.history.history import History
from lightning_core.scheduler.settings import Settings
from lightning_core.server import host as host_module
from lightning_core.server.host import Host
from lightning_core.storage.journals import blocks, excerpt, snapshots
from lightning_core.storage.journals import journal as journal_module
from lightning_core.storage.journals.downtime import seconds_down
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import JournalEntry, JournalPart
from lightning_core.storage.journals.journal_errors import DamagedJournalError, JournalError
from lightning_core.storage.journals.recovery import recover
from lightning_core.storage.journals.replay import replay
from lightning_core.storage.journals.thinning import GRID, thinned
from tests.storage.test_snapshots import Clock, execute

REPORTS = 300
LOG_GRID = math.log(GRID)
CHANGE = "UPDATE events SET answers = '[ ]' WHERE number = 3 +"


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "age", lambda journal: 0.0)  # the scheduler is back at once
        patch.setattr(host_module, "EVENTS_PER_SNAPSHOT", 50)
        patch.setattr(host_module, "THIN_EVERY", 20)
        patch.setattr(snapshots, "STRETCH", 100)
        patch.setattr(journal_module, "EVENTS_PER_BLOCK", 40)
        patch.setattr(blocks, "MERGED_AT_ONCE", 3)
        patch.setattr(blocks, "SMALL", 100)
        yield


def story() -> Iterator[tuple[float, Event]]:
    """Two jobs that train for long, a pause, a fault, and a minute in which the scheduler is down."""
    now = 0.0
    yield now, Submit((Job("a", 5000.0, LossTarget("loss", 0.05)), Job("b", 6000.0, BatchTarget(10**6))))
    incarnation = 1
    for number in range(1, REPORTS):
        now += 1.0
        if number == 60:
            yield now, Pause("b")
        if number == 70:
            yield now, Resume("b")
        if number == 90:
            yield now, WorkerExited("a", 1, ExitCause.LOST, "its node died")
            incarnation = 2
        if number == 120:
            yield now, Close("Ctrl-C")
            now += 60.0
            yield now, WorkersLost()
            break
        done = 20 * number
        cell = Cell(number if number < 90 else number - 89, done, 2.0 * number**-0.5)
        saved = Checkpoint(done, f"{number % 16:x}" * 64)
        yield now, Report("a", incarnation, number, 1, done, 2.0 * number, (cell,), 0, 0, checkpoint=saved)
        yield now + 0.5, Report("b", 1, number, 1, done, 1.5 * number, checkpoint=saved)
    yield now + 1.0, Submit((Job("c", 5000.0, LossTarget("loss", 0.05)),))
    for number in range(1, REPORTS):
        now += 1.0
        yield (
            now + 1.0,
            Report("c", 1, number, 1, 20 * number, 1.0 * number, (Cell(number, 20 * number, number**-0.5),)),
        )


def live(path: Path, settings: Settings | None = None, first: int = 0, last: int | None = None) -> dict[str, Any]:
    """Handle the events of the story from one to another; return the state of the scheduler."""
    clock = Clock()
    host = Host(settings or Settings(policy="edf", devices=2, stall=None), path, clock)
    for now, event in list(story())[first:last]:
        clock.now += max(now - host.now(), 0.0)
        host.handle(event)
    state = host.scheduler.state()
    host.close()
    return state


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of which all events are kept."""
    path = tmp_path_factory.mktemp("whole") / "journal.db"
    live(path, Settings(policy="edf", devices=2, stall=None, keep_all=True))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same journal with thinned events."""
    path = tmp_path_factory.mktemp("thin") / "journal.db"
    live(path)
    return path


@pytest.fixture
def thin(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / made.name


def rows(path: Path, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


def history(path: Path) -> History:
    with Journal.open(path, read_only=True) as journal:
        return History.read(journal)


def test_reports_and_why_find_the_same_story_in_it(whole: Path, thin: Path) -> None:
    before, after = history(whole), history(thin)
    assert len(rows(thin, "events")) < len(rows(whole, "events")) / 2
    assert after.stops == before.stops != []
    assert (after.gaps, after.last) == (before.gaps, before.last)
    for old, new in zip(before.jobs, after.jobs, strict=True):
        for name in ("name", "submitted", "deadlines", "grants", "beliefs", "remarks", "ended", "version"):
            assert getattr(new, name) == getattr(old, name), name
        assert [(f.time, f.what, f.batches, f.back) for f in new.faults] == [
            (f.time, f.what, f.batches, f.back) for f in old.faults
        ]
        assert new.progress[-1] == old.progress[-1]
        assert new.progress[0] == old.progress[0]
        assert {point[1:] for point in new.points} <= {point[1:] for point in old.points}
        assert {*new.curve()[:, 1]} <= {*old.curve()[:, 1]}  # each is the mean of consecutive losses
        assert new.reached == old.reached
        assert len(new.progress) < len(old.progress)
        kept = [point.batches for point in new.points]
        assert all(min(abs(math.log(point.batches / at)) for at in kept) <= 1.01 * LOG_GRID for point in old.points)
    with Journal.open(whole, read_only=True) as one, Journal.open(thin, read_only=True) as other:
        assert seconds_down(one.entries()) == seconds_down(other.entries()) == pytest.approx(60.0, abs=2.0)


def test_a_restart_comes_to_the_same_state_and_goes_on(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "j.db"
    middle = live(path, last=400)
    assert rows(path, "blocks")
    with Journal.open(path, read_only=True) as journal:
        assert replay(journal).scheduler.state() == middle
        again = replay(journal, whole=True)
        assert 0 < again.after < again.events
        assert again.scheduler.state() == middle
        assert again.digest == journal.digest
    ended = live(path, first=400)
    with Journal.open(whole, read_only=True) as journal:
        assert replay(journal, whole=True).scheduler.state() == ended


def test_the_command_says_from_where_it_replayed(thin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(thin)]) == 0
    said = capsys.readouterr()
    assert '"identical": true' in said.out
    assert "as older ones are thinned, over" in said.err


def test_forecasts_are_asked_for_behind_the_thinned_events(thin: Path) -> None:
    with Journal.open(thin, read_only=True) as journal:
        read = History.read(journal)
        fill_in(journal, read, 40)
        first, _ = journal.end_of_blocks()
        assert read.of("c").forecasts
        assert not read.of("b").forecasts[:-40]
        assert first > 0


def test_all_events_are_kept_if_asked_for(whole: Path) -> None:
    assert rows(whole, "blocks") == []
    with Journal.open(whole, read_only=True) as journal:
        assert replay(journal, whole=True).after == 0


DOES_NOT_MATCH = "the block of events {first} to {last} does not match"


@pytest.mark.promise("R21", "F30")
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            "UPDATE blocks SET data = zeroblob(9) WHERE first = {first}",
            DOES_NOT_MATCH,
        ),
        ("UPDATE blocks SET chain = 'x' WHERE first = {first}", DOES_NOT_MATCH),
        (
            "UPDATE blocks SET last = last - 1 WHERE first = {first}",
            "events {first} to {other} does not match",
        ),
        ("UPDATE blocks SET now = 'x' WHERE first = {first}", "a column of another type"),
        ("DELETE FROM blocks WHERE first = {first}", "events {first} to {last} are missing"),
        ("DELETE FROM blocks WHERE first = (SELECT max(first) FROM blocks)", "is missing"),
        ("DELETE FROM blocks", "event 1 is missing"),
    ],
)
def test_a_damaged_block_is_named(thin: Path, damage: str, words: str) -> None:
    first, last = rows(thin, "blocks")[1][:2]
    execute(thin, damage.format(first=first))
    words = words.format(first=first, last=last, other=last - 1)
    with pytest.raises(DamagedJournalError, match=words), Journal.open(thin, read_only=True) as journal:
        replay(journal)


@pytest.mark.parametrize(
    "text",
    [b"{", b"[[1]]", b'[[99,1.0,"{}","[]"]]', b'[[2,1.0,"{}","[]"],[1,1.0,"{}","[]"]]', b" " * 2**27],
)
def test_the_content_of_a_block_is_checked(tmp_path: Path, text: bytes) -> None:
    entry = JournalEntry(9, 1.0, encode_event(Tick()), "[]", "x")
    block = blocks.make(1, entry, [entry], "")._replace(data=zlib.compress(text, 1))
    with pytest.raises((ValueError, TypeError)):
        list(block.entries())


def test_without_a_snapshot_it_says_so(thin: Path) -> None:
    execute(thin, "DELETE FROM snapshots")
    words = r"its snapshots are missing or damaged, and its events up to \d+ are thinned"
    with Journal.open(thin, read_only=True) as journal, pytest.raises(DamagedJournalError, match=words):
        replay(journal)


def test_without_a_snapshot_that_can_be_restored_it_says_so(thin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Posterior, "STATE", (*Posterior.STATE, "powers"))  # as another release has it
    with (
        Journal.open(thin, read_only=True) as journal,
        pytest.raises(JournalError, match=r"none of its snapshots can be restored, and its events up to \d+ are"),
    ):
        replay(journal)


def entry(number: int, now: float, event: Event, answers: str = "[]") -> JournalEntry:
    return JournalEntry(number, now, encode_event(event), answers, "0" * 64)


EVERY_SECOND = Settings(period=1.0)


def numbers(entries: list[JournalEntry]) -> list[int]:
    return [kept.number for kept in thinned(entries, EVERY_SECOND)]


def test_what_has_consequences_stays() -> None:
    grant = Grant("a", 1, 1.0, (0,), Reason("first_in_line"))
    entries = [entry(n, float(n), Tick()) for n in range(1, 9)]
    entries[4] = entry(5, 5.0, Tick(), encode_answers([grant]))
    assert numbers(entries) == [1, 5, 8]


def test_a_directive_that_is_repeated_is_no_news() -> None:
    """A worker that runs under an old version is told the newest one with each answer; an unknown one, to end."""
    grant, end = Grant("a", 3, 1.0, (0,), Reason("first_in_line")), End("b", 0, Verdict.CANCELLED, Reason("cancelled"))
    entries = []
    for number in range(1, 9):
        report = Report("a" if number % 2 else "b", 1, number, 1, 1000, 1.0 * number)
        entries.append(entry(number, float(number), report, encode_answers([grant if number % 2 else end])))
    assert numbers(entries) == [1, 2, 7, 8]  # the first and the last of each worker
    newer = entry(5, 5.0, Report("a", 1, 5, 1, 1000, 5.0), encode_answers([grant._replace(version=4)]))
    assert numbers([*entries[:4], newer, *entries[5:]]) == [1, 2, 5, 7, 8]


def test_no_downtime_is_lost_between_two_blocks(tmp_path: Path) -> None:
    clock = Clock()
    host = Host(Settings(policy="edf", devices=1, stall=None, period=1.0), tmp_path / "j.db", clock)
    host.handle(Submit((Job("a", 90_000.0, BatchTarget(10**6)),)))
    for number in range(1, 400):
        clock.now += 90.0 if number % 37 == 0 else 1.0
        ticks = number % 37 < 8  # so many come before the one that tells of the gap
        host.handle(WorkersLost() if number % 37 == 8 else Tick() if ticks else Report("a", 1, number, 1, number, 1.0))
    host.close()
    assert rows(tmp_path / "j.db", "blocks")
    with Journal.open(tmp_path / "j.db", read_only=True) as journal:
        assert seconds_down(journal.entries()) == pytest.approx(90.0 * (399 // 37), abs=2.0 * 10)


def test_a_block_that_is_damaged_is_not_merged(thin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SMALL", 10**6)
    execute(thin, "UPDATE blocks SET data = zeroblob(9) WHERE first = (SELECT max(first) FROM blocks)")
    with closing(sqlite3.connect(thin)) as connection, pytest.raises(DamagedJournalError, match="does not match"):
        blocks.small_ones(connection, thin)


def test_a_journal_can_be_closed_after_damage_was_found(thin: Path) -> None:
    execute(thin, f"{CHANGE} (SELECT min(number) FROM events)")
    with Journal.open(thin) as journal:
        with pytest.raises(DamagedJournalError, match="does not match") as raised:
            list(journal.entries())
        assert raised.tb is not None  # it holds the frames that read


@pytest.mark.filterwarnings("error")
def test_a_journal_that_is_not_read_to_its_end_can_be_closed(thin: Path) -> None:
    with Journal.open(thin, read_only=True) as journal:
        entries = journal.entries()
        next(entries)
        recent = journal.recent_entries()
        next(recent)
    del entries, recent


def test_a_run_in_a_pool_is_compared_behind_what_was_thinned_since(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    part = JournalPart(str(folder), ("a", "b"), 0.0)
    live(folder / "journal.db", last=300)
    excerpt.write(part, tmp_path / "run.db")
    live(folder / "journal.db", first=300)
    with Journal.open(tmp_path / "run.db", read_only=True) as journal:
        assert excerpt.compare(journal, part).after > 300
    excerpt.write(part, tmp_path / "again.db")
    assert history(tmp_path / "again.db").gaps == history(folder / "journal.db").gaps
    execute(folder / "journal.db", "DELETE FROM blocks")
    with Journal.open(tmp_path / "run.db", read_only=True) as journal, pytest.raises(JournalError):
        excerpt.compare(journal, part)


def test_both_sides_of_a_gap_stay_and_the_ticks_behind_it() -> None:
    times = [1.0, 2.0, 3.0, 9.0, 10.0, 11.0]
    entries = [entry(n, now, Tick()) for n, now in enumerate(times, 1)]
    entries += [entry(7, 11.5, WorkersLost()), entry(8, 12.0, Tick()), entry(9, 13.0, Tick())]
    assert numbers(entries) == [1, 3, 4, 5, 6, 7, 9]


def test_of_reports_stay_the_first_the_last_and_those_on_the_grid() -> None:
    entries, rates = [], LearningRates(tuple(range(1, 101)), (1.0,) * 100)
    for number in range(1, 401):
        cells = tuple(Cell(2 * number + k, 20 * number + 10 * k, 1.0 / number) for k in (0, 1))
        saved = Checkpoint(1, "a" * 64)
        report = Report(
            "a", 1, number, 1, 20 * number + 10, 1.0 * number, cells, checkpoint=saved, learning_rates=rates
        )
        taken = Accepted("a", report.batches, report.busy, tuple((at, loss) for _, at, loss in cells), 0, False)
        entries.append(entry(number, float(number), report, encode_answers([], [taken], report)))
    kept = thinned(entries, EVERY_SECOND)
    assert {kept[0].number, kept[-1].number} == {1, 400}
    assert len(kept) == pytest.approx(np.log(8000 / 30) / np.log(GRID), rel=0.4)
    assert all("checkpoint" not in one.event and '"accepted":{}' in one.answers for one in kept)
    assert all(len(one.event) < 300 for one in kept)


def test_a_journal_that_is_short_is_left_alone(tmp_path: Path) -> None:
    live(tmp_path / "j.db", last=100)
    assert rows(tmp_path / "j.db", "blocks") == []


NEWEST = "WHERE number = (SELECT max(number) FROM snapshots)"
DAMAGES = {
    "a block": "UPDATE blocks SET data = zeroblob(9) WHERE first = {first}",
    "a block gone": "DELETE FROM blocks WHERE first = {first}",
    "an event before the snapshots": f"{CHANGE} (SELECT min(number) FROM events)",
    "the newest snapshot": f"UPDATE snapshots SET state = zeroblob(9) {NEWEST}",
    "an event behind the older snapshot, and the newest snapshot": (
        f"{CHANGE} (SELECT min(number) FROM snapshots); DELETE FROM snapshots {NEWEST}"
    ),
}


@pytest.mark.promise("R21", "F30")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_recovery_goes_on_from_a_snapshot(damage: str, thin: Path) -> None:
    before = history(thin)
    with Journal.open(thin, read_only=True) as journal:
        state, last = replay(journal).scheduler.state(), journal.last
    for statement in DAMAGES[damage].format(first=rows(thin, "blocks")[1][0]).split(";"):
        execute(thin, statement)
    recovered = recover(thin)
    if damage == "the newest snapshot":
        assert recovered is None
    else:
        assert recovered is not None
        assert recovered.kept <= last
    with Journal.open(thin, read_only=True) as journal:
        again = replay(journal)
    if "behind" not in damage:
        assert again.scheduler.state() == state
    after = history(thin)
    assert {job.name for job in after.jobs} <= {job.name for job in before.jobs}
    live(thin, first=len(list(story())) - 5)  # it goes on
    assert recover(thin) is None


def test_thinned_events_without_a_snapshot_cannot_be_recovered(thin: Path) -> None:
    execute(thin, "DELETE FROM snapshots")
    execute(thin, "UPDATE events SET answers = '[ ]' WHERE number = (SELECT min(number) + 3 FROM events)")
    with pytest.raises(JournalError, match="cannot be recovered: its events up to"):
        recover(thin)
    assert rows(thin, "events")
