"""How a process comes to its scheduler: a launched one is given a client, a plain script joins a pool."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from lightning_core.drivers.local import LocalClient
from lightning_core.protocols import Client, JoinRefused
from lightning_core.settings import Settings
from lightning_core.types import Job

log = logging.getLogger(__name__)

# What is left of a deadline that has passed when the pool comes back: it takes no job without.
LEAST = 1.0


class Connection(NamedTuple):
    """A scheduler that this process may report to."""

    client: Client
    incarnation: int
    turnstiles: tuple[str, ...] = ()
    knows: bool = True
    """Whether it knows what was reported over the connection before this one."""


Connect = Callable[[], Connection]


class Join:
    """Joins a pool, and joins it again when it was away.

    A pool that refuses the job, or none to be found, leaves it with a scheduler of its own in this process. A pool that
    was joined once is looked for until it is back.

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
        self._incarnation: int | None = None

    def __call__(self) -> Connection:
        """Raises :class:`ConnectionError` if the pool does not answer."""
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
                before, self._incarnation = self._incarnation, welcome.incarnation
                return Connection(client, welcome.incarnation, welcome.turnstiles, welcome.incarnation == before)
        own = LocalClient(Settings(devices=self._job.max_devices))
        return Connection(own, own.join(self._as_of_now(), self._device).incarnation, knows=False)

    def _connect(self) -> Client | None:
        if self._pool == "local":
            return None
        from lightning_core.drivers.connect import connect

        client = connect(self._pool)
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
