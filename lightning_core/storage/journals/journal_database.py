"""The database of a journal: its tables, connections to it, and the checks of its rows.

A database may come from anywhere: views and triggers can run arbitrary computations when a row is read, and any column
can hold a value of any type. So the tables must be exactly those of :func:`create_tables`, and each value is checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from lightning_core.core.limits import MAX_SECONDS, shown
from lightning_core.core.validation import checked
from lightning_core.regular_files import check_regular
from lightning_core.storage.journals.anchor import anchor_path
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.private_files import NotOursError, check_ours

SCHEMA = 13
# Bytes of a row. A submission of ten thousand jobs has 6 MB.
MAX_ROW_BYTES = 16 * 2**20
TABLES = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "events": "CREATE TABLE events (number INTEGER PRIMARY KEY, now REAL NOT NULL, event TEXT NOT NULL,"
    " answers TEXT NOT NULL, digest TEXT NOT NULL)",
    "snapshots": "CREATE TABLE snapshots (number INTEGER PRIMARY KEY, version INTEGER NOT NULL, state BLOB NOT NULL,"
    " digest TEXT NOT NULL)",
    "blocks": "CREATE TABLE blocks (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, now REAL NOT NULL,"
    " data BLOB NOT NULL, chain TEXT NOT NULL, digest TEXT NOT NULL)",
}


# Marks in place of the digest of an entry from a block: the previous event is present, or some before it were left out.
KEPT_ON, LEFT_OUT_BEFORE = "-", ""


class JournalEntry(NamedTuple):
    """An event with its answers."""

    number: int
    now: float
    """Scheduler time, in seconds."""
    event: str
    """The event as JSON."""
    answers: str
    """The answers as JSON."""
    digest: str
    """Digest over all events and answers up to this one; one of the two marks if it is not known."""


class JournalPart(NamedTuple):
    """The pool whose journal another one is a part of. The part concerns some jobs and cannot be replayed alone."""

    folder: str
    """Folder of the pool."""
    jobs: tuple[str, ...]
    """Names of the jobs in the part."""
    submitted_at: float
    """Scheduler time at which these jobs were submitted; no other submission has this time."""


def create_tables(connection: sqlite3.Connection, settings: str) -> None:
    """Create the tables of a journal with its settings, as JSON."""
    for statement in TABLES.values():
        connection.execute(statement)
    connection.execute("INSERT INTO meta VALUES ('schema', ?), ('settings', ?)", (str(SCHEMA), settings))


def check_tables(connection: sqlite3.Connection) -> str:
    """Return the version of a journal; the tables of one of this version are checked.

    Raises:
        ValueError: If they are not those of a journal, or there is no version.
    """
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    if found.get("meta") == TABLES["meta"]:
        version = read_meta(connection, "schema")
        if version is None:
            raise ValueError("it does not say its version")
        if version != str(SCHEMA) or found == TABLES:
            return version
    raise ValueError(f"its tables are not those of a journal: {shown(sorted(found))}")


def read_meta(connection: sqlite3.Connection, key: str) -> str | None:
    """Return the value of a key in a journal's own metadata; None if it has none.

    Raises:
        ValueError: If it is no text.
    """
    found = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    if found is not None and not isinstance(found[0], str):
        raise ValueError(f"{key} must be text, got {shown(found[0])}")
    return None if found is None else str(found[0])


def read_part(connection: sqlite3.Connection) -> JournalPart | None:
    """Return the pool whose journal this one is a part of; None if it is whole.

    Raises:
        TypeError, ValueError: If the journal's metadata is damaged.
    """
    if (text := read_meta(connection, "part_of")) is None:
        return None
    part: JournalPart = checked(json.loads(text), JournalPart)
    return part


def check_entry(entry: JournalEntry) -> JournalEntry:
    """Return an entry after checking the types of its values.

    Raises:
        ValueError: If a value is of another type, or the time is out of range.
    """
    if type(entry.number) is not int or not all(isinstance(text, str) for text in entry[2:]):
        raise ValueError(f"event {shown(entry.number)} has a column of another type")
    if type(entry.now) is not float or not 0 <= entry.now <= MAX_SECONDS:
        raise ValueError(f"event {entry.number} has the time {shown(entry.now)}, which must be 0 to 100 years")
    return entry


def first_since(connection: sqlite3.Connection, since: float) -> int:
    """Return the number of the first entry from a time on, by bisection: times never decrease with numbers."""
    # Two queries: one for both reads all rows, and fails at a damaged one far behind the first.
    [low] = connection.execute("SELECT coalesce(min(number), 0) FROM events").fetchone()
    if since <= 0.0:
        return int(low)
    [high] = connection.execute("SELECT coalesce(max(number), 0) FROM events").fetchone()
    high += 1
    while low < high:
        middle = (low + high) // 2
        query = "SELECT now FROM events WHERE number >= ? ORDER BY number LIMIT 1"  # a part has gaps
        [now] = connection.execute(query, (middle,)).fetchone() or [since]
        low, high = (middle + 1, high) if now < since else (low, middle)
    return int(low)


def check_files(path: Path, *, steers: bool) -> None:
    """Check that a journal and SQLite's files beside it are regular, and owned by this user if they steer this process.

    Raises:
        JournalError: If they are not.
    """
    files = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))]
    try:
        if steers:
            check_ours(path.parent, [*files, anchor_path(path)])
        for found in files:
            if found.exists():
                check_regular(found, found.stat())
    except (NotOursError, OSError) as error:
        raise JournalError(str(error) if isinstance(error, NotOursError) else f"{path}: {error.strerror}") from None


def connect(path: Path, read_only: bool = False) -> sqlite3.Connection:
    """Open the database of a journal."""
    if read_only:
        try:
            return _connect_to_read(path, "mode=ro")
        except sqlite3.OperationalError:
            if os.access(path.parent, os.W_OK):
                raise
        # SQLite keeps a file beside a database with a write-ahead log, also to read it. Without a log it is unwritten.
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            raise JournalError(
                f"{path}: its newest events are in {log.name}, and {path.parent} cannot be written to: copy the "
                "folder, and read the copy"
            )
        return _connect_to_read(path, "immutable=1")
    if path.exists() and path.stat().st_nlink > 1:  # each name would have a lock and a write-ahead log of its own
        raise JournalError(
            f"{path}: the file has a second name, a hard link, under which another scheduler could write it; put a "
            "copy in its place"
        )
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _connect_to_read(path: Path, how: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?{how}", uri=True, check_same_thread=False)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
        connection.execute("BEGIN")  # another process may keep writing: one transaction reads a single snapshot
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def rows_of(connection: sqlite3.Connection, query: str, parameters: Sequence[int] = ()) -> Iterator[sqlite3.Cursor]:
    """Return the rows of a query; those that are not read to their end would keep their table locked."""
    cursor = connection.execute(query, parameters)
    try:
        yield cursor
    finally:
        with suppress(sqlite3.ProgrammingError):  # the connection was closed before
            cursor.close()


def digest_of(before: str, *parts: str) -> str:
    """Return the running digest up to a row, of the digest before it and the texts of the row."""
    return hashlib.sha256("\n".join((before, *parts)).encode()).hexdigest()
