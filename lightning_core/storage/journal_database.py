"""The database of a journal: its tables, connections to it, and the running digest of its rows."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path
from typing import NamedTuple

SCHEMA = 8


class Entry(NamedTuple):
    """One event with its answers."""

    number: int
    now: float
    """Scheduler time, in seconds."""
    event: str
    """The event as JSON."""
    answers: str
    """The answers as JSON."""
    digest: str
    """Digest over all events and answers up to this one."""


def create_tables(connection: sqlite3.Connection, settings: str) -> None:
    """Create the tables of a journal with its settings, as JSON."""
    connection.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
    connection.execute(
        "CREATE TABLE events (number INTEGER PRIMARY KEY, now REAL NOT NULL, event TEXT NOT NULL,"
        " answers TEXT NOT NULL, digest TEXT NOT NULL)"
    )
    connection.execute("INSERT INTO meta VALUES ('schema', ?), ('settings', ?)", (str(SCHEMA), settings))


def connect(path: Path, read_only: bool = False) -> sqlite3.Connection:
    """Open the database of a journal."""
    if read_only:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        connection.execute("BEGIN")  # another process may go on writing: one transaction reads a single snapshot
        return connection
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def digest_of(before: str, *parts: str) -> str:
    """Return the running digest up to a row, of the digest before it and the texts of the row."""
    return hashlib.sha256("\n".join((before, *parts)).encode()).hexdigest()
