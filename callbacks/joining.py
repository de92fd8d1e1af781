"""How a process comes to its scheduler: a launched one is given a client, a plain script joins a pool."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import torch
from typing_extensions import override

from lightning_core.core.answers import Directive, JoinReply
from lightning_core.core.events import Report
from lightning_core.core.jobs import Job, OnRefused
from lightning_core.core.names import LONGEST_NAME
from lightning_core.core.protocols import Client, DeviceNotSharedError, JoinRefusedError, NameTakenError
from lightning_core.scheduler.settings import Settings
from lightning_core.server.client import SocketClient
from lightning_core.server.discovery import describe, is_found
from lightning_core.server.local import LocalClient
from lightning_core.view.console_lines import inform, logger

log = logger(__name__)

# How long a pool may be away before a script goes on without it; and how often it is then looked for, seconds.
FORSAKEN = 15.0
LOOK_AGAIN = 10.0
# What is left of a deadline that has passed when the pool comes back: it takes no job without.
LEAST = 1.0
# The last number that a script puts behind its name in search of one that is free.
MOST_NAMES = 100


class Refused(Exception):
    """The pool does not take the job now, and the script is to wait; the message says why."""


class Connection(NamedTuple):
    """A scheduler that this process may report to."""

    client: Client
    incarnation: int
    arbiters: tuple[str, ...] = ()
    cores: int = 1
    knows: bool = True
    """Whether it knows what was reported over the connection before this one."""
    stands_in: bool = False
    """Whether it is there only until the pool is back."""
    job: str = ""
    """The name under which it knows the job, if that is not the one that was asked for."""


Connect = Callable[[], Connection]


class StandIn(LocalClient):
    """A scheduler of this process's own while its pool is away: forecasts go on, and a target met still ends the run.

    Args:
        settings: of the scheduler.
        is_back: asked now and then, whether the pool is there again.
    """

    def __init__(self, settings: Settings, is_back: Callable[[], bool]) -> None:
        super().__init__(settings)
        self._is_back = is_back
        self._look_at = time.monotonic() + LOOK_AGAIN

    @override
    def report(self, report: Report) -> Directive | None:
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_AGAIN
            if self._is_back():
                raise ConnectionError("it stood in for the pool, which is there again")
        return super().report(report)


class Join:
    """Joins a pool, and joins it again when it was away.

    Where there is no pool, or it can never be joined, the job has a scheduler of its own in this process. A pool that
    was named, or has answered once, is looked for until it is there; if that takes long, a scheduler in this process
    stands in for it.

    Args:
        job: as its user wants it.
        pool: ``"auto"``, ``"local"``, or where the pool is.
        device: on which the process trains, as the pool knows it.
        on_refused: what to do if the pool does not take the job. One that does not share the device is left alone.
    """

    def __init__(self, job: Job, pool: str, device: str, on_refused: OnRefused = OnRefused.HOLD) -> None:
        self._job = job
        self._pool = pool
        self._device = device
        self._on_refused = on_refused
        self._asked_at: float | None = None
        self._answered = False
        self._lost_at: float | None = None

    def __call__(self) -> Connection:
        """Returns a scheduler to report to.

        Raises:
            ConnectionError: if the pool does not answer.
            Refused: if it does not take the job, which then waits.
        """
        try:
            connection = self._join()
        except Refused:
            self._lost_at = None
            raise
        except ConnectionError:
            self._lost_at = self._lost_at or time.monotonic()
            if time.monotonic() - self._lost_at < FORSAKEN:
                raise
            return self._alone(StandIn(self._settings(), self._is_back), stands_in=True)
        self._lost_at = None
        return connection

    def _join(self) -> Connection:
        client = self._connect()
        if client is not None:
            try:
                welcome = self._ask(client)
                if not self._answered and is_found(self._pool):
                    self._tell_pool(client)
                self._answered = True
                return Connection(
                    client, welcome.incarnation, welcome.arbiters, welcome.cores, welcome.again, job=self._job.name
                )
            except JoinRefusedError as error:
                client.close()
                self._answered = True
                if self._on_refused is not OnRefused.ALONE and not isinstance(error, DeviceNotSharedError):
                    raise Refused(str(error)) from None
                log.warning("%s: the pool refuses the job, it trains by itself: %s", self._job.name, error)
                self._pool = "local"
        return self._alone(LocalClient(self._settings()))

    def _tell_pool(self, client: Client) -> None:
        """Which one it is: nobody has named it."""
        if isinstance(client, SocketClient):
            with suppress(ConnectionError):  # words are not worth a training
                inform(f"{self._job.name}: joined {describe(client.about())}; pool='local' or "
                               "LIGHTNING_CORE_POOL=local trains alone")  # fmt: skip

    def _ask(self, client: Client) -> JoinReply:
        """Asks under its name, then, if told so, under others; the one that is free is its own from now on."""
        try:
            return client.join(self._as_of_now(), self._device)
        except NameTakenError:
            if self._on_refused is not OnRefused.RENAME:
                raise
            for number in range(2, MOST_NAMES + 1):
                ending = f"-{number}"
                name = self._job.name[: LONGEST_NAME - len(ending)] + ending
                try:
                    welcome = client.join(dataclasses.replace(self._as_of_now(), name=name), self._device)
                except NameTakenError:
                    continue
                log.warning("%s: the name is taken in the pool, it joins as %s", self._job.name, name)
                self._job = dataclasses.replace(self._job, name=name)
                return welcome
            raise

    def _alone(self, own: LocalClient, *, stands_in: bool = False) -> Connection:
        incarnation = own.join(self._as_of_now(), self._device).incarnation
        return Connection(own, incarnation, knows=False, stands_in=stands_in, job=self._job.name)

    def _settings(self) -> Settings:
        return Settings(devices=self._job.max_devices)

    def _is_back(self) -> bool:
        try:
            client = self._connect()
            if client is None:
                return False
            client.job_forecast(self._job.name)  # any question that it can answer
            client.close()
        except ConnectionError:
            return False
        return True

    def _connect(self) -> Client | None:
        if self._pool == "local":
            return None
        from lightning_core.server.discovery import PoolUnavailableError, connect

        try:
            client = connect(self._pool)
        except PoolUnavailableError as error:
            log.warning("%s: it trains by itself, without the pool: %s", self._job.name, error)
            self._pool = "local"
            return None
        if client is None and self._answered:
            raise ConnectionError("there is no pool any more")
        return client

    def _as_of_now(self) -> Job:
        """Its deadline counts from the first time that it asked, not from the last."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            return self._job
        gone = time.monotonic() - self._asked_at
        deadline = max(self._job.deadline - gone, LEAST)
        begin = min(max(self._job.begin - gone, 0.0), deadline / 2)
        return dataclasses.replace(self._job, deadline=deadline, begin=begin)


def name_of(device: torch.device) -> str:
    """``"cpu"``, or a GPU's UUID: by its number, another process may mean another GPU."""
    if device.type != "cuda":
        return "cpu"
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
