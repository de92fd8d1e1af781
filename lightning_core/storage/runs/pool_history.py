"""Stores the runs that end, and finds those with a loss curve like a new job's.

Nothing here can stop a pool: if the store fails, runs are not kept or not found, and the log says so.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.events import MAX_RUNS_AT_ONCE, EarlierRuns
from lightning_core.core.jobs import Job
from lightning_core.scheduler.ended_runs import EndedRun
from lightning_core.storage.private_files import private_folder, this_user
from lightning_core.storage.runs.past_run import PastRun
from lightning_core.storage.runs.run_store import FILE, RunStore, RunStoreError

log = logging.getLogger(__name__)


class PoolHistory:
    """The store of earlier runs as a host uses it: read where it decides, written where it commits.

    Args:
        folder: Folder of the store; None for none: then no runs are kept or found.
        shared: Whether jobs are given the runs of other users too.
    """

    def __init__(self, folder: Path | None, *, shared: bool = False) -> None:
        self._kind = "cpu"
        self._path = None if folder is None else folder / FILE
        self._owner = None if shared else this_user()
        self._noted: list[PastRun] = []  # not committed yet
        self._due: list[PastRun] = []
        self._reader = self._open()
        self._writer = None if self._reader is None else self._open()

    def set_devices(self, names: Sequence[str]) -> None:
        """Set the names of the pool's devices; those of CPUs begin with ``cpu``, since throughputs differ by kind."""
        self._kind = "cpu" if all(name.startswith("cpu") for name in names) else "gpu"

    def find(self, jobs: Sequence[Job]) -> list[EarlierRuns]:
        """Return the runs that were found for jobs, as events; none for jobs that have none."""
        if self._reader is None:
            return []
        known: dict[tuple[object, ...], tuple[EarlierRun, ...]] = {}
        found: list[tuple[str, tuple[EarlierRun, ...]]] = []
        try:
            for job in jobs:
                target = job.target
                key = (job.like, job.model, job.batch_size, target.observed, target.falling(0.0), target.observes)
                if key not in known:
                    similar = self._reader.similar(job, self._owner)
                    known[key] = tuple(run.for_job(job.batch_size, self._kind) for run in similar)
                if known[key]:
                    found.append((job.name, known[key]))
            return list(_events(found))
        except Exception:  # the jobs are submitted, and do without
            log.exception("earlier runs were not found")
            return []

    def note(self, runs: Iterable[EndedRun], now: float) -> None:
        """Note runs that have ended, which are kept once that is committed.

        Args:
            runs: The runs.
            now: Scheduler time in seconds.
        """
        if self._writer is None:
            return
        try:
            for run in runs:
                ended_at = time.time() - max(now - run.ended, 0.0)
                self._noted.append(PastRun.of(run, this_user(), self._kind, ended_at))
        except Exception:  # the jobs must end whether or not they are kept
            log.exception("a run was not kept")

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Store the noted runs, if the block commits their ends without an error."""
        noted, self._noted = self._noted, []
        try:
            yield
        except BaseException:
            self._noted = noted + self._noted
            raise
        self._due += noted

    def begin(self, runs: Iterable[EndedRun], now: float) -> None:
        """Note the runs of a scheduler as it was replayed: they may have ended right before a kill.

        The store has most of them already, and keeps each once. Notes that were not committed have not happened.
        """
        self._noted = []
        self.note(runs, now)

    @property
    def is_due(self) -> bool:
        """Whether :meth:`write` has work to do."""
        return bool(self._due)

    def write(self) -> None:
        """Keep the runs whose end is committed."""
        due, self._due = self._due, []
        if not due or self._writer is None:
            return
        try:
            self._writer.add(due)
        except (sqlite3.Error, ValueError) as error:
            log.warning("%d runs were not kept in %s: %s", len(due), self._path, error)

    def close(self) -> None:
        """Close the store."""
        for store in (self._reader, self._writer):
            if store is not None:
                store.close()

    def _open(self) -> RunStore | None:
        if self._path is None:
            return None
        try:
            if not self._path.parent.exists():
                private_folder(self._path.parent)
            return RunStore(self._path)
        except (OSError, RunStoreError, ValueError) as error:
            log.warning("runs are neither kept nor found: %s", error)
            return None


def _events(found: Sequence[tuple[str, tuple[EarlierRun, ...]]]) -> Iterable[EarlierRuns]:
    """Yield events with this many runs as one may have, each run once."""
    places: dict[EarlierRun, int] = {}
    jobs: list[tuple[str, tuple[int, ...]]] = []
    for name, runs in found:
        if len(places.keys() | set(runs)) > MAX_RUNS_AT_ONCE:
            yield EarlierRuns(tuple(places), tuple(jobs))
            places, jobs = {}, []
        jobs.append((name, tuple(places.setdefault(run, len(places)) for run in runs)))
    if jobs:
        yield EarlierRuns(tuple(places), tuple(jobs))
