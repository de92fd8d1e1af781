"""Worker slots on nodes that come and go: a device exists as long as its node does.

Rules

1. The placement group of a device is created for one existing node: a group that waits for any node would make an
   autoscaler rent one.
2. Once no worker is busy on a node that is draining or lost, its placement group ends with all that is in it: an empty
   node can be released.
3. A node gives one device, once a worker is on it: a job would else leave the devices that it has for one on which it
   must wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from lightning_core.cluster.ray_nodes import list_nodes
from lightning_core.cluster.worker_slot import WorkerSlot
from lightning_core.cluster.worker_slots import DEVICE_TIMEOUT, POLL_INTERVAL, WorkerSlots

NO_NODE = "no node provides it"


class NodeSlots(WorkerSlots):
    """All worker slots of a pool on nodes that come and go.

    Args:
        name: Name of the pool, with which all names of actors and placement groups begin.
        devices: Maximum number of devices.
        workers_per_device: Number of workers to keep warm on each device.
        kind: Kind of the devices, ``"cpu"`` or ``"gpu"``.
        cores: Cores of each device, if they are CPUs.
        min_devices: Number of devices that the pool needs to open.
    """

    awaits_workers = False

    def __init__(
        self, name: str, devices: int, workers_per_device: int, kind: str, cores: int = 1, min_devices: int = 1
    ) -> None:
        super().__init__(name, devices, workers_per_device, kind, cores)
        self._pool = name
        self._min_devices = min_devices
        self._nodes: list[str | None] = [None] * devices
        self._following = asyncio.Lock()
        for slot in self:
            slot.problem = NO_NODE

    async def found(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (), ()  # a device is now one node, now another

    async def open(self) -> None:
        async with self._opening:
            if self._opened:
                return
            await asyncio.to_thread(self._groups.find)
            await self._wait_for_nodes()
            self._opened = True

    async def _wait_for_nodes(self) -> None:
        for device in range(len(self._nodes)):
            had_group = self._groups.has(device)
            if had_group and (node := await asyncio.to_thread(self._groups.node_of, device)) is not None:
                self._nodes[device] = node  # of an earlier pool manager
                self._begin(device)
            elif had_group:
                await asyncio.to_thread(self._give_up_device, device)
            for slot in self._on(device):
                slot.settled = slot.settled or not had_group
        until = time.monotonic() + DEVICE_TIMEOUT
        while sum(node is not None for node in self._nodes) < self._min_devices:
            if time.monotonic() > until:
                raise RuntimeError(f"no free device: {self._groups.missing()}")
            await self._follow_nodes()
            await asyncio.sleep(POLL_INTERVAL)

    async def wait_until_warm(self) -> None:
        while len({slot.device for slot in self if slot.worker is not None}) < self._min_devices:
            self.changed.clear()
            await self.changed.wait()

    async def wait_until_shared(self) -> None:
        """Return at once: there may be no node, and no script can share one that comes and goes."""

    async def refresh(self) -> None:
        await super().refresh()
        await self._follow_nodes()

    async def _follow_nodes(self) -> None:
        """Give up the devices of nodes that leave, once they are idle, and add those of new nodes."""
        async with self._following:
            await self._follow(await asyncio.to_thread(list_nodes, self._groups.resource, self._pool))

    async def _follow(self, listed: Mapping[str, str]) -> None:
        for device, node in enumerate(self._nodes):
            at_work = any(slot.incarnation is not None or slot.reserved for slot in self._on(device))
            if node is not None and node not in listed and not at_work:
                self._nodes[device] = None
                await asyncio.to_thread(self._give_up_device, device)
        for node in listed.keys() - set(self._nodes):
            if None not in self._nodes:
                return
            device = self._nodes.index(None)
            await asyncio.to_thread(self._groups.create_on, device, node)
            self._nodes[device] = node
            self._begin(device)

    def _begin(self, device: int) -> None:
        for slot in self._on(device):
            slot.problem, slot.failures, slot.unavailable = "its worker is starting", 0, True
            self.spawn(self._fill(slot))

    def _give_up_device(self, device: int) -> None:
        self._groups.forget(device)
        for slot in self._on(device):
            self._kill_actor(slot.name)
            slot.assign(None)
            slot.problem, slot.unavailable, slot.settled = NO_NODE, True, True
        self._kill_actor(f"arbiter-{device}")
        self.arbiters[device] = ""
        self._groups.remove(device)

    def _on(self, device: int) -> list[WorkerSlot]:
        return [slot for slot in self if slot.device == device]
