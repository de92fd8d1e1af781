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
