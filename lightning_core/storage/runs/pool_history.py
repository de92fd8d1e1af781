"""Stores the runs that end, and finds those with a loss curve like a new job's; and the paces of those beside others.

Nothing here can stop a pool: if the store fails, runs are not kept or not found, and the log says so.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lightning_core.core.earlier_runs import EarlierPace, EarlierRun
from lightning_core.core.events import MAX_RUNS_AT_ONCE, EarlierRuns
from lightning_core.core.jobs import Job
from lightning_core.scheduler.ended_runs import EndedRun
from lightning_core.storage.private_files import private_folder, this_user
from lightning_core.storage.runs.past_run import PastPace, PastRun
from lightning_core.storage.runs.run_store import FILE, RunStore, RunStoreError

log = logging.getLogger(__name__)

# Seconds of training for which a pace must have been measured to be kept.
MIN_MEASURED = 1.0


class PoolHistory:
    """The store of earlier runs as a host uses it: read where it decides, written where it commits.

    Args:
        folder: Folder of the store; None for none: then no runs are kept or found.
        shared: Whether jobs are given the runs of other users too.
        cores: Cores of each device, if they are CPUs.
    """

    def __init__(self, folder: Path | None, *, shared: bool = False, cores: int = 1) -> None:
        self._kind, self._cores = "cpu", cores
        self._path = None if folder is None else folder / FILE
        self._owner = None if shared else this_user()
        self._noted: list[PastRun | PastPace] = []  # not committed yet
        self._due: list[PastRun | PastPace] = []
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
            paces = self._reader.paces({job.family: None for job in jobs}, self._device, self._owner)
            events = list(_events(found))
            return [*events, EarlierRuns((), (), tuple(paces))] if paces else events
        except Exception:  # the jobs are submitted, and do without
            log.exception("earlier runs were not found")
            return []

    @property
    def _device(self) -> str:
        return f"cpu x{self._cores}" if self._kind == "cpu" else self._kind

    def note_paces(self, paces: Iterable[EarlierPace]) -> None:
        """Note how fast trainings were beside others, which is kept once it is committed; the newest note counts."""
        if self._writer is not None:
            owner, now = this_user(), time.time()
            self._noted += [PastPace(owner, self._device, one, now) for one in paces if one.seconds >= MIN_MEASURED]

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
            self._writer.add([one for one in due if isinstance(one, PastRun)])
            if paces := [one for one in due if isinstance(one, PastPace)]:
                self._writer.add_paces(paces)
        except (sqlite3.Error, ValueError) as error:
            log.warning("%d runs and paces were not kept in %s: %s", len(due), self._path, error)

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
