"""Provisioners bring up the nodes of a pool, and return them.

A node has one device and carries the label ``ray.io/market-type``: ``spot`` or ``on-demand``. Where there are several
offers, ``ray.io/availability-zone`` and ``lightning-core/instance-type`` name the offer of a node. A provisioner
answers a request at once; nodes come later, and Ray lists them. Importing a provisioner does not import Ray, which
takes seconds and reads its token only once.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from lightning_core.cluster.ray_nodes import list_nodes
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import PlacedNodes

ZONE_LABEL, TYPE_LABEL = "ray.io/availability-zone", "lightning-core/instance-type"
# Label with the id of a node in its pool.
NODE_LABEL = "lightning-core/node"
SPOT = "spot"
ON_DEMAND = "on-demand"
MARKET_TYPES = (SPOT, ON_DEMAND)
# Seconds that a job has to leave a node which is returned.
LEAVE_SECONDS = 10.0


@runtime_checkable
class Provisioner(Protocol):
    """Brings up nodes and returns them.

    It may have more: an attribute ``trouble``, which says in words what is wrong; ``close_seconds``, the seconds that
    :meth:`close` may take; and a method ``remaining()``, which returns the names of nodes that may still be paid for.
    """

    def scale_to(self, wanted: NodeCounts, places: Sequence[PlacedNodes] = ()) -> None:
        """Request that there be this many nodes; returns at once.

        Args:
            wanted: Nodes of each kind.
            places: Nodes of each offer; empty for any. Given only if zones are quoted.
        """

    def close(self) -> None:
        """Give all nodes back."""


def list_marks() -> dict[str, str]:
    """Return the :data:`NODE_LABEL` of each node of the joined Ray that has one, by its id."""
    import ray

    listed: Any = ray.nodes  # it has no types
    return {node["NodeID"]: node["Labels"][NODE_LABEL] for node in listed() if NODE_LABEL in node["Labels"]}


def joined_marks() -> set[str]:
    """Return the :data:`NODE_LABEL` of each node that is in the joined Ray."""
    import ray

    listed: Any = ray.nodes  # it has no types
    return {node["Labels"][NODE_LABEL] for node in listed() if node["Alive"] and NODE_LABEL in node["Labels"]}


def list_zones() -> dict[str, tuple[str, str]]:
    """Return the zone and the type of each node of the joined Ray whose zone is labelled, by its id."""
    import ray

    listed: Any = ray.nodes  # it has no types
    return {
        node["NodeID"]: (node["Labels"][ZONE_LABEL], node["Labels"].get(TYPE_LABEL, ""))
        for node in listed()
        if node["Alive"] and ZONE_LABEL in node["Labels"]
    }


def place_labels(zone: str, its_type: str) -> dict[str, str]:
    """Return the labels of the nodes of an offer; none without a zone."""
    labels = {ZONE_LABEL: zone, TYPE_LABEL: its_type}
    return {label: value for label, value in labels.items() if value}


def by_place(wanted: NodeCounts, places: Sequence[PlacedNodes]) -> dict[tuple[str, str], NodeCounts]:
    """Return the wanted nodes of each zone and type; of no zone and type if they may be anywhere."""
    if not places:
        return {("", ""): wanted}
    return {(place.zone, place.type): NodeCounts(place.spot, place.on_demand) for place in places}


def count_nodes(resource: str = "device") -> NodeCounts:
    """Return the number of those nodes by market type."""
    types = list(list_nodes(resource).values())
    return NodeCounts(types.count(SPOT), types.count(ON_DEMAND))


def wall_time() -> float:
    """Return the wall-clock time, which processes of several machines can compare."""
    return time.time()


def has_joined(mark: str) -> bool:
    """Return whether the joined Ray has a node with this :data:`NODE_LABEL`."""
    return bool(_marked(mark))


def drain_node(mark: str, seconds: float) -> bool:
    """Give the node of the joined Ray with this :data:`NODE_LABEL` a preemption notice; see :func:`drain`.

    Returns:
        Whether there is such a node.
    """
    import ray

    found = _marked(mark)
    for node in found:
        drain(ray.get_runtime_context().gcs_address, node, seconds)
    return bool(found)


def _marked(mark: str) -> list[str]:
    import ray

    listed: Any = ray.nodes  # it has no types
    return [node["NodeID"] for node in listed() if node["Alive"] and node["Labels"].get(NODE_LABEL) == mark]


def drain(address: str, node: str, seconds: float) -> None:
    """Give a node a preemption notice: Ray starts nothing new on it.

    Args:
        address: Address of the cluster.
        node: Id of the node.
        seconds: Seconds from now to the node's end.

    Raises:
        RuntimeError: If Ray rejects the notice.
    """
    raylet: Any = importlib.import_module("ray._raylet")
    protocol: Any = importlib.import_module("ray.core.generated.autoscaler_pb2")
    reason = protocol.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline = int(1000 * (time.time() + seconds))
    accepted, why = raylet.GcsClient(address=address).drain_node(node, reason, "preempted", deadline)
    if not accepted:
        raise RuntimeError(f"node {node}: Ray rejected the preemption notice: {why}")
