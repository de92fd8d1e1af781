"""TODO."""

from __future__ import annotations

import ray

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
    """Ray's autoscaler brings them up, on a cloud: node types there carry the label.

    It takes a wish as the whole cluster's: nobody else should ask it. A node that is too many is drained: it ends once
    its job has left it, and then its machine is given back.

    Args:
        resource: of a device, ``"GPU"`` or ``"device"``.
        leave: seconds that a node which is given back is left.

    Raises:
        ValueError: if the Ray that this process has joined has no autoscaler that knows labels.
    """

    def __init__(self, resource: str = "GPU", leave: float = LEAVE_SECONDS) -> None:
        from ray.autoscaler.v2.utils import is_autoscaler_v2

        if not is_autoscaler_v2(fetch_from_server=True):
            raise ValueError("this Ray has no autoscaler that knows labels of nodes: that is version 2 "
                             "(RAY_enable_autoscaler_v2=1); or bring nodes up with --provision COMMAND")  # fmt: skip
        self._resource, self._leave = resource, leave

    def want(self, wanted: NodeCounts) -> None:
        from ray.autoscaler.sdk import request_resources

        listed = list_nodes(self._resource)
        for kind, number in zip(MARKET_TYPES, wanted, strict=True):
            for node in [name for name, one in listed.items() if one == kind][number:]:
                drain(ray.get_runtime_context().gcs_address, node, self._leave)
        selectors = [{MARKET_LABEL: SPOT}] * wanted.spot + [{MARKET_LABEL: ON_DEMAND}] * wanted.on_demand
        request_resources(bundles=[{self._resource: 1}] * wanted.all, bundle_label_selectors=selectors)

    def close(self) -> None:
        self.want(NodeCounts())
