"""Journals that another program made: whatever is in one, it is refused by name, or read within bounds.

Their digests fit where a test says so: a digest shows damage, and proves nothing.
"""

from __future__ import annotations

import json
import resource
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.events import Close
from lightning_core.core.limits import MAX_TEXT
from lightning_core.history.history import History
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.storage.journals.anchor import anchor_path
from lightning_core.storage.journals.downtime import seconds_down
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import MAX_ROW_BYTES, digest_of
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.journals.replay import replay
from tests.storage.test_recovery import written

pytestmark = pytest.mark.promise("R21")
SUBMIT = {"kind": "submit", "jobs": []}
BRACKETS = "[" * 100_000


def with_settings(path: Path, *, fits: bool = True, **changes: Any) -> None:
    """Change settings of a journal."""
    with sqlite3.connect(path) as connection:
        [text] = connection.execute("SELECT value FROM meta WHERE key = 'settings'").fetchone()
        body = json.dumps(json.loads(text) | changes)
        connection.execute("UPDATE meta SET value = ? WHERE key = 'settings'", (body,))
    if fits:
        seal(path)


def with_row(path: Path, number: int = 5, **columns: Any) -> None:
    """Change a row of a journal, whose digests fit again."""
    with sqlite3.connect(path) as connection:
        for name, value in columns.items():
            connection.execute(f"UPDATE events SET {name} = ? WHERE number = ?", (value, number))
    seal(path)


def seal(path: Path) -> None:
    """Compute all digests anew, as a program that writes a journal would, and drop the anchor."""
    anchor_path(path).unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        [settings] = connection.execute("SELECT value FROM meta WHERE key = 'settings'").fetchone()
        digest = digest_of("", settings)
        rows = connection.execute("SELECT number, now, event, answers FROM events ORDER BY number").fetchall()
        for number, now, event, answers in rows:
            texts = [part if isinstance(part, str) else repr(part) for part in (event, answers)]
            digest = digest_of(digest, repr(now), *texts)
            connection.execute("UPDATE events SET digest = ? WHERE number = ?", (digest, number))


def read_all(path: Path) -> None:
    """Read a journal in every way."""
    with Journal.open(path, read_only=True) as journal:
        replay(journal, strict=False)
        History.read(journal)
        seconds_down(journal.entries())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("whole") / "journal.db")


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    shutil.copy(anchor_path(whole), tmp_path)
    return Path(shutil.copy(whole, tmp_path))


def test_a_sealed_journal_is_read(path: Path) -> None:
    with_settings(path, period=2.0)
    read_all(path)


def test_settings_are_verified_before_a_scheduler_is_made_of_them(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_settings(path, fits=False, period=2.0)

    def made(*_: object) -> None:
        raise AssertionError("a scheduler was made of settings that were not verified")

    monkeypatch.setattr(Scheduler, "__init__", made)
    with Journal.open(path, read_only=True) as journal:
        for read in (journal.settings, lambda: replay(journal)):
            with pytest.raises(JournalError, match=r"journal.db: damaged journal: event 1 does not match its digest"):
                read()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": 10**9}, "devices must be at most 1,024, got 1000000000"),
        ({"devices": 2.5}, "devices: expected int, got 2.5"),
        ({"devices": None}, "devices: expected int, got None"),
        ({"devices": True}, "devices: expected int, got True"),
        ({"period": "1"}, "period: expected float, got '1'"),
        ({"policy": None}, "policy: expected str, got None"),
        ({"policy_args": [1]}, r"policy_args: expected object, got \[1\]"),
        ({"policy_args": 5}, "policy_args: expected object, got 5"),
        ({"controllers": {"calendar": {"closed": 5}}}, "closed must be a list of rules, got 5"),
        ({"controllers": {"calendar": 5}}, r"controllers\[...\]: expected object, got int"),
        ({"locations": 5}, "locations: expected array, got 5"),
        ({"nothing": 5}, "unknown field 'nothing'"),
        ({"resident": 10**400}, "resident must be at most 100,000, got a number of more than 20 digits"),
        ({"estimator_args": {"powers": [1.0] * 10**5}}, "estimator: must have at most 1,000 values"),
    ],
)
def test_settings_whose_digest_fits_are_bounded(path: Path, changes: dict[str, Any], words: str) -> None:
    with_settings(path, **changes)
    with pytest.raises(JournalError, match=f"journal.db: damaged journal: .*{words}"):
        read_all(path)


