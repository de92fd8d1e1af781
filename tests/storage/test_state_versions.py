"""States that a version before has saved: a journal of it goes on, a thinned one too."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.events import Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.saved_state import StateError, encode, restored
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.tables.state_versions import MIGRATIONS, VERSION, migrated
from lightning_core.server.host import Host
from lightning_core.storage.journals.anchor import Anchor, AnchorFile, anchor_path
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import digest_of
from lightning_core.storage.journals.replay import replay

# A pool of version 1: four jobs, of which one has ended, one was cancelled, and one lost its worker.
VERSION_1 = Path(__file__).with_name("versions") / "1.db"
SNAPSHOT = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A pool that was taken down: nothing is behind its snapshot, which forecasts of another version would answer."""
    shutil.copyfile(VERSION_1, copy := tmp_path / "journal.db")
    copy.chmod(0o600)
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("DELETE FROM events WHERE number > ?", (SNAPSHOT,))
        query = "SELECT number, digest, now FROM events ORDER BY number DESC LIMIT 1"
        newest = Anchor.made_now(*connection.execute(query).fetchone())
    with AnchorFile(anchor_path(copy)) as file:
        file.write(newest)
    return copy


# What the tables of later versions have.
NEW_PARTS = ("submissions", "past_resizes", "earlier", "curves", "asked", "own_location")
# And what they have no more.
OLD_PARTS = {"paused_by": encode({}), "told_by": encode({})}
NEW_COLUMNS = ("ordinal", "usual_throughput", "history_share", "chance", "judged_at")


def version_1(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state as version 1 had it, as long as no job had left the table."""
    table = {name: value for name, value in state["table"].items() if name not in NEW_PARTS} | OLD_PARTS
    table["columns"] = {name: value for name, value in table["columns"].items() if name not in NEW_COLUMNS}
    curves = {name: value for name, value in state["curves"].items() if name != "_schedules"}
    curves["bank"] = posterior_1(curves["bank"])
    return {name: value for name, value in state.items() if name != "past"} | {"table": table, "curves": curves}


def posterior_1(bank: Mapping[str, Any]) -> dict[str, Any]:
    """Return a posterior as version 1 had it: with nothing of earlier runs."""
    laws = {name if name.startswith("_") else f"_{name}": value for name, value in bank["_laws"].items()}
    return laws | {name: bank[name] for name in ("_asked", "_passage")}


def but_for_curves(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without the curves of its jobs and without cached forecasts, which begin anew in a new version."""
    table = {name: value for name, value in state["table"].items() if name != "curves"}
    bank = {name: value for name, value in state["curves"]["bank"].items() if name not in ("_asked", "_passage")}
    return {**state, "table": table, "curves": state["curves"] | {"bank": bank}}


@pytest.mark.promise("R23")
def test_a_pool_of_the_version_before_goes_on_from_its_snapshot(path: Path) -> None:
    with Journal.open(path, read_only=True) as journal:
        again = replay(journal)
    assert (again.after, again.events) == (SNAPSHOT, SNAPSHOT)
    jobs = {job.name: job for job in again.scheduler.status()}
    host = Host(Settings(), path, clock=lambda: 0.0)
    host.handle(Submit((Job("e", 900.0, BatchTarget(100)),)))
    host.handle(Report("e", 1, 1, 1, 100, 5.0))
    host.close()
    with Journal.open(path, read_only=True) as journal:
        newest = next(journal.snapshots())
        assert newest.number == journal.newest.number > SNAPSHOT
        after = replay(journal)
    names = [job.name for job in after.scheduler.status()]
    assert names == [*jobs, "e"]


def test_a_thinned_pool_of_the_version_before_goes_on(path: Path) -> None:
    with Journal.open(path) as journal:
        state = replay(journal).scheduler.state()
        number, digest = journal.newest.number, journal.digest
        text = json.dumps(version_1(state), separators=(",", ":"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM snapshots")
        row = number, 1, zlib.compress(text.encode()), digest_of(digest, "1", text)
        connection.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?)", row)
    with Journal.open(path, read_only=True) as journal:
        again = replay(journal)
    assert again.after == SNAPSHOT
    assert but_for_curves(again.scheduler.state()) == but_for_curves(state)


def test_each_version_has_a_migration_and_others_are_refused() -> None:
    assert sorted(MIGRATIONS) == list(range(1, VERSION))
    state = Scheduler(Settings()).state()
    assert restored(Scheduler(Settings()), migrated(version_1(state), 1)).state() == state
    for version in (0, VERSION + 1):
        with pytest.raises(StateError, match=f"must have version 1 to {VERSION}, got {version}"):
            migrated(state, version)
    with pytest.raises(StateError, match="not the state of a scheduler of version 1: KeyError"):
        migrated({}, 1)


@pytest.mark.parametrize("began", [None, 120.0])
def test_an_interval_of_version_12_goes_on_with_what_its_nodes_have_cost(began: float | None) -> None:
    paid, quote = encode((1, 2)), [0.3, 2, 1.0, 60.0]
    interval = None if began is None else {"began": encode(began), "paid": paid, "number": 2}
    market = {"quotes": [quote], "interval": interval}
    state = {"cloud": {"nodes": [["a"], ["b"], 0]}, "controllers": [market, {"periods": []}], "owners": None}
    made = MIGRATIONS[12](state)
    [changed, plan] = made["controllers"]
    assert changed["interval"] == (
        None if began is None else {"began": encode(began), "held": paid, "batches": 0, "number": 2}
    )
    assert changed["bill"] == {
        "nodes": [["a", True, began or 0.0], ["b", False, began or 0.0]], "places": [],
        "quotes": [[60.0, quote]], "until": began, "costs": [],
    }  # fmt: skip
    assert (plan, made["cloud"]["nodes"]) == ({"periods": []}, [["a"], ["b"], 0, [], []])
