"""Passes reports and directives between the training thread, which never waits, and a scheduler that may be away.

The training thread stores its progress and reads the newest directive: attributes, without a lock. A daemon thread
joins the pool and reports about five times a second, less often without progress: in a process that waits for its turn,
calls would cost the process whose turn it is. While the job is held, the thread waits for news with one long call
instead. A launched job waits for news in a second thread all the time, because it may be moved while it trains and
other jobs wait for the devices that it leaves. So does any job from when the scheduler first asks for fewer reports.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from lightning_core.agent.reporting.forecast_watch import ForecastWatch
from lightning_core.agent.reporting.hang_watch import HangWatch
from lightning_core.agent.reporting.inbox import Inbox
from lightning_core.agent.reporting.joining import Connect, JoinDeferredError, SchedulerConnection
from lightning_core.agent.reporting.memory_meter import MemoryMeter
from lightning_core.agent.reporting.outbox import Outbox
from lightning_core.agent.reporting.rank_memory import RankMemory
from lightning_core.agent.reporting.rank_watch import RankWatch
from lightning_core.agent.reporting.use_meter import UseMeter
from lightning_core.core.answers import End, Grant, JobForecast
from lightning_core.core.events import Cell, Checkpoint, WorkerExited
from lightning_core.core.limits import MAX_REPORTED_CELLS
from lightning_core.core.protocols import JoinRefusedError
from lightning_core.view.console_lines import inform, logger

log = logger(__name__)

# Seconds until a scheduler that is away is called again: doubled after each failure, from the first to the second.
MIN_RETRY_DELAY, MAX_RETRY_DELAY = 0.5, 4.0
# Seconds that one call for news lasts while the job trains.
LISTEN_TIMEOUT = 10.0
# Seconds until a pool that has refused the job is asked again.
REJOIN_PERIOD = 3.0


class Mailbox:
    """Exchanges reports and directives of one job with its scheduler.

    Args:
        connect: Returns a connection to the scheduler; called again after the scheduler was away.
        job: Name of the job.
        period: Seconds between two reports, unless the scheduler asks for more; twice that while there is no progress.
        hold_timeout: Seconds that one call for news lasts while the job is held.
        asks_forecast: Whether to ask for the forecast too, and to tell the user when the verdict changes.
        listens: Whether a second thread waits for news from the beginning.
        hangs: Watch of the training thread; None to watch nothing.
        give_up: Function that ends the process of a training that has hung for too long; it is given where the training
            thread is, and in the last line for how long. None to report that only.
        memory: Meter of the training's memory; None to measure nothing.
        ranks: Watch of the ranks; None if there is only one.
        use: Meter of what the training uses of its device; None to measure nothing.
    """

    def __init__(
        self,
        connect: Connect,
        job: str,
        period: float = 0.2,
        hold_timeout: float = 10.0,
        asks_forecast: bool = False,
        listens: bool = False,
        hangs: HangWatch | None = None,
        give_up: Callable[[str], None] | None = None,
        memory: MemoryMeter | RankMemory | None = None,
        ranks: RankWatch | None = None,
        use: UseMeter | None = None,
    ) -> None:
        self.outbox = Outbox()
        """Contents of the next report."""
        self.inbox = Inbox()
        """The newest directive."""
        self.final_forecast: JobForecast | None = None
        """Outcome of the job, once this process has left the pool."""
        self.arbiters: tuple[str, ...] = ()
        """Path of the arbiter of each device of the pool."""
        self.cores = 1
        """Cores of each device, in a pool of CPUs."""
        self.refused = ""
        """The pool's reason for refusing the job at present; empty if it does not."""
        self.hangs = hangs or HangWatch(None)
        """Watch of the training thread."""
        self._give_up = give_up
        self._memory = memory
        self._ranks = ranks
        self._use = use or UseMeter(None)
        self._connect = connect
        self._connection: SchedulerConnection | None = None
        self._job = job
        self._period = period
        self._hold_timeout = hold_timeout
        self._asks_forecast = asks_forecast
        self.forecasts = ForecastWatch(asks_forecast)
        """Forecasts of the job."""
        self._wake = threading.Event()
        self._exited: WorkerExited | None = None
        self._closing = False
        self._close_by = 0.0
        self._lost_at: float | None = None
        self._retry_delay = MIN_RETRY_DELAY
        self._numbering = self.outbox.numbering()
        self._listens = False
        self._thread = threading.Thread(target=self._run, name=f"mailbox {job}", daemon=True)
        if listens:
            self._start_listening()
        self._thread.start()

    # ------------------------------------------------------------------------------------------------ training thread

    @property
    def job(self) -> str:
        """Name under which the job has joined."""
        return self._job

    @property
    def job_forecast(self) -> JobForecast | None:
        """Newest forecast; None before there is any."""
        return self.forecasts.newest

    def begin(self, batches: int) -> None:
        """Start reporting.

        Args:
            batches: Batches that the job has done before.
        """
        self.outbox.progress = (batches, 0.0, 0)
        self._wake.set()

    def add(self, cell: Cell) -> None:
        """Add a cell to the next report."""
        self.outbox.add(cell)

    def hurry(self) -> None:
        """Report at once."""
        self._wake.set()

    def hurry_and_ask(self) -> None:
        """Report at once and then ask for the forecast."""
        self.forecasts.request()
        self._wake.set()

    def report_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Report a new checkpoint at once."""
        if checkpoint != self.outbox.checkpoint:
            self.outbox.checkpoint = checkpoint
            self.hurry()

    def silent_for(self) -> float:
        """Return the seconds since the scheduler is known to be away; 0 if it is not."""
        lost_at = self._lost_at
        return 0.0 if lost_at is None else time.monotonic() - lost_at

    def close(self, exited: WorkerExited | None = None, timeout: float = 10.0) -> None:
        """Deliver what is left, if the scheduler answers in time.

        Args:
            exited: How a process that joined by itself ended; sent with the incarnation that it was given.
            timeout: Seconds to wait at most.
        """
        self._exited = exited
        self._close_by = time.monotonic() + timeout
        self._closing = True
        self._wake.set()
        self._thread.join(timeout)

    # ------------------------------------------------------------------------------------------------ reporting thread

    def _run(self) -> None:
        while True:
            closing = self._closing
            self._look()
            try:
                connection = self._connected()
                # Before the report: the forecast is about what it says.
                forecast_wanted = self.forecasts.take_request()
                self._report(connection)
                if closing:
                    self._leave(connection)
                    return
                for watch in (self.hangs, self._ranks):
                    if watch is not None and watch.is_over and self._give_up is not None:
                        self._give_up(watch.story())
                if self.inbox.parked:
                    self.inbox.take(connection.client.wait(self._job, self.inbox.version, self._hold_timeout))
                alerts = self.outbox.bad_losses is None
                over = isinstance(self.inbox.directive, End)
                self.forecasts.poll(connection.client, self._job, now=forecast_wanted, alerts=alerts, over=over)
                self._note_return(connection)
            except JoinDeferredError as error:
                self._hold(str(error))
                if closing:
                    return  # it never joined, so there is nothing to leave
                self._wake.clear()
                self._wake.wait(REJOIN_PERIOD)
            except JoinRefusedError as error:
                log.warning("%s: no scheduler accepts the job, training continues: %s", self._job, error)
                self.inbox.set_answered()
                return
            except Exception as error:  # training never fails because of a client
                self._lose(error)
                if closing and time.monotonic() > self._close_by:
                    return
                self._wake.clear()
                self._wake.wait(self._retry_delay)
            pause = self._pause()
            if not self.inbox.parked and not self._wake.wait(pause) and not self.outbox.has_progress:
                self._wake.wait(pause)
            self._wake.clear()

    def _pause(self) -> float:
        """Return the seconds until the next report. If they are many, news are waited for meanwhile."""
        connection = self._connection
        asked = 0.0 if connection is None else connection.client.report_period
        if asked > self._period and not self._listens:
            self._start_listening()
        return max(asked, self._period)

    def _look(self) -> None:
        """Look whether the training hangs, what memory it has and what it uses of its device; log once a hang."""
        directive, before = self.inbox.directive, self.outbox.hang
        share, beside = (directive.share, directive.beside) if isinstance(directive, Grant) else (1.0, 0)
        hang = self.hangs.look(share or 1.0, beside=beside > 0)
        parted = None if self._ranks is None else self._ranks.look()
        self.outbox.hang = parted or hang
        if self._memory is not None and self.outbox.has_trained and not self.hangs.suspended:
            self.outbox.memory = self._memory.look()
        if (progress := self.outbox.progress) is not None:
            self.outbox.used = self._use.look(progress[1], alone=share == 1.0 and not beside)
        if before is None and hang is not None:
            log.warning("%s: the training hangs:\n%s", self._job, self.hangs.story())

    def _report(self, connection: SchedulerConnection) -> None:
        """Report what there is to report: after a long silence, more cells than one report may have."""
        more = True
        while more and (report := self.outbox.make_report(self._job, connection.incarnation, self.inbox.version)):
            self.inbox.take(connection.client.report(report))
            self.inbox.renumbered = False
            self.outbox.note_arrival(report)
            self.inbox.set_answered()
            more = len(report.cells) == MAX_REPORTED_CELLS

    def _start_listening(self) -> None:
        self._listens = True
        threading.Thread(target=self._listen, name=f"news of {self._job}", daemon=True).start()

    def _listen(self) -> None:
        """Wait for news in the second thread."""
        while not self._closing:
            connection = self._connection
            if connection is None or self._lost_at is not None:
                time.sleep(self._period)  # the reporting thread reconnects
                continue
            try:
                news = connection.client.wait(self._job, self.inbox.version, LISTEN_TIMEOUT)
                self.inbox.take(news)
                if news is not None:
                    self.hurry()  # the scheduler learns that it was heard
            except Exception:  # the reporting thread logs it
                time.sleep(MIN_RETRY_DELAY)

    def _connected(self) -> SchedulerConnection:
        known = self._connection
        if known is not None and self._lost_at is None and not self.refused:
            return known
        self._connection = connection = self._connect()
        self.arbiters, self.cores = connection.arbiters, connection.cores
        self._job = connection.job or self._job
        if self.refused:
            where = "without the pool" if connection.is_fallback else "in the pool, which has accepted it"
            inform(f"{self._job}: training {where}")
            self.refused = ""
        if known is not None and known is not connection:
            if connection.is_fallback:
                self._numbering = self.outbox.numbering()
            if not connection.knows:
                self.outbox.start_over()
            elif known.is_fallback:
                self.outbox.resume(self._numbering)
            self.inbox.renumbered = True
            with contextlib.suppress(OSError):
                known.client.close()
        return connection

    def _note_return(self, connection: SchedulerConnection) -> None:
        if self._lost_at is not None:
            news = "training without the pool until it is back" if connection.is_fallback else "the scheduler is back"
            log.warning("%s: %s", self._job, news)
            self._lost_at, self._retry_delay = None, MIN_RETRY_DELAY

    def _hold(self, reason: str) -> None:
        """Hold because the pool refuses the job for now; log each reason once."""
        if reason != self.refused:
            log.warning(
                "%s: the pool refuses the job: %s. Holding, and asking again every %.0f s; on_refused='rename' would "
                "choose a free name, 'alone' would train without the pool",
                self._job, reason, REJOIN_PERIOD,
            )  # fmt: skip
        self.refused, self._lost_at, self._retry_delay = reason, None, MIN_RETRY_DELAY
        self.inbox.set_answered()

    def _lose(self, error: Exception) -> None:
        if self._lost_at is None:
            log.warning("%s: the scheduler does not answer, training continues: %s", self._job, error)
            self._lost_at = time.monotonic()
            self.inbox.set_answered()
        else:
            self._retry_delay = min(2 * self._retry_delay, MAX_RETRY_DELAY)

    def _leave(self, connection: SchedulerConnection) -> None:
        if self._exited is not None:
            exited = self._exited
            connection.client.left(WorkerExited(self._job, connection.incarnation, exited.cause, exited.detail))
        if self._asks_forecast:
            with contextlib.suppress(Exception):  # the scheduler has been told, which is what counts
                self.final_forecast = connection.client.job_forecast(self._job)
        if self._exited is not None:
            with contextlib.suppress(OSError):
                connection.client.close()
