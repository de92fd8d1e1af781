"""How a process comes to its scheduler: a launched one is given a client, a plain script joins a pool."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from typing_extensions import override

from lightning_core.drivers.local import LocalClient
from lightning_core.protocols import Client, JoinRefused
from lightning_core.settings import Settings
from lightning_core.types import Directive, Job, Report

log = logging.getLogger(__name__)

# How long a pool may be away before a script goes on without it; and how often it is then looked for, seconds.
FORSAKEN = 15.0
LOOK_AGAIN = 10.0
# What is left of a deadline that has passed when the pool comes back: it takes no job without.
LEAST = 1.0


class Connection(NamedTuple):
    """A scheduler that this process may report to."""

    client: Client
    incarnation: int
    turnstiles: tuple[str, ...] = ()
    cores: int = 1
    knows: bool = True
    """Whether it knows what was reported over the connection before this one."""
    stands_in: bool = False
    """Whether it is there only until the pool is back."""


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

    A pool that refuses the job, or that can never be joined, or none to be found, leaves it with a scheduler of its own
    in this process. A pool that was named or joined once is looked for until it is there; if that takes long, a
    scheduler in this process stands in for it.

    Args:
        job: as its user wants it.
        pool: ``"auto"``, ``"local"``, or where the pool is.
        device: on which the process trains, as the pool knows it.
    """

    def __init__(self, job: Job, pool: str, device: str) -> None:
        self._job = job
        self._pool = pool
        self._device = device
        self._joined_at: float | None = None
        self._lost_at: float | None = None

    def __call__(self) -> Connection:
        """Raises :class:`ConnectionError` if the pool does not answer."""
        try:
            connection = self._join()
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
                welcome = client.join(self._as_of_now(), self._device)
            except JoinRefused as error:
                log.warning("%s: the pool refuses the job, it trains by itself: %s", self._job.name, error)
                self._pool = "local"
                client.close()
            else:
                self._joined_at = self._joined_at or time.monotonic()
                return Connection(client, welcome.incarnation, welcome.turnstiles, welcome.cores, welcome.again)
        return self._alone(LocalClient(self._settings()))

    def _alone(self, own: LocalClient, *, stands_in: bool = False) -> Connection:
        incarnation = own.join(self._as_of_now(), self._device).incarnation
        return Connection(own, incarnation, knows=False, stands_in=stands_in)

    def _settings(self) -> Settings:
        return Settings(devices=self._job.max_devices)

    def _is_back(self) -> bool:
        try:
            client = self._connect()
            if client is None:
                return False
            client.outlook(self._job.name)  # any question that it can answer
            client.close()
        except ConnectionError:
            return False
        return True

    def _connect(self) -> Client | None:
        if self._pool == "local":
            return None
        from lightning_core.drivers.connect import PoolUnusable, connect

        try:
            client = connect(self._pool)
        except PoolUnusable as error:
            log.warning("%s: it trains by itself, without the pool: %s", self._job.name, error)
            self._pool = "local"
            return None
        if client is None and self._joined_at is not None:
            raise ConnectionError("there is no pool any more")
        return client

    def _as_of_now(self) -> Job:
        """Its deadline counts from the first time that it joined, not from the last."""
        if self._joined_at is None:
            return self._job
        gone = time.monotonic() - self._joined_at
        deadline = max(self._job.deadline - gone, LEAST)
        begin = min(max(self._job.begin - gone, 0.0), deadline / 2)
        return dataclasses.replace(self._job, deadline=deadline, begin=begin)


def name_of(device: torch.device) -> str:
    """``"cpu"``, or a GPU's UUID: by its number, another process may mean another GPU."""
    if device.type != "cuda":
        return "cpu"
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
