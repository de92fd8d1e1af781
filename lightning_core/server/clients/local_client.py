"""A scheduler in the process of a Trainer, without Ray: the same forecasts and verdicts."""

from __future__ import annotations

import threading
from pathlib import Path

from lightning_core.core.answers import Answer, Directive, End, JobForecast, JobStatus, JoinReply
from lightning_core.core.events import Event, Report, Submit, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.protocols import JoinRefusedError
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host


class LocalClient:
    """A client with a scheduler of its own; implements :class:`lightning_core.core.protocols.Client`.

    Args:
        settings: Settings of the scheduler; None for the defaults.
        journal: Path of the journal; None for no journal.
        history: Folder of the store of earlier runs, created if it does not exist; None to remember no run.

    Example::

        >>> from lightning_core.core.targets import BatchTarget
        >>> client = LocalClient()
        >>> client.join(Job("a", deadline=60.0, target=BatchTarget(2)), device="cpu").incarnation
        1
        >>> client.report(Report("a", 1, number=1, version=0, batches=2, busy=0.1)).verdict
        <Verdict.MET: 'met'>
    """

    report_period = 0.0

    def __init__(
        self, settings: Settings | None = None, journal: Path | None = None, history: Path | None = None
    ) -> None:
        self._host = Host(settings or Settings(), journal, history=history)
        self._news = threading.Condition()  # reentrant

    def join(self, job: Job, device: str) -> JoinReply:
        """Add a job, alone on the device; its deadline counts from now."""
        with self._news:
            self._host.runs.set_devices([device])
            self.event(Submit((job,)))
            if isinstance(directive := self._host.scheduler.directive(job.name), End):
                raise JoinRefusedError(f"{job.name}: {directive.reason}")
            return JoinReply(self._host.scheduler.incarnation(job.name), ())

    def report(self, report: Report) -> Directive | None:
        with self._news:
            return self._host.directive_for(report, self.event(report))

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        with self._news:
            until = self._host.now() + timeout
            while (directive := self._host.newer(job, version)) is None and (left := until - self._host.now()) > 0:
                wakeup = self._host.seconds_to_wakeup()
                self._news.wait(left if wakeup is None else min(left, wakeup))
                self._host.catch_up()
            return directive

    def job_forecast(self, job: str) -> JobForecast | None:
        with self._news:
            return self._host.scheduler.job_forecast(job)

    def left(self, event: WorkerExited) -> None:
        self.event(event)

    def event(self, event: Event) -> list[Answer]:
        """Pass an event to the scheduler, from any thread: a report, or a command."""
        with self._news:
            if answers := self._host.handle(event):
                self._news.notify_all()
            return answers

    def status(self) -> list[JobStatus]:
        """Return the status of every job as of now."""
        with self._news:
            self._host.catch_up()
            return self._host.scheduler.status()

    def close(self) -> None:
        """Close the journal, if there is one."""
        with self._news:
            self._host.close()
