"""The store of earlier runs: one SQLite file in the folder of a pool, which survives ``down`` and upgrades.

It is not part of the journal: the runs that a job was given are an event. A damaged store is moved aside and a new one
started; a store of another version is left alone. The id of a forgotten run, a hash, is kept: a pool that restarts adds
the runs that it remembers once more.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from lightning_core.core.earlier_runs import MAX_EARLIER_RUNS, MAX_PACES, EarlierPace, check_pace
from lightning_core.core.jobs import Job, family_of
from lightning_core.core.limits import shown
from lightning_core.core.validation import check_bounds, made
from lightning_core.errors import LightningCoreError
from lightning_core.regular_files import check_regular
from lightning_core.storage.private_files import NotOursError, check_ours, owner_only
from lightning_core.storage.runs.past_run import PastPace, PastRun, metric_of

log = logging.getLogger(__name__)

FILE = "history.db"
SCHEMA = 3
# Paces that are kept, the newest ones.
MAX_KEPT_PACES = 10_000
# Seconds that a write waits for another process.
TIMEOUT = 5.0
# Bytes of a value: the curve of a run has some kilobytes.
MAX_VALUE_BYTES = 2**20
TABLES = {
    "runs": "CREATE TABLE runs (id TEXT PRIMARY KEY, name TEXT NOT NULL, owner INTEGER NOT NULL, like TEXT NOT NULL,"
    " model TEXT NOT NULL, metric TEXT NOT NULL, batch_size INTEGER, target TEXT NOT NULL, verdict TEXT NOT NULL,"
    " curve TEXT NOT NULL, met_at INTEGER, throughputs TEXT NOT NULL, trained REAL NOT NULL, took REAL NOT NULL,"
    " ended_at REAL NOT NULL, memory INTEGER)",
    "forgotten": "CREATE TABLE forgotten (id TEXT PRIMARY KEY)",
    "paces": "CREATE TABLE paces (owner INTEGER NOT NULL, device TEXT NOT NULL, family TEXT NOT NULL,"
    " others TEXT NOT NULL, pace REAL NOT NULL, seconds REAL NOT NULL, measured_at REAL NOT NULL,"
    " PRIMARY KEY (owner, device, family, others))",
    "by_model": "CREATE INDEX by_model ON runs (model, metric)",
    "by_like": "CREATE INDEX by_like ON runs (like)",
    "by_name": "CREATE INDEX by_name ON runs (name)",
}
_COLUMNS = ("id, name, owner, like, model, metric, batch_size, target, verdict, curve, met_at, throughputs, trained,"
            " took, ended_at, memory")  # fmt: skip


class RunStoreError(LightningCoreError, RuntimeError):
    """The store of earlier runs cannot be used; the message says why."""


class RunStore:
    """The runs that a pool has seen, in ``history.db``.

    Args:
        path: Path of the file; created if it does not exist, in a folder that does.

    Raises:
        RunStoreError: If it is of another version, another user can change it, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._check_files()
            with owner_only():
                try:
                    self._connection = self._open()
                except (sqlite3.DatabaseError, ValueError) as error:
                    if isinstance(error, sqlite3.OperationalError):  # locked, say, or no space left
                        raise
                    self._move_aside(error)
                    self._connection = self._open()
        except NotOursError as error:
            raise RunStoreError(str(error)) from None
        except (OSError, sqlite3.Error) as error:
            raise RunStoreError(f"{path}: {error}") from None

    def add(self, runs: Iterable[PastRun], *, forgotten: bool = False) -> int:
        """Add runs, and return how many were new; a run already in the store stays unchanged.

        Args:
            runs: The runs.
            forgotten: Whether runs that were forgotten are added too.
        """
        rows = [(*_to_row(run), forgotten, run.id) for run in runs]
        before = self._connection.total_changes
        with self._connection:
            self._connection.executemany(
                f"INSERT OR IGNORE INTO runs SELECT {', '.join('?' * 16)} "
                "WHERE ? OR NOT EXISTS (SELECT 1 FROM forgotten WHERE id = ?)",
                rows,
            )
        return self._connection.total_changes - before

    def add_paces(self, paces: Iterable[PastPace]) -> None:
        """Add paces; one of the same user, devices and company is replaced: the pool that measures it counts it in."""
        rows = [
            (one.owner, one.device, one.pace.family, _text(one.pace.others), one.pace.pace, one.pace.seconds,
             one.measured_at)
            for one in paces
        ]  # fmt: skip
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO paces VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            self._connection.execute(
                "DELETE FROM paces WHERE rowid IN"
                " (SELECT rowid FROM paces ORDER BY measured_at DESC LIMIT -1 OFFSET ?)",
                (MAX_KEPT_PACES,),
            )

    def paces(self, families: Iterable[str], device: str, owner: int | None) -> list[EarlierPace]:
        """Return how fast trainings of some kinds were beside others, the newest of each company.

        Args:
            families: Kinds of trainings.
            device: Kind of the devices, with the number of their cores.
            owner: User id whose pools measured them; None for any.

        Returns:
            At most :data:`~lightning_core.core.earlier_runs.MAX_PACES`.
        """
        found: dict[tuple[str, str], EarlierPace] = {}
        query = ("SELECT others, pace, seconds FROM paces WHERE family = ? AND device = ? AND (? IS NULL OR owner = ?)"
                 " ORDER BY measured_at DESC, others LIMIT ?")  # fmt: skip
        for family in families:
            for others, pace, seconds in self._connection.execute(query, (family, device, owner, owner, MAX_PACES)):
                if (family, others) in found or len(found) == MAX_PACES:
                    continue
                try:
                    one: EarlierPace = made(EarlierPace, {
                        "family": family, "others": json.loads(others), "pace": pace, "seconds": seconds,
                    })  # fmt: skip
                    check_pace(one)
                except (TypeError, ValueError) as error:
                    log.warning("%s: a pace of %s is damaged and was left out: %s", self.path, shown(family), error)
                else:
                    found[family, others] = one
        return list(found.values())

    def similar(self, job: Job, owner: int | None) -> list[PastRun]:
        """Return the runs that went as a job will go, the most relevant first, at most three.

        They are those that ``job.like`` names or, without it, those of the same model; their losses are of the same
        metric, unless the work of the job is known. Those of the same batch size come first, then those that met their
        targets, then the newest.

        Args:
            job: The job.
            owner: User id to whom they belong; None for any.
        """
        where, values = ("(like = ? OR name = ?)", [job.like, job.like]) if job.like else ("model = ?", [job.model])
        if not (job.like or job.model):
            return []
        terms: list[Any] = list(values)
        if job.target.observes:
            where, terms = f"{where} AND metric = ?", [*terms, metric_of(job.target)]
        if owner is not None:
            where, terms = f"{where} AND owner = ?", [*terms, owner]
        order = "batch_size IS ? DESC, met_at IS NOT NULL DESC, ended_at DESC, id"
        query = f"SELECT id FROM runs WHERE {where} ORDER BY {order} LIMIT {MAX_EARLIER_RUNS}"
        found = self._connection.execute(query, (*terms, job.batch_size)).fetchall()
        return [run for [number] in found for run in self._select("id = ?", [number])]

    def runs(self, name: str = "", like: str = "", since: float | None = None) -> Iterator[PastRun]:
        """Yield the runs, the newest first.

        Args:
            name: Name of their jobs; empty for any.
            like: Tag of theirs; empty for any.
            since: Date of their ends, in seconds since the epoch, from which on they are wanted; None for all.
        """
        return self._select(*_where(name, like, since=since))

    def forget(self, name: str = "", like: str = "", before: float | None = None) -> int:
        """Forget runs, and return how many; and the paces of kinds of which no run is left.

        Args:
            name: Name of their jobs; empty for any.
            like: Tag of theirs; empty for any.
            before: Date of their ends, in seconds since the epoch, before which they are forgotten; None for any.

        Raises:
            ValueError: If nothing says which.
        """
        where, values = _where(name, like, before=before)
        if not values:
            raise ValueError("name a job, a tag or a date: not all runs are forgotten at once")
        with self._connection:
            self._connection.execute(f"INSERT OR IGNORE INTO forgotten SELECT id FROM runs WHERE {where}", values)
            gone = self._families(where, values)
            count = self._connection.execute(f"DELETE FROM runs WHERE {where}", values).rowcount
            self._forget_paces(gone - self._families("1", []))
            if before is not None and not (name or like):
                self._connection.execute("DELETE FROM paces WHERE measured_at < ?", [before])
        with suppress(sqlite3.Error):  # forgotten runs must leave the file too
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return count

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM runs").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _families(self, where: str, values: Sequence[Any]) -> set[str]:
        query = f"SELECT DISTINCT name, like, model, batch_size FROM runs WHERE {where}"
        return {family_of(*row) for row in self._connection.execute(query, values)}

    def _forget_paces(self, families: set[str]) -> None:
        rows = self._connection.execute("SELECT rowid, family, others FROM paces").fetchall()
        gone = [[row] for row, family, others in rows if family in families or families.intersection(_list(others))]
        self._connection.executemany("DELETE FROM paces WHERE rowid = ?", gone)

    def _select(self, where: str, values: Sequence[Any]) -> Iterator[PastRun]:
        query = f"SELECT {_COLUMNS} FROM runs WHERE {where} ORDER BY ended_at DESC, id"
        for row in self._connection.execute(query, values):
            try:
                yield _from_row(row)
            except (TypeError, ValueError) as error:
                log.warning("%s: run %s is damaged and was left out: %s", self.path, shown(row[0]), error)

    def _check_files(self) -> None:
        files = [self.path, *(self.path.with_name(f"{FILE}{end}") for end in ("-wal", "-shm"))]
        check_ours(self.path.parent, files)
        for file in files:
            if file.exists():
                check_regular(file, file.stat())

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=TIMEOUT, check_same_thread=False)
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            self._check_version(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the newest runs
            connection.execute("PRAGMA secure_delete = ON")
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_version(self, connection: sqlite3.Connection) -> None:
        """Check the version and the tables, and create them in a new file; a ValueError names the problem."""
        [version] = connection.execute("PRAGMA user_version").fetchone()
        found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
        if version == 0 and not found:
            with connection:
                for statement in TABLES.values():
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
        elif version not in (0, SCHEMA):
            raise RunStoreError(
                f"{self.path}: its version is {version}, and this release of lightning_core reads version {SCHEMA}: "
                "move the file away to start over"
            )
        elif found != TABLES:
            raise ValueError(f"its tables are not those of a store of runs: {shown(sorted(found))}")
        elif connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise ValueError("it is damaged")

    def _move_aside(self, error: Exception) -> None:
        aside = self.path.with_name(f"history-damaged-{datetime.now():%Y%m%d-%H%M%S-%f}.db")
        self.path.rename(aside)
        for end in ("-wal", "-shm"):
            self.path.with_name(f"{FILE}{end}").unlink(missing_ok=True)
        log.warning("%s: %s; it was moved to %s, and a new one was begun", self.path, error, aside.name)


def _where(
    name: str, like: str, *, since: float | None = None, before: float | None = None
) -> tuple[str, list[str | float]]:
    terms: list[tuple[str, str | float]] = []
    if name:
        terms.append(("name = ?", name))
    if like:
        terms.append(("like = ?", like))
    if since is not None:
        terms.append(("ended_at >= ?", since))
    if before is not None:
        terms.append(("ended_at < ?", before))
    return " AND ".join(term for term, _ in terms) or "1", [value for _, value in terms]


def _to_row(run: PastRun) -> tuple[Any, ...]:
    body = run._asdict() | {"curve": _text([run.batches, run.losses]), "throughputs": _text(run.throughputs)}
    return tuple(body[name] for name in _COLUMNS.split(", "))


def _from_row(row: Sequence[Any]) -> PastRun:
    body = dict(zip(_COLUMNS.split(", "), row, strict=True))
    batches, losses = json.loads(body.pop("curve"))
    body |= {"batches": batches, "losses": losses, "throughputs": json.loads(body["throughputs"])}
    check_bounds(body)
    run: PastRun = made(PastRun, body)
    run.for_job(None, "")  # its curve is one
    return run


def _list(text: str) -> list[Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
