"""The history of a pool as its journal grows: read once, then followed.

The journal is read in a thread of its own, and only while a page is open; new events also before a page is drawn, so
that a page shows the effect of an action at once. Pages are drawn under a lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lightning_core.history.forecasts import fill_in, seconds_again
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.history.moments import FinishForecast
from lightning_core.parts.web.pool_watch import PoolWatch
from lightning_core.parts.web.status_rows import key_of
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError, reading

log = logging.getLogger(__name__)

# Seconds between two looks at the journal while a page is open, after which one is given up that a page waits for, and
# for which the last one is new enough for a page.
FOLLOW, PATIENCE, FRESH = 2.0, 60.0, 0.5
# Forecasts from before are computed again if that takes at most this many seconds.
AGAIN_SECONDS = 2.0
# Forecasts that are kept of a job; of more, every second one goes.
MAX_FORECASTS = 24
# A forecast is kept if its end differs from the last one by this part of the time to it.
NEW_FORECAST = 0.02


class LiveHistory:
    """The history of a pool.

    Args:
        path: Path of the pool's journal.
        watch: Watcher of the pool, whose forecasts are kept.
    """

    def __init__(self, path: Path, watch: PoolWatch) -> None:
        self._path, self._watch = path, watch
        self._lock, self._looking, self._looked_at = threading.RLock(), threading.Lock(), float("-inf")
        self._history: History | None = None
        self._read_to: tuple[int, str] = (0, "")
        self._forecasts: dict[str, list[FinishForecast]] = {}
        self._known = threading.Event()
        self._stop, self._wanted = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-history", daemon=True)
        self.trouble = ""
        """Reason why the journal cannot be read; empty if it can."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def reading(self, fresh: float = FRESH) -> Iterator[History]:
        """Give the current history; it does not change until the block ends.

        Args:
            fresh: Age in seconds at which the last state is still new enough.

        Raises:
            TimeoutError: If the journal has not been read in time.
        """
        self._wanted.set()
        if not self._known.wait(PATIENCE):
            raise TimeoutError(self.trouble or "the journal of this pool is long, and is being read; try again soon")
        with suppress(JournalError, OSError):  # the thread reports it, and the last state is shown
            self.catch_up(fresh)
        with self._lock:
            assert self._history is not None
            yield self._history

    def job(
        self, history: History, name: str, run_number: int | None, sees: Callable[[str], bool]
    ) -> tuple[int, JobHistory] | None:
        """Return the index and the history of a job, with its forecasts; None if there is no such job to see.

        Args:
            history: The history, which is being read.
            name: Name of the job.
            run_number: Number of the job among those of its name; None for the newest.
            sees: Whether the reader may see the jobs of an owner: a name may have been another's before.
        """
        found = [(index, job) for index, job in enumerate(history.jobs) if job.name == name]
        found = [one for one in found if run_number is None or one[1].run_number == run_number]
        if not found or not sees(found[-1][1].job.owner):
            return None
        index, job = found[-1]
        for made in self._forecasts.get(f"{job.name}@{job.submitted!r}", ()):
            if not job.forecasts or made.time > job.forecasts[-1].time:
                job.forecasts.append(made)
        del job.forecasts[: max(len(job.forecasts) - MAX_FORECASTS, 0)]
        return index, job

    def catch_up(self, fresh: float = 0.0) -> None:
        """Read the new events of the journal.

        Args:
            fresh: Age in seconds at which the last state is still new enough.

        Raises:
            JournalError: If it is missing or damaged.
        """
        with self._looking:
            began = time.monotonic()
            if began - self._looked_at >= fresh:
                self._catch_up()
                self._looked_at = began

    def _catch_up(self) -> None:
        with Journal.open(self._path, read_only=True) as journal, reading(self._path):
            number, digest = self._read_to
            history = self._history
            try:
                if history is None:
                    raise JournalError("nothing has been read")
                for entry in journal.entries_behind(number, digest):
                    with self._lock:
                        history.take_entry(entry)
                    number, digest = entry.number, entry.digest
                    self._read_to = number, digest
            except JournalError:  # another journal, or its events have been thinned since
                self._read_all(journal)
        self._keep_forecasts()
        self._known.set()

    def _read_all(self, journal: Journal) -> None:
        history, number = History(journal.settings()), 0
        history.part_of = journal.part_of
        for entry in journal.entries():
            history.take_entry(entry)
            number = entry.number
            if self._stop.is_set():
                return
        if seconds_again(history) <= AGAIN_SECONDS:
            fill_in(journal, history)
        with self._lock:
            self._history, self._read_to = history, (number, journal.digest_at(number))

    def _keep_forecasts(self) -> None:
        view = self._watch.view
        for status in view.statuses():
            if status.finish is None or status.finished_at is not None:
                continue
            kept = self._forecasts.setdefault(key_of(status), [])
            made = FinishForecast(view.now, *status.finish, "" if status.like is None else str(status.like))
            if not kept or abs(kept[-1].likely - made.likely) > NEW_FORECAST * max(made.likely - view.now, 1.0):
                kept.append(made)
            if len(kept) > MAX_FORECASTS:
                del kept[::2]
        for key in self._forecasts.keys() - view.rows.keys():
            del self._forecasts[key]

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wanted.clear()
            try:
                self.catch_up()
                self.trouble = ""
            except Exception as error:  # whatever the error, the page shows it
                if not isinstance(error, JournalError | OSError):
                    log.exception("the journal could not be followed")
                self.trouble = str(error)
            self._stop.wait(FOLLOW)
            if not self._watch.viewers:
                self._wanted.wait()
