"""Snapshots in a journal: a restart begins at the newest one that is whole, and comes to the same state as ever."""

from __future__ import annotations

import copy
import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.commands import Cancel
from lightning_core.core.events import Cell, Event, ExitCause, Report, Submit, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.policies import POLICIES
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.state import STATE_VERSION
from lightning_core.server import host as host_module
from lightning_core.server.host import Host
from lightning_core.storage.journals import snapshots
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import digest_of
from lightning_core.storage.journals.replay import Replay, replay
from tests.examples import day_and_night

EVENTS = 40


class Clock:
    """Scheduler time, held by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True, scope="module")
def scheduler_is_back_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "age", lambda journal: 0.0)
        patch.setattr(host_module, "EVENTS_PER_SNAPSHOT", 8)
        yield


def story() -> Iterator[Event]:
    """Two jobs with losses, one of which loses its worker on the way, and one of batches."""
    yield Submit((Job("a", 500.0, LossTarget("loss", 0.05)), Job("b", 600.0, LossTarget("loss", -1.0))))
    yield Submit((Job("c", 700.0, BatchTarget(10_000)),))
    for number in range(1, EVENTS):
        for job, lift in (("a", 0.0), ("b", -2.0), ("c", 0.0)):
            cell = Cell(number, 20 * number, 2.0 * number**-0.5 + lift)
            yield Report(job, 1, number, 1, 20 * number, 2.0 * number, () if job == "c" else (cell,))
    yield WorkerExited("a", 1, ExitCause.LOST, "its node died")


def live(path: Path, events: list[Event], first: int = 0) -> dict[str, Any]:
    """Handle events from one on; return the state of the scheduler."""
    clock = Clock()
    host = Host(Settings(policy="laira", devices=2), path, clock)
    for number, event in enumerate(events[first:], first):
        clock.now += max(0.5 * (number + 1) - host.now(), 0.0)
        host.handle(event)
    state = host.scheduler.state()
    host.close()
    return state


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A journal with snapshots, and the state in which it ends: recorded once."""
    path = tmp_path_factory.mktemp("made") / "journal.db"
    return path, live(path, list(story()))


