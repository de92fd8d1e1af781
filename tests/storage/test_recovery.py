"""Damage to a journal is noticed, whatever it is, and a recovery continues before it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_core.core.events import Close, Submit, Tick
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.history.history import History
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host
from lightning_core.storage.journals.anchor import Anchor, AnchorFile, anchor_path, read_anchor
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import connect, digest_of
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.journals.recovery import recover, recover_folder
from lightning_core.storage.journals.replay import replay

EVENTS = 21


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed journal."""
    return written(tmp_path / "journal.db")


def written(path: Path) -> Path:
    host = begun(path)
    host.close()
    return path


def begun(path: Path) -> Host:
    host = Host(Settings(), path, clock=iter(float(now) for now in range(10**6)).__next__)
    host.handle(Submit((Job("a", 1e6, BatchTarget(400)),)))
    for _ in range(10):  # each after the tick that the scheduler asked for
        host.handle(Tick())
    return host


def read(path: Path) -> int:
    """Return the number of events that a scheduler would continue from."""
    with Journal.open(path) as journal:
        return replay(journal).events


def sql(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


DAMAGE: dict[str, tuple[str, str, int]] = {
    "a changed time": ("UPDATE events SET now = now * 1e70 WHERE number = 9", "event 9 does not match its digest", 8),
    "a changed event": ("UPDATE events SET event = '{\"kind\":\"tick\" }' WHERE number = 9", "event 9 does not", 8),
    "changed answers": ("UPDATE events SET answers = '[ ]' WHERE number = 20", "event 20 does not", 19),
    "a changed digest": ("UPDATE events SET digest = 'x' WHERE number = 9", "event 9 does not", 8),
    "another type": ("UPDATE events SET now = 'soon' WHERE number = 9", "event 9 does not", 8),
    "a row gone": ("DELETE FROM events WHERE number = 9", "event 9 is missing", 8),
    "the first row gone": ("DELETE FROM events WHERE number = 1", "event 1 is missing", 0),
    "last rows gone": ("DELETE FROM events WHERE number > 15", "events 16 to 21 are missing", 15),
    "all rows gone": ("DELETE FROM events", "events 1 to 21 are missing", 0),
    "settings changed": (
        "UPDATE meta SET value = replace(value, '\"period\": 1.0', '\"period\": 2.0')", "event 1 does not", 0,
    ),
}  # fmt: skip


@pytest.mark.promise("R21", "F30")
def test_a_recovery_keeps_the_events_before_a_damaged_page(tmp_path: Path) -> None:
    """The database itself is damaged there, so that not even its last number can be read."""
    path = tmp_path / "journal.db"
    scheduler = Scheduler(Settings())
    with Journal.create(path, Settings(), durable=False) as journal:
        for number in range(300):
            answers = scheduler.handle(Close(f"{number:300}"), float(number))
            journal.append(Close(f"{number:300}"), float(number), answers, scheduler.accepted)
    with path.open("r+b") as file:
        file.seek(4096 * (path.stat().st_size // 4096 * 2 // 3))
        file.write(bytes(4096))
    with pytest.raises(JournalError, match=r"journal.db: damaged journal"):
        read(path)
    recovered = recover_folder(tmp_path)
    assert recovered is not None
    assert recovered.kept == read(path)
    assert 100 < recovered.kept < 250


@pytest.mark.promise("R21", "F30")
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_noticed_and_a_recovery_continues_before_it(damage: str, path: Path) -> None:
    statement, words, good = DAMAGE[damage]
    sql(path, "DELETE FROM snapshots")
    sql(path, statement)
    before = path.read_bytes()
    with pytest.raises(JournalError, match=f"journal.db: damaged journal: {words}"):
        read(path)
    assert path.read_bytes() == before
    recovered = recover_folder(path.parent)
    assert recovered is not None
    assert recovered.kept == read(path) == good
    assert f"after event {good}" in str(recovered)
    assert f"{EVENTS - good} later events are lost, the newest of 20" in str(recovered)
    with sqlite3.connect(recovered.damaged / "journal.db") as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone()[0] in (15, EVENTS - 1, EVENTS, 0)
    Host(Settings(), path).close()
    assert recover(path) is None


@pytest.mark.promise("R21", "F30")
@pytest.mark.parametrize("damage", [name for name, (_, _, good) in DAMAGE.items() if 0 < good != 15])
def test_damage_before_a_snapshot_costs_no_decision(damage: str, path: Path) -> None:
    statement, words, good = DAMAGE[damage]
    with Journal.open(path, read_only=True) as journal:
        before = replay(journal).scheduler.state()
        shown = [entry.number for entry in journal.entries()]
    sql(path, statement)
    with pytest.raises(JournalError, match=f"journal.db: damaged journal: {words}"):
        read(path)
    recovered = recover_folder(path.parent)
    assert recovered is not None
    assert recovered.kept == read(path) == EVENTS
    assert recovered.hole == (good + 1, EVENTS)
    assert f"reports will not show events {good + 1} to {EVENTS}, whose outcome a snapshot holds; 0 later" in str(
        recovered
    )
    with Journal.open(path, read_only=True) as journal:
        assert replay(journal).scheduler.state() == before
        kept = [entry.number for entry in journal.entries()]
        assert kept[:1] + kept[-1:] == [shown[0], good]
        assert History.read(journal).of("a").name == "a"
    host = Host(Settings(), path, clock=lambda: 1e6)
    host.handle(Submit((Job("b", 1e6, BatchTarget(400)),)))
    host.close()
    assert recover(path) is None
    assert read(path) > EVENTS


@pytest.mark.promise("R21", "F30")
def test_rows_rewritten_with_digests_that_fit_do_not_fit_the_anchor(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    host = Host(Settings(period=2.0), other / "journal.db", clock=iter(map(float, range(10**6))).__next__)
    for _ in range(EVENTS):
        host.handle(Tick())
    host.close()
    shutil.copyfile(anchor_path(path), anchor_path(other / "journal.db"))
    with pytest.raises(JournalError, match="event 21 does not match its anchor"):
        read(other / "journal.db")


@pytest.mark.parametrize("content", [None, b"", b"x" * 512, b"\0" * 512, b"[" * 512])
def test_a_journal_without_an_anchor_is_continued_only_when_asked(content: bytes | None, path: Path) -> None:
    anchor_path(path).unlink()
    if content is not None:
        anchor_path(path).write_bytes(content)
    with pytest.raises(JournalError, match=r"its anchor journal\.db-anchor is missing or damaged"):
        Journal.open(path)
    with Journal.open(path, read_only=True) as journal:
        assert journal.last == EVENTS
    recovered = recover(path)
    assert recovered is not None
    assert recovered.kept == read(path) == EVENTS


def test_a_flip_in_the_write_ahead_log_loses_nothing_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    host = begun(path)
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for file in ("journal.db", "journal.db-wal", "journal.db-anchor"):
        shutil.copyfile(tmp_path / file, crashed / file)
    host.close()
    log = bytearray((crashed / "journal.db-wal").read_bytes())
    log[len(log) * 3 // 4] ^= 1  # behind the tables
    (crashed / "journal.db-wal").write_bytes(log)
    with pytest.raises(JournalError, match=r"events \d+ to 21 are missing"):
        read(crashed / "journal.db")
    recovered = recover(crashed / "journal.db")
    assert recovered is not None
    assert recovered.last == EVENTS
    assert recovered.kept == read(crashed / "journal.db") < EVENTS


@pytest.mark.promise("R21", "F30")
def test_no_single_flipped_bit_is_accepted_or_changes_what_is_replayed(path: Path, tmp_path: Path) -> None:
    dice = random.Random(7)
    whole, status = path.read_bytes(), state(path)
    copy = tmp_path / "copy" / "journal.db"
    copy.parent.mkdir()
    noticed = 0
    for _ in range(150):
        flipped = bytearray(whole)
        flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
        for file in copy.parent.iterdir():
            file.unlink()
        copy.write_bytes(flipped)
        shutil.copyfile(anchor_path(path), anchor_path(copy))
        try:
            assert state(copy) == status
        except JournalError:
            noticed += 1
    assert noticed > 10  # most of a small file is free space


def state(path: Path) -> str:
    with Journal.open(path, read_only=True) as journal:
        again = replay(journal)
    return f"{again.digest} {again.now} {again.scheduler.status()}"


ROWS = {
    "null": "null",
    "a number": "17",
    "a string": '"tick"',
    "a list": '["tick"]',
    "no kind": "{}",
    "brackets": "[" * 100_000,
    "an unknown kind": '{"kind":"dance"}',
    "a kind of no kind": '{"kind":[]}',
    "a huge number": '{"kind":1e999}',
    "a job that is none": '{"kind":"submit","jobs":[3]}',
    "text": "no JSON",
    "an unknown field": '{"kind":"tick","x":1}',
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("column", ["event", "answers"])
def test_rows_of_any_content_are_an_error_that_names_the_file(row: str, column: str, path: Path) -> None:
    """The digests fit: a process that can write the file can compute them."""
    rewrite(path, lambda event, answers: (ROWS[row], answers) if column == "event" else (event, ROWS[row]))
    looks: list[Callable[[Journal], object]] = [replay]
    if (column, row) != ("answers", "no kind"):  # no answers
        looks.append(History.read)
    for look in looks:
        with Journal.open(path, read_only=True) as journal, pytest.raises(JournalError, match=r"journal\.db"):
            look(journal)


def rewrite(path: Path, change: Callable[[str, str], tuple[str, str]]) -> None:
    """Change the tenth event and make all digests fit again."""
    with Journal.open(path, read_only=True) as journal:
        entries, digest = list(journal.entries()), digest_of("", journal.settings_text())
    connection = connect(path)
    with connection:
        for entry in entries:
            event, answers = change(entry.event, entry.answers) if entry.number == 10 else (entry.event, entry.answers)
            digest = digest_of(digest, repr(entry.now), event, answers)
            connection.execute(
                "UPDATE events SET event = ?, answers = ?, digest = ? WHERE number = ?",
                (event, answers, digest, entry.number),
            )
    connection.close()
    with AnchorFile(anchor_path(path)) as file:
        file.write(Anchor(EVENTS, digest, entries[-1].now, 0.0))


@pytest.mark.parametrize("settings", ["null", "[]", '{"policy": 3}', '{"devices": 1000000000}', "[" * 100_000, "{}}"])
def test_settings_of_any_content_are_an_error_that_names_the_file(settings: str, path: Path) -> None:
    sql(path, f"UPDATE meta SET value = '{settings}' WHERE key = 'settings'")
    with pytest.raises(JournalError, match=r"journal\.db"):
        read(path)


POINTS = [
    "recovery.copied:crash", *(f"recovery.moved_away:crash@{at}" for at in range(1, 5)), "recovery.before_switch:crash",
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_recovery_that_is_killed_at_any_point_is_continued(point: str, path: Path) -> None:
    sql(path, "DELETE FROM events WHERE number > 15")
    code = "import sys; from pathlib import Path; from lightning_core.storage.journals import recovery"
    command = [sys.executable, "-c", f"{code}; recovery.recover(Path(sys.argv[1]))", str(path)]
    killed = subprocess.run(command, env=os.environ | {"LC_FAILPOINT": point}, timeout=300, check=False)
    assert killed.returncode == -9
    if "copied" in point:
        with pytest.raises(JournalError, match="events 16 to 21 are missing"):
            Host(Settings(), path)
        recover(path)
    host = Host(Settings(), path)
    assert host.scheduler.names() == ["a"]
    host.close()
    assert read(path) >= 15
    [damaged] = path.parent.glob("journal.db-damaged-*")
    assert {"journal.db", "journal.db-anchor"} <= {file.name for file in damaged.iterdir()}


def test_a_journal_that_was_moved_away_leaves_no_anchor_for_the_next(path: Path, tmp_path: Path) -> None:
    path.rename(tmp_path / "old.db")
    Host(Settings(), path).close()
    assert read(path) == 0


def test_deadlines_continue_from_the_last_good_event(path: Path) -> None:
    anchor = read_anchor(path)
    assert anchor is not None
    with AnchorFile(anchor_path(path)) as file:
        file.write(anchor._replace(wall=time.time() - 600.0))
    sql(path, "DELETE FROM events WHERE number > 15")
    recovered = recover(path)
    assert recovered is not None
    after = Host(Settings(), path, clock=lambda: 0.0)
    assert after.now() == pytest.approx(anchor.now + 600.0, abs=60.0)
    after.close()


@pytest.mark.parametrize("body", ["7", "[]", '["x", "d", 0, 0]', '[1e999, "d", 0, 0]', "{}", "null"])
def test_an_anchor_of_any_content_is_none(body: str, path: Path) -> None:
    slot = f"{hashlib.sha256(body.encode()).hexdigest()[:16]} {body}\n".encode().ljust(256)
    anchor_path(path).write_bytes(slot * 2)
    assert read_anchor(path) is None


def test_the_anchor_survives_a_torn_write(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with AnchorFile(anchor_path(path)) as file:
        for number in range(4):
            file.write(Anchor(number, "d", float(number), 0.0))
    body = bytearray(anchor_path(path).read_bytes())
    assert json.loads(body[256:].split(b" ", 1)[1])[0] == 3
    body[270:280] = b"\0" * 10
    anchor_path(path).write_bytes(body)
    assert read_anchor(path) == Anchor(2, "d", 2.0, 0.0)


def test_an_event_is_acknowledged_only_when_it_is_anchored(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    host = begun(path)
    anchor = read_anchor(path)
    assert anchor is not None
    assert anchor.number == EVENTS
    host.close()
