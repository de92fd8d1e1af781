"""Numbers of spot and on-demand nodes."""

from __future__ import annotations

from typing import NamedTuple


class NodeCounts(NamedTuple):
    """Spot and on-demand nodes."""

    spot: int = 0
    on_demand: int = 0

    @property
    def all(self) -> int:
        """Nodes of both kinds together."""
        return self.spot + self.on_demand

    def minimum(self, other: NodeCounts) -> NodeCounts:
        """Return the smaller number of each kind."""
        return NodeCounts(min(self.spot, other.spot), min(self.on_demand, other.on_demand))

    def maximum(self, other: NodeCounts) -> NodeCounts:
        """Return the larger number of each kind."""
        return NodeCounts(max(self.spot, other.spot), max(self.on_demand, other.on_demand))

    def plus(self, other: NodeCounts) -> NodeCounts:
        """Return the nodes of both."""
        return NodeCounts(self.spot + other.spot, self.on_demand + other.on_demand)

    def minus(self, other: NodeCounts) -> NodeCounts:
        """Return the nodes without those of the other."""
        return NodeCounts(self.spot - other.spot, self.on_demand - other.on_demand)

    def cost(self, price: float, on_demand: float) -> float:
        """Return their cost for an interval at these prices of a node of each kind."""
        return self.spot * price + self.on_demand * on_demand
