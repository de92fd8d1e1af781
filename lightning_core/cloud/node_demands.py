"""The nodes that each pool of a Ray cluster demands, in Ray's own store of keys and values.

Ray keeps one request for the whole cluster: the newest one holds, of whatever pool it is. Each pool therefore asks for
the sum of what all pools demand. A demand expires unless its pool renews it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lightning_core.cloud.provisioner import wall_time
from lightning_core.core.control.offers import PlacedNodes
from lightning_core.core.validation import checked
from lightning_core.market.node_counts import NodeCounts

# Seconds after which a demand expires, and after which its pool renews it.
EXPIRES, RENEWS = 180.0, 20.0
SPACE, PREFIX = b"lightning_core", b"demand/"


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """Nodes that a pool demands of Ray's autoscaler.

    Args:
        pool: Name of the pool.
        resource: Resource of a device.
        spot: Spot nodes.
        on_demand: On-demand nodes.
        labelled: Whether the nodes of this pool carry the pool's label.
        until: Time on the wall at which it expires.
        places: How many of the nodes are of each offer; empty for any.
    """

    pool: str
    resource: str
    spot: int
    on_demand: int
    labelled: bool
    until: float
    places: tuple[PlacedNodes, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", checked(self.places, tuple[PlacedNodes, ...]))  # JSON has lists

    @property
    def counts(self) -> NodeCounts:
        """The nodes."""
        return NodeCounts(self.spot, self.on_demand)


def put(
    pool: str, resource: str, wanted: NodeCounts, places: Sequence[PlacedNodes] = (), *, labelled: bool
) -> None:  # fmt: skip
    """Write what a pool of the joined Ray demands from now on."""
    from ray.experimental.internal_kv import _internal_kv_put

    demand = NodeDemand(pool, resource, *wanted, labelled, wall_time() + EXPIRES, tuple(places))
    _internal_kv_put(PREFIX + pool.encode(), json.dumps(asdict(demand)).encode(), overwrite=True, namespace=SPACE)


def remove(pool: str) -> None:
    """Remove what a pool demands."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(PREFIX + pool.encode(), namespace=SPACE)


def read() -> list[NodeDemand]:
    """Return what pools demand, in the order of their names; what has expired is removed."""
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_list

    found = []
    for key in sorted(_internal_kv_list(PREFIX, namespace=SPACE)):
        if (value := _internal_kv_get(key, namespace=SPACE)) is None:  # removed meanwhile
            continue
        try:
            demand = NodeDemand(**json.loads(value))
            is_over = demand.until < wall_time()
        except (ValueError, TypeError):  # of another release
            is_over = True
        if is_over:
            _internal_kv_del(key, namespace=SPACE)
        else:
            found.append(demand)
    return found
