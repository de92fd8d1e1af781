"""Ray's autoscaler as a provisioner: it rents the nodes from a cloud."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lightning_core.cluster.ray_nodes import MARKET_LABEL, POOL_LABEL, list_nodes
from lightning_core.core.validation import checked
from lightning_core.parts.market.cloud.provisioner import (
    LEAVE_SECONDS,
    MARKET_TYPES,
    by_place,
    drain,
    list_zones,
    place_labels,
    wall_time,
)
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import PlacedNodes

# Seconds after which a demand expires, and after which its pool renews it.
EXPIRES, RENEWS = 180.0, 20.0
SPACE, PREFIX = b"lightning_core", b"demand/"
log = logging.getLogger(__name__)
# Word after the name of this provisioner, if the pool has node types of its own.
LABELLED = "labelled"


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """Nodes that a pool demands of Ray's autoscaler.

    Args:
        pool: Name of the pool.
        resource: Resource of a device.
        spot: Spot nodes.
        on_demand: On-demand nodes.
        labelled: Whether the nodes of this pool carry the pool's label.
        until: Wall-clock time at which it expires, in seconds.
        places: Nodes of each offer; empty for any.
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


def put_demand(
    pool: str, resource: str, wanted: NodeCounts, places: Sequence[PlacedNodes] = (), *, labelled: bool
) -> None:  # fmt: skip
    """Write the demand of a pool of the joined Ray."""
    from ray.experimental.internal_kv import _internal_kv_put

    demand = NodeDemand(pool, resource, *wanted, labelled, wall_time() + EXPIRES, tuple(places))
    _internal_kv_put(PREFIX + pool.encode(), json.dumps(asdict(demand)).encode(), overwrite=True, namespace=SPACE)


def remove_demand(pool: str) -> None:
    """Remove the demand of a pool."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(PREFIX + pool.encode(), namespace=SPACE)


def read_demands() -> list[NodeDemand]:
    """Return the demands of all pools, ordered by name; expired ones are removed."""
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


class AutoscalerProvisioner:
    """Brings up nodes through Ray's autoscaler, whose node types carry the labels of market, zone and type.

    A request to it holds for the whole cluster. Several pools of one cluster share it (:class:`NodeDemand`) if each has
    node types with its own label ``lightning-core/pool``, and says so by the word ``labelled``; nothing else may make
    a request. A surplus node is drained: it ends once its job has left, and then its machine is returned.

    Args:
        resource: Resource of a device, ``"GPU"`` or ``"device"``.
        leave: Seconds that a job has to leave a node which is returned.
        pool: Name of the pool.
        words: ``["labelled"]`` if its node types carry its label.

    Raises:
        ValueError: If the Ray cluster that this process has joined has no autoscaler that supports labels, or there are
            other words.
    """

    def __init__(
        self, resource: str = "GPU", leave: float = LEAVE_SECONDS, pool: str = "pool", words: Sequence[str] = ()
    ) -> None:
        from ray.autoscaler.v2.utils import is_autoscaler_v2

        if list(words) not in ([], [LABELLED]):
            raise ValueError(f"the autoscaler takes no other word than {LABELLED!r}, got {' '.join(words)}")
        if not is_autoscaler_v2(fetch_from_server=True):
            raise ValueError("the autoscaler of this Ray cluster does not support node labels: start it with version 2 "
                             "(RAY_enable_autoscaler_v2=1), or name a command with `provision`")  # fmt: skip
        self._resource, self._leave, self._pool, self._labelled = resource, leave, pool, bool(words)
        self._wanted: NodeCounts | None = None
        self._places: tuple[PlacedNodes, ...] = ()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lightning-core-demand", daemon=True)
        self._thread.start()

    def scale_to(self, wanted: NodeCounts, places: Sequence[PlacedNodes] = ()) -> None:
        with self._lock:
            self._wanted, self._places = wanted, tuple(places)
            put_demand(self._pool, self._resource, wanted, places, labelled=self._labelled)
            self._request()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._wanted, self._places = NodeCounts(), ()
            remove_demand(self._pool)
            self._request()
        self._thread.join()

    def _renew(self) -> None:
        """Renew the demand, and the request, which another pool may have replaced while this one changed."""
        while not self._closed.wait(RENEWS):
            try:
                with self._lock:
                    if self._wanted is not None and not self._closed.is_set():
                        put_demand(self._pool, self._resource, self._wanted, self._places, labelled=self._labelled)
                        self._request()
            except Exception as error:  # Ray raises many kinds; the next one may succeed
                log.warning("the demand of the pool could not be renewed: %s", " ".join(str(error).split()))

    def _request(self) -> None:
        from ray.autoscaler.sdk import request_resources

        several = read_demands()
        self._drain_surplus(several)
        bundles = [{demand.resource: 1} for demand in several for _ in range(demand.counts.all)]
        selectors = [
            {MARKET_LABEL: market_type} | place_labels(*place) | ({POOL_LABEL: demand.pool} if demand.labelled else {})
            for demand in several
            for place, counts in by_place(demand.counts, demand.places).items()
            for market_type, number in zip(MARKET_TYPES, counts, strict=True)
            for _ in range(number)
        ]
        request_resources(bundles=bundles, bundle_label_selectors=selectors)

    def _drain_surplus(self, several: Sequence[NodeDemand]) -> None:
        """Drain nodes of the pool beyond those that it wants, and nodes without a label that no pool demands."""
        import ray

        ours = list_nodes(self._resource, self._pool, labelled=True)
        shared = {
            node: its_type for node, its_type in list_nodes(self._resource, self._pool).items() if node not in ours
        }
        others = [
            one for one in several if one.pool != self._pool and not one.labelled and one.resource == self._resource
        ]
        wanted = by_place(self._wanted or NodeCounts(), self._places)
        zones = list_zones() if self._places else {}
        kinds = {node: (*self._place(zones.get(node, ("", ""))), kind) for node, kind in (ours | shared).items()}
        for *place, market_type in sorted(set(kinds.values())):
            if market_type not in MARKET_TYPES:
                continue
            number, where = MARKET_TYPES.index(market_type), (place[0], place[1])
            labelled, unlabelled = (
                [node for node in nodes if kinds[node] == (*where, market_type)] for nodes in (ours, shared)
            )
            needed = wanted.get(where, NodeCounts())[number]
            left = max(needed - len(labelled), 0) + sum(_demanded(demand, where, number) for demand in others)
            for node in (*labelled[needed:], *unlabelled[left:]):
                drain(ray.get_runtime_context().gcs_address, node, self._leave)

    def _place(self, found: tuple[str, str]) -> tuple[str, str]:
        """Return the offer that a node counts for, by its zone and type: an offer without a type takes any."""
        offers = {(place.zone, place.type) for place in self._places}
        return found if found in offers or (found[0], "") not in offers else (found[0], "")


def _demanded(demand: NodeDemand, where: tuple[str, str], number: int) -> int:
    """Return the nodes of a place that another pool may need."""
    if not demand.places or not where[0]:
        return demand.counts[number]
    return by_place(demand.counts, demand.places).get(where, NodeCounts())[number]
