"""Rows of a journal: whatever is in them, the journal is refused by its name, or replayed and shown, within bounds.

Half of the journals have digests that fit: a program that writes files can compute them.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline, SetTerms
from lightning_core.core.events import Close, DevicesUnavailable, Event, WorkersLost
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.history.forecasts import fill_in
from lightning_core.history.history import History
from lightning_core.parts.market.cloud_events import CloudPart, CloudTrouble
from lightning_core.report.page import page
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.anchor import anchor_path
from lightning_core.storage.journals.downtime import seconds_down
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.journals.replay import replay
from lightning_core.view.why import rows
from tests.driven import Curve, drive
from tests.fuzz.fuzzing import Target, fuzz, fuzz_for_long
from tests.parts.market.market_pool import MARKET, MarketPool
from tests.parts.market.market_world import elastic
from tests.storage.test_hostile_journal import seal

ON_MARKET: dict[str, dict[str, Any]] = {
    "calendar": {"closed": ["not between 22:00 and 06:00"]}, "market": MARKET | {"budget": 9.0},
}  # fmt: skip
COLUMNS = ("number", "now", "event", "answers", "digest")
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**53, 2**63, 10**26, -(10**26), 0.0, -1.0, 0.5, 1e308, -1e308, 5e-324, 1e-9, "", "a",
    "x" * 3000, "\x1b[2J", "<b>", "\u202e", [], {}, [[]], [None], {"a": 1}, [1, 2, 3], ["known", [], ""], [0.5] * 3000,
)  # fmt: skip
TEXTS = ("", "null", "[]", "{}", "NaN", "[" * 5000, '{"a":' * 5000, "9" * 5000, '{"kind":"tick"}', '{"kind":"close"}',
         '{"kind":"workers_lost"}', "\0")  # fmt: skip


class Change(NamedTuple):
    """A change of one row, or of the settings."""

    row: int
    """Number of the row, modulo how many there are; the settings for one in ten."""
    column: str
    place: int
    """Number of the value within the JSON of the column."""
    value: Any
    raw: bool
    """Whether the value replaces the column, not a value within its JSON."""


values = st.one_of(st.sampled_from(VALUES), st.floats(), st.integers(), st.text(max_size=8))
columns = st.sampled_from((*COLUMNS, *("event", "answers") * 4))
changes = st.builds(Change, st.integers(0, 10**6), columns, st.integers(0, 10**6), values, st.just(False))
raw = st.builds(
    Change, st.integers(0, 10**6), st.sampled_from(COLUMNS), st.just(0),
    st.one_of(st.sampled_from(TEXTS), st.sampled_from(VALUES[:18]), st.binary(max_size=8), st.floats()), st.just(True),
)  # fmt: skip
damages = st.tuples(st.lists(st.one_of(changes, changes, changes, raw), min_size=1, max_size=3), st.booleans())

FOUND = [
    # SQLite repeats what it cannot decode, and so did the error.
    ([Change(11, "event", 0, "9" * 5000, raw=True), Change(11, "event", 0, b"\xff" * 3000, raw=True)], False),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal with most kinds of events."""
    path = tmp_path_factory.mktemp("whole") / "journal.db"
    jobs = {
        0.0: [(Job("loss", 30.0, LossTarget("loss", 0.3)), Curve(throughput=30.0)),
              (Job("bad", 30.0, LossTarget("loss", 0.01)), Curve(throughput=60.0, crash_after=100))],
        4.0: [(Job("known", 12.0, BatchTarget(150)), Curve(throughput=30.0))],
    }  # fmt: skip
    events: dict[float, Event] = {
        5.0: Pause("loss"), 6.0: Resume("loss"), 7.0: SetDeadline("loss", 90.0), 8.0: SetTerms("loss", weight=2.0),
        9.0: DevicesUnavailable((1,), "its node"), 10.0: DevicesUnavailable(()), 11.0: Close("Ctrl-C"),
        12.0: WorkersLost(), 14.0: Cancel("loss"),
    }  # fmt: skip
    drive(path, Settings(policy="edf", devices=2), jobs, 16.0, events=events)
    return path


