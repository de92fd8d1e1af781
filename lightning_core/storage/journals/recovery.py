"""Recovery of a damaged journal: a new one of the events before the damage. The damaged files stay beside it.

A complete new journal is written first. From the moment it has its final name, the switch is only a few renames, and
:func:`finish` continues them wherever they were interrupted.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from lightning_core.core.saved_state import StateError, restored
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.atomic_files import sync_folder
from lightning_core.storage.failpoints import reach
from lightning_core.storage.journals import blocks
from lightning_core.storage.journals.anchor import Anchor, AnchorFile, anchor_path, read_anchor
from lightning_core.storage.journals.blocks import EVENTS_PER_BLOCK
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import JournalEntry, create_tables
from lightning_core.storage.journals.journal_errors import DamagedJournalError, JournalError, reading
from lightning_core.storage.journals.journal_lock import lock_journal
from lightning_core.storage.journals.replay import handle_again, replay
from lightning_core.storage.journals.snapshots import Snapshot
from lightning_core.storage.journals.thinning import thinned
from lightning_core.storage.private_files import owner_only

HINT = "nothing was changed: `--recover` continues from the last good event, and keeps the damaged files beside it"


class Salvaged(NamedTuple):
    """Outcome of copying into the new journal."""

    number: int
    """Number of the last event; 0 if there is none."""
    digest: str
    """Digest over all events and answers up to it."""
    now: float
    """Scheduler time of that event, in seconds."""
    hole: tuple[int, int] | None
    """First and last event whose outcome alone survives, in a snapshot."""


def copy_good(journal: Journal, connection: sqlite3.Connection) -> Salvaged:
    """Copy the intact part of a journal into a new database.

    Raises:
        JournalError: If its events were thinned and none of its snapshots can be restored.
    """
    create_tables(connection, journal.settings_text())
    settings = journal.settings(verified=False)
    end = _copy_blocks(journal, connection)
    entries: list[JournalEntry] = []
    with suppress(JournalError):
        entries.extend(journal.entries_behind(end.number, end.chain))
    good = entries[-1].number if entries else end.number
    for snapshot in _snapshots(journal):
        # Without a good event before it, nothing verifies the settings.
        if good:
            with suppress(StateError):
                scheduler = restored(Scheduler(settings), snapshot.state)
                connection.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?)", journal.snapshot_row(snapshot.number))
                behind = snapshot.number > good
                if behind:
                    _stand_in(connection, end, entries, snapshot, settings)
                    entries = []
                    with suppress(JournalError):
                        entries.extend(journal.entries_behind(snapshot.number, snapshot.digest))
                salvaged = Salvaged(snapshot.number, snapshot.digest, snapshot.now, None)
                salvaged = _copy_entries(journal, connection, scheduler, entries, salvaged)
                return salvaged._replace(hole=(good + 1, snapshot.number)) if behind else salvaged
    if end.number:
        raise JournalError(
            f"{journal.path}: cannot be recovered: its events up to {end.number} are thinned, and none of its "
            "snapshots can be restored; move it away to start a new one: the checkpoints of its jobs remain"
        )
    none = Salvaged(0, "", 0.0, None)
    return _copy_entries(journal, connection, Scheduler(settings), entries, none)


class _LastGoodBlock(NamedTuple):
    """End of the intact blocks."""

    number: int
    chain: str
    digest: str


def _copy_blocks(journal: Journal, connection: sqlite3.Connection) -> _LastGoodBlock:
    end = _LastGoodBlock(0, journal.first_digest, journal.first_digest)
    with suppress(JournalError), reading(journal.path):
        for block in journal.blocks():
            list(block.entries())
            connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?)", block)
            end = _LastGoodBlock(block.last, block.chain, block.digest)
    return end


def _stand_in(
    connection: sqlite3.Connection,
    end: _LastGoodBlock,
    entries: list[JournalEntry],
    snapshot: Snapshot,
    settings: Settings,
) -> None:
    """Write blocks for the events before the snapshot: the intact entries, and one empty block for the rest."""
    number, digest = end.number, end.digest
    made = []
    for start in range(0, len(entries), EVENTS_PER_BLOCK):
        some = entries[start : start + EVENTS_PER_BLOCK]
        made.append(blocks.make(some[0].number, some[-1], thinned(some, settings), digest))
        number, digest = made[-1].last, made[-1].digest
    made.append(
        blocks.make(number + 1, JournalEntry(snapshot.number, snapshot.now, "", "", snapshot.digest), [], digest)
    )
    connection.executemany("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?)", made)


def _snapshots(journal: Journal) -> list[Snapshot]:
    found: list[Snapshot] = []
    with suppress(JournalError):
        found.extend(journal.snapshots())
    return found


def _copy_entries(
    journal: Journal,
    connection: sqlite3.Connection,
    scheduler: Scheduler,
    entries: list[JournalEntry],
    salvaged: Salvaged,
) -> Salvaged:
    """Copy verified entries, those behind a snapshot as far as its scheduler can handle them again."""
    with suppress(JournalError), reading(journal.path):
        for entry in entries:
            if entry.number > salvaged.number:
                handle_again(scheduler, entry)
                salvaged = Salvaged(entry.number, entry.digest, entry.now, None)
            connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", entry)
    return salvaged


class Recovered(NamedTuple):
    """Outcome of a recovery: what it kept and lost."""

    kept: int
    """Number of the last event that was kept."""
    last: int | None
    """Number of the newest event that was ever written; None if it is not known."""
    since: float | None
    """Wall-clock time of the newest event that was ever written, in seconds since the epoch, if it is known."""
    now: float
    """Scheduler time of the last event that was kept, in seconds."""
    words: str
    """The damage that was found."""
    damaged: Path
    """Folder of the damaged files."""
    hole: tuple[int, int] | None = None
    """First and last event whose outcome alone survives, in a snapshot."""

    def __str__(self) -> str:
        lost = "events after it are lost, as far as there were any"
        if self.last is not None:
            lost = f"{self.last - self.kept} later events are lost"
        if self.last is not None and self.since is not None:
            lost += f", the newest of {datetime.fromtimestamp(self.since):%Y-%m-%d %H:%M:%S}"
        if self.hole is not None:
            first, behind = self.hole
            lost = f"reports will not show events {first} to {behind}, whose outcome a snapshot holds; {lost}"
        return (
            f"{self.words}: continuing after event {self.kept} (at {self.now:.1f} s of scheduler time); {lost}; "
            f"the damaged files are in {self.damaged}"
        )


def recover_folder(folder: Path) -> Recovered | None:
    """Recover the journal in the folder of a run or a pool; see :func:`recover`.

    Raises:
        JournalError: If there is none, it cannot be recovered, or a scheduler is writing it.
    """
    lock = lock_journal(folder / "journal.lock")
    try:
        with owner_only():
            return recover(folder / "journal.db")
    finally:
        os.close(lock)


def recover(path: Path) -> Recovered | None:
    """Replace a damaged journal by one of its events before the damage; return None if it is not damaged.

    No process may have the journal open.

    Raises:
        JournalError: If not even its settings can be read, it has another version, or answers differ from the recorded
            ones: then it is whole, and the release that wrote it can continue it.
    """
    finish(path)
    try:
        with Journal.open(path) as journal:
            replay(journal)
        return None
    except JournalError as error:
        if not isinstance(error, DamagedJournalError):
            raise
        words = error.words
    with Journal.open(path, read_only=True, anchored=False) as journal:
        if (whole := journal.part_of) is not None:
            raise JournalError(
                f"{path}: is a part of the journal of the pool at {whole.folder}; `lightning-core up --recover` "
                "recovers that one"
            )
    anchor = read_anchor(path)
    beside = path.with_name(f"{path.name}.part")
    beside.unlink(missing_ok=True)
    last = _copy_good(path, beside, anchor)
    reach("recovery.copied")
    if anchor is not None and anchor.number < last.number:
        anchor = None  # a part of the rows is newer than it knows
    os.replace(beside, ready := _ready(path))
    damaged = _damaged_folder(path, ready)
    finish(path)
    newest, wall = (None, None) if anchor is None else (anchor.number, anchor.wall)
    return Recovered(last.number, newest, wall, last.now, words, damaged, last.hole)


def finish(path: Path) -> None:
    """Continue the switch to a recovered journal, if one was interrupted."""
    ready = _ready(path)
    if not ready.exists():
        return
    damaged = _damaged_folder(path, ready)
    damaged.mkdir(exist_ok=True, mode=0o700)
    for old in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-anchor"))):
        if old.exists() and not (damaged / old.name).exists():
            os.rename(old, damaged / old.name)
        reach("recovery.moved_away")
    with Journal.open(ready, read_only=True, anchored=False) as journal, AnchorFile(anchor_path(path)) as file:
        file.write(journal.newest)
    sync_folder(path.parent)
    reach("recovery.before_switch")
    os.rename(ready, path)
    sync_folder(path.parent)


def _copy_good(path: Path, beside: Path, anchor: Anchor | None) -> Salvaged:
    """Copy the intact part into a new database, and return its extent.

    The database records when its last event was written, because deadlines continue from there: as long before the
    newest event of all as in scheduler time, or now if that one is unknown.
    """
    with (
        Journal.open(path, read_only=True, anchored=False) as journal,
        closing(sqlite3.connect(beside)) as connection,
        connection,
    ):
        newest = copy_good(journal, connection)
        wall = time.time() if anchor is None else anchor.wall - (anchor.now - newest.now)
        connection.execute("INSERT INTO meta VALUES ('written_at', ?)", (repr(wall),))
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    return newest


def _ready(path: Path) -> Path:
    return path.with_name(f"{path.name}.recovered")


def _damaged_folder(path: Path, ready: Path) -> Path:
    """Return the folder of the damaged files: the same whenever the switch to this recovered journal is continued."""
    return path.with_name(f"{path.name}-damaged-{datetime.fromtimestamp(ready.stat().st_mtime):%Y%m%d-%H%M%S}")
