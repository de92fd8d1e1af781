"""The calls of the scheduler's actor for the pool manager and the provisioner."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lightning_core.controllers import PublishedLevel
from lightning_core.core.answers import Placement
from lightning_core.core.events import Checkpoint, DevicesFound, DevicesUnavailable, Event
from lightning_core.server.host import Host
from lightning_core.server.load.group_commit import GroupCommit
from lightning_core.server.load.long_polling import LongPolling
from lightning_core.server.sessions import Sessions

# Seconds after which a silent pool manager is reported; it calls every five seconds, and is restarted within this time.
MAX_MANAGER_SILENCE = 30.0


class PoolCalls:
    """A part of :class:`~lightning_core.server.ray_actor.SchedulerActor`."""

    _host: Host
    _commits: GroupCommit
    _long_polling: LongPolling
    _sessions: Sessions
    _why_unavailable: Mapping[int, str] = MappingProxyType({})
    _manager_heard: float | None = None

    async def _ready(self) -> None:
        raise NotImplementedError

    async def _handle(self, event: Event) -> None:
        raise NotImplementedError

    def _known(self, job: str) -> None:
        raise NotImplementedError

    async def register_devices(self, devices: Sequence[tuple[str, str]]) -> None:
        """Set the name and arbiter path of each device; called repeatedly, since the actor may have been restarted."""
        await self._ready()
        self._manager_heard = time.monotonic()
        self._sessions.devices = list(devices)
        self._host.runs.set_devices([name for name, _ in devices])

    async def set_unavailable(self, devices: Sequence[tuple[int, str]]) -> None:
        """Set the numbers of the devices on which no worker can run, each with the reason."""
        await self._ready()
        scheduler = self._host.scheduler
        ours = {number: words for number, words in devices if number < scheduler.settings.devices}
        self._why_unavailable = ours
        if ours.keys() != scheduler.unavailable_devices:
            await self._handle(
                DevicesUnavailable(tuple(ours), "; ".join(f"device {k}: {words}" for k, words in ours.items()))
            )

    async def set_found(self, kinds: Sequence[str], machines: Sequence[str]) -> None:
        """Set the kind and the machine of each device, as they were found; an empty name where one is unknown."""
        await self._ready()
        n = self._host.scheduler.settings.devices
        await self._handle(DevicesFound(*(tuple(names[:n]) for names in (kinds, machines))))

    def _unavailable(self) -> list[dict[str, Any]]:
        """Return the devices that the scheduler does not plan on, each with its reason if known."""
        numbers = sorted(self._host.scheduler.unavailable_devices)
        return [{"device": number, "why": self._why_unavailable.get(number, "")} for number in numbers]

    def _manager_silent_for(self) -> float:
        """Return the seconds for which the pool manager has not called, if that is too long; otherwise 0."""
        silent = 0.0 if self._manager_heard is None else time.monotonic() - self._manager_heard
        return silent if silent > MAX_MANAGER_SILENCE else 0.0

    async def stopping(self) -> list[str]:
        """Return the jobs that were cancelled and whose script has not stopped yet."""
        await self._ready()
        return self._sessions.stopping()

    async def have_ended(self, incarnations: Sequence[tuple[str, int]]) -> list[bool]:
        """Return for each job and incarnation whether it has ended and must not train any more."""
        await self._ready()
        return await self._commits.read(lambda: self._ended(incarnations))

    async def checkpoints(self, job: str) -> tuple[Checkpoint, ...]:
        """Return the accepted checkpoints of a job, the newest first."""
        await self._ready()
        return await self._commits.read(lambda: self._host.scheduler.checkpoints(job))

    async def spec_sha256(self, job: str) -> str:
        """Return the SHA-256 of the spec that a job was submitted with; empty if the journal has none."""
        await self._ready()
        self._known(job)
        return (await self._commits.read(lambda: self._host.scheduler.job(job))).spec_sha256

    async def placements(self, known: Sequence[Placement] | None, timeout: float) -> list[Placement]:
        """Return the placements as soon as they differ from ``known``, or after ``timeout`` seconds."""
        await self._ready()
        return await self._long_polling.placements(known, timeout)

    async def published(self, by: str, version: int, timeout: float) -> tuple[float, PublishedLevel | None]:
        """Return the scheduler time and what a controller publishes; see :meth:`.LongPolling.published`."""
        await self._ready()
        return await self._long_polling.published(by, version, timeout)

    def _ended(self, incarnations: Sequence[tuple[str, int]]) -> list[bool]:
        scheduler = self._host.scheduler
        active = set(scheduler.names(active=True))
        return [job not in active or scheduler.incarnation(job) != incarnation for job, incarnation in incarnations]
