"""Snapshots of the scheduler in its journal: a restart replays only the events behind the newest one.

A snapshot is the scheduler's state as JSON, compressed, with a digest over it and over the event that it follows. The
two newest are kept, and one or two far behind them: all events after the oldest one are kept whole, so that forecasts
can be recomputed and answers verified. A snapshot that is damaged, or of another version, is skipped: the one before
it, or the first event, serves as well.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lightning_core.scheduler.state import STATE_VERSION
from lightning_core.storage.failpoints import reach
from lightning_core.storage.journals.journal_database import digest_of

# Events between two snapshots: as many are replayed in half a second.
EVENTS_PER_SNAPSHOT = 5000
KEPT = 2
# This many events, and up to twice as many, are whole: an hour of eight jobs that report every second or two. A restart
# verifies them in half a second.
STRETCH = 50_000
# Bytes of a state. A pool of ten thousand jobs has 120 MB.
MAX_STATE_BYTES = 2**28
# Values in it. That pool has 13 million; a list in a list takes 20 times its text in memory.
MAX_STATE_VALUES = 2**25


class Snapshot(NamedTuple):
    """The state of a scheduler after an event."""

    number: int
    """Number of the event."""
    now: float
    """Scheduler time of the event, in seconds."""
    digest: str
    """Digest over all events and answers up to this one."""
    state: Mapping[str, Any]
    """State of the scheduler."""


def write_snapshot(connection: sqlite3.Connection, snapshot: Snapshot) -> None:
    """Write a snapshot and remove those that are not needed any more, in one transaction.

    Needed are the newest ones, and the first one of the newest stretch and of the one before it.

    Raises:
        ValueError: If the state is too large.
    """
    text = json.dumps(snapshot.state, separators=(",", ":"), allow_nan=False)
    if len(text) > MAX_STATE_BYTES or _values(text) > MAX_STATE_VALUES:
        raise ValueError(
            f"the state of a scheduler must be at most {MAX_STATE_BYTES} bytes and {MAX_STATE_VALUES} values, got "
            f"{len(text)} and {_values(text)}"
        )
    digest = digest_of(snapshot.digest, str(STATE_VERSION), text)
    with connection:
        row = (snapshot.number, STATE_VERSION, zlib.compress(text.encode(), 1), digest)
        connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", row)
        reach("snapshot.written")
        query = (
            "DELETE FROM snapshots WHERE number NOT IN (SELECT number FROM snapshots ORDER BY number DESC LIMIT ?)"
            " AND number NOT IN (SELECT min(number) FROM snapshots WHERE number >= ? GROUP BY number / ?)"
        )
        since = max(snapshot.number // STRETCH - 1, 1) * STRETCH  # a young journal is whole from its first event on
        connection.execute(query, (KEPT, since, STRETCH))
        reach("snapshot.before_commit")
    reach("snapshot.after_commit")


def read_snapshots(connection: sqlite3.Connection) -> Iterator[Snapshot]:
    """Yield the snapshots that are whole and of this version, the newest first."""
    query = "SELECT number FROM snapshots WHERE version = ? ORDER BY number DESC"
    for [number] in connection.execute(query, (STATE_VERSION,)).fetchall():
        now, before = _at(connection, number)
        query = "SELECT state, CAST(digest AS BLOB) FROM snapshots WHERE number = ?"  # it may be no text any more
        state, digest = connection.execute(query, (number,)).fetchone()
        text = _decompressed(state)
        if before is None or text is None or digest_of(before, str(STATE_VERSION), text).encode() != digest:
            continue
        if (state := _read(text)) is not None:
            yield Snapshot(number, now, before, state)


def first_whole(connection: sqlite3.Connection) -> int:
    """Return the number of the event behind which all are whole: that of the oldest snapshot, 0 in a young journal."""
    numbers = [number for [number] in connection.execute("SELECT number FROM snapshots ORDER BY number")]
    return numbers[0] if len(numbers) >= KEPT and numbers[-1] >= 2 * STRETCH else 0


def _at(connection: sqlite3.Connection, number: int) -> tuple[float, str | None]:
    """Return the time of an event and the digest up to it, from its row or from the block that ends with it."""
    for query in ("SELECT now, digest FROM events WHERE number = ?", "SELECT now, chain FROM blocks WHERE last = ?"):
        if (found := connection.execute(query, (number,)).fetchone()) is not None:
            return found[0], found[1]
    return 0.0, None


def _values(text: str) -> int:
    """Return an upper bound of the number of values in a text of JSON."""
    return 1 + text.count(",") + text.count("[") + text.count("{")


def _read(text: str) -> Mapping[str, Any] | None:
    """Return a state; None if it is none, or has too many values: the digest is no signature."""
    if _values(text) > MAX_STATE_VALUES:
        return None
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return state if isinstance(state, dict) else None


def _decompressed(data: Any) -> str | None:
    """Return the text of a state; None if it is damaged or too long."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, MAX_STATE_BYTES)
        return text.decode() if unpacker.eof else None
    except (TypeError, UnicodeDecodeError, zlib.error):
        return None
