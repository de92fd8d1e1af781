"""Connects a process to its scheduler: a launched job is given a client, a script joins a pool."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from lightning_core.core.answers import Directive, JoinReply
from lightning_core.core.events import Report
from lightning_core.core.jobs import Job, OnRefused
from lightning_core.core.limits import MAX_NAME
from lightning_core.core.names import MAX_NAME_LENGTH
from lightning_core.core.protocols import Client, JoinRefusedError, NameTakenError
from lightning_core.errors import LightningCoreError
from lightning_core.scheduler.settings import Settings
from lightning_core.server.clients.local_client import LocalClient
from lightning_core.variables import AUTO, LOCAL
from lightning_core.view.console_lines import inform, logger

log = logger(__name__)

# Seconds that a pool may be away before a script continues without it.
POOL_TIMEOUT = 15.0
# Seconds between two checks whether such a pool is back, and whether a job that one is a part of has ended.
POOL_CHECK_PERIOD, GUEST_PERIOD = 10.0, 1.0
# Deadline in seconds with which a job joins again after its deadline has passed: a pool accepts no job without one.
MIN_DEADLINE = 1.0
# Last number that on_refused="rename" tries as the ending of a name.
MAX_NAME_NUMBER = 100


class JoinDeferredError(LightningCoreError, RuntimeError):
    """The pool refuses the job for now, and the script waits; the message is the pool's reason."""


class SchedulerConnection(NamedTuple):
    """A scheduler to which this process reports."""

    client: Client
    incarnation: int
    arbiters: tuple[str, ...] = ()
    """Path of the arbiter of each device."""
    cores: int = 1
    """Cores of each device, in a pool of CPUs."""
    knows: bool = True
    """Whether the scheduler knows what was reported over the connection before this one."""
    is_fallback: bool = False
    """Whether it only replaces a pool that is away."""
    job: str = ""
    """Name under which the job has joined, if it is not the requested one."""


Connect = Callable[[], SchedulerConnection]


class FallbackClient(LocalClient):
    """A scheduler in this process that stands for a pool for a while: forecasts and targets go on working.

    Args:
        settings: Settings of the scheduler.
        ends: Returns why the pool is to be joined now, as a sentence; empty if it is not. Called now and then.
        period: Seconds between two calls of it.
    """

    def __init__(self, settings: Settings, ends: Callable[[], str], period: float) -> None:
        super().__init__(settings)
        self._ends = ends
        self._period = period
        self._check_at = time.monotonic() + period

    @override
    def report(self, report: Report) -> Directive | None:
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + self._period
            if why := self._ends():
                raise ConnectionError(why)
        return super().report(report)