@pytest.mark.parametrize("column", ["event", "answers"])
@pytest.mark.parametrize(
    "content",
    ["null", "5", '"x"', "[]", "{}", "NaN", "1e999", "[null]", "[[]]", '{"kind": null}', '{"kind": []}', BRACKETS,
     '{"kind":' * 100_000, "9" * 5000, "\ud83d", '[{"job":"a","accepted":5}]', '[{"job":"a","reason":["x",[],""]}]',
     b"\xff\xfe", "[1, 2"],
)  # fmt: skip
def test_any_content_of_a_row_is_refused_by_the_name_of_the_file(path: Path, column: str, content: Any) -> None:
    if content == "\ud83d":
        content = content.encode("utf-8", "surrogatepass")
    with_row(path, **{column: content})
    if column == "answers" and content in ("[]", "{}"):
        return  # it says nothing
    with pytest.raises(JournalError, match=r"journal.db: damaged journal: "):
        read_all(path)


@pytest.mark.parametrize("now", [1e300, -1.0, "soon", 10**18, float("inf"), b"\0"])
def test_a_time_out_of_range_is_refused(path: Path, now: Any) -> None:
    with_row(path, now=now)
    with pytest.raises(JournalError, match=r"journal.db: damaged journal: event 5 "):
        read_all(path)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"kind": "report", "job": "a", "incarnation": 1, "number": 10**400, "version": 1, "batches": 1, "busy": 1.0},
         "number: expected int of at most 2..53, got a number of more than 20 digits"),
        ({"kind": "report", "job": "a", "incarnation": 1, "number": 1, "version": 1, "batches": 1, "busy": [1]},
         r"busy: expected float, got \[1\]"),
        ({"kind": "set_deadline", "job": "a", "deadline": 1.7e308}, "deadline must be at most 100 years"),
        ({"kind": "set_terms", "job": "a", "by": "person", "weight": 1e300}, "weight must be 1e-09"),
        ({"kind": "close", "by": {"a": 1}}, "by: expected str"),
        ({"kind": "close", "by": "x" * (MAX_TEXT + 1)}, "by: expected at most 8,192 characters"),
        ({"kind": "devices_unavailable", "devices": [10**400]}, "devices: expected int"),
        (SUBMIT | {"jobs": [5]}, ""),
    ],
)  # fmt: skip
def test_numbers_and_texts_of_events_are_bounded(path: Path, event: dict[str, Any], words: str) -> None:
    with_row(path, event=json.dumps(event))
    with pytest.raises(JournalError, match=f"journal.db: damaged journal: .*{words}"):
        read_all(path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW more AS SELECT 1",
        "CREATE TRIGGER one AFTER INSERT ON events BEGIN DELETE FROM meta; END",
        "ALTER TABLE events ADD COLUMN more TEXT",
        "ALTER TABLE events RENAME TO old; CREATE VIEW events AS WITH RECURSIVE n(number) AS "
        "(SELECT 1 UNION ALL SELECT number + 1 FROM n) SELECT number, 0.0 AS now, '' AS event, '' AS answers, "
        "'' AS digest FROM n",
    ],
)
def test_other_tables_are_refused(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(statement)
    connection.close()
    with pytest.raises(JournalError, match=r"journal.db: damaged journal: its tables are not those of a journal"):
        Journal.open(path)


def test_a_row_that_no_journal_has_is_refused(path: Path) -> None:
    with_row(path, answers="[" + " " * MAX_ROW_BYTES + "]")
    with pytest.raises(JournalError, match=r"journal.db: damaged journal: string or blob too big"):
        read_all(path)


def test_an_event_that_could_not_be_read_back_is_not_committed(path: Path) -> None:
    with Journal.open(path) as journal:
        with pytest.raises(ValueError, match="by: expected at most 8,192 characters"):
            journal.append(Close("x" * (MAX_TEXT + 1)), 99.0, [])
        assert journal.last == replay(journal).events


def test_a_journal_of_a_billion_devices_takes_no_memory(path: Path) -> None:
    with_settings(path, devices=10**9)
    command = [sys.executable, "-m", "lightning_core.cli.main", "replay", str(path)]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))

    done = subprocess.run(command, capture_output=True, text=True, timeout=300, preexec_fn=limit, check=False)
    assert done.returncode == 2
    assert "journal.db: damaged journal: devices must be at most 1,024, got 1000000000" in done.stderr
