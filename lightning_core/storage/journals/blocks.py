"""Old events of a journal in blocks: thinned, compressed, and verified like the events.

A block takes the place of consecutive events before the oldest snapshot. It carries the digest up to its last event,
from which the next event or block goes on, and a digest over itself and the block before it.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lightning_core.core.limits import shown
from lightning_core.storage.failpoints import reach
from lightning_core.storage.journals.journal_database import Entry, check_entry
from lightning_core.storage.journals.journal_errors import DamagedJournalError

# Events that a block takes the place of: reading and compressing them takes some 50 ms.
EVENTS_PER_BLOCK = 2000
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
    """What is kept of the events: compressed JSON."""
    chain: str
    """Digest over all events and answers up to the last one."""
    digest: str
    """Digest over the block and the digest of the block before it."""

    def entries(self) -> Iterator[Entry]:
        """Yield what is kept of its events.

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
        for row in json.loads(text):
            entry = check_entry(Entry(*row))
            if not before < entry.number <= self.last:
                raise ValueError(f"event {shown(entry.number)} is in the block of {self.first} to {self.last}")
            before = entry.number
            yield entry


def make(first: int, last: Entry, kept: Sequence[Entry], before: str) -> Block:
    """Return the block of some events.

    Args:
        first: Number of the first event.
        last: The last event, with its digest.
        kept: What is kept of them.
        before: Digest of the block before it; of the settings, if there is none.
    """
    text = json.dumps(kept, separators=(",", ":"), allow_nan=False)
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
    for row in connection.execute("SELECT first, last, now, data, chain, digest FROM blocks ORDER BY first"):
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


def insert(connection: sqlite3.Connection, block: Block) -> None:
    """Put a block in the place of its events, in one transaction."""
    with connection:
        connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?)", block)
        reach("block.written")
        connection.execute("DELETE FROM events WHERE number BETWEEN ? AND ?", (block.first, block.last))
        reach("block.before_commit")
    reach("block.after_commit")


def _digest(before: str, block: Block) -> str:
    head = "\n".join((before, str(block.first), str(block.last), repr(block.now), block.chain, ""))
    return hashlib.sha256(head.encode() + block.data).hexdigest()