class Join:
    """Joins a pool, and joins it again after it was away.

    Without a pool, or with one that can never be joined, the job gets a scheduler in this process. A pool that was
    named, or that has answered before, is looked for until it is back; if that takes long, a scheduler in this process
    replaces it meanwhile.

    Args:
        job: Job as its user wants it.
        pool: ``"auto"``, ``"local"``, or the address of a pool.
        device: Device of the process, by the name that the pool uses.
        on_refused: What to do while the job's name is taken in the pool. If the pool refuses the job for anything
            else, the script trains alone.
        history: Folder in which runs are kept and found without a pool; None for none.
        host: Returns the job of this process, or of one that has started it, within whose grant this one trains; empty
            once there is none. Meanwhile it joins no pool: what trains might wait for what the pool holds.
    """

    def __init__(
        self,
        job: Job,
        pool: str,
        device: str,
        on_refused: OnRefused = OnRefused.HOLD,
        history: Path | None = None,
        host: Callable[[], str] = str,
    ) -> None:
        self._job = job
        self._pool = pool
        self._device = device
        self._on_refused = on_refused
        self._history = history
        self._host = host
        self._first_asked_at: float | None = None
        self._answered = False
        self._lost_at: float | None = None

    def __call__(self) -> SchedulerConnection:
        """Return a scheduler to report to.

        Raises:
            ConnectionError: If the pool does not answer.
            JoinDeferredError: If the pool refuses the job and the script is to wait.
        """
        if self._pool != LOCAL and (host := self._host()):
            inform(f"{self._job.name}: trains within the grant of {host}, which it is a part of")
            client = FallbackClient(self._settings(), lambda: "" if self._host() else f"{host} has ended", GUEST_PERIOD)
            return self._connect_locally(client)
        try:
            connection = self._join()
        except JoinDeferredError:
            self._lost_at = None
            raise
        except ConnectionError:
            self._lost_at = self._lost_at or time.monotonic()
            if time.monotonic() - self._lost_at < POOL_TIMEOUT:
                raise
            return self._connect_locally(
                FallbackClient(self._settings(), self._is_back, POOL_CHECK_PERIOD), is_fallback=True
            )
        self._lost_at = None
        return connection

    def _join(self) -> SchedulerConnection:
        client = self._connect()
        if client is not None:
            try:
                reply = self._ask(client)
                if not self._answered:
                    self._tell_pool(client)
                self._answered = True
                return SchedulerConnection(
                    client, reply.incarnation, reply.arbiters, reply.cores, reply.again, job=self._job.name
                )
            except JoinRefusedError as error:
                client.close()
                self._answered = True
                # A name becomes free; nothing else that a pool refuses a script for changes while it waits.
                if self._on_refused is not OnRefused.ALONE and isinstance(error, NameTakenError):
                    raise JoinDeferredError(str(error)) from None
                log.warning("%s: the pool refuses the job, training without it: %s", self._job.name, error)
                self._pool = LOCAL
        return self._connect_locally(LocalClient(self._settings(), history=self._history))

    def _tell_pool(self, client: Client) -> None:
        """Log which pool was found, if the user has not named it."""
        from lightning_core.server.clients.socket_client import SocketClient
        from lightning_core.server.discovery import describe, is_found

        if is_found(self._pool) and isinstance(client, SocketClient):
            with suppress(ConnectionError):  # a log message must not stop a training
                inform(f"{self._job.name}: joined {describe(client.about())}; pool='local' or "
                               "LIGHTNING_CORE_POOL=local trains alone")  # fmt: skip

    def _ask(self, client: Client) -> JoinReply:
        """Join under the job's name or, with ``on_refused="rename"``, under the first free one, which it then keeps."""
        try:
            return client.join(self._job_now(), self._device)
        except NameTakenError:
            if self._on_refused is not OnRefused.RENAME:
                raise
            for number in range(2, MAX_NAME_NUMBER + 1):
                ending = f"-{number}"
                name = self._job.name[: MAX_NAME_LENGTH - len(ending)] + ending
                try:
                    reply = client.join(dataclasses.replace(self._job_now(), name=name), self._device)
                except NameTakenError:
                    continue
                log.warning("%s: the name is taken in the pool, joining as %s", self._job.name, name)
                self._job = dataclasses.replace(self._job, name=name)
                return reply
            raise

    def _connect_locally(self, client: LocalClient, *, is_fallback: bool = False) -> SchedulerConnection:
        incarnation = client.join(self._job_now(), self._device).incarnation
        return SchedulerConnection(client, incarnation, knows=False, is_fallback=is_fallback, job=self._job.name)

    def _settings(self) -> Settings:
        return Settings(devices=self._job.max_devices)

    def _is_back(self) -> str:
        try:
            client = self._connect()
            if client is None:
                return ""
            client.job_forecast(self._job.name)  # any call will do
            client.close()
        except ConnectionError:
            return ""
        return "the pool is back, so its fallback in this process ends"

    def _connect(self) -> Client | None:
        if self._pool == LOCAL:
            return None
        if not sys.platform.startswith("linux"):
            if self._pool != AUTO:
                log.warning("%s: training without the pool: pools run on Linux only", self._job.name)
            self._pool = LOCAL
            return None
        from lightning_core.server.clients.socket_client import forget_joining
        from lightning_core.server.discovery import PoolUnavailableError, connect

        if not self._answered:
            forget_joining(self._job.name)
        try:
            client = connect(self._pool)
        except PoolUnavailableError as error:
            log.warning("%s: training without the pool: %s", self._job.name, error)
            self._pool = LOCAL
            return None
        if client is None and self._answered:
            raise ConnectionError("the pool is gone")
        return client

    def _job_now(self) -> Job:
        """Return the job with its deadline counted from the first attempt to join."""
        if self._first_asked_at is None:
            self._first_asked_at = time.monotonic()
            return self._job
        passed = time.monotonic() - self._first_asked_at
        deadline = max(self._job.deadline - passed, MIN_DEADLINE)
        return dataclasses.replace(self._job, deadline=deadline)


def class_path(kind: type) -> str:
    """Return the path of a class, by which earlier runs are found; empty if it is too long to be one.

    A class of a script is named as if it were imported, so that ``train.py`` and a bundle with ``train.Net`` agree.
    """
    room = kind.__module__
    if room == "__main__" and (file := getattr(sys.modules["__main__"], "__file__", None)):
        room = Path(file).stem
    path = f"{room}.{kind.__qualname__}"
    return path if len(path) <= MAX_NAME else ""
