"""Nodes of a pool that come and go: who brings them up, and who takes them away.

A node has one device, and carries the label ``ray.io/market-type``: ``spot`` or ``on-demand``. Who is asked for nodes
answers at once; they come when they come, and what there is Ray says.
"""

from __future__ import annotations

import importlib
import logging
import time
from typing import Any, Protocol

import ray
from ray._private.state import state as ray_state

from lightning_core.market.online.node_counts import NodeCounts

log = logging.getLogger(__name__)

MARKET_LABEL = "ray.io/market-type"
SPOT = "spot"
ON_DEMAND = "on-demand"
MARKET_TYPES = (SPOT, ON_DEMAND)
# How long a node that is given back has to be left by its job, seconds; a job that has left is not waited for.
LEAVE_SECONDS = 10.0
# How often nodes are looked at here, seconds.
POLL_SECONDS = 0.1


class Provisioner(Protocol):
    """Brings nodes up, and gives them back."""

    def want(self, wanted: NodeCounts) -> None:
        """So many there should be; returns at once."""

    def close(self) -> None:
        """No node is wanted any more."""


def list_nodes(resource: str = "device") -> dict[str, str]:
    """Nodes of the Ray that this process has joined that have a device and are not being taken away: id and kind.

    A node that says nothing of its kind has none: ``""``.
    """
    draining = ray_state.get_draining_nodes()
    listed: Any = ray.nodes  # it has no types
    return {
        node["NodeID"]: node["Labels"].get(MARKET_LABEL, "")
        for node in listed()
        if node["Alive"] and node["NodeID"] not in draining and node["Resources"].get(resource, 0) >= 1
    }


def count_nodes(resource: str = "device") -> NodeCounts:
    """How many of those there are of each kind."""
    kinds = list(list_nodes(resource).values())
    return NodeCounts(kinds.count(SPOT), kinds.count(ON_DEMAND))


def drain(address: str, node: str, seconds: float) -> None:
    """Gives notice that a node will be taken away: nothing new comes to it.

    Args:
        address: of the cluster.
        node: its id.
        seconds: from now.

    Raises:
        RuntimeError: if Ray does not take it.
    """
    raylet: Any = importlib.import_module("ray._raylet")
    words: Any = importlib.import_module("ray.core.generated.autoscaler_pb2")
    reason = words.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline = int(1000 * (time.time() + seconds))
    accepted, why = raylet.GcsClient(address=address).drain_node(node, reason, "taken away", deadline)
    if not accepted:
        raise RuntimeError(f"node {node}: the notice was not taken: {why}")
