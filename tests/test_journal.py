"""The journal: what is written comes back, replays to the bit, and notices any change."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.codec import decode_directives, decode_event, encode_directives, encode_event
from lightning_core.drivers.host import Host
from lightning_core.journal import Journal, JournalError, replay
from lightning_core.reasons import Reason
from lightning_core.scheduler import Settings
from lightning_core.types import (
    BatchTarget,
    Cancel,
    Cell,
    Directive,
    End,
    Event,
    Grant,
    Job,
    LossTarget,
    Report,
    Submit,
    Tick,
    Verdict,
    WorkerLeft,
)

LARA = Settings(policy="lara", policy_args={"explore": 5, "order": "share"})


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lived(path: Path, seed: int = 0) -> Host:
    """Three jobs, twenty seconds of reports, one crash: what a run writes."""
    clock, draw = Clock(), np.random.default_rng(seed)
    host = Host(LARA, path, clock)
    host.handle(Submit((Job("a", 15.0, LossTarget("loss", 0.05)), Job("b", 18.0, LossTarget("loss", 0.2)))))
    host.handle(Submit((Job("c", 19.0, BatchTarget(400)),)))
    for step in range(1, 60):
        clock.now += 0.33
        for k, name in enumerate("abc"):
            cells = tuple(
                Cell(n, 10 * n, float((10 * n) ** -(0.3 + 0.1 * k) * draw.lognormal(0, 0.01)))
                for n in range(max(1, step - 2), step + 1)
            )
            host.handle(Report(name, 1, step, step - 1, 10 * step, 0.1 * step, cells))
        if step == 20:
            host.handle(WorkerLeft("b", 1, crashed=True, detail="ValueError: no"))
    return host


def test_a_run_replays_to_the_bit(tmp_path: Path) -> None:
    lived(tmp_path / "j.db").close()
    with Journal.open(tmp_path / "j.db") as journal:
        again = replay(journal)
        again.scheduler.check()
        assert again.digest == journal.digest
        assert again.events > 150
        assert journal.settings() == LARA


def test_a_fresh_process_replays_to_the_same_digest(tmp_path: Path) -> None:
    lived(tmp_path / "j.db").close()
    with Journal.open(tmp_path / "j.db") as journal:
        digest = journal.digest
    command = [sys.executable, "-m", "lightning_core.cli", "replay", str(tmp_path / "j.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert digest in done.stdout
    assert '"identical": true' in done.stdout


def test_one_changed_event_is_noticed(tmp_path: Path) -> None:
    lived(tmp_path / "j.db").close()
    with Journal.open(tmp_path / "j.db") as journal:
        digest = journal.digest
    with sqlite3.connect(tmp_path / "j.db") as connection:
        [number, event] = connection.execute(
            "SELECT number, event FROM events WHERE event LIKE '%report%' ORDER BY number LIMIT 1 OFFSET 12"
        ).fetchone()
        changed = encode_event(_halved(decode_event(event)))
        connection.execute("UPDATE events SET event = ? WHERE number = ?", (changed, number))
    with Journal.open(tmp_path / "j.db") as journal:
        assert replay(journal, strict=False).digest != digest
        with pytest.raises(JournalError, match="does not replay"):
            replay(journal)


def _halved(event: Event) -> Event:
    assert isinstance(event, Report)
    cells = tuple(Cell(n, at, loss / 2) for n, at, loss in event.cells)
    return Report(event.job, 1, event.number, event.version, event.batches, event.busy / 2, cells)


def test_a_host_goes_on_where_the_journal_ends(tmp_path: Path) -> None:
    before = lived(tmp_path / "j.db")
    status, now = before.scheduler.status(), before.now()
    # Not closed: as after a kill. Another process would open the file; the settings given to it do not matter.
    after = Host(Settings(), tmp_path / "j.db")
    assert after.scheduler.status() == status
    assert after.now() >= now
    assert after.scheduler.settings == LARA
    after.close()


def test_time_passes_while_nobody_is_there(tmp_path: Path) -> None:
    lived(tmp_path / "j.db").close()
    hour_ago = time.time() - 3600
    os.utime(tmp_path / "j.db", (hour_ago, hour_ago))
    after = Host(Settings(), tmp_path / "j.db")
    assert after.now() > 3600
    after.close()


_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_TEXT = st.text(max_size=20)
_NAME = st.text(min_size=1, max_size=20)
_TARGETS = st.one_of(
    st.builds(BatchTarget, st.integers(1, 10**12)), st.builds(LossTarget, _NAME, st.floats(1e-300, 1e300))
)
_EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.just(Tick()),
    st.builds(Submit, st.lists(st.builds(Job, _NAME, st.floats(1e-9, 1e9), _TARGETS), max_size=3).map(tuple)),
    st.builds(WorkerLeft, _NAME, st.integers(1), st.booleans(), _TEXT),
    st.builds(Cancel, _NAME),
    st.builds(
        Report,
        _NAME,
        st.integers(1),
        st.integers(1),
        st.integers(0),
        st.integers(0),
        _FLOATS,
        st.lists(st.builds(Cell, st.integers(1), st.integers(1), _FLOATS), max_size=3).map(tuple),
        st.integers(0),
    ),
)


@given(_EVENTS)
def test_events_come_back_equal(event: Event) -> None:
    text = encode_event(event)
    assert "\n" not in text
    assert decode_event(text) == event


def test_directives_come_back_equal() -> None:
    directives: list[Directive] = [
        Grant("a", 3, 1 / 3, (0,), Reason("chosen", (0.1, 2e300))),
        End("b", 4, Verdict.CRASHED, Reason("crashed", text="<script>\n\x1b")),
    ]
    assert decode_directives(encode_directives(directives)) == directives


def test_a_journal_is_never_overwritten(tmp_path: Path) -> None:
    Journal.create(tmp_path / "j.db", LARA).close()
    with pytest.raises(JournalError, match="there is a journal already"):
        Journal.create(tmp_path / "j.db", LARA)


def test_an_empty_journal_opens(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "j.db", LARA) as journal:
        digest = journal.digest
    with Journal.open(tmp_path / "j.db") as journal:
        assert journal.digest == replay(journal).digest == digest


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "no journal here"),
        (lambda path: path.write_bytes(b"not a database" * 100), "damaged"),
        (lambda path: sql(path, "DROP TABLE meta"), "damaged"),
        (lambda path: sql(path, "UPDATE meta SET value = '99' WHERE key = 'schema'"), "journal version 99"),
        (lambda path: sql(path, "DELETE FROM meta WHERE key = 'schema'"), "damaged"),
    ],
)
def test_a_journal_that_cannot_be_used_says_why(tmp_path: Path, damage: object, words: str) -> None:
    path = tmp_path / "j.db"
    Journal.create(path, LARA).close()
    damage(path)  # type: ignore[operator]
    with pytest.raises(JournalError, match=words):
        Journal.open(path)


def sql(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