@pytest.fixture
def undisturbed(made: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    """State in which the story ends."""
    return copy.deepcopy(made[1])


@pytest.fixture
def recorded(
    made: tuple[Path, dict[str, Any]], undisturbed: dict[str, Any], tmp_path: Path
) -> tuple[Path, dict[str, Any]]:
    """A copy of the journal that a test may damage, and the state in which it ends."""
    path, _ = made
    shutil.copytree(path.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / path.name, undisturbed


def replayed(path: Path, *, whole: bool = False) -> Replay:
    with Journal.open(path, read_only=True) as journal:
        return replay(journal, whole=whole)


def numbers(path: Path) -> list[int]:
    with Journal.open(path, read_only=True) as journal:
        return [snapshot.number for snapshot in journal.snapshots()]


def execute(path: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


def test_a_replay_begins_at_the_newest_snapshot_and_ends_in_the_same_state(
    recorded: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, state = recorded
    whole = replayed(path, whole=True)
    passes: list[str] = []
    monkeypatch.setattr("lightning_core.storage.journals.replay.reach", passes.append)
    again = replayed(path)
    assert len(passes) == 0  # the last snapshot is that of the end
    assert again.scheduler.state() == whole.scheduler.state() == state
    assert again._replace(scheduler=whole.scheduler, after=0) == whole
    execute(path, "DELETE FROM snapshots WHERE number = (SELECT max(number) FROM snapshots)")
    assert replayed(path).scheduler.state() == state
    assert 0 < len(passes) < 8


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"fixed"}))
def test_a_state_does_not_change_with_the_events_that_follow(policy: str) -> None:
    """Another thread writes it meanwhile."""
    scheduler = Scheduler(Settings(policy=policy, devices=2))
    states = []
    for number, event in enumerate(story()):
        scheduler.handle(event, 0.5 * number)
        if number % 12 == 0:
            state = scheduler.state()
            states.append((state, json.dumps(state)))
    scheduler.handle(Cancel("a"), 99.0)
    assert [json.dumps(state) for state, _ in states] == [text for _, text in states]


def test_two_snapshots_are_kept(recorded: tuple[Path, dict[str, Any]]) -> None:
    path, _ = recorded
    with Journal.open(path, read_only=True) as journal:
        last = journal.last
    newest, before = numbers(path)
    assert newest == last
    assert before == last - last % 8 - (8 if last % 8 == 0 else 0)


def test_snapshots_far_behind_are_kept_so_that_the_events_since_then_stay_whole(
    recorded: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest two, and of each of the newest two stretches of 20 events the first, save the very first."""
    monkeypatch.setattr(snapshots, "STRETCH", 20)
    path, state = recorded
    execute(path, "DELETE FROM snapshots")
    kept, whole_behind = {}, {}
    with closing(sqlite3.connect(path)) as connection:
        for number in range(4, 105, 8):
            snapshots.write_snapshot(connection, snapshots.Snapshot(number, 0.0, "", state))
            kept[number] = [row for [row] in connection.execute("SELECT number FROM snapshots ORDER BY number")]
            whole_behind[number] = snapshots.first_whole(connection)
    assert kept[12] == [4, 12]
    assert kept[28] == [20, 28]
    assert kept[52] == [20, 44, 52]
    assert kept[100] == [84, 92, 100]
    assert [whole_behind[number] for number in (12, 36, 44, 52, 60, 100)] == [0, 0, 20, 20, 44, 84]


@pytest.mark.parametrize("first", [1, 17, 60])
def test_a_restarted_scheduler_goes_on_as_if_it_had_never_stopped(
    undisturbed: dict[str, Any], tmp_path: Path, first: int
) -> None:
    events = list(story())
    live(tmp_path / "j.db", events[:first])
    assert live(tmp_path / "j.db", events, first) == undisturbed


DAMAGE = (
    "UPDATE snapshots SET state = zeroblob(length(state)) WHERE number >= {0}",
    "UPDATE snapshots SET state = substr(state, 1, length(state) / 2) WHERE number >= {0}",
    "UPDATE snapshots SET state = CAST(x'' AS BLOB) WHERE number >= {0}",
    "UPDATE snapshots SET state = 'text' WHERE number >= {0}",
    "UPDATE snapshots SET state = 7 WHERE number >= {0}",
    "UPDATE snapshots SET digest = 'x' WHERE number >= {0}",
    "UPDATE snapshots SET digest = CAST(x'ff' AS TEXT) WHERE number >= {0}",
    "UPDATE snapshots SET version = version + 1 WHERE number >= {0}",
    "UPDATE snapshots SET number = number + 100000 WHERE number >= {0}",
    "UPDATE snapshots SET number = -number WHERE number >= {0}",
    "DELETE FROM snapshots WHERE number >= {0}",
)
BOTH = list(product(DAMAGE, [0, 1]))


# By day one of the two, in turns: which is damaged, and how, do not depend on each other.
@pytest.mark.parametrize(("damage", "which"), day_and_night(BOTH, [*BOTH[::4], *BOTH[3::4]]))
def test_a_damaged_snapshot_is_passed_over(recorded: tuple[Path, dict[str, Any]], damage: str, which: int) -> None:
    """The newest is damaged, or both are: the one before it, or the first event, is as good a beginning."""
    path, state = recorded
    execute(path, damage.format(numbers(path)[which]))
    assert len(numbers(path)) == 1 - which
    assert replayed(path).scheduler.state() == state


def test_no_flipped_bit_of_a_snapshot_is_accepted(recorded: tuple[Path, dict[str, Any]]) -> None:
    path, state = recorded
    newest = numbers(path)[0]
    with closing(sqlite3.connect(path)) as connection:
        [data] = connection.execute("SELECT state FROM snapshots WHERE number = ?", (newest,)).fetchone()
    for place in range(0, len(data), len(data) // 40):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        execute(path, "UPDATE snapshots SET state = ? WHERE number = ?", bytes(changed), newest)
        assert numbers(path)[0] != newest or replayed(path).scheduler.state() == state


def test_a_state_that_does_not_fit_is_passed_over(recorded: tuple[Path, dict[str, Any]]) -> None:
    """Its digest fits, but the policy of this release has another state."""
    path, state = recorded
    with Journal.open(path) as journal:
        journal.take_snapshot(state | {"policy": {}})
        assert next(journal.snapshots()).state["policy"] == {}
    assert replayed(path).scheduler.state() == state


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[" + "[]," * 2000 + "[]]", "[" + "1," * 2000 + "1]"])
def test_a_text_that_is_no_state_is_passed_over(
    recorded: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Its digest fits, for it is no signature; lists of lists take 20 times their size in memory."""
    path, state = recorded
    monkeypatch.setattr(snapshots, "MAX_STATE_VALUES", 1900)
    with Journal.open(path, read_only=True) as journal:
        digest = digest_of(journal.digest, str(STATE_VERSION), text)
    data = zlib.compress(text.encode())
    execute(path, "DELETE FROM snapshots WHERE number < (SELECT max(number) FROM snapshots)")
    execute(path, "UPDATE snapshots SET state = ?, digest = ?", data, digest)
    assert numbers(path) == []
    assert replayed(path).scheduler.state() == state


def test_a_bomb_is_not_unpacked(recorded: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    path, state = recorded
    monkeypatch.setattr(snapshots, "MAX_STATE_BYTES", 1000)
    assert numbers(path) == []
    assert replayed(path).scheduler.state() == state


def test_a_failed_snapshot_fails_no_event(
    undisturbed: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("lightning_core.storage.journals.journal.write_snapshot", full)
    assert live(tmp_path / "j.db", list(story())) == undisturbed
    assert "no snapshot was taken: database or disk is full" in caplog.text
    assert replayed(tmp_path / "j.db").scheduler.state() == undisturbed


@pytest.mark.parametrize("change", [lambda state: state["table"]["columns"].pop("weight"), lambda state: state.clear()])
def test_a_state_without_a_part_is_passed_over(
    recorded: tuple[Path, dict[str, Any]], change: Callable[[dict[str, Any]], Any]
) -> None:
    path, state = recorded
    with Journal.open(path) as journal:
        damaged = dict(state, table=dict(state["table"], columns=dict(state["table"]["columns"])))
        change(damaged)
        journal.take_snapshot(damaged)
    assert replayed(path).scheduler.state() == state


def test_few_dear_events_bring_a_snapshot_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart would handle them again, however few they are."""
    monkeypatch.setattr(host_module, "EVENTS_PER_SNAPSHOT", 10**9)
    monkeypatch.setattr(host_module, "SECONDS_TO_REPLAY", 1e-9)
    monkeypatch.setattr(host_module, "HANDLING_PER_SNAPSHOT", 0.0)
    host = Host(Settings(policy="fifo"), tmp_path / "journal.db", Clock())
    for number, event in enumerate(list(story())[:4], 1):
        host.handle(event)
        assert host.replay_share == 0.0
        with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
            assert next(iter(journal.snapshots())).number >= number
    monkeypatch.setattr(host_module, "SECONDS_TO_REPLAY", 1e9)
    host.handle(Cancel("a"))
    assert host.replay_share > 0.0