@pytest.fixture(scope="module")
def on_market(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of a pool with all controllers: nodes, quotes, money, and a market that wants nodes."""
    path = tmp_path_factory.mktemp("market") / "journal.db"
    made = MarketPool(ON_MARKET, path)
    made.quote(0.4, 4)
    made.submit(elastic("a", 60, 300.0), elastic("b", 30, 25.0))
    made.live(12.0)
    made.tell(CloudTrouble(CloudPart.QUOTES, "no answer"))
    made.see(0, 0)
    made.live(12.0)
    made.host.close()
    return path


@pytest.fixture
def target(whole: Path, tmp_path: Path) -> Target:
    return target_of(whole, tmp_path)


@pytest.fixture
def market_target(on_market: Path, tmp_path: Path) -> Target:
    return target_of(on_market, tmp_path)


def target_of(whole: Path, tmp_path: Path) -> Target:
    path = tmp_path / "journal.db"

    def damage_and_read(damage: tuple[list[Change], bool]) -> None:
        for left in tmp_path.iterdir():
            left.unlink()
        shutil.copy(whole, path)
        shutil.copy(anchor_path(whole), anchor_path(path))
        done, fits = damage
        for change in done:
            with suppress(sqlite3.Error, UnicodeEncodeError), closing(sqlite3.connect(path)) as connection, connection:
                apply(connection, change)  # as far as the database takes the value
        with suppress(sqlite3.Error, TypeError, ValueError):
            if fits:
                seal(path)
        refused = "journal.db: read"
        try:
            read(path)
        except JournalError as error:
            refused = str(error)
        assert "journal.db: " in refused
        assert len(refused) < 2000

    return damage_and_read


def apply(connection: sqlite3.Connection, change: Change) -> None:
    """Change a row."""
    connection.execute("PRAGMA synchronous = OFF")
    connection.text_factory = bytes
    table, column = ("meta", "value") if change.row % 10 == 0 else ("events", change.column)
    keys = [row[0] for row in connection.execute(f"SELECT rowid FROM {table}")]
    at = keys[change.row // 10 % len(keys)]
    [before] = connection.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (at,)).fetchone()
    value = change.value if change.raw or column in ("number", "now", "digest") else changed(before, change)
    if isinstance(value, list | dict | bool):
        value = json.dumps(value)
    if isinstance(value, int) and abs(value) >= 2**63:
        value = float(value)
    connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, at))


def changed(text: Any, change: Change) -> Any:
    """Return JSON with one of its values replaced."""
    try:
        body = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return change.value
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, key))
            walk(value[key])

    walk(body)
    if not places:
        return json.dumps(change.value)
    inside, key = places[change.place % len(places)]
    inside[key] = change.value
    return json.dumps(body)


def read(path: Path) -> None:
    """Read a journal in every way that a command does."""
    with Journal.open(path, read_only=True) as journal:
        replay(journal, strict=False)
        history = History.read(journal)
        fill_in(journal, history)
        seconds_down(journal.entries())
        for job in history.jobs:
            rows(job)
        page(history, "fuzzed")


@pytest.mark.promise("R21")
def test_rows_of_any_content_are_refused_or_replayed(target: Target) -> None:
    fuzz(target, damages, 100, FOUND)


@pytest.mark.promise("R21")
def test_rows_of_a_market_of_any_content_are_refused_or_replayed(market_target: Target) -> None:
    fuzz(market_target, damages, 60, ())


@pytest.mark.nightly
def test_rows_of_a_market_of_any_content_for_long(market_target: Target) -> None:
    fuzz_for_long(market_target, damages)


@pytest.mark.nightly
def test_rows_of_any_content_for_long(target: Target) -> None:
    fuzz_for_long(target, damages)
