"""The host of a live scheduler when its disk fails."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.answers import End
from lightning_core.core.commands import Cancel, Resume
from lightning_core.core.events import Report, Submit, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.server import host as hosts
from lightning_core.server.host import EventNotPersistedError, Host
from lightning_core.storage.journals import anchor as anchors
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay


@pytest.mark.promise("F7", "R19")
def test_with_a_full_disk_events_are_refused_and_queries_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt replays once, not each event; with free space the host continues."""
    now = 0.0
    host = Host(Settings("edf"), tmp_path / "journal.db", clock=lambda: now)
    host.handle(Submit((Job("a", 900.0, BatchTarget(5000)),)))
    commit, replays, full = Journal.commit, [], True

    def committed(journal: Journal) -> None:
        if full:
            raise sqlite3.OperationalError("database or disk is full")
        commit(journal)

    def counted(journal: Journal) -> Any:
        replays.append(now)
        return replay(journal)

    monkeypatch.setattr(Journal, "commit", committed)
    monkeypatch.setattr(hosts, "replay", counted)
    for number in range(1, 51):
        now += 0.1
        with pytest.raises(EventNotPersistedError, match="the journal cannot be written: database or disk is full"):
            host.handle(Report("a", 1, number, 1, 10 * number, 0.1 * number))
        assert host.scheduler.status()[0].batches == 0  # what is not kept has not happened
    assert 3 <= len(replays) <= 6
    full = False
    now += 2.0
    host.handle(Report("a", 1, 51, 1, 510, 5.1))
    assert host.scheduler.status()[0].batches == 510
    host.close()
    with Journal.open(tmp_path / "journal.db") as journal:
        assert replay(journal).digest == journal.digest


@pytest.mark.promise("R1")
def test_an_event_that_changes_nothing_is_answered_and_not_written(tmp_path: Path) -> None:
    now = 0.0
    host = Host(Settings("edf"), tmp_path / "journal.db", clock=lambda: now)
    host.handle(Submit((Job("a", 900.0, BatchTarget(5000)), Job("b", 900.0, BatchTarget(5000)))))
    host.handle(Cancel("b"))
    size = (tmp_path / "journal.db-wal").stat().st_size
    now = 0.5
    for number in range(100):
        [end] = host.handle(Report("x" * 1000, 1, number, 0, 5, 1.0))
        assert isinstance(end, End)
        assert end.reason.code == "unknown_job"
        assert host.handle(WorkerExited("a", 7)) == host.handle(Resume("b")) == host.handle(Cancel("b")) == []
    assert (tmp_path / "journal.db-wal").stat().st_size == size
    now = 1.0
    host.handle(Report("a", 1, 1, 1, 10, 0.5))
    alive = host.scheduler.status()
    host.close()
    with Journal.open(tmp_path / "journal.db") as journal:
        assert [entry.event.split('"')[3] for entry in journal.entries()] == ["submit", "cancel", "tick", "report"]
        replayed = replay(journal)
        assert replayed.digest == journal.digest
    assert replayed.scheduler.status() == alive


@pytest.mark.promise("R18", "F9")
@pytest.mark.parametrize("step", [-86_400.0, -3600.0, 3600.0, 1e9])
def test_deadlines_do_not_move_when_the_clock_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """Neither while a scheduler runs, nor if it is restarted after the change and before its next event."""
    boot, wall, now = 5000.0, 1.8e9, 0.0
    monkeypatch.setattr(anchors, "since_boot", lambda: boot)
    monkeypatch.setattr("time.time", lambda: wall)
    host = Host(Settings("edf"), tmp_path / "journal.db", clock=lambda: now)
    host.handle(Submit((Job("a", 900.0, BatchTarget(5000)),)))
    wall, boot, now = wall + step + 10.0, boot + 10.0, now + 10.0
    assert host.now() == 10.0
    host.close()
    host = Host(Settings("edf"), tmp_path / "journal.db", clock=lambda: now)
    assert host.now() == 10.0
    host.close()


@pytest.mark.promise("R18", "F9")
def test_after_a_restart_of_the_machine_the_clock_on_the_wall_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = 1.8e9
    monkeypatch.setattr("time.time", lambda: wall)
    monkeypatch.setattr(anchors, "boot_id", lambda: "first")
    host = Host(Settings("edf"), tmp_path / "journal.db", clock=lambda: 0.0)
    host.handle(Submit((Job("a", 900.0, BatchTarget(5000)),)))
    host.close()
    monkeypatch.setattr(anchors, "boot_id", lambda: "second")
    for passed, away in ((60.0, 60.0), (-60.0, 0.0)):  # a clock that is behind gives nothing back
        wall = 1.8e9 + passed
        again = Host(Settings("edf"), tmp_path / "journal.db", clock=lambda: 0.0)
        assert again.now() == pytest.approx(away)
        again.close()
