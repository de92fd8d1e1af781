"""The journal: every event that moved the scheduler, committed before its directives leave.

Rules

1. An event is on the disk before anybody obeys what followed from it (SQLite, WAL, synchronous=FULL).
2. A crash is a replay: the settings and the events, handled again in order, give the same directives to the bit on
   one machine, and to 1e-6 of a share across machines (whose logarithms may differ in the last bit).
3. Each row carries a running digest over all events and directives up to it: change one and every later one differs.
4. JSON inside, no pickle.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple, Self

from lightning_core.core.answers import Answer
from lightning_core.core.codec import decode_event, encode_answers, encode_event
from lightning_core.core.events import Event
from lightning_core.errors import LightningCoreError
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.downtime import Downtime
from lightning_core.storage.failpoints import reach

SCHEMA = 7
# How the events begin that tell when no scheduler was there: the others need not be read for that.
_OF_DOWNTIME = tuple(f'{{"kind":"{kind}"' for kind in ("tick", "close", "workers_lost"))


class JournalError(LightningCoreError, RuntimeError):
    """The journal is missing, damaged, of another version, or does not replay."""


class PartOf(NamedTuple):
    """Of which journal another one is a part: it has what concerns some jobs, and cannot be replayed by itself."""

    folder: str
    """Of the pool whose journal is the whole one."""
    jobs: tuple[str, ...]
    submitted_at: float
    """Scheduler time at which these jobs were submitted; no other submission was at that time."""


class Entry(NamedTuple):
    """One event with what followed from it."""

    number: int
    now: float
    event: str
    answers: str
    digest: str


class Journal:
    """An append-only file of events. Use :meth:`create` or :meth:`open`; a context manager closes it."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, digest: str, read_only: bool = False, durable: bool = True
    ) -> None:
        self._read_only = read_only
        self._durable = durable
        self.path = path
        self._connection = connection
        self._digest = digest

    @classmethod
    def create(cls, path: Path, settings: Settings, *, durable: bool = True, part_of: PartOf | None = None) -> Self:
        """A new journal.

        Args:
            path: of the file.
            settings: of the scheduler.
            durable: whether each event is on the disk before anybody obeys. A simulation can be run again: its events
                are committed when the journal is closed.
            part_of: the journal that it will be a part of, if it will be one.

        Raises:
            JournalError: if there is one already: a journal is never overwritten.
        """
        if path.exists():
            raise JournalError(f"{path}: there is a journal already")
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = _connect(path)
        if part_of is not None:  # it is replaced as one file
            connection.execute("PRAGMA journal_mode = DELETE")
        with connection:
            connection.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
            connection.execute(
                "CREATE TABLE events (number INTEGER PRIMARY KEY, now REAL NOT NULL, event TEXT NOT NULL,"
                " answers TEXT NOT NULL, digest TEXT NOT NULL)"
            )
            text = json.dumps(settings.to_dict(), sort_keys=True, allow_nan=False)
            connection.execute("INSERT INTO meta VALUES ('schema', ?), ('settings', ?)", (str(SCHEMA), text))
            if part_of is not None:
                connection.execute("INSERT INTO meta VALUES ('part_of', ?)", (json.dumps(part_of),))
        return cls(path, connection, _digest("", text), durable=durable)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Self:
        """An existing journal, to go on with, or only to read: also while somebody else writes it.

        Raises:
            JournalError: if it is missing, damaged or of another version.
        """
        if not path.exists():
            raise JournalError(f"{path}: no journal here")
        try:
            connection = _connect(path, read_only)
            [schema] = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
            if schema != str(SCHEMA):
                raise JournalError(f"{path}: journal version {schema}, this program reads {SCHEMA}")
            last = connection.execute("SELECT digest FROM events ORDER BY number DESC LIMIT 1").fetchone()
            journal = cls(path, connection, "", read_only)
            journal._digest = last[0] if last else _digest("", json.dumps(journal.settings().to_dict(), sort_keys=True))
        except (sqlite3.DatabaseError, TypeError) as error:
            raise JournalError(f"{path}: damaged journal: {error}") from error
        return journal

    def settings(self) -> Settings:
        """With which the scheduler was made."""
        [text] = self._connection.execute("SELECT value FROM meta WHERE key = 'settings'").fetchone()
        return Settings(**json.loads(text))

    @property
    def part_of(self) -> PartOf | None:
        """The journal that this one is a part of; None if it is whole."""
        found = self._connection.execute("SELECT value FROM meta WHERE key = 'part_of'").fetchone()
        if found is None:
            return None
        folder, jobs, submitted_at = json.loads(found[0])
        return PartOf(folder, tuple(jobs), submitted_at)

    def keep(self, entry: Entry) -> None:
        """Take in an entry of the journal that this one is a part of, with its number and digest."""
        self._connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", entry)
        self._digest = entry.digest

    def append(self, event: Event, now: float, answers: list[Answer]) -> None:
        """Commits one event; when this returns it is on the disk, if it is durable."""
        body, answer = encode_event(event), encode_answers(answers)
        digest = _digest(self._digest, repr(now), body, answer)
        with self._connection if self._durable else nullcontext():
            self._connection.execute(
                "INSERT INTO events (now, event, answers, digest) VALUES (?, ?, ?, ?)", (now, body, answer, digest)
            )
            reach("journal.before_commit")
        self._digest = digest
        reach("journal.after_commit")

    def entries(self, since: float = 0.0) -> Iterator[Entry]:
        """All of them, or those from a scheduler time on, oldest first."""
        query = "SELECT number, now, event, answers, digest FROM events WHERE number >= ? ORDER BY number"
        return (Entry(*row) for row in self._connection.execute(query, (self._first(since),)))

    def _first(self, since: float) -> int:
        """Number of the first entry from a time on: numbers and times grow together."""
        low, high = self._connection.execute("SELECT coalesce(min(number), 0), coalesce(max(number), 0) FROM events") \
            .fetchone()  # fmt: skip
        if since <= 0.0:
            return int(low)
        high += 1
        while low < high:
            middle = (low + high) // 2
            query = "SELECT now FROM events WHERE number >= ? ORDER BY number LIMIT 1"  # a part has gaps
            [now] = self._connection.execute(query, (middle,)).fetchone() or [since]
            low, high = (middle + 1, high) if now < since else (low, middle)
        return int(low)

    def seconds_down(self) -> float:
        """Return the seconds in which no scheduler was there, of those that the journal spans."""
        downtime, seconds = Downtime(), 0.0
        for entry in self.entries():
            event = decode_event(entry.event) if entry.event.startswith(_OF_DOWNTIME) else None
            if (down := downtime.take(event, entry.now)) is not None:
                seconds += down.until - down.since
        return seconds

    @property
    def last(self) -> int:
        """Number of the newest event, 0 if there is none."""
        [last] = self._connection.execute("SELECT coalesce(max(number), 0) FROM events").fetchone()
        return int(last)

    @property
    def digest(self) -> str:
        """Over all events and directives so far."""
        return self._digest

    def close(self) -> None:
        """Moves all from the write-ahead log into the one file, if it is ours to write, and closes it."""
        if not self._read_only:
            if not self._durable:
                self._connection.commit()
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Replay(NamedTuple):
    """A scheduler brought to where the journal ends."""

    scheduler: Scheduler
    now: float
    events: int
    digest: str
    """Over the events as read and the directives as made again; equal to the journal's if nothing differs."""


