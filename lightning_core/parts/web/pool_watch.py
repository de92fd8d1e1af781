"""Watches a pool for all open pages: one request at a time, however many pages there are.

A thread asks the pool for the status of its jobs; pages fetch the changes since their last look. So neither an unread
page nor a hundred pages cost the pool anything more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lightning_core.core.answers import JobStatus
from lightning_core.parts.web.status_rows import key_of, same_on_page, text_of
from lightning_core.pool.pool import Pool

log = logging.getLogger(__name__)

# Seconds between two looks while pages are open, and while none is. A look takes longer with many jobs: the pause
# between two is at least this many times the duration of one.
LOOK, IDLE_LOOK, PER_LOOK = 1.0, 10.0, 10.0
# Seconds between two looks at data that changes seldom: settings, devices, nodes of a market.
ABOUT = 5.0
# Numbers of changes of which removed jobs are remembered; a page that is further behind gets all rows again.
MAX_REMOVED = 10_000


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job in the list."""

    version: int
    """Number of its last change."""
    status: JobStatus
    text: str
    """The row as JSON."""


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool as it was seen last. It is never changed: the next look makes another one."""

    version: int = 0
    now: float = 0.0
    """Scheduler time in seconds."""
    offset: float = 0.0
    """Seconds to add to scheduler time for the time since the epoch."""
    rows: Mapping[str, ListedJob] = field(default_factory=dict)
    """Rows by key, in the order of submission."""
    removed: tuple[tuple[int, str, JobStatus], ...] = ()
    """The jobs that the pool has forgotten: number of that change, key, and the job as it was seen last."""
    complete_from: int = 0
    """Number of the change from which ``removed`` has all."""
    about: Mapping[str, Any] = field(default_factory=dict)
    about_version: int = 0
    trouble: str = ""
    """Reason why the pool does not answer; empty if it does."""

    def statuses(self) -> Iterable[JobStatus]:
        """Return every job in the order of submission."""
        return (row.status for row in self.rows.values())

    @property
    def devices(self) -> int:
        """Number of devices of the pool; 0 while it is not known."""
        return int(self.about.get("settings", {}).get("devices", 0))

    def newest(self, name: str) -> JobStatus | None:
        """Return the newest job of a name; None if there is none."""
        found = [status for status in self.statuses() if status.name == name]
        return found[-1] if found else None


class PoolWatch:
    """Looks at a pool.

    Args:
        pool: The pool; only this object may use it.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.view = PoolSnapshot()
        self._viewers = 0
        self._wanted = threading.Event()
        self._stop = threading.Event()
        self._about_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="pool-watch", daemon=True)

    def start(self) -> None:
        """Look once, then continue in a thread.

        Raises:
            ConnectionError: If the pool does not answer.
        """
        self._take_a_look()
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> PoolWatch:
        """Count a page that is open; on exit it is closed."""
        self._viewers += 1
        self._wanted.set()
        return self

    def __exit__(self, *_: object) -> None:
        self._viewers -= 1

    @property
    def viewers(self) -> int:
        """Number of pages that are open."""
        return self._viewers

    def look_soon(self) -> None:
        """Look at once: a user has changed something."""
        self._about_at = float("-inf")
        self._wanted.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self._wanted.clear()
            self.look()
            took = time.monotonic() - began
            self._stop.wait(PER_LOOK * took)
            self._wanted.wait(max(LOOK - took, 0.0) if self._viewers else IDLE_LOOK)

    def look(self) -> None:
        """Look at the pool once; if it does not answer, the view says so."""
        try:
            self._take_a_look()
        except Exception as error:  # whatever the error, the page shows it, and the next look may succeed
            if not isinstance(error, ConnectionError):
                log.exception("a look at the pool failed")
            self.view = replace(self.view, version=self.view.version + 1, trouble=str(error))

    def _take_a_look(self) -> None:
        before = self.view
        now, jobs = self._pool.look()
        version, rows = before.version + 1, dict[str, ListedJob]()
        for job in jobs:
            key = key_of(job)
            row = before.rows.get(key)
            if row is None or not same_on_page(row.status, job, now):
                row = ListedJob(version, job, text_of(job, now))
            rows[key] = row
        gone = [(version, key, row.status) for key, row in before.rows.items() if key not in rows]
        removed, complete_from = (*before.removed, *gone), before.complete_from
        if len(removed) > MAX_REMOVED:
            complete_from, removed = removed[-MAX_REMOVED][0], removed[-MAX_REMOVED:]
        about, about_version = before.about, before.about_version
        if time.monotonic() - self._about_at >= ABOUT:
            self._about_at = time.monotonic()
            if (told := self._pool.about()) != about:
                about, about_version = told, version
        self.view = PoolSnapshot(version, now, time.time() - now, rows, removed, complete_from, about, about_version)
