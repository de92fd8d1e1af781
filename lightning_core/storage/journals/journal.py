"""The journal: every event that the scheduler handled, committed before its answers are sent.

Rules

1. An event is on the disk before its answers take effect (SQLite, WAL, synchronous=FULL). All that were added since the
   last commit are committed together, and another thread may do that while more are added.
2. Recovery is a replay: handling the events again in order with the same settings gives the same answers, to the bit
   on one machine, and to 1e-6 of a share across machines, whose logarithms may differ in the last bit.
3. Each row carries a running digest over all events and answers up to it, which is verified whenever rows are read:
   a changed or missing row is an error. Missing last rows are noticed by the anchor (:mod:`.anchor`).
4. The content is JSON, not pickle.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import Any, Self

from lightning_core.core.answers import Accepted, Answer, PartCall
from lightning_core.core.codec import encode_answers, encode_event
from lightning_core.core.events import Event
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.failpoints import reach
from lightning_core.storage.journals import blocks
from lightning_core.storage.journals.anchor import Anchor, AnchorFile, anchor_path, read_anchor
from lightning_core.storage.journals.blocks import EVENTS_PER_BLOCK
from lightning_core.storage.journals.journal_database import (
    SCHEMA,
    JournalEntry,
    JournalPart,
    check_entry,
    check_files,
    check_tables,
    connect,
    create_tables,
    digest_of,
    read_meta,
)
from lightning_core.storage.journals.journal_errors import DamagedJournalError, JournalError, reading
from lightning_core.storage.journals.journal_reader import JournalReader
from lightning_core.storage.journals.snapshots import Snapshot, first_whole, write_snapshot
from lightning_core.storage.journals.thinning import TICK, thinned


class Journal(JournalReader):
    """An append-only file of events, made by :meth:`create` or :meth:`open`; a context manager that closes it."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        newest: Anchor,
        anchor_file: AnchorFile | None = None,
        read_only: bool = False,
        durable: bool = True,
    ) -> None:
        super().__init__(path, connection)
        self._read_only = read_only
        self._durable = durable
        self._newest = self._committed = newest
        self._anchor_file = anchor_file
        self._added: list[JournalEntry] = []
        self._adding = Lock()

    @classmethod
    def create(
        cls,
        path: Path,
        settings: Settings,
        *,
        durable: bool = True,
        part_of: JournalPart | None = None,
        written_at: float | None = None,
    ) -> Self:
        """Create a journal.

        Args:
            path: Path of the file.
            settings: Settings of the scheduler.
            durable: Whether each event is on the disk before ``append`` returns. A simulation, which can be run again,
                commits its events when the journal is closed.
            part_of: The pool whose journal this one will be a part of; None for a whole journal.
            written_at: Wall-clock time of the newest event of that journal, in seconds since the epoch.

        Raises:
            JournalError: If the file exists: a journal is never overwritten.
        """
        if path.exists():
            raise JournalError(f"{path}: a journal already exists here and is never overwritten")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("xb").close()  # SQLite would follow a link
        connection = connect(path)
        if part_of is not None:  # it is replaced as a single file
            connection.execute("PRAGMA journal_mode = DELETE")
        text = json.dumps(settings.to_dict(), sort_keys=True, allow_nan=False)
        with connection:
            create_tables(connection, text)
            if part_of is not None:
                rows = [("part_of", json.dumps(part_of)), ("written_at", repr(written_at or 0.0))]
                connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
        newest = Anchor.made_now(0, digest_of("", text), 0.0)
        anchor_file = None
        if part_of is None:
            anchor_path(path).unlink(missing_ok=True)  # of a journal that was moved away
            anchor_file = AnchorFile(anchor_path(path))
            anchor_file.write(newest)
        return cls(path, connection, newest, anchor_file, durable=durable)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False, anchored: bool = True) -> Self:
        """Open an existing journal, to continue it, or only to read it, even while another process writes it.

        Args:
            path: Path of the file.
            read_only: Whether it is only read.
            anchored: Whether missing last events are an error.

        Raises:
            JournalError: If it is missing, damaged or of another version, or ends before its anchor.
        """
        if not path.exists():
            raise JournalError(f"{path}: no journal here")
        check_files(path, steers=not read_only)
        anchor = read_anchor(path) if anchored else None  # before the rows: a writer anchors each after its commit
        with reading(path):
            connection = connect(path, read_only)
            try:
                return cls._opened(path, connection, anchor, read_only)
            except BaseException:
                connection.close()
                raise

    @classmethod
    def _opened(cls, path: Path, connection: sqlite3.Connection, anchor: Anchor | None, read_only: bool) -> Self:
        version = check_tables(connection)
        if version != str(SCHEMA):
            raise JournalError(
                f"{path}: the journal has version {version[:20]}, and this release of lightning_core reads version "
                f"{SCHEMA}; read it with the release that wrote it, or move it away to start a new one"
            )
        journal = cls(path, connection, Anchor(0, "", 0.0, 0.0), read_only=read_only)
        last = connection.execute("SELECT * FROM events ORDER BY number DESC LIMIT 1").fetchone()
        if last is None and not journal.part_of and (ends := list(journal.blocks())):  # nothing behind a damage
            last = ends[-1].last, ends[-1].now, "", "", ends[-1].chain
        number, now, _, _, digest = last or (0, 0.0, "", "", journal.first_digest)
        wall = float(read_meta(connection, "written_at") or 0.0) if anchor is None else anchor.wall
        if not 0 <= wall < math.inf:
            raise DamagedJournalError(path, f"it says that it was written {wall} s after the epoch")
        known = Anchor(number, digest, now, wall) if anchor is None else anchor
        journal._newest = journal._committed = known._replace(number=number, digest=digest, now=now)
        if journal.part_of is not None:
            return journal
        if anchor is None and not read_only:
            raise DamagedJournalError(path, f"its anchor {anchor_path(path).name} is missing or damaged")
        if anchor is not None and anchor.number > number:
            raise DamagedJournalError(path, f"events {number + 1} to {anchor.number} are missing")
        if anchor is not None and anchor.digest != journal.digest_at(anchor.number):
            raise DamagedJournalError(path, f"event {anchor.number} does not match its anchor")
        if not read_only:
            journal._anchor_file = AnchorFile(anchor_path(path))
        return journal

    def insert(self, entry: JournalEntry) -> None:
        """Insert an entry of the whole journal with its number and digest, in a journal that is a part."""
        self._connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", entry)
        self._newest = self._committed = Anchor(entry.number, entry.digest, entry.now, self._newest.wall)

    def append(
        self, event: Event, now: float, answers: Sequence[Answer], accepted: Sequence[Accepted] = (),
        calls: Sequence[PartCall] = (),
    ) -> None:  # fmt: skip
        """Commit one event, its answers and its accepted part; a durable journal has them on disk on return.

        Raises:
            ValueError: If the event could not be read back; then nothing is committed.
        """
        self.add(event, now, answers, accepted, calls)
        self.commit()

    def add(
        self, event: Event, now: float, answers: Sequence[Answer], accepted: Sequence[Accepted] = (),
        calls: Sequence[PartCall] = (),
    ) -> None:  # fmt: skip
        """Add one event, its answers, its accepted part and what outside parts returned to the next commit.

        Raises:
            ValueError: If the event could not be read back; then nothing is added.
        """
        body, answer = encode_event(event), encode_answers(answers, accepted, event, calls)
        digest = digest_of(self.digest, repr(now), body, answer)
        number = self._newest.number + 1
        with self._adding:
            self._added.append(JournalEntry(number, now, body, answer, digest))
            self._newest = Anchor.made_now(number, digest, now)

    def commit(self) -> bool:
        """Commit all added events; in a durable journal they are on disk on return. One thread commits at a time.

        Returns:
            Whether there was anything to commit.

        Raises:
            sqlite3.Error, OSError: If it cannot be written. It is then committed with the next attempt, or discarded.
        """
        with self._adding:
            entries, newest = self._added, self._newest
            self._added = []
        if not entries:
            return False
        try:
            with self._connection if self._durable else nullcontext():
                self._connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", entries)
                reach("journal.before_commit")
        except BaseException:
            with self._adding:
                self._added[:0] = entries
            raise
        self._committed = newest
        reach("journal.after_commit")
        if self._durable and self._anchor_file is not None:
            self._anchor_file.write(newest)
        reach("journal.after_anchor")
        return True

    def give_up(self) -> None:
        """Discard all added events that are not committed."""
        with self._adding:
            self._added, self._newest = [], self._committed

    def take_snapshot(self, state: Mapping[str, Any], after: Anchor | None = None) -> None:
        """Keep the state of the scheduler after the newest event, or another committed one, to restart from."""
        after = after or self._newest
        write_snapshot(self._connection, Snapshot(after.number, after.now, after.digest, state))

    def thin(self) -> bool:
        """Thin the oldest events, if no restart needs them any more; return whether there were enough of them."""
        query = "SELECT number, now, event, answers, digest FROM events WHERE number < ? ORDER BY number LIMIT ?"
        rows = self._connection.execute(query, (first_whole(self._connection), EVENTS_PER_BLOCK)).fetchall()
        if len(rows) < EVENTS_PER_BLOCK:
            return False
        entries = [check_entry(JournalEntry(*row)) for row in rows]
        while len(entries) > 1 and entries[-1].event.startswith(TICK):  # the next entries explain the gap
            entries.pop()
        self._replace(entries[0].number, entries[-1], entries)
        if merged := blocks.small_ones(self._connection, self.path):
            last = merged[-1]
            end = JournalEntry(last.last, last.now, "", "", last.chain)
            self._replace(merged[0].first, end, [entry for block in merged for entry in block.entries()])
        return True

    def _replace(self, first: int, last: JournalEntry, entries: list[JournalEntry]) -> None:
        """Put one block in the place of consecutive events or blocks."""
        kept = thinned(entries, self.settings(verified=False))
        before = blocks.digest_before(self._connection, first) or self.first_digest
        blocks.insert(self._connection, blocks.make(first, last, kept, before))

    @property
    def last(self) -> int:
        """Number of the newest event, 0 if there is none."""
        [last] = self._connection.execute("SELECT coalesce(max(number), 0) FROM events").fetchone()
        return int(last)

    @property
    def digest(self) -> str:
        """Digest over all events and answers so far."""
        return self._newest.digest

    @property
    def newest(self) -> Anchor:
        """The newest event, committed or not; its wall-clock time is 0 if it is not known."""
        return self._newest

    def age(self) -> float:
        """Return the seconds since the newest event; no change of the clock counts until the machine is restarted."""
        return self._newest.age()

    @property
    def written_at(self) -> float:
        """Wall-clock time of the newest commit, in seconds since the epoch; 0 if unknown."""
        return self._newest.wall

    def close(self) -> None:
        """Close the journal; a writer first moves the write-ahead log into the file."""
        if not self._read_only:
            if not self._durable:
                self._connection.commit()
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if self._anchor_file is not None:
                if not self._durable:
                    self._anchor_file.write(self._newest)
                self._anchor_file.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
