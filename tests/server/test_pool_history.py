"""Runs are kept when they end, found when a job is submitted, and never in the way of a pool."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.answers import End, Grant, Verdict
from lightning_core.core.codec import decode_event
from lightning_core.core.commands import Cancel
from lightning_core.core.events import Cell, EarlierRuns, Event, ExitCause, Report, Submit, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.history.history import History
from lightning_core.scheduler.settings import Settings
from lightning_core.server import host as hosts
from lightning_core.server.host import Host
from lightning_core.storage.journals import excerpt
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import JournalPart
from lightning_core.storage.journals.replay import replay
from lightning_core.storage.runs import pool_history
from lightning_core.storage.runs.run_store import FILE, RunStore
from lightning_core.view.why import why

VIT = Job("vit", 600.0, LossTarget("loss", 0.2), model="mine.Vit", batch_size=32)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "pool").mkdir(mode=0o700)
    return made


def open_host(folder: Path, clock: Clock | None = None, **settings: Any) -> Host:
    return Host(Settings(**settings), folder / "journal.db", clock or Clock(), history=folder)


def train(host: Host, name: str = "vit", cells: int = 40, incarnation: int = 1) -> None:
    """Train until 2 / sqrt(n) comes to 0.2 on average over the window, or for so many cells of ten batches."""
    for n in range(1, cells + 1):
        host._clock.now += 1.0  # type: ignore[attr-defined]
        host.handle(Report(name, incarnation, n, 99, 10 * n, 1.0 * n, (Cell(n, 10 * n, 2.0 * (10 * n) ** -0.5),)))


def kept(folder: Path) -> list[Any]:
    store = RunStore(folder / FILE)
    runs = list(store.runs())
    store.close()
    return runs


def given(folder: Path) -> list[Event]:
    with Journal.open(folder / "journal.db", read_only=True) as journal:
        events = [decode_event(entry.event) for entry in journal.entries()]
    return [event for event in events if isinstance(event, EarlierRuns)]


def test_a_run_is_kept_when_it_ends_and_given_to_the_next_job_of_the_task(folder: Path) -> None:
    host = open_host(folder)
    host.handle(Submit((VIT,)))
    train(host)
    [run] = kept(folder)
    assert (run.name, run.verdict, run.met_at, run.target) == ("vit", "met", 130, "loss <= 0.2")
    assert run.batches == tuple(range(10, 131, 10))
    assert run.throughputs == ((1, "cpu", pytest.approx(10.0)),)
    assert run.trained == 13.0
    host.handle(Submit((VIT, Job("cnn", 600.0, LossTarget("loss", 0.2), model="mine.Cnn"))))
    assert host.scheduler._table.earlier == {1: ("vit",)}
    host.close()
    [event] = given(folder)
    assert isinstance(event, EarlierRuns)
    assert [(one.name, one.batches) for one in event.runs] == [("vit", run.batches)]
    assert event.runs[0].throughputs[0] == pytest.approx((1, 10.0))
    assert event.found == (("vit", (0,)),)
    with Journal.open(folder / "journal.db", read_only=True) as journal:
        told = "\n".join(why(History.read(journal), "vit"))
    assert "forecast from its first batch by earlier runs: like vit" in told


def test_the_journal_replays_without_the_store(folder: Path) -> None:
    host = open_host(folder)
    for _ in range(2):
        host.handle(Submit((VIT,)))
        train(host, incarnation=host.scheduler.incarnation("vit"))
    host.close()
    (folder / FILE).unlink()
    with Journal.open(folder / "journal.db", read_only=True) as journal:
        again = replay(journal, whole=True)
        assert again.digest == journal.digest
    assert again.scheduler._table.earlier == {1: ("vit",)}


def test_missed_and_crashed_runs_are_kept_and_those_that_did_nothing_are_not(folder: Path) -> None:
    host = open_host(folder)
    jobs = [Job(name, 600.0, LossTarget("loss", 1e-9), model="m") for name in ("cancelled", "crashed", "idle", "over")]
    host.handle(Submit(tuple(jobs)))
    for name in ("cancelled", "crashed"):
        train(host, name, 5)
    host.handle(Cancel("cancelled"))
    host.handle(Cancel("idle"))
    host.handle(WorkerExited("crashed", 1, ExitCause.RAISED, "E: x"))
    assert sorted((run.name, run.verdict) for run in kept(folder)) == [
        ("cancelled", "cancelled"),
        ("crashed", "crashed"),
    ]


def test_a_run_that_ended_right_before_a_kill_is_kept_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    host = open_host(folder, clock)
    host.handle(Submit((VIT,)))
    with monkeypatch.context() as patch:
        patch.setattr(pool_history.PoolHistory, "write", lambda self: None)  # the kill comes first
        train(host)
    assert kept(folder) == []
    host._journal.close()  # type: ignore[union-attr]
    for _ in range(2):
        host = open_host(folder, Clock())
        host.handle(Cancel("stranger"))
        host.close()
    assert [run.name for run in kept(folder)] == ["vit"]


def test_a_run_that_was_forgotten_does_not_come_back_with_the_pool(folder: Path) -> None:
    host = open_host(folder)
    host.handle(Submit((VIT,)))
    train(host)
    assert [run.name for run in kept(folder)] == ["vit"]
    host.close()
    store = RunStore(folder / FILE)
    store.forget(name="vit")
    store.close()
    host = open_host(folder, Clock())
    host.handle(Cancel("stranger"))
    host.close()
    assert kept(folder) == []


def test_an_end_that_is_not_committed_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = open_host(folder)
    host.handle(Submit((Job("a", 600.0, BatchTarget(10), model="m"),)))
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "commit", lambda self: (_ for _ in ()).throw(sqlite3.OperationalError("disk full")))
        with pytest.raises(hosts.EventNotPersistedError):
            host.handle(Report("a", 1, 1, 1, 10, 1.0))
    host.keep_short()
    assert kept(folder) == []
    assert isinstance(host.scheduler.directive("a"), Grant)
    host._clock.now += 60.0  # type: ignore[attr-defined]
    [end] = [one for one in host.handle(Report("a", 1, 1, 1, 10, 1.0)) if isinstance(one, End)]
    assert end.verdict is Verdict.MET
    assert [run.name for run in kept(folder)] == ["a"]


@pytest.mark.parametrize("call", ["find", "note", "write", "open"])
def test_a_store_that_fails_stops_nothing(folder: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise sqlite3.DatabaseError("malformed")

    if call == "open":
        (folder / FILE).mkdir()
    host = open_host(folder)
    target = {"find": (RunStore, "similar"), "write": (RunStore, "add"), "note": (pool_history, "PastRun")}
    if call != "open":
        monkeypatch.setattr(*target[call], fails)
    host.handle(Submit((VIT,)))
    train(host)
    assert host.scheduler.last("vit").verdict is Verdict.MET
    host.handle(Submit((VIT,)))
    host.close()


def test_many_jobs_of_one_task_are_given_their_runs_in_one_event(folder: Path) -> None:
    host = open_host(folder)
    host.handle(Submit((VIT,)))
    train(host)
    host.handle(Submit(tuple(Job(f"v{k}", 600.0, VIT.target, model="mine.Vit") for k in range(50))))
    host.close()
    [event] = given(folder)
    assert isinstance(event, EarlierRuns)
    assert (len(event.runs), len(event.found)) == (1, 50)


def test_the_part_of_a_journal_has_the_runs_of_its_own_jobs_alone(folder: Path) -> None:
    host = open_host(folder)
    cnn = Job("cnn", 600.0, VIT.target, model="mine.Cnn")
    host.handle(Submit((VIT, cnn)))
    train(host)
    train(host, "cnn")
    host._clock.now += 1.0  # type: ignore[attr-defined]
    host.handle(Submit((VIT, cnn)))
    submitted_at = host.scheduler.last("cnn").submitted_at
    host.close()
    excerpt.write(JournalPart(str(folder), ("cnn",), submitted_at), path := folder / "part.db")
    with Journal.open(path, read_only=True) as journal:
        events = [decode_event(entry.event) for entry in journal.entries()]
    [event] = [event for event in events if isinstance(event, EarlierRuns)]
    assert [run.name for run in event.runs] == ["cnn"]
    assert event.found == (("cnn", (0,)),)


def test_runs_of_other_users_are_given_only_if_the_pool_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shared in (False, True):
        (own := folder / str(shared)).mkdir(mode=0o700)
        host = open_host(own, share_history=shared)
        with monkeypatch.context() as patch:
            patch.setattr(pool_history, "this_user", lambda: 12345)
            host.handle(Submit((VIT,)))
            train(host)
        host.handle(Submit((VIT,)))
        assert bool(host.scheduler._table.earlier) is shared
        host.close()


def test_without_a_store_nothing_is_kept(tmp_path: Path) -> None:
    host = Host(Settings(), None, Clock())
    host.handle(Submit((VIT,)))
    train(host)
    host.close()
    assert list(tmp_path.iterdir()) == []
