"""The placement groups of a pool's devices: each holds one device on one node, detached and found again by its name."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ray
from ray._private.state import state as ray_state
from ray.exceptions import RayError
from ray.util.accelerators import accelerators
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

# Label of the nodes at a location: `ray start --labels=lightning-core/location=NAME`.
LOCATION_LABEL = "lightning-core/location"
# Label with the type of a node's accelerator, such as A100, which Ray sets itself.
ACCELERATOR_LABEL = "ray.io/accelerator-type"
# Label with the id of a node, set by Ray.
NODE_ID = "ray.io/node-id"


class DeviceGroups:
    """The placement groups of a pool; all methods block for as long as Ray takes to answer.

    Args:
        name: Name of the pool, with which the names of the groups begin.
        devices: Number of devices.
        resource: Ray's resource that counts devices.
        locations: Location of each device, the value of the label :data:`LOCATION_LABEL` of its node; or the type of
            its accelerator, as Ray spells it, in any case. Empty for any.

    Attributes:
        resource: Ray's resource that counts devices.
        draining: Devices whose nodes are draining, and those nodes.
    """

    def __init__(self, name: str, devices: int, resource: str, locations: Sequence[str] = ()) -> None:
        self.draining: dict[int, str] = {}
        self._name = name
        self.resource = resource
        self._locations = locations
        self._groups: list[Any] = [None] * devices

    def has(self, device: int) -> bool:
        """Return whether a device has a group."""
        return self._groups[device] is not None

    def find(self) -> None:
        """Find the groups of an earlier pool manager."""
        self._groups = [self._existing(device) for device in range(len(self._groups))]

    def create(self) -> None:
        """Find or create the groups of all devices; a new one waits for a node that fits."""
        self.find()
        for device, group in enumerate(self._groups):
            if group is None:
                self._create(device, self._labels(device) if self._locations else None)

    def create_on(self, device: int, node: str) -> None:
        """Create the group of a device on a node, given by its id."""
        self._create(device, {NODE_ID: node})

    def forget(self, device: int) -> None:
        """Start nothing more on a device; its group remains until :meth:`remove`."""
        self._groups[device] = None

    def remove(self, device: int) -> None:
        """Remove the group of a device, and with it all that runs in it."""
        self.forget(device)
        with contextlib.suppress(RayError):
            if (group := self._existing(device)) is not None:
                remove_placement_group(group)

    def unplaced(self) -> list[int]:
        """Return the devices that have never been placed on a node."""
        states = [placement_group_table(group).get("state") for group in self._groups]
        return [device for device, state in enumerate(states) if state not in ("CREATED", "RESCHEDULING")]

    def node_of(self, device: int) -> str | None:
        """Return the id of the node of a device; None if it has none."""
        table = placement_group_table(self._groups[device])
        return str(table["bundles_to_node_id"][0]) if table.get("state") == "CREATED" else None

    def found(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the kind of accelerator and the machine of each device: an empty name where it is unknown for now.

        All that are on one machine have none.
        """
        nodes = [None if group is None else self.node_of(device) for device, group in enumerate(self._groups)]
        listed: Any = ray.nodes  # it has no types
        labels = {node["NodeID"]: node.get("Labels") or {} for node in listed()}
        kinds = tuple(str(labels.get(node, {}).get(ACCELERATOR_LABEL, "")).lower() for node in nodes)
        machines = tuple(node or "" for node in nodes)
        return kinds, machines if len({*machines} - {""}) > 1 else ()

    def strategy(self, device: int) -> PlacementGroupSchedulingStrategy:
        """Return the scheduling strategy that starts an actor on a device."""
        return PlacementGroupSchedulingStrategy(self._groups[device])

    def missing(self, device: int | None = None) -> str:
        """Return a text that names the resource that the cluster lacks, and the nodes for a device with a location."""
        where = f" on a node with {self._labels(device)}" if device is not None and self._locations else ""
        return f"the cluster has no free {self.resource}{where}"

    def problem(self, device: int) -> str:
        """Return why a device has no node; empty if it has one, or if that is not known."""
        try:
            table = placement_group_table(self._groups[device])
        except Exception:  # only the explanation is lost
            return ""
        if table.get("state") == "CREATED":
            return ""
        reason = table.get("stats", {}).get("scheduling_state", "")
        return f"its node is lost, and no other has a free {self.resource} ({reason or table.get('state')})"

    def update_draining(self) -> None:
        """Look up which nodes are draining."""
        draining = ray_state.get_draining_nodes()
        if not draining and not self.draining:
            return
        found: dict[int, str] = {}
        for device, group in enumerate(self._groups):
            if group is None:
                continue
            node, before = self.node_of(device), self.draining.get(device)
            # Ray no longer lists a node that is lost; its device is back once it is placed on another node.
            if node is not None and node in draining:
                found[device] = node
            elif before is not None and node in (before, None):
                found[device] = before
        self.draining = found

    def _create(self, device: int, labels: dict[str, str] | None) -> None:
        selector = None if labels is None else [labels]
        self._groups[device] = placement_group(
            [{self.resource: 1}], "PACK", self._group_name(device), "detached", bundle_label_selector=selector
        )

    def _existing(self, device: int) -> Any | None:
        try:
            return ray.util.get_placement_group(self._group_name(device))
        except ValueError:  # it does not exist
            return None

    def _labels(self, device: int) -> dict[str, str]:
        """Return the labels of the nodes on which a device may be."""
        return node_labels(self._locations[device])

    def _group_name(self, device: int) -> str:
        return f"{self._name}-device-{device}"


def node_labels(name: str) -> dict[str, str]:
    """Return the labels of the nodes that have devices of a name: the type of an accelerator, or a location.

    Example::

        >>> node_labels("a100"), node_labels("harbour")
        ({'ray.io/accelerator-type': 'A100'}, {'lightning-core/location': 'harbour'})
    """
    for known in _accelerators():
        if known.lower() == name.lower():
            return {ACCELERATOR_LABEL: known}
    return {LOCATION_LABEL: name}


def _accelerators() -> list[str]:
    """Return the types of accelerators that Ray knows."""
    return [value for key, value in vars(accelerators).items() if key.isupper() and isinstance(value, str)]
