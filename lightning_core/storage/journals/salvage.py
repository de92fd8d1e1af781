"""What can be saved of a damaged journal: its blocks and events before the damage, or what lies behind a snapshot.

A snapshot is bound to its event by digests. So if the damage lies before one, nothing that a scheduler needs is lost:
the new journal goes on from there, and a block without content stands where events can no longer be trusted.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import NamedTuple

from lightning_core.core.saved_state import StateError, restored
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals import blocks
from lightning_core.storage.journals.blocks import EVENTS_PER_BLOCK
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import JournalEntry, create_tables
from lightning_core.storage.journals.journal_errors import JournalError, reading
from lightning_core.storage.journals.replay import handle_again
from lightning_core.storage.journals.snapshots import Snapshot
from lightning_core.storage.journals.thinning import thinned


class Salvaged(NamedTuple):
    """What was copied into the new journal."""

    number: int
    """Number of the last event; 0 if there is none."""
    digest: str
    """Digest over all events and answers up to it."""
    now: float
    """Scheduler time of that event, in seconds."""
    hole: tuple[int, int] | None
    """First and last event of which only the outcome is left, in a snapshot."""


def copy_good(journal: Journal, connection: sqlite3.Connection) -> Salvaged:
    """Copy what is good of a journal into a new database.

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
    """Where the blocks end that are good."""

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
    """Write blocks for what is before the snapshot: the good entries, and one without content for the rest."""
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
