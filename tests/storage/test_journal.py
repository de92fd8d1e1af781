"""The journal: what is written comes back, replays to the bit, and notices any change."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.core.answers import Accepted, Answer, End, Grant, Verdict, VerdictChanged
from lightning_core.core.codec import (
    decode_accepted,
    decode_answers,
    decode_event,
    encode_answers,
    encode_event,
    status_from_dict,
    status_to_dict,
)
from lightning_core.core.commands import (
    UNCHANGED,
    Cancel,
    Pause,
    Resume,
    SetDeadline,
    SetDevices,
    SetLocation,
    SetTerms,
)
from lightning_core.core.control import RIGHTS
from lightning_core.core.events import (
    Cell,
    Checkpoint,
    Close,
    DevicesUnavailable,
    Event,
    ExitCause,
    LaunchTimedOut,
    Report,
    Submit,
    Tick,
    WorkerExited,
    WorkersLost,
)
from lightning_core.core.jobs import Capability, Job, OnMiss, OnNan
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host
from lightning_core.storage.journals.anchor import AnchorFile, anchor_path, read_anchor
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.journals.replay import replay

LARA = Settings(policy="lara", policy_args={"explore": 5, "order": "share"})


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def write_run(path: Path, seed: int = 0) -> Host:
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
            host.handle(WorkerExited("b", 1, ExitCause.RAISED, detail="ValueError: no"))
    return host


def test_a_run_replays_bit_for_bit(tmp_path: Path) -> None:
    write_run(tmp_path / "j.db").close()
    with Journal.open(tmp_path / "j.db") as journal:
        again = replay(journal)
        again.scheduler.check()
        assert again.digest == journal.digest
        assert again.events > 100
        assert journal.settings() == replace(LARA, estimator="weighted")  # by name, whatever will be LARA's own one day


def test_a_journal_whose_settings_lack_one_is_refused(tmp_path: Path) -> None:
    """Its default may remove what that pool was to keep."""
    write_run(tmp_path / "j.db").close()
    sql(tmp_path / "j.db", "UPDATE meta SET value = json_remove(value, '$.keep_ended') WHERE key = 'settings'")
    with (
        Journal.open(tmp_path / "j.db") as journal,
        pytest.raises(JournalError, match="its settings lack keep_ended; read it with the release that wrote it"),
    ):
        journal.settings(verified=False)


def test_a_fresh_process_replays_to_the_same_digest(tmp_path: Path) -> None:
    write_run(tmp_path / "j.db").close()
    with Journal.open(tmp_path / "j.db") as journal:
        digest = journal.digest
    command = [sys.executable, "-m", "lightning_core.cli.main", "replay", str(tmp_path / "j.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert digest in done.stdout
    assert '"identical": true' in done.stdout


@pytest.mark.promise("R21", "F30")
def test_a_changed_event_is_detected(tmp_path: Path) -> None:
    write_run(tmp_path / "j.db").close()
    with Journal.open(tmp_path / "j.db") as journal:
        digest = journal.digest
    with sqlite3.connect(tmp_path / "j.db") as connection:
        [number, event] = connection.execute(
            "SELECT number, event FROM events WHERE event LIKE '%report%' ORDER BY number LIMIT 1 OFFSET 12"
        ).fetchone()
        changed = encode_event(_halved(decode_event(event)))
        connection.execute("UPDATE events SET event = ? WHERE number = ?", (changed, number))
    with Journal.open(tmp_path / "j.db") as journal:
        assert journal.digest == digest
        for strict in (True, False):
            with pytest.raises(JournalError, match=f"event {number} does not match its digest"):
                replay(journal, strict=strict)


def _halved(event: Event) -> Event:
    assert isinstance(event, Report)
    cells = tuple(Cell(n, at, loss / 2) for n, at, loss in event.cells)
    return Report(event.job, 1, event.number, event.version, event.batches, event.busy / 2, cells)


@pytest.mark.promise("R2")
def test_a_host_continues_where_the_journal_ends(tmp_path: Path) -> None:
    before = write_run(tmp_path / "j.db")
    status, now = before.scheduler.status(), before.now()
    # Not closed: as after a kill. Another process would open the file; the settings given to it do not matter.
    after = Host(Settings(), tmp_path / "j.db")
    assert after.scheduler.status() == status
    assert after.now() >= now
    assert after.scheduler.settings.to_dict() == LARA.to_dict()
    after.close()


@pytest.mark.promise("F15")
def test_time_passes_while_no_scheduler_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "j.db").close()
    anchor = read_anchor(tmp_path / "j.db")
    assert anchor is not None
    with AnchorFile(anchor_path(tmp_path / "j.db")) as file:
        file.write(anchor._replace(wall=time.time() - 3600, boot="another"))
    after = Host(Settings(), tmp_path / "j.db")
    assert after.now() > 3600
    after.close()


_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_TEXT = st.text(max_size=20)
_COUNTS = st.integers(0, 2**53)
_SAVES = st.none() | st.builds(Checkpoint, _COUNTS, st.text("0123456789abcdef", min_size=64, max_size=64))
_NAME = st.text(min_size=1, max_size=20)
_TARGETS = st.one_of(
    st.builds(BatchTarget, st.integers(1, 10**12)),
    st.builds(LossTarget, _NAME, st.floats(1e-300, 1e300)),
    st.builds(LossTarget, _NAME, at_least=st.floats(-1e9, 0.99), best=st.floats(1.0, 100.0)),
)
_JOBS = st.builds(
    Job,
    _NAME,
    st.floats(1e-9, 1e9),
    _TARGETS,
    weight=st.floats(1e-9, 1e9),
    max_devices=st.integers(1, 64),
    on_miss=st.sampled_from(OnMiss),
    can=st.frozensets(st.sampled_from(Capability)),
    device=st.none() | st.integers(0, 7),
    work=st.none() | st.floats(1e-9, 1e9),
    restarts=st.none() | st.integers(0, 9),
    retries=st.integers(0, 9),
)
_EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.just(Tick()),
    st.builds(Close, _TEXT),
    st.just(WorkersLost()),
    st.builds(Submit, st.lists(_JOBS, max_size=3).map(tuple)),
    st.builds(SetDeadline, _NAME, st.floats(1e-9, 1e9), st.sampled_from(list(RIGHTS)), st.booleans()),
    st.builds(SetDevices, _NAME, st.integers(0, 64), st.sampled_from(list(RIGHTS))),
    st.builds(SetLocation, _NAME, _TEXT, st.none() | st.integers(0, 64), st.sampled_from(list(RIGHTS))),
    st.builds(
        SetTerms,
        _NAME,
        target=st.just(UNCHANGED) | _TARGETS,
        weight=st.just(UNCHANGED) | st.floats(1e-9, 1e9),
        on_miss=st.just(UNCHANGED) | st.sampled_from(OnMiss),
        on_nan=st.just(UNCHANGED) | st.sampled_from(OnNan),
        restarts=st.just(UNCHANGED) | st.none() | st.integers(0, 9),
        work=st.just(UNCHANGED) | st.none() | st.floats(1e-9, 1e9),
        by=st.sampled_from(list(RIGHTS)),
    ),
    st.builds(WorkerExited, _NAME, _COUNTS, st.sampled_from(ExitCause), _TEXT, _SAVES),
    st.builds(LaunchTimedOut, _NAME, _COUNTS, _TEXT),
    st.builds(DevicesUnavailable, st.lists(st.integers(0, 7), max_size=3).map(tuple), _TEXT),
    st.builds(Cancel, _NAME),
    st.builds(Pause, _NAME, st.booleans(), st.sampled_from(list(RIGHTS))),
    st.builds(Resume, _NAME, st.sampled_from(list(RIGHTS))),
    st.builds(
        Report,
        _NAME,
        _COUNTS,
        _COUNTS,
        _COUNTS,
        _COUNTS,
        _FLOATS,
        st.lists(st.builds(Cell, _COUNTS, _COUNTS, _FLOATS), max_size=3).map(tuple),
        _COUNTS,
        _COUNTS,
        st.booleans(),
        _SAVES,
    ),
)


@given(_EVENTS)
def test_events_round_trip(event: Event) -> None:
    text = encode_event(event)
    assert "\n" not in text
    assert decode_event(text) == event


def test_answers_round_trip() -> None:
    answers: list[Answer] = [
        Grant("a", 3, 1 / 3, (0, 5), Reason("chosen", (0.1, 2e300))),
        Grant("a", 4, 0.0, (), Reason("makes_room")),
        End("b", 4, Verdict.CRASHED, Reason("crashed", text="<script>\n\x1b")),
        VerdictChanged("c", Verdict.AT_RISK, Reason("late", (3.5,))),
    ]
    again = decode_answers(encode_answers(answers))
    assert again == answers
    assert list(map(type, again)) == list(map(type, answers))


def test_accepted_parts_of_a_report_are_decoded_equal_and_only_differences_are_stored() -> None:
    report = Report("a", 1, 3, 1, 40, 2.0, (Cell(3, 30, 0.5), Cell(4, 40, 0.4)), rejected=1)
    whole = Accepted("a", 40, 2.0, ((30, 0.5), (40, 0.4)), 1)
    assert encode_answers([], [whole], report) == '[{"job":"a","accepted":{}}]'
    fault = Accepted("a", fault=Reason("worker_lost", (20.0, 3.0), "OOM"), restart=2)
    for accepted in (whole, whole._replace(cells=((40, 0.4),), busy=9.0, batches_at_start=20), fault, Accepted("b")):
        for event in (report, Tick(), Cancel("a")):
            assert decode_accepted(encode_answers([], [accepted], event), event) == [accepted]


def test_statuses_and_forecasts_round_trip() -> None:
    accuracy = LossTarget("val_acc", at_least=0.9)
    scheduler = Scheduler(Settings(devices=4, resident=4))
    scheduler.handle(
        Submit((Job("a", 50.0, accuracy), Job("b", 60.0, BatchTarget(40), max_devices=2, weight=2.0))), 0.0
    )
    cells = tuple(Cell(n, 10 * n, 0.5 + 0.05 * n) for n in range(1, 6))
    scheduler.handle(Report("a", 1, 1, 1, 50, 5.0, cells, evaluated=True), 5.0)
    scheduler.handle(Report("b", 1, 1, 1, 10, 5.0), 5.0)
    scheduler.handle(Pause("b", release=True), 6.0)
    status = scheduler.status()
    assert status[0].finish is not None
    assert str(status[0].target) == "val_acc >= 0.9"
    assert [status_from_dict(json.loads(json.dumps(status_to_dict(one)))) for one in status] == status


def test_growing_metrics_and_commands_replay_bit_for_bit(tmp_path: Path) -> None:
    clock = Clock()
    host = Host(Settings(devices=2, resident=2), tmp_path / "j.db", clock)
    accuracy = LossTarget("val_acc", at_least=0.9)
    host.handle(
        Submit((Job("a", 15.0, accuracy, on_miss=OnMiss.HOLD), *(Job(n, 60.0, BatchTarget(400)) for n in "bcd")))
    )
    events: list[Event] = [
        Report("a", 1, 1, 0, 100, 5.0, (Cell(1, 100, 0.7),), evaluated=True),
        Pause("b", release=True),
        WorkerExited("b", 1, ExitCause.RELEASED),
        Resume("b"),
        SetTerms("a", on_miss=OnMiss.CONTINUE),
        SetDeadline("a", 30.0),
        Close(),
        WorkersLost(),
        Report("a", 2, 1, 0, 200, 5.0, (Cell(1, 200, 0.95),), batches_at_start=100, evaluated=True),
    ]
    for event in events:
        clock.now += 4.0
        host.handle(event)
        host.scheduler.check()
    assert host.scheduler.status()[0].verdict is Verdict.MET
    host.close()
    with Journal.open(tmp_path / "j.db") as journal:
        again = replay(journal)
        assert again.digest == journal.digest
        assert again.scheduler.status() == host.scheduler.status()


def test_reading_a_journal_does_not_change_it(tmp_path: Path) -> None:
    host = write_run(tmp_path / "j.db")
    with Journal.open(tmp_path / "j.db", read_only=True) as journal:
        seen = len(list(journal.entries()))
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            journal.append(Tick(), 0.0, [])
    host.handle(Tick())
    host.close()
    with Journal.open(tmp_path / "j.db") as journal:
        assert len(list(journal.entries())) > seen


@pytest.mark.promise("R21", "F30")
def test_a_journal_is_never_overwritten(tmp_path: Path) -> None:
    Journal.create(tmp_path / "j.db", LARA).close()
    with pytest.raises(JournalError, match="a journal already exists"):
        Journal.create(tmp_path / "j.db", LARA)


def test_an_empty_journal_opens(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "j.db", LARA) as journal:
        digest = journal.digest
    with Journal.open(tmp_path / "j.db") as journal:
        assert journal.digest == replay(journal).digest == digest


OLDER = (
    "the journal has version {}, and this release of lightning_core reads version 13; "
    "read it with the release that wrote it, or move it away to start a new one"
)


@pytest.mark.promise("R21", "F30")
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "no journal here"),
        (lambda path: path.write_bytes(b"not a database" * 100), "damaged"),
        (lambda path: sql(path, "DROP TABLE meta"), "damaged"),
        (lambda path: sql(path, "UPDATE meta SET value = '7' WHERE key = 'schema'"), OLDER.format(7)),
        (lambda path: sql(path, "UPDATE meta SET value = '9' WHERE key = 'schema'"), OLDER.format(9)),
        (lambda path: sql(path, "DELETE FROM meta WHERE key = 'schema'"), "damaged"),
    ],
)
def test_an_unusable_journal_is_refused_with_the_reason(tmp_path: Path, damage: object, words: str) -> None:
    path = tmp_path / "j.db"
    Journal.create(path, LARA).close()
    damage(path)  # type: ignore[operator]
    with pytest.raises(JournalError, match=words):
        Journal.open(path)


def sql(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)


def test_a_journal_with_two_names_has_no_writer(tmp_path: Path) -> None:
    """Each name has a lock and a write-ahead log of its own: two schedulers would write one file."""
    write_run(tmp_path / "j.db").close()
    (tmp_path / "other").mkdir(mode=0o700)
    for name in ("j.db", "j.db-anchor"):
        (tmp_path / "other" / name).hardlink_to(tmp_path / name)
    for folder in (tmp_path, tmp_path / "other"):
        with pytest.raises(JournalError, match=r"j.db: the file has a second name, a hard link"):
            Journal.open(folder / "j.db")
        with Journal.open(folder / "j.db", read_only=True) as journal:
            assert replay(journal).events > 0
