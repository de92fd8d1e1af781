"""Between the training thread, which must not wait, and the scheduler, which may be slow, restarting or gone.

The training thread stores its progress and reads the newest directive known: attributes, no lock. One daemon thread
joins the pool and keeps one call in flight, about five a second, each with all that has gathered, and fewer while
nothing moves: calls of those that wait for their turn would cost the one whose turn it is. While the job is held it
waits for news with one long call instead. A launched job always does so, in a second thread: it is told to go elsewhere
while it trains, and others wait for what it leaves.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque

from lightning_core.core.answers import Directive, End, Grant, JobForecast, Verdict
from lightning_core.core.events import BadLosses, Cell, Checkpoint, Horizon, Report, WorkerExited
from lightning_core.core.protocols import JoinRefusedError
from lightning_core.view.console_lines import inform, logger

from .joining import Connect, Connection, Refused

log = logger(__name__)

# A scheduler that is away is asked again after so many seconds, then twice as many, and so on to the most.
RETRY, MOST_RETRY = 0.5, 4.0
# Seconds that one call for news lasts while the job trains.
HEAR = 2.0
# Seconds between two questions for the forecast.
ASK = 5.0
# Seconds until a pool that has refused the job is asked again.
ASK_AGAIN = 3.0


class Mailbox:
    """One job's post.

    Args:
        connect: how to reach the scheduler; called again when it was away.
        job: its name.
        period: seconds between two reports; twice that while there is no progress.
        patience: seconds that one call for news lasts while the job is held.
        curious: whether to ask for the forecast too; its user is told when the verdict changes.
        listens: whether a second thread waits for news while the first reports; the client must bear two calls at once.
    """

    def __init__(
        self,
        connect: Connect,
        job: str,
        period: float = 0.2,
        patience: float = 10.0,
        curious: bool = False,
        listens: bool = False,
    ) -> None:
        self.progress: tuple[int, float, int] | None = None
        """Batches since the job began; busy seconds and losses kept out since this worker did. Stored as one."""
        self.evaluated = False
        """Whether each cell is a whole evaluation."""
        self.directive: Directive | None = None
        """The newest known."""
        self.parked_at: Directive | None = None
        """The directive under which the training thread waits for another, and nothing moves."""
        self.saved: Checkpoint | None = None
        """The newest checkpoint, which every report tells."""
        self.horizon: Horizon | None = None
        """Where the training ends by itself, without the seconds, which every report tells."""
        self.ends_by = math.inf
        """When a limit of time ends it, on this process's monotonic clock."""
        self.job_forecast: JobForecast | None = None
        """The newest forecast, if it is asked for."""
        self.bad: BadLosses | None = None
        """The newest run of losses that are NaN or infinite, which every report tells."""
        self.aside = True
        """Whether the training is at something else than its batches, which may take long."""
        self.last_word: JobForecast | None = None
        """What became of the job, once it has parted."""
        self.arbiters: tuple[str, ...] = ()
        """Of each device of the pool."""
        self.cores = 1
        """Of each of them, in a pool of CPUs."""
        self.refused = ""
        """Why the pool does not take the job for now, in its words; empty if it does, or there is none."""
        self._connect = connect
        self._connection: Connection | None = None
        self._job = job
        self._period = period
        self._patience = patience
        self._wants_word = False
        self._ask_at = 0.0 if curious else float("inf")
        self._cells: deque[Cell] = deque()
        self._news = threading.Condition()
        self._hurry = threading.Event()
        self._parting: WorkerExited | None = None
        self._closing = False
        self._until = 0.0
        self._began: tuple[int, float] | None = None
        self._number = 0
        self._arrived = self._before = 0
        self._sent: tuple[int, float, int] | None = None
        self._anew = False
        self._lost_at: float | None = None
        self._heard_at = time.monotonic()
        self._retry = RETRY
        self._answered = False
        self._thread = threading.Thread(target=self._run, name=f"mailbox {job}", daemon=True)
        self._thread.start()
        if listens:
            threading.Thread(target=self._hear, name=f"news of {job}", daemon=True).start()

    @property
    def job(self) -> str:
        """Name under which it has joined."""
        return self._job

    def begin(self, batches: int) -> None:
        """The run begins, or goes on after so many batches."""
        self.progress = (batches, 0.0, 0)
        self._hurry.set()

    def add(self, cell: Cell) -> None:
        """A cell to deliver; kept until it is known to have arrived."""
        self._cells.append(cell)

    def wait(self, known: Directive | None, timeout: float) -> None:
        """Returns when there is a directive other than ``known``, or after ``timeout`` seconds."""
        with self._news:
            if self.directive is known:
                self._news.wait(timeout)

    def wait_for_answer(self, timeout: float) -> None:
        """Returns when the first report was answered, or it is known why there is no answer; or after ``timeout``."""
        with self._news:
            self._news.wait_for(lambda: self._answered, timeout)

    def hurry(self) -> None:
        """What there is to report is reported at once."""
        self._hurry.set()

    def hurry_and_ask(self) -> None:
        """What there is to report is reported at once, and what is believed then is asked for."""
        self._wants_word = True
        self._hurry.set()

    def tell_saved(self, save: Checkpoint) -> None:
        """There is a new checkpoint; the scheduler hears of it at once."""
        if save != self.saved:
            self.saved = save
            self.hurry()

    def unheard_for(self) -> float:
        """Seconds since the scheduler's last word, whether or not it is known to be away: it may hang, or this process
        may have been stopped.
        """
        return time.monotonic() - self._heard_at

    def silent_for(self) -> float:
        """Seconds since the scheduler has been away; 0 if it is there."""
        lost_at = self._lost_at
        return 0.0 if lost_at is None else time.monotonic() - lost_at

    def close(self, parting: WorkerExited | None = None, timeout: float = 10.0) -> None:
        """Delivers what is left, if the scheduler answers in time.

        Args:
            parting: last words of a process that joined by itself; under whichever incarnation it had.
            timeout: in seconds.
        """
        self._parting = parting
        self._until = time.monotonic() + timeout
        self._closing = True
        self._hurry.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            closing = self._closing
            try:
                connection = self._connected()
                asked, self._wants_word = self._wants_word, False  # before what it is about is delivered
                if self.progress is not None:
                    self._deliver(connection, self.progress)
                    self._settle()
                if closing:
                    self._part(connection)
                    return
                if self._parked():
                    self._listen(connection)
                self._ask(connection, asked)
                if self._lost_at is not None:
                    words = (
                        "it goes on by itself until the pool is there again"
                        if connection.stands_in
                        else "the scheduler is back"
                    )
                    log.warning("%s: %s", self._job, words)
                    self._lost_at, self._retry = None, RETRY
            except Refused as error:
                self._hold(str(error))
                if closing:
                    return  # it was never in the pool, so there is nobody to part from
                self._hurry.clear()
                self._hurry.wait(ASK_AGAIN)
            except JoinRefusedError as error:
                log.warning("%s: no scheduler takes the job, training goes on: %s", self._job, error)
                self._settle()
                return
            except Exception as error:  # whatever a client raises is no reason for training to stop
                self._lose(error)
                if closing and time.monotonic() > self._until:
                    return
                self._hurry.clear()
                self._hurry.wait(self._retry)
            if not self._parked() and not self._hurry.wait(self._period) and self.progress == self._sent:
                self._hurry.wait(self._period)
            self._hurry.clear()

    def _hear(self) -> None:
        while not self._closing:
            connection = self._connection
            if connection is None or self._lost_at is not None:
                time.sleep(self._period)  # the other thread finds the way back
                continue
            try:
                self._take(connection.client.wait(self._job, self._version(), HEAR))
            except Exception:  # the other thread will tell
                time.sleep(RETRY)

    def _connected(self) -> Connection:
        known = self._connection
        if known is not None and self._lost_at is None and not self.refused:
            return known
        self._connection = connection = self._connect()
        self.arbiters, self.cores = connection.arbiters, connection.cores
        self._job = connection.job or self._job
        if self.refused:
            inform(f"{self._job}: it goes on" + (" by itself" if connection.stands_in else ": the pool takes it"))
            self.refused = ""
        if known is not None and known is not connection:
            if not connection.knows:
                self._start_over()
            self._anew = True
            with contextlib.suppress(OSError):
                known.client.close()
        return connection

    def _start_over(self) -> None:
        """Counts as a new incarnation does: reports and cells from 1, busy seconds from now."""
        self._number = 0
        self._before = self._arrived
        self._began = None if self.progress is None else self.progress[:2]

    def _hold(self, reason: str) -> None:
        """The pool does not take the job for now; its user is told once of each reason."""
        if reason != self.refused:
            log.warning(
                "%s: the pool refuses the job: %s. It holds and asks again every %.0f s; on_refused='rename' would "
                "take a free name, 'alone' would train beside the pool",
                self._job, reason, ASK_AGAIN,
            )  # fmt: skip
        self.refused, self._lost_at, self._retry = reason, None, RETRY
        self._settle()

    def _settle(self) -> None:
        """There is an answer, or it is known why there is none."""
        with self._news:
            self._answered = True
            self._news.notify_all()

    def _lose(self, error: Exception) -> None:
        if self._lost_at is None:
            log.warning("%s: the scheduler does not answer, training goes on: %s", self._job, error)
            self._lost_at = time.monotonic()
            self._settle()
        else:
            self._retry = min(2 * self._retry, MOST_RETRY)

    def _deliver(self, connection: Connection, progress: tuple[int, float, int]) -> None:
        waiting = tuple(self._cells)  # in one step: the training thread adds to them
        cells = tuple(cell._replace(number=cell.number - self._before) for cell in waiting)
        batches, busy, rejected = self._sent = progress
        if self._began is None:
            self._began = batches, 0.0
        began, busy_before = self._began
        self._number += 1
        report = Report(
            self._job, connection.incarnation, self._number, self._version(), batches, busy - busy_before, cells,
            rejected, began, self.evaluated, self.saved, self._horizon(),
            self.bad, self.aside,
        )  # fmt: skip
        self._take(connection.client.report(report))
        self._anew = False
        for _ in cells:
            self._cells.popleft()
        self._arrived += len(cells)

    def _horizon(self) -> Horizon | None:
        if self.horizon is None or self.ends_by == math.inf:
            return self.horizon
        return self.horizon._replace(seconds=max(self.ends_by - time.monotonic(), 0.0))

    def _part(self, connection: Connection) -> None:
        if self._parting is not None:
            left = self._parting
            connection.client.left(WorkerExited(self._job, connection.incarnation, left.cause, left.detail))
            with contextlib.suppress(Exception):  # whatever a client raises: it has heard the end, and that counts
                self.last_word = connection.client.job_forecast(self._job)
            with contextlib.suppress(OSError):
                connection.client.close()

    def _parked(self) -> bool:
        # Not a flag that the training thread takes back: it may not have run since the news came that wakes it.
        return self.parked_at is not None and self.parked_at is self.directive

    def _listen(self, connection: Connection) -> None:
        self._take(connection.client.wait(self._job, self._version(), self._patience))

    def _ask(self, connection: Connection, now: bool) -> None:
        if time.monotonic() >= (0.0 if now and self._ask_at < math.inf else self._ask_at):
            before, self.job_forecast = self.job_forecast, connection.client.job_forecast(self._job)
            self._ask_at = time.monotonic() + ASK
            alert = "" if self.job_forecast is None else self.job_forecast.alert
            if alert and not (before is not None and before.alert) and self.bad is None:  # those it has told itself
                log.warning("%s: %s", self._job, alert)
            if self.job_forecast is not None and self.job_forecast.verdict is not None:
                self._tell(self.job_forecast, None if before is None else before.verdict)

    def _tell(self, job_forecast: JobForecast, before: Verdict | None) -> None:
        words = f"{self._job}: {job_forecast.verdict}: {job_forecast.reason}"
        if job_forecast.verdict is not before and job_forecast.verdict in (Verdict.AT_RISK, Verdict.INFEASIBLE):
            log.warning(words)
        elif job_forecast.verdict is not before:
            inform(words)

    def _version(self) -> int:
        # A pool that was joined again may count its versions anew.
        return -1 if self.directive is None or self._anew else self.directive.version

    def _take(self, directive: Directive | None) -> None:
        self._heard_at = time.monotonic()
        if directive is not None:
            with self._news:
                known = self.directive
                if not self._anew and isinstance(directive, Grant) and isinstance(known, End):
                    return  # it is another life's
                if not self._anew and isinstance(known, Grant) and 0 < directive.version < known.version:
                    return  # the other thread was told more
                self.directive = directive
                self._news.notify_all()
