"""Ray's autoscaler as a provisioner: it rents the nodes from a cloud."""

from __future__ import annotations

from lightning_core.cloud.provisioner import (
    LEAVE_SECONDS,
    MARKET_LABEL,
    MARKET_TYPES,
    ON_DEMAND,
    SPOT,
    drain,
    list_nodes,
)
from lightning_core.market.online.node_counts import NodeCounts


class AutoscalerProvisioner:
    """Has Ray's autoscaler bring up nodes, whose node types carry the market label.

    A request to it holds for the whole cluster, so nothing else may make one. A surplus node is drained: it ends once
    its job has left, and then its machine is returned.

    Args:
        resource: Resource of a device, ``"GPU"`` or ``"device"``.
        leave: Seconds that a job has to leave a node which is given back.

    Raises:
        ValueError: If the Ray cluster that this process has joined has no autoscaler that supports labels.
    """

    def __init__(self, resource: str = "GPU", leave: float = LEAVE_SECONDS) -> None:
        from ray.autoscaler.v2.utils import is_autoscaler_v2

        if not is_autoscaler_v2(fetch_from_server=True):
            raise ValueError("the autoscaler of this Ray cluster does not support node labels: start it with version 2 "
                             "(RAY_enable_autoscaler_v2=1), or bring nodes up with --provision COMMAND")  # fmt: skip
        self._resource, self._leave = resource, leave

    def scale_to(self, wanted: NodeCounts) -> None:
        import ray
        from ray.autoscaler.sdk import request_resources

        listed = list_nodes(self._resource)
        for market_type, number in zip(MARKET_TYPES, wanted, strict=True):
            for node in [name for name, its_type in listed.items() if its_type == market_type][number:]:
                drain(ray.get_runtime_context().gcs_address, node, self._leave)
        selectors = [{MARKET_LABEL: SPOT}] * wanted.spot + [{MARKET_LABEL: ON_DEMAND}] * wanted.on_demand
        request_resources(bundles=[{self._resource: 1}] * wanted.all, bundle_label_selectors=selectors)

    def close(self) -> None:
        self.scale_to(NodeCounts())
