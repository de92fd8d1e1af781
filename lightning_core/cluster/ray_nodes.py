"""The nodes of the joined Ray that have a device of a pool."""

from __future__ import annotations

from typing import Any

# Label with the market type of a node, as clouds set it, and with the name of the pool that requested it.
MARKET_LABEL, POOL_LABEL = "ray.io/market-type", "lightning-core/pool"


def list_nodes(
    resource: str = "device", pool: str = "", *, labelled: bool = False, draining: bool = False
) -> dict[str, str]:
    """Return the market type of each node by its id: nodes of the joined Ray with a device that are not draining.

    The type of a node without the label is ``""``.

    Args:
        resource: Resource of a device.
        pool: Name of the pool: nodes with the label of another one are left out. Empty for all nodes.
        labelled: Whether to leave out nodes without the label of any pool.
        draining: Whether to list nodes that are draining.
    """
    import ray
    from ray._private.state import state as ray_state

    leaving = {} if draining else ray_state.get_draining_nodes()
    listed: Any = ray.nodes  # it has no types
    return {
        node["NodeID"]: node["Labels"].get(MARKET_LABEL, "")
        for node in listed()
        if node["Alive"]
        and node["NodeID"] not in leaving
        and node["Resources"].get(resource, 0) >= 1
        and (not pool or node["Labels"].get(POOL_LABEL, pool) == pool)
        and (not labelled or POOL_LABEL in node["Labels"])
    }