def replay(journal: Journal, *, strict: bool = True) -> Replay:
    """Handles every event of a journal again.

    Args:
        journal: to read.
        strict: whether a directive that differs from the recorded one is an error.

    Raises:
        JournalError: if it is damaged, or if strict and an answer differs, with the number of the first such event.
    """
    if (whole := journal.part_of) is not None:
        raise JournalError(f"{journal.path}: a part of the journal of the pool at {whole.folder}: replay that one")
    scheduler = Scheduler(settings := journal.settings())
    digest = _digest("", json.dumps(settings.to_dict(), sort_keys=True))
    now, count = 0.0, 0
    try:
        for entry in journal.entries():
            answer = encode_answers(scheduler.handle(decode_event(entry.event), entry.now))
            if strict and answer != entry.answers:
                raise JournalError(f"{journal.path}: event {entry.number} does not replay: {entry.event}")
            digest = _digest(digest, repr(entry.now), entry.event, answer)
            now, count = entry.now, count + 1
            reach("journal.replaying")
    except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
        raise JournalError(f"{journal.path}: damaged journal: {error}") from error
    return Replay(scheduler, now, count, digest)


def _connect(path: Path, read_only: bool = False) -> sqlite3.Connection:
    if read_only:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        connection.execute("BEGIN")  # somebody else may go on writing: all that is read is of one moment
        return connection
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _digest(before: str, *parts: str) -> str:
    return hashlib.sha256("\n".join((before, *parts)).encode()).hexdigest()
