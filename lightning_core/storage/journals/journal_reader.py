"""Reader of a journal: its settings, its entries and its snapshots, all verified."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

from lightning_core.core.parts import reading_only
from lightning_core.core.validation import converted
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals import blocks
from lightning_core.storage.journals.journal_database import (
    KEPT_ON,
    LEFT_OUT_BEFORE,
    JournalEntry,
    JournalPart,
    check_entry,
    digest_of,
    first_since,
    read_meta,
    read_part,
    rows_of,
)
from lightning_core.storage.journals.journal_errors import DamagedJournalError, JournalError, reading
from lightning_core.storage.journals.snapshots import Snapshot, read_snapshots
from lightning_core.storage.private_files import NotOursError, check_ours


class JournalReader:
    """A journal that is open for reading.

    Args:
        path: Path of the file.
        connection: Connection to its database.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    def settings(self, *, verified: bool = True) -> Settings:
        """Return the settings of the scheduler.

        Args:
            verified: Whether it is an error if they do not match the digest of the first event.

        Raises:
            JournalError: If they are damaged.
        """
        with reading(self.path):
            if verified and self.part_of is None:
                next(self.entries(), None)
            body = json.loads(self.settings_text())
            if missing := sorted({field.name for field in fields(Settings)} - body.keys()):
                raise JournalError(
                    f"{self.path}: begun by an earlier version, its settings lack {', '.join(missing)}; read it with "
                    "the release that wrote it, or move it away to start a new one"
                )
            # A class that only a file of others names is not imported.
            with nullcontext() if self._is_ours() else reading_only():
                settings: Settings = converted(body, Settings)
            return settings

    def _is_ours(self) -> bool:
        """Return whether no other user can change the journal."""
        try:
            check_ours(self.path.parent, [self.path])
        except (NotOursError, OSError):
            return False
        return True

    def settings_text(self) -> str:
        """Return the settings as they were written."""
        if (text := read_meta(self._connection, "settings")) is None:
            raise DamagedJournalError(self.path, "its settings are missing")
        return text

    def digest_at(self, number: int) -> str:
        """Return the digest up to an event; up to the settings for 0."""
        found = self._connection.execute("SELECT digest FROM events WHERE number = ?", (number,)).fetchone()
        if found is None and number:
            return next((block.chain for block in self.blocks() if block.last == number), "")
        return str(found[0]) if found else self.first_digest

    @property
    def first_digest(self) -> str:
        """Digest over the settings, before the first event."""
        return digest_of("", self.settings_text())

    @property
    def part_of(self) -> JournalPart | None:
        """The pool whose journal this one is a part of; None if this one is whole."""
        with reading(self.path):
            return read_part(self._connection)

    def snapshots(self) -> Iterator[Snapshot]:
        """Yield the snapshots that are whole, the newest first."""
        with reading(self.path):
            yield from read_snapshots(self._connection)

    def snapshot_row(self, number: int) -> tuple[int, int, bytes, str]:
        """Return the raw row of a snapshot."""
        query = "SELECT number, version, state, digest FROM snapshots WHERE number = ?"
        number, version, state, digest = self._connection.execute(query, (number,)).fetchone()
        return number, version, state, digest

    def entries(self, since: float = 0.0) -> Iterator[JournalEntry]:
        """Yield the entries from a scheduler time on, the oldest first; each is verified by the digest before it.

        Raises:
            JournalError: If an entry is damaged or missing. A part, which has gaps, is only verified by comparison.
        """
        number, end = 0, 0
        with reading(self.path):
            for block in self.blocks():
                for entry in block.entries() if block.now >= since else ():
                    mark = KEPT_ON if entry.number == number + 1 else LEFT_OUT_BEFORE
                    number = entry.number
                    if entry.now >= since:
                        yield entry._replace(digest=mark)
                end = block.last
                if block.now < since:
                    number = end
            for entry in self.recent_entries(since):
                behind_a_hole = entry.number == end + 1 and number != end
                yield entry._replace(digest=LEFT_OUT_BEFORE) if behind_a_hole else entry

    def recent_entries(self, since: float = 0.0) -> Iterator[JournalEntry]:
        """Yield the entries behind the blocks, all of which a restart may need; blocks and entries are verified."""
        with reading(self.path):
            number, digest = (0, "") if self.part_of is not None else self.end_of_blocks()
            first = first_since(self._connection, since)
            query = "SELECT number, digest FROM events WHERE number < ? ORDER BY number DESC LIMIT 1"
            number, digest = self._connection.execute(query, (first,)).fetchone() or (number, digest)
            yield from self.entries_behind(number, digest)

    def entries_behind(self, number: int, digest: str) -> Iterator[JournalEntry]:
        """Yield the entries behind an event, each verified by the digest before it.

        Args:
            number: Number of the event.
            digest: Digest up to it.
        """
        with reading(self.path):
            whole = self.part_of is None
            query = "SELECT number, now, event, answers, digest FROM events WHERE number > ? ORDER BY number"
            with rows_of(self._connection, query, (number,)) as rows:
                for row in rows:
                    entry = JournalEntry(*row)
                    if whole:
                        if entry.number != number + 1:
                            raise DamagedJournalError(self.path, f"event {number + 1} is missing")
                        if entry.digest != digest_of(digest, repr(entry.now), entry.event, entry.answers):
                            raise DamagedJournalError(self.path, f"event {entry.number} does not match its digest")
                    digest, number = entry.digest, entry.number
                    yield check_entry(entry)

    def end_of_blocks(self) -> tuple[int, str]:
        """Return the number of the last event that is in a block, 0 if there is none, and the digest up to it."""
        number, chain = 0, self.first_digest
        for block in self.blocks():
            number, chain = block.last, block.chain
        return number, chain

    def blocks(self) -> Iterator[blocks.Block]:
        """Yield the blocks of old events, verified, the oldest first."""
        yield from blocks.read(self._connection, self.path, self.first_digest)
