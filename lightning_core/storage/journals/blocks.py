"""Old events of a journal in blocks: thinned, compressed, and verified like the events.

A block takes the place of consecutive events before the oldest snapshot. It carries the digest up to its last event,
which the next event or block continues, and a digest over itself and the block before it. The newest blocks are merged
while they are small, so that there are few, each of which keeps the first and the last report of each worker.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from lightning_core.core.limits import shown
from lightning_core.storage.failpoints import reach
from lightning_core.storage.journals.journal_database import JournalEntry, check_entry, rows_of
from lightning_core.storage.journals.journal_errors import DamagedJournalError

# Events that a new block takes the place of: reading and compressing them takes some 10 ms. Read four times as many at
# once, they leave ten MiB of the process in pieces.
EVENTS_PER_BLOCK = 500
# Number of consecutive blocks that are merged, if each stands for fewer than this many events and all are small enough:
# as JSON they take ten times as many, and as much memory again.
MERGED_AT_ONCE, SMALL, MAX_MERGED_BYTES = 8, 64 * EVENTS_PER_BLOCK, 2**18
# Bytes of a block as text. The events of a block are a tenth of that at most.
MAX_BLOCK_BYTES = 2**26


class Block(NamedTuple):
    """A row of the table of blocks."""

    first: int
    """Number of the first event that it takes the place of."""
    last: int
    """Number of the last one."""
    now: float
    """Scheduler time of the last one, in seconds."""
    data: bytes
    """Retained content of the events: compressed JSON."""
    chain: str
    """Digest over all events and answers up to the last one."""
    digest: str
    """Digest over the block and the digest of the block before it."""

    def entries(self) -> Iterator[JournalEntry]:
        """Yield the retained entries of its events.

        Raises:
            ValueError: If it is damaged.
        """
        unpacker = zlib.decompressobj()
        try:
            text = unpacker.decompress(self.data, MAX_BLOCK_BYTES)
        except zlib.error as error:
            raise ValueError(f"the block of events {self.first} to {self.last} is damaged: {error}") from None
        if not unpacker.eof:
            raise ValueError(
                f"the block of events {self.first} to {self.last} must have {MAX_BLOCK_BYTES} bytes at most"
            )
        before = self.first - 1
        for number, now, event, answers in json.loads(text):
            entry = check_entry(JournalEntry(number, now, event, answers, ""))
            if not before < entry.number <= self.last:
                raise ValueError(f"event {shown(entry.number)} is in the block of {self.first} to {self.last}")
            before = entry.number
            yield entry


def make(first: int, last: JournalEntry, kept: Sequence[JournalEntry], before: str) -> Block:
    """Return the block of some events.

    Args:
        first: Number of the first event.
        last: The last event, with its digest.
        kept: Retained entries.
        before: Digest of the block before it; of the settings, if there is none.
    """
    text = json.dumps([entry[:4] for entry in kept], separators=(",", ":"), allow_nan=False)
    data = zlib.compress(text.encode(), 6)
    block = Block(first, last.number, last.now, data, last.digest, "")
    return block._replace(digest=_digest(before, block))


def read(connection: sqlite3.Connection, path: Path, before: str) -> Iterator[Block]:
    """Yield the blocks of a journal, the oldest first; each is verified by the digest of the one before it.

    Args:
        connection: Connection to its database.
        path: Its path.
        before: Digest of its settings.

    Raises:
        DamagedJournalError: If a block is damaged or missing.
    """
    number = 0
    query = "SELECT first, last, now, data, chain, digest FROM blocks ORDER BY first"
    with rows_of(connection, query) as rows:
        for row in rows:
            block = Block(*row)
            if [type(value) for value in block] != [int, int, float, bytes, str, str]:
                raise DamagedJournalError(path, "a block has a column of another type")
            if block.first != number + 1 or block.last < block.first:
                raise DamagedJournalError(path, f"events {number + 1} to {block.first - 1} are missing")
            if block.digest != _digest(before, block):
                words = f"the block of events {block.first} to {block.last} does not match its digest"
                raise DamagedJournalError(path, words)
            before, number = block.digest, block.last
            yield block


def small_ones(connection: sqlite3.Connection, path: Path) -> list[Block]:
    """Return the newest blocks, the oldest first, if there are enough small ones in a row to be merged.

    Raises:
        DamagedJournalError: If they do not follow each other.
    """
    query = "SELECT first, last, now, data, chain, digest FROM blocks ORDER BY first DESC LIMIT ?"
    newest = [Block(*row) for row in connection.execute(query, (MERGED_AT_ONCE,))][::-1]
    few_bytes = sum(len(block.data) for block in newest) <= MAX_MERGED_BYTES
    if len(newest) < MERGED_AT_ONCE or any(block.last - block.first >= SMALL for block in newest) or not few_bytes:
        return []
    for before, block in pairwise(newest):
        if block.first != before.last + 1 or block.digest != _digest(before.digest, block):
            raise DamagedJournalError(path, f"the block of events {block.first} to {block.last} does not match")
    return newest


def digest_before(connection: sqlite3.Connection, first: int) -> str | None:
    """Return the digest of the block before an event; None if there is none."""
    query = "SELECT digest FROM blocks WHERE first < ? ORDER BY first DESC LIMIT 1"
    found = connection.execute(query, (first,)).fetchone()
    return None if found is None else str(found[0])


def insert(connection: sqlite3.Connection, block: Block) -> None:
    """Put a block in the place of its events, or of the blocks that it is merged of, in one transaction."""
    between = block.first, block.last
    with connection:
        connection.execute("DELETE FROM blocks WHERE first BETWEEN ? AND ?", between)
        connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?)", block)
        reach("block.written")
        connection.execute("DELETE FROM events WHERE number BETWEEN ? AND ?", between)
        reach("block.before_commit")
    reach("block.after_commit")


def _digest(before: str, block: Block) -> str:
    head = "\n".join((before, str(block.first), str(block.last), repr(block.now), block.chain, ""))
    return hashlib.sha256(head.encode() + block.data).hexdigest()
