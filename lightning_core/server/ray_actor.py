"""The scheduler in a Ray actor.

Rules

1. A plain async actor without concurrency groups: one event loop, so one call at a time touches the scheduler.
2. Its process imports neither torch nor lightning, so that it answers again within seconds after a kill.
3. ``__init__`` does not raise, or Ray would never restart the actor: if the journal cannot be read, or another
   scheduler writes it, every call fails with the reason. A lock keeps the actor the only writer of its journal.
4. Calls can be repeated: a report is identified by (job, incarnation, number), a submission by its names.
5. The actor owns no placement group and no worker: if it dies, training continues. 6. A thread commits events, many at
   a time. Answers leave after the commit (:mod:`.load.group_commit`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightning_core.core.answers import Answer, Directive, JobForecast, JobStatus, JoinReply
from lightning_core.core.commands import Command
from lightning_core.core.events import Event, PartEvent, Report, Submit, WorkerExited, WorkersLost
from lightning_core.core.jobs import Job
from lightning_core.core.parts import group_of
from lightning_core.scheduler.reports import unknown_job
from lightning_core.scheduler.settings import Settings
from lightning_core.server.access.groups import GroupSocket
from lightning_core.server.access.guard import Guard
from lightning_core.server.access.people import POOL, Person
from lightning_core.server.counters import journal_bytes
from lightning_core.server.host import Host
from lightning_core.server.load.group_commit import GroupCommit
from lightning_core.server.load.long_polling import LongPolling
from lightning_core.server.load.report_period import ReportPeriod
from lightning_core.server.load.wakeups import Wakeups
from lightning_core.server.notifications import Notifier
from lightning_core.server.pool_calls import PoolCalls
from lightning_core.server.server import SocketServer
from lightning_core.server.sessions import Sessions
from lightning_core.storage.job_specs import LaunchSpec, store
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.journals.journal_lock import lock_journal

# Seconds that the last notifications have to leave when the pool closes.
DRAIN_SECONDS = 2.0


class SchedulerActor(PoolCalls):
    """Hosts the scheduler; created by :func:`~lightning_core.server.start_scheduler.start_scheduler`.

    Args:
        settings: Settings of the scheduler, as a dictionary.
        folder: Folder of the pool, with the journal, from which the actor resumes if it exists, and the jobs' specs.
        socket: Path of the socket for scripts and commands; empty for none.
        on_verdict: Command or webhook to notify when a verdict changes.
        group: Socket for the members of a group; None for none.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        folder: str,
        socket: str = "",
        on_verdict: Mapping[str, Any] | None = None,
        group: GroupSocket | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._trouble: str | None = None
        self._opening: asyncio.Task[None] | None = None
        self._server = SocketServer(self, Path(socket), group) if socket else None
        self._notifier = Notifier(on_verdict or {}, self._is_in_group)
        self._launching = asyncio.Lock()
        self._sessions = Sessions(lambda: self._host.scheduler, self._decide)
        self._guard = Guard(lambda: self._host.scheduler)
        try:
            self._lock = lock_journal(self._folder / "journal.lock")
            self._host = Host(Settings(**settings), self._folder / "journal.db", history=self._folder)
        except JournalError as error:
            self._trouble = str(error)
        except Exception as error:
            self._trouble = f"{type(error).__name__}: {error}"
        if self._trouble is None:
            self._commits = GroupCommit(self._host, self._pass_on)
            self._report_period = ReportPeriod(self._commits.lag)
            self._long_polling = LongPolling(self._host, self._commits)
            self._wakeups = Wakeups(self._host, self._commits, self._handle)
            # Ray restarts the actor silently, and refuses its calls of itself until the restart is known; scripts can
            # connect only once the socket server is open.
            with contextlib.suppress(RuntimeError):  # no event loop: its creator calls it
                self._opening = asyncio.get_running_loop().create_task(self._open())

    # ------------------------------------------------------------------------------------------------ for workers

    async def report(
        self, report: Report, connection: int | None = None, person: Person = POOL
    ) -> tuple[Directive | None, float]:
        """Handle a report; return the newest directive of its job, if it is newer than the sender's.

        Returns:
            The directive, and the seconds that should lie between two reports, 0 for any number.
        """
        return await self.event(report, connection, person), self._report_period()

    async def event(self, event: Event, connection: int | None = None, person: Person = POOL) -> Directive | None:
        """Handle an event and return the newest directive of its job, if it is newer than the sender's."""
        await self._ready()
        self._guard.check(event, person)
        if isinstance(event, Report | WorkerExited):
            if not self._guard.may_report(event.job, person):
                return unknown_job(event.job) if isinstance(event, Report) else None
            if connection is not None:
                self._sessions.check_reporter(event, connection)
        directive = None
        if isinstance(event, Report):
            directive = self._host.directive_for(event, self._decide(event))
        elif isinstance(event, Command):
            self._host.scheduler.check_command(event, self._host.now())
            self._decide(event)
        else:
            if isinstance(event, PartEvent):
                self._host.scheduler.check_part_event(event, self._host.now())
            self._decide(event)
            if isinstance(event, WorkersLost):
                self._sessions.await_reconnections()
        await self._commits.settled()
        return directive

    async def wait(self, job: str, version: int, timeout: float, person: Person = POOL) -> Directive | None:
        """Return the directive of a job once it is newer than ``version``; None after ``timeout`` seconds."""
        await self._ready()
        if not self._guard.sees(job, person):
            raise RuntimeError(f"no job {job!r}")  # a script may join again
        directive = await self._long_polling.directive(job, version, timeout)
        return directive if self._guard.sees(job, person) else None

    async def job_forecast(self, job: str, person: Person = POOL) -> JobForecast | None:
        await self._ready()
        sees = partial(self._guard.sees, job, person)
        return await self._commits.read(lambda: self._host.scheduler.job_forecast(job) if sees() else None)

    # ------------------------------------------------------------------------------------------------ for scripts

    async def join(
        self, job: Job, device: str, incarnation: int | None, connection: int, person: Person = POOL
    ) -> JoinReply:
        """Add the job of a script, or recognise it when the script reconnects.

        Args:
            job: Job to submit.
            device: ``"cpu"``, or the UUID of the GPU that the script trains on.
            incarnation: Incarnation that the script was given before, if it reconnects.
            connection: Number of the connection that reports for the job from now on.
            person: Person whose script it is.

        Raises:
            JoinRefusedError: If its name is taken, or its device is not one of the pool's.
        """
        await self._ready()
        await self._wakeups.begun()
        continues = partial(self._guard.may_continue, job.name, person)
        reply = self._sessions.join(job, device, incarnation, connection, continues)
        await self._commits.settled()
        return reply

    async def disconnected(self, connection: int) -> None:
        """Take note that a connection has closed."""
        self._sessions.disconnected(connection)

    async def heartbeat(self, first: int) -> None:
        """Take note that a proxy is alive whose connections are numbered from ``first``."""
        await self._ready()
        self._sessions.heartbeat(first)

    # ------------------------------------------------------------------------------------------------ for users

    async def submit(self, jobs: tuple[Job, ...]) -> None:
        """Add jobs."""
        await self._ready()
        await self._wakeups.begun()
        await self._handle(Submit(jobs))

    async def launch(self, specs: Sequence[LaunchSpec]) -> None:
        """Submit jobs that the pool manager launches from their specs.

        Args:
            specs: Specs, each with the job and the data for its workers.

        Raises:
            ValueError: If a name is taken or a spec is invalid; then no job is submitted.
            OSError: If the specs cannot be written; then no job is submitted.
        """
        await self._ready()
        await self._wakeups.begun()
        async with self._launching:  # a slow disk must not block the event loop
            taken = set(self._host.scheduler.names(active=True))
            await self._handle(Submit(await asyncio.to_thread(store, specs, self._folder, taken)))

    async def status(self) -> tuple[float, list[JobStatus]]:
        """Return the scheduler time, and the status of every job as of the last event."""
        await self._ready()
        return await self._commits.read(lambda: (self._host.now(), self._host.status()))

    async def ends(self) -> dict[str, float | None]:
        """Return for each job the seconds since its end; None for one that has not ended."""
        now, jobs = await self.status()
        return {job.name: None if job.finished_at is None else now - job.finished_at for job in jobs}

    async def job(self, name: str, person: Person = POOL) -> Job:
        """Return a job with its current terms."""
        await self._ready()

        def read() -> Job:
            self._guard.check_known(name, person)
            return self._host.scheduler.job(name)

        return await self._commits.read(read)

    async def throughputs(self, name: str) -> dict[int, float]:
        """Return the expected batches per second of a job by number of devices; empty while unknown."""
        await self._ready()
        self._known(name)
        speed = await self._commits.read(lambda: self._host.scheduler.speedup(name))
        return {size: speed.throughput(size) for size in speed.sizes} if speed.known else {}

    async def about(self) -> dict[str, Any]:
        """Return a description of the pool: process id, folder, devices and those lost, settings, shares."""
        await self._ready()
        devices, scheduler = [name for name, _ in self._sessions.devices], self._host.scheduler
        return {
            "pid": os.getpid(), "folder": str(self._folder), "devices": devices,
            "kinds": list(scheduler.kinds),
            "unavailable": self._unavailable(), "manager_silent": self._manager_silent_for(),
            "settings": scheduler.settings.to_dict(), "failed": dict(scheduler.failed_parts),
            "controllers": scheduler.describe_controllers(), "shares": scheduler.shares(),
            "waiting": self._sessions.waiting(),
        }  # fmt: skip

    async def counters(self) -> dict[str, Any]:
        """Return the counters of this process since its start, with the size of the journal and its connections."""
        await self._ready()
        counted = {"journal_bytes": journal_bytes(self._folder / "journal.db")}
        return self._host.counters.to_dict() | counted | (self._server.counters() if self._server else {})

    async def pid(self) -> int:
        """Return the id of the actor's process; like every call, this opens the socket server first."""
        await self._ready()
        return os.getpid()

    async def close(self) -> None:
        """Stop the timer and close the journal; every later call fails."""
        if self._server is not None:
            await self._server.close()
        self._sessions.close()
        if self._trouble is None:
            self._trouble = "the scheduler is closed"
            self._wakeups.close()
            await self._commits.close()
            self._host.close()
            os.close(self._lock)
            await asyncio.to_thread(self._notifier.drain, DRAIN_SECONDS)

    # ------------------------------------------------------------------------------------------------ within

    async def _ready(self) -> None:
        if self._trouble is None and (self._opening is None or not self._opening.done()):
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open())
            await asyncio.shield(self._opening)  # the caller may disconnect
        if self._trouble is not None:
            raise RuntimeError(self._trouble)

    async def _open(self) -> None:
        try:
            if self._server is not None:
                await self._server.open()
        except OSError as error:
            self._trouble = f"the socket server cannot be opened: {error}"
            return
        self._wakeups.start()
        self._sessions.await_reconnections()

    def _known(self, job: str) -> None:
        self._guard.check_known(job, POOL)

    async def _handle(self, event: Event) -> None:
        """Handle an event; return once it is committed."""
        self._decide(event)
        await self._commits.settled()

    def _decide(self, event: Event) -> list[Answer]:
        """Handle an event and return its answers, which must not leave before they are committed."""
        if self._trouble is not None:
            raise RuntimeError(self._trouble)
        answers = self._host.decide(event)
        self._commits.add(answers, event)
        self._wakeups.look()
        return answers

    def _is_in_group(self, job: str) -> bool:
        scheduler = self._host.scheduler
        return scheduler.directive(job) is not None and group_of(scheduler.job(job).parts) is not None

    def _pass_on(self, answers: Sequence[Answer], event: Event | None) -> None:
        self._notifier.tell(answers)
        self._long_polling.notify(answers, event)
