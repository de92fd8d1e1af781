"""Where workers are on nodes that come and go: a device is there while its node is.

Rules

1. A device's placement group is made for a node that is there, and for no other: a group that waits for any node would
   have an autoscaler rent one.
2. Once nobody is at work on a node that is being taken away, or is gone, its group and all that is in it end: a node
   with nothing on it can be given back.
3. A node gives one device.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from lightning_core.cloud.provisioner import list_nodes
from lightning_core.cluster.worker_slots import DEVICE, LOOK, WorkerSlot, WorkerSlots

# Of a node, set by Ray.
NODE_ID = "ray.io/node-id"
NONE_THERE = "no node is there for it"


class NodeSlots(WorkerSlots):
    """All places of a pool on nodes that come and go.

    Args:
        name: of the pool; everything made here is named after it.
        devices: the most that there may be.
        slots: workers to keep warm on each.
        kind: of the devices, ``"cpu"`` or ``"gpu"``.
        cores: of each device, if they are CPUs.
        least: devices that must be there when the pool opens.
    """

    def __init__(self, name: str, devices: int, slots: int, kind: str, cores: int = 1, least: int = 1) -> None:
        super().__init__(name, devices, slots, kind, cores)
        self._least = least
        self._nodes: list[str | None] = [None] * devices
        self._following = asyncio.Lock()
        for place in self:
            place.trouble = NONE_THERE

    async def open(self) -> None:
        async with self._opening:
            if self._groups:
                return
            groups = await asyncio.to_thread(lambda: [self._group_there(device) for device in range(len(self.names))])
            self._groups = groups
            try:
                await self._wait_for_nodes()
            except BaseException:
                self._groups = []
                raise

    async def _wait_for_nodes(self) -> None:
        for device, group in enumerate(self._groups):
            if group is not None and (node := await asyncio.to_thread(_node_of, group)) is not None:
                self._nodes[device] = node  # of a Keeper before this one
                self._begin(device)
            elif group is not None:
                await asyncio.to_thread(self._give_up, device)
            for place in self._on(device):
                place.settled = place.settled or group is None
        until = time.monotonic() + DEVICE
        while sum(node is not None for node in self._nodes) < self._least:
            if time.monotonic() > until:
                raise RuntimeError(f"no free device: the cluster has no {self._resource} to give")
            await self._follow_nodes()
            await asyncio.sleep(LOOK)

    async def filled(self) -> None:
        while len({place.device for place in self if place.worker is not None}) < self._least:
            self.moved.clear()
            await self.moved.wait()

    async def look(self) -> None:
        await super().look()
        await self._follow_nodes()

    async def _follow_nodes(self) -> None:
        """Gives up the devices of nodes that go, once they are left, and takes those of nodes that have come."""
        async with self._following:
            await self._follow(await asyncio.to_thread(list_nodes, self._resource))

    async def _follow(self, listed: Mapping[str, str]) -> None:
        for device, node in enumerate(self._nodes):
            at_work = any(place.life is not None or place.reserved for place in self._on(device))
            if node is not None and node not in listed and not at_work:
                self._nodes[device] = None
                await asyncio.to_thread(self._give_up, device)
        for node in listed.keys() - set(self._nodes):
            if None not in self._nodes:
                return
            device = self._nodes.index(None)
            self._groups[device] = await asyncio.to_thread(self._make_group, device, node)
            self._nodes[device] = node
            self._begin(device)

    def _begin(self, device: int) -> None:
        for place in self._on(device):
            place.trouble, place.failures, place.bare = "its worker is starting", 0, True
            self.task(self._fill(place))

    def _give_up(self, device: int) -> None:
        group, self._groups[device] = self._groups[device], None
        for place in self._on(device):
            self._end(place.name)
            place.take(None)
            place.trouble, place.bare, place.settled = NONE_THERE, True, True
        self._end(f"turnstile-{device}")
        self.arbiters[device] = ""
        if group is not None:
            remove_placement_group(group)

    def _is_there(self, device: int) -> bool:
        return self._groups[device] is not None

    def _on(self, device: int) -> list[WorkerSlot]:
        return [place for place in self if place.device == device]

    def _group_there(self, device: int) -> Any | None:
        try:
            return ray.util.get_placement_group(self._group_name(device))
        except ValueError:  # there is none
            return None

    def _make_group(self, device: int, node: str) -> Any:
        where = [{NODE_ID: node}]
        return placement_group(
            [{self._resource: 1}], "PACK", self._group_name(device), "detached", bundle_label_selector=where
        )

    def _remove_group(self, device: int) -> None:
        with contextlib.suppress(RayError):
            if (group := self._group_there(device)) is not None:
                remove_placement_group(group)


def _node_of(group: Any) -> str | None:
    table = placement_group_table(group)
    return str(table["bundles_to_node_id"][0]) if table.get("state") == "CREATED" else None
