"""Between the training thread, which must not wait, and the scheduler, which may be slow, restarting or gone.

The training thread stores its progress and reads the newest directive known: attributes, no lock. One daemon thread
keeps one call in flight, about five a second, each with all that has gathered, and fewer while nothing moves: calls
of those that wait for their turn would cost the one whose turn it is. While the job is held it waits for news with one
long call instead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from lightning_core.protocols import Client
from lightning_core.types import Cell, Directive, Report

log = logging.getLogger(__name__)

# A scheduler that is away is asked again so often, seconds.
RETRY = 0.5


class Mailbox:
    """One job's post.

    Args:
        client: how to reach the scheduler.
        job: its name.
        incarnation: which life of the job this is.
        period: seconds between two reports; twice that while there is no progress.
        patience: seconds that one call for news lasts while the job is held.
    """

    def __init__(
        self, client: Client, job: str, incarnation: int = 1, period: float = 0.2, patience: float = 10.0
    ) -> None:
        self.progress: tuple[int, float, int] = (0, 0.0, 0)
        """Batches, busy seconds and losses kept out, since the job began; stored whole, so read whole."""
        self.began = 0
        """Batches done before this worker began: where a run was resumed."""
        self.directive: Directive | None = None
        """The newest known."""
        self.parked_at: Directive | None = None
        """The directive under which the training thread waits for another, and nothing moves."""
        self._client = client
        self._job = job
        self._incarnation = incarnation
        self._period = period
        self._patience = patience
        self._cells: deque[Cell] = deque()
        self._news = threading.Condition()
        self._hurry = threading.Event()
        self._closing = False
        self._until = 0.0
        self._number = 0
        self._sent: tuple[int, float, int] | None = None
        self._away = False
        self._thread = threading.Thread(target=self._run, name=f"mailbox {job}", daemon=True)
        self._thread.start()

    def add(self, cell: Cell) -> None:
        """A cell to deliver; kept until it is known to have arrived."""
        self._cells.append(cell)

    def wait(self, known: Directive | None, timeout: float) -> None:
        """Returns when there is a directive other than ``known``, or after ``timeout`` seconds."""
        with self._news:
            if self.directive is known:
                self._news.wait(timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Delivers what is left, if the scheduler answers in time."""
        self._until = time.monotonic() + timeout
        self._closing = True
        self._hurry.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            closing = self._closing
            try:
                self._deliver()
                if closing:
                    return
                if self._parked():
                    self._listen()
                if self._away:
                    log.warning("%s: the scheduler is back", self._job)
                    self._away = False
            except Exception as error:  # whatever a client raises is no reason for training to stop
                if not self._away:
                    log.warning("%s: the scheduler does not answer, training goes on: %s", self._job, error)
                    self._away = True
                if closing and time.monotonic() > self._until:
                    return
                self._hurry.clear()
                self._hurry.wait(RETRY)
            if not self._parked() and not self._hurry.wait(self._period) and self.progress == self._sent:
                self._hurry.wait(self._period)
            self._hurry.clear()

    def _deliver(self) -> None:
        cells = tuple(self._cells)
        self._sent = batches, busy, rejected = self.progress
        version = -1 if self.directive is None else self.directive.version
        self._number += 1
        report = Report(self._job, self._incarnation, self._number, version, batches, busy, cells, rejected, self.began)
        self._take(self._client.report(report))
        for _ in cells:
            self._cells.popleft()

    def _parked(self) -> bool:
        # Not a flag that the training thread takes back: it may not have run since the news came that wakes it.
        return self.parked_at is not None and self.parked_at is self.directive

    def _listen(self) -> None:
        version = -1 if self.directive is None else self.directive.version
        self._take(self._client.wait(self._job, version, self._patience))

    def _take(self, directive: Directive | None) -> None:
        if directive is not None:
            with self._news:
                self.directive = directive
                self._news.notify_all()
