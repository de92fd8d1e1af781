"""The scheduler in a Ray actor, and the client that speaks with it.

Rules

1. A plain async actor without concurrency groups: one event loop, so one call at a time touches the scheduler.
2. Its process imports neither torch nor lightning: after a kill it answers again in seconds.
3. ``__init__`` does not raise, or Ray would never start the actor again: a journal that cannot be read is told to
   whoever asks.
4. Whoever calls may call again: a report is known by (job, incarnation, number), a submission by its names.
5. The actor owns nothing: no placement group, no worker. If it dies, the training does not.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from lightning_core.drivers.host import Host
from lightning_core.journal import JournalError
from lightning_core.scheduler import Settings
from lightning_core.types import Cancel, Directive, Event, Job, JobStatus, Report, Submit, WorkerLeft

NAMESPACE = "lightning_core"
# Ray makes the methods of a handle when it runs: no checker knows them.
Actor = Any
# A call that takes longer than this is given up and repeated; the actor is back from a kill well within it.
CALL_TIMEOUT = 10.0


class SchedulerActor:
    """Hosts the scheduler. Create it with :func:`start_scheduler`.

    Args:
        settings: of the scheduler, as a dictionary.
        journal: path of the journal; if it exists, the actor goes on where it ends.
    """

    def __init__(self, settings: Mapping[str, Any], journal: str) -> None:
        self._trouble: str | None = None
        self._news: dict[str, asyncio.Event] = {}
        self._woken = asyncio.Event()
        self._timer: asyncio.Task[None] | None = None
        try:
            self._host = Host(Settings(**settings), Path(journal))
        except (JournalError, ValueError) as error:
            self._trouble = str(error)

    async def submit(self, jobs: tuple[Job, ...]) -> None:
        self._handle(Submit(jobs))

    async def report(self, report: Report) -> Directive | None:
        answer = self._handle(report)
        # A job that is not known, or an incarnation that is over, is answered and not remembered.
        unknown = [d for d in answer if d.job == report.job and d.version == 0]
        return unknown[0] if unknown else self._host.newer(report.job, report.version)

    async def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        self._ready()
        news = self._news.setdefault(job, asyncio.Event())
        directive = self._host.newer(job, version)
        if directive is None:
            news.clear()
            try:
                await asyncio.wait_for(news.wait(), timeout)
            except TimeoutError:
                return None
            directive = self._host.newer(job, version)
        return directive

    async def left(self, event: WorkerLeft) -> None:
        self._handle(event)

    async def cancel(self, jobs: tuple[str, ...]) -> None:
        for job in jobs:
            self._handle(Cancel(job))

    async def status(self) -> tuple[float, list[JobStatus]]:
        """Scheduler time, and every job as of the last event."""
        self._ready()
        return self._host.now(), self._host.scheduler.status()

    async def pid(self) -> int:
        """Of the actor's process."""
        return os.getpid()

    async def close(self) -> None:
        """Ends the timer and closes the journal; the actor is of no use afterwards."""
        if self._timer is not None:
            self._timer.cancel()
        if self._trouble is None:
            self._host.close()
            self._trouble = "the scheduler is closed"

    def _ready(self) -> None:
        if self._trouble is not None:
            raise RuntimeError(self._trouble)
        if self._timer is None or self._timer.done():
            self._timer = asyncio.get_running_loop().create_task(self._keep_time())

    def _handle(self, event: Event) -> list[Directive]:
        self._ready()
        directives = self._host.handle(event)
        self._tell(directives)
        self._woken.set()
        return directives

    def _tell(self, directives: list[Directive]) -> None:
        for directive in directives:
            if (news := self._news.get(directive.job)) is not None:
                news.set()

    async def _keep_time(self) -> None:
        """Wakes the scheduler when it wants to be woken."""
        while True:
            self._tell(self._host.catch_up())
            self._woken.clear()
            try:
                await asyncio.wait_for(self._woken.wait(), self._host.seconds_to_wakeup())
            except TimeoutError:
                continue


def start_scheduler(name: str, settings: Settings, journal: Path) -> Actor:
    """A named, detached scheduler that Ray starts again whenever it dies; the one of that name if there is one."""
    actor: Any = ray.remote(SchedulerActor)
    return actor.options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        num_cpus=0,
    ).remote(settings.to_dict(), str(journal))


class RayClient:
    """Speaks with a scheduler in a Ray actor, from inside the cluster.

    Args:
        name: of the actor.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._actor: Actor | None = None

    def report(self, report: Report) -> Directive | None:
        answer: Directive | None = self._call("report", report)
        return answer

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        answer: Directive | None = self._call("wait", job, version, timeout, patience=timeout + CALL_TIMEOUT)
        return answer

    def left(self, event: WorkerLeft) -> None:
        self._call("left", event)

    def _call(self, method: str, *args: Any, patience: float = CALL_TIMEOUT) -> Any:
        try:
            if self._actor is None:
                self._actor = ray.get_actor(self._name, namespace=NAMESPACE)
            return ray.get(getattr(self._actor, method).remote(*args), timeout=patience)
        except (RayError, GetTimeoutError, ValueError) as error:
            raise ConnectionError(f"scheduler {self._name}: {type(error).__name__}: {error}") from error
