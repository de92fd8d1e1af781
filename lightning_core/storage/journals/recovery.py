"""Recovery of a damaged journal: a new one of the events before the damage. The damaged files stay beside it.

A complete new journal is written first. From the moment it has its final name, the switch is only a few renames, and
:func:`finish` continues them wherever they were interrupted.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from lightning_core.storage.atomic_files import sync_folder
from lightning_core.storage.failpoints import reach
from lightning_core.storage.journals.anchor import Anchor, AnchorFile, anchor_path, read_anchor
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import DamagedJournalError, JournalError
from lightning_core.storage.journals.journal_lock import lock_journal
from lightning_core.storage.journals.replay import replay
from lightning_core.storage.journals.salvage import Salvaged, copy_good
from lightning_core.storage.private_files import owner_only

HINT = "nothing was changed: `--recover` continues from the last good event, and keeps the damaged files beside it"


class Recovered(NamedTuple):
    """What a recovery kept and lost."""

    kept: int
    """Number of the last event that was kept."""
    last: int | None
    """Number of the newest event that was ever written; None if it is not known."""
    since: float | None
    """Wall-clock time of the newest event that was ever written, in seconds since the epoch, if it is known."""
    now: float
    """Scheduler time of the last event that was kept, in seconds."""
    words: str
    """What was wrong."""
    damaged: Path
    """Folder of the damaged files."""
    hole: tuple[int, int] | None = None
    """First and last event of which only the outcome is left, in a snapshot."""

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
    """Copy what is good into a new database, and return what that is.

    The database says when its last event was written, because deadlines go on from there: as long before the newest
    event of all as by scheduler time, or now if that one is not known.
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
