"""How fast trainings were beside others is kept, and given to the next pool."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.earlier_runs import MAX_PACES, EarlierPace
from lightning_core.core.events import EarlierRuns, Event, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.company.paces import EARLIER, MAX_SEEN, Paces
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.storage.runs import run_store
from lightning_core.storage.runs.past_run import PastPace
from lightning_core.storage.runs.run_store import FILE, RunStore
from tests.storage.test_run_store import run

ME = os.geteuid()
PACE = EarlierPace("bert", ("resnet",), 0.8, 30.0)
CPU = "cpu x2"


def kept(of: EarlierPace = PACE, owner: int = ME, device: str = CPU, at: float = 1e9, **more: Any) -> PastPace:
    return PastPace(owner, device, of._replace(**more), at)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    tmp_path.chmod(0o700)
    with closing(RunStore(tmp_path / FILE)) as made:
        yield made


# ------------------------------------------------------------------------------------------------------ the store


def test_a_pace_comes_back_as_it_was_and_a_newer_one_takes_its_place(store: RunStore) -> None:
    store.add_paces([kept(), kept(others=("a", "b"), pace=0.5)])
    assert store.paces(["bert"], CPU, ME) == [PACE._replace(others=("a", "b"), pace=0.5), PACE]
    store.add_paces([kept(pace=0.9, at=2e9)])
    assert store.paces(["bert"], CPU, ME)[0] == PACE._replace(pace=0.9)
    assert store.paces(["resnet"], CPU, ME) == []


def test_other_devices_and_other_users_are_others(store: RunStore) -> None:
    store.add_paces([kept(), kept(owner=ME + 1, pace=0.3, at=2e9), kept(device="gpu", pace=0.4)])
    assert [one.pace for one in store.paces(["bert"], CPU, ME)] == [0.8]
    assert [one.pace for one in store.paces(["bert"], CPU, None)] == [0.3]
    assert [one.pace for one in store.paces(["bert"], "gpu", ME)] == [0.4]
    assert store.paces(["bert"], "cpu x1", ME) == []


def test_an_event_has_so_many_and_the_store_keeps_so_many(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add_paces([kept(others=(f"{k:03}",), at=float(k)) for k in range(MAX_PACES + 9)])
    found = store.paces(["bert"], CPU, ME)
    assert [one.others for one in found] == [(f"{k:03}",) for k in range(MAX_PACES + 8, 8, -1)]
    monkeypatch.setattr(run_store, "MAX_KEPT_PACES", 2)
    store.add_paces([kept(others=("new",), at=3e9)])
    assert [one.others for one in store.paces(["bert"], CPU, ME)] == [("new",), (f"{MAX_PACES + 8:03}",)]


@pytest.mark.parametrize(
    ("column", "value"),
    [("pace", 1e9), ("pace", "x"), ("seconds", -1.0), ("others", "[]"), ("others", "{"), ("others", "[1]")],
)
def test_a_damaged_pace_is_left_out(store: RunStore, column: str, value: Any, caplog: pytest.LogCaptureFixture) -> None:
    store.add_paces([kept()])
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute(f"UPDATE paces SET {column} = ?", [value])
    with caplog.at_level(logging.WARNING):
        assert store.paces(["bert"], CPU, ME) == []
    assert "a pace of 'bert' is damaged" in caplog.text
    store.add([run("bert-1", model="", batch_size=None)])
    assert store.forget(name="bert-1") == 1


def test_kinds_of_which_no_run_is_left_are_forgotten_with_it(store: RunStore) -> None:
    secret = {"model": "", "batch_size": None}
    store.add([run("secret-1", **secret), run("secret-2", **secret), run("bert", **secret)])
    store.add_paces([kept(), kept(family="secret"), kept(others=("resnet", "secret"))])
    store.forget(name="secret-1")
    assert len(store.paces(["bert", "secret"], CPU, ME)) == 3
    store.forget(name="secret-2")
    assert store.paces(["bert", "secret"], CPU, ME) == [PACE]
    assert not any(b"secret" in path.read_bytes() for path in store.path.parent.iterdir())
    store.forget(before=2e9)
    assert store.paces(["bert"], CPU, ME) == []


def test_a_store_of_an_older_version_is_left_alone(store: RunStore) -> None:
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(run_store.RunStoreError, match="its version is 2"):
        RunStore(store.path)


# ---------------------------------------------------------------------------------------------- what counts how much


def test_an_earlier_pace_counts_until_it_is_measured_anew() -> None:
    paces = Paces()
    assert paces.recall([PACE._replace(seconds=1e6)])
    assert paces.seconds("bert", ("resnet",)) == EARLIER
    assert paces.expect("bert", ("resnet",)).pace == pytest.approx(0.8, abs=0.01)
    assert not paces.recall([PACE._replace(pace=0.1)])
    assert paces.measured() == []
    for _ in range(40):
        paces.observe("bert", ("resnet",), 0.4, 5.0)
    assert paces.expect("bert", ("resnet",)).pace == pytest.approx(0.4, abs=0.04)
    [measured] = paces.measured()
    assert measured.seconds == EARLIER + 200.0
    assert measured.pace == pytest.approx(0.8 ** (1 / 11) * 0.4 ** (10 / 11))
    assert paces.measured({"resnet"}) == [measured]
    assert paces.measured({"vgg"}) == []


def test_no_more_are_recalled_than_are_remembered() -> None:
    paces = Paces()
    many = [PACE._replace(others=(f"{k}",)) for k in range(MAX_SEEN + 9)]
    assert paces.recall(many)
    assert len(paces._seen) == MAX_SEEN
    assert not paces.lacks(many[-1])
    again = Paces()
    again.restore(paces.state())
    assert again.measured() == []
    assert not again.lacks(many[0])


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"family": "x" * 300}, "kind of trainings must have at most"),
        ({"others": ()}, "trainings beside it must be 1 to 8, got 0"),
        ({"others": ("a",) * 9}, "trainings beside it must be 1 to 8, got 9"),
        ({"others": ("b", "a")}, "must be sorted"),
        ({"pace": 0.0}, "pace must be"),
        ({"pace": float("nan")}, "pace must be"),
        ({"seconds": 0.0}, "seconds must be above 0"),
        ({"seconds": float("inf")}, "seconds must be above 0"),
    ],
)
def test_paces_out_of_range_are_refused(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        EarlierRuns((), (), (PACE._replace(**change),))


def test_the_event_is_bounded_comes_back_from_its_line_and_changes_nothing_twice() -> None:
    with pytest.raises(ValueError, match="earlier paces must be at most"):
        EarlierRuns((), (), (PACE,) * (MAX_PACES + 1))
    event = EarlierRuns((), (), (PACE,))
    assert decode_event(encode_event(event)) == event
    scheduler = Scheduler(Settings("edf"))
    assert scheduler.answers_to_no_op(event, 0.0) is None
    scheduler.handle(event, 0.0)
    assert scheduler.answers_to_no_op(event, 1.0) == []


# ------------------------------------------------------------------------------------------------- two pools in a row


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def jobs(*names: str) -> tuple[Job, ...]:
    return tuple(Job(name, 1e5, BatchTarget(10**6)) for name in names)


def open_pool(folder: Path, journal: str, **settings: Any) -> Host:
    made = Host(Settings("edf", cores=2, **settings), folder / journal, Clock(), history=folder)
    made.runs.set_devices(["cpu0"])
    return made


def train(host: Host, names: tuple[str, ...], seconds: float, first: int = 1) -> None:
    """Report as jobs do that are at half of their pace beside each other."""
    table, clock = host.scheduler._table, host._clock
    assert isinstance(clock, Clock)
    busy = {name: float(table.busy[table.row_of[name]]) for name in names}
    done = {name: float(table.batches[table.row_of[name]]) for name in names}
    for number in range(first, first + int(seconds / 0.2)):
        clock.now += 0.2
        for name in names:
            row = table.row_of[name]
            beside = table.beside[row] > 0
            more = 0.2 * (1.0 if beside else float(table.share[row]))
            busy[name] += more
            done[name] += 100 * more * (0.7 if beside else 1.0)
            host.handle(Report(name, 1, number, table.directives[row].version, int(done[name]), busy[name]))


def events(folder: Path, journal: str) -> list[Event]:
    with Journal.open(folder / journal, read_only=True) as opened:
        return [decode_event(entry.event) for entry in opened.entries()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "pool").mkdir(mode=0o700)
    return made


def test_a_second_pool_begins_with_what_the_first_has_measured(folder: Path) -> None:
    first = open_pool(folder, "1.db")
    first.handle(Submit(jobs("a", "b")))
    train(first, ("a", "b"), 20.0)
    measured = {(one.family, one.others): one for one in first.scheduler.measured_paces()}
    assert measured["a", ("b",)].pace == pytest.approx(0.7, abs=0.05)
    assert [event for event in events(folder, "1.db") if isinstance(event, EarlierRuns)] == []
    first.close()
    second = open_pool(folder, "2.db")
    second.handle(Submit(jobs("a", "b")))
    second.handle(Submit(jobs("a-2")))  # of a kind that is known by now
    paces = second.scheduler._state.forming.paces
    assert paces.expect("a", ("b",)).pace == pytest.approx(0.7, abs=0.05)
    assert 2.0 < paces.seconds("a", ("b",)) <= EARLIER
    train(second, ("a",), 1.0)
    second.close()
    [event] = [event for event in events(folder, "2.db") if isinstance(event, EarlierRuns)]
    assert {(one.family, one.others) for one in event.paces} == set(measured)
    with Journal.open(folder / "2.db", read_only=True) as journal:
        assert replay(journal, whole=True).digest == journal.digest


def test_what_is_measured_is_kept_when_a_job_of_it_ends(folder: Path) -> None:
    host = open_pool(folder, "1.db")
    host.handle(Submit((Job("a", 1e5, BatchTarget(1500)), *jobs("b"))))
    train(host, ("a", "b"), 5.0)
    with closing(RunStore(folder / FILE)) as store:
        assert store.paces(["a", "b"], CPU, ME) == []
    while host.scheduler._table.active[0]:
        train(host, ("a", "b"), 0.4, first=int(host.scheduler._table.last_report[1]) + 1)
    host.keep_short()
    with closing(RunStore(folder / FILE)) as store:
        assert {one.family for one in store.paces(["a", "b"], CPU, ME)} == {"a", "b"}
    host.close()


@pytest.mark.parametrize("shared", [False, True])
def test_paces_of_other_users_are_given_only_if_history_is_shared(folder: Path, shared: bool) -> None:
    with closing(RunStore(folder / FILE)) as store:
        store.add_paces([kept(owner=ME + 1, family="a")])
    host = open_pool(folder, "1.db", share_history=shared)
    host.handle(Submit(jobs("a")))
    assert (host.scheduler._state.forming.paces.seconds("a", ("resnet",)) > 0) is shared
    host.close()
