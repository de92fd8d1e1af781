"""The journal: every event that the scheduler handled, committed before its answers are sent.

Rules

1. An event is on the disk before its answers take effect (SQLite, WAL, synchronous=FULL).
2. Recovery is a replay: handling the events again in order with the same settings gives the same answers, to the bit
   on one machine, and to 1e-6 of a share across machines, whose logarithms may differ in the last bit.
3. Each row carries a running digest over all events and answers up to it: changing one changes all later digests.
4. The content is JSON, not pickle.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple, Self

from lightning_core.core.answers import Accepted, Answer
from lightning_core.core.codec import decode_event, encode_answers, encode_event
from lightning_core.core.events import Event
from lightning_core.errors import LightningCoreError
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.downtime import Downtime
from lightning_core.storage.failpoints import reach

SCHEMA = 8
# Beginnings of the events that determine downtime: the others need not be decoded for it.
_DOWNTIME_EVENTS = tuple(f'{{"kind":"{kind}"' for kind in ("tick", "close", "workers_lost"))


class JournalError(LightningCoreError, RuntimeError):
    """The journal is missing, damaged, of another version, or does not replay."""


class JournalPart(NamedTuple):
    """The pool whose journal another one is a part of. The part concerns some jobs and cannot be replayed alone."""

    folder: str
    """Folder of the pool."""
    jobs: tuple[str, ...]
    """Names of the jobs in the part."""
    submitted_at: float
    """Scheduler time at which these jobs were submitted; no other submission has this time."""


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


class Journal:
    """An append-only file of events, made by :meth:`create` or :meth:`open`; a context manager that closes it."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, digest: str, read_only: bool = False, durable: bool = True
    ) -> None:
        self._read_only = read_only
        self._durable = durable
        self.path = path
        self._connection = connection
        self._digest = digest

    @classmethod
    def create(
        cls, path: Path, settings: Settings, *, durable: bool = True, part_of: JournalPart | None = None
    ) -> Self:
        """Create a journal.

        Args:
            path: Path of the file.
            settings: Settings of the scheduler.
            durable: Whether each event is on the disk before ``append`` returns. A simulation, which can be run again,
                commits its events when the journal is closed.
            part_of: The pool whose journal this one will be a part of; None for a whole journal.

        Raises:
            JournalError: If the file exists: a journal is never overwritten.
        """
        if path.exists():
            raise JournalError(f"{path}: a journal already exists here and is never overwritten")
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = _connect(path)
        if part_of is not None:  # it is replaced as a single file
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
        """Open an existing journal, to continue it, or only to read it, even while another process writes it.

        Raises:
            JournalError: If it is missing, damaged or of another version.
        """
        if not path.exists():
            raise JournalError(f"{path}: no journal here")
        try:
            connection = _connect(path, read_only)
            [schema] = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
            if schema != str(SCHEMA):
                raise JournalError(
                    f"{path}: the journal has version {schema}, and this release of lightning_core reads version "
                    f"{SCHEMA}; "
                    "read it with the release that wrote it, or move it away to start a new one"
                )
            last = connection.execute("SELECT digest FROM events ORDER BY number DESC LIMIT 1").fetchone()
            journal = cls(path, connection, "", read_only)
            journal._digest = last[0] if last else _digest("", json.dumps(journal.settings().to_dict(), sort_keys=True))
        except (sqlite3.DatabaseError, TypeError) as error:
            raise JournalError(f"{path}: damaged journal: {error}") from error
        return journal

    def settings(self) -> Settings:
        """Return the settings of the scheduler."""
        [text] = self._connection.execute("SELECT value FROM meta WHERE key = 'settings'").fetchone()
        return Settings(**json.loads(text))

    @property
    def part_of(self) -> JournalPart | None:
        """The pool whose journal this one is a part of; None if this one is whole."""
        found = self._connection.execute("SELECT value FROM meta WHERE key = 'part_of'").fetchone()
        if found is None:
            return None
        folder, jobs, submitted_at = json.loads(found[0])
        return JournalPart(folder, tuple(jobs), submitted_at)

    def insert(self, entry: Entry) -> None:
        """Insert an entry of the whole journal with its number and digest, in a journal that is a part."""
        self._connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", entry)
        self._digest = entry.digest

    def append(self, event: Event, now: float, answers: Sequence[Answer], accepted: Sequence[Accepted] = ()) -> None:
        """Commit one event, its answers and what was accepted of it; a durable journal has them on disk on return."""
        body, answer = encode_event(event), encode_answers(answers, accepted, event)
        digest = _digest(self._digest, repr(now), body, answer)
        with self._connection if self._durable else nullcontext():
            self._connection.execute(
                "INSERT INTO events (now, event, answers, digest) VALUES (?, ?, ?, ?)", (now, body, answer, digest)
            )
            reach("journal.before_commit")
        self._digest = digest
        reach("journal.after_commit")

    def entries(self, since: float = 0.0) -> Iterator[Entry]:
        """Yield the entries from a scheduler time on, the oldest first."""
        query = "SELECT number, now, event, answers, digest FROM events WHERE number >= ? ORDER BY number"
        return (Entry(*row) for row in self._connection.execute(query, (self._first(since),)))

    def _first(self, since: float) -> int:
        """Return the number of the first entry from a time on, by bisection: times never decrease with numbers."""
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
        """Return the seconds of downtime within the span of the journal."""
        downtime, seconds = Downtime(), 0.0
        for entry in self.entries():
            event = decode_event(entry.event) if entry.event.startswith(_DOWNTIME_EVENTS) else None
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
        """Digest over all events and answers so far."""
        return self._digest

    def close(self) -> None:
        """Close the journal; a writer first moves the write-ahead log into the file."""
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
    """A scheduler in the state in which the journal ends."""

    scheduler: Scheduler
    now: float
    """Scheduler time of the last event, in seconds."""
    events: int
    """Number of events."""
    digest: str
    """Digest over the recorded events and the recomputed answers; equal to the journal's if no answer differs."""


def replay(journal: Journal, *, strict: bool = True) -> Replay:
    """Handle every event of a journal again.

    Args:
        journal: Journal to replay.
        strict: Whether an answer that differs from the recorded one is an error.

    Raises:
        JournalError: If the journal is damaged or a part of another, or if an answer differs and ``strict`` is set;
            the message has the number of the first such event.
    """
    if (whole := journal.part_of) is not None:
        raise JournalError(
            f"{journal.path}: cannot be replayed alone: it is a part of the journal of the pool at {whole.folder}; "
            "replay that one"
        )
    scheduler = Scheduler(settings := journal.settings())
    digest = _digest("", json.dumps(settings.to_dict(), sort_keys=True))
    now, count = 0.0, 0
    try:
        for entry in journal.entries():
            event = decode_event(entry.event)
            answers = scheduler.handle(event, entry.now)
            answer = encode_answers(answers, scheduler.accepted, event)
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
        connection.execute("BEGIN")  # another process may go on writing: one transaction reads a single snapshot
        return connection
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _digest(before: str, *parts: str) -> str:
    return hashlib.sha256("\n".join((before, *parts)).encode()).hexdigest()
