"""Ray's autoscaler as a provisioner: it rents the nodes from a cloud."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from lightning_core.cloud import node_demands
from lightning_core.cloud.node_demands import NodeDemand
from lightning_core.cloud.provisioner import (
    LEAVE_SECONDS,
    MARKET_LABEL,
    MARKET_TYPES,
    POOL_LABEL,
    by_place,
    drain,
    list_nodes,
    list_zones,
    place_labels,
)
from lightning_core.core.control.offers import PlacedNodes
from lightning_core.market.node_counts import NodeCounts

log = logging.getLogger(__name__)
# Word after the name of this provisioner, if the pool has node types of its own.
LABELLED = "labelled"


class AutoscalerProvisioner:
    """Has Ray's autoscaler bring up nodes, whose node types carry the market label, and those of zone and type.

    A request to it holds for the whole cluster. Several pools of one cluster share it (:mod:`.demands`) if each has
    node types with its own label ``lightning-core/pool``, and says so by the word ``labelled``; nothing else may make
    a request. A surplus node is drained: it ends once its job has left, and then its machine is returned.

    Args:
        resource: Resource of a device, ``"GPU"`` or ``"device"``.
        leave: Seconds that a job has to leave a node which is given back.
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
            node_demands.put(self._pool, self._resource, wanted, places, labelled=self._labelled)
            self._request()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._wanted, self._places = NodeCounts(), ()
            node_demands.remove(self._pool)
            self._request()
        self._thread.join()

    def _renew(self) -> None:
        """Renew the demand, and the request, which another pool may have replaced while this one changed."""
        while not self._closed.wait(node_demands.RENEWS):
            try:
                with self._lock:
                    if self._wanted is not None and not self._closed.is_set():
                        node_demands.put(
                            self._pool, self._resource, self._wanted, self._places, labelled=self._labelled
                        )
                        self._request()
            except Exception as error:  # Ray raises many kinds; the next one may succeed
                log.warning("the demand of the pool could not be renewed: %s", " ".join(str(error).split()))

    def _request(self) -> None:
        from ray.autoscaler.sdk import request_resources

        several = node_demands.read()
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
