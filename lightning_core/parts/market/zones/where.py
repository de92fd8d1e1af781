"""Choice of the offers that hold the requested nodes: a policy decides their number and kind, this module their places.

A node is worth the work of its stay. One that is launched pays for its launch, one in another region also for the
transfer of the checkpoint, and a spot node that is lost for the work since the last checkpoint. So the cost of a unit
of work on a new node, over a stay of ``S`` intervals, is ``(p S + e) / (r (S - d - l))`` with its price ``p``, egress
``e``, throughput ``r``, launch ``d`` and loss ``l``, and on an existing node ``p S / (r (S - l))``. The cheapest nodes
are chosen: an existing node stays unless a new one is cheaper including its launch. That is the rule of renewal
processes: a run is left when it costs more from here on than a whole new one on average (Charnov, "Optimal foraging,
the marginal value theorem", 1976).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import Offer


class MoveCost(NamedTuple):
    """Cost of a new node beside its price."""

    launch: float = 0.0
    """Intervals without training from a launch on, in a region where the checkpoint is."""
    transfer: float = 0.0
    """Intervals that a launch takes longer where the checkpoint comes from another region."""
    egress: float = 0.0
    """Price of moving the checkpoint to another region: its size times the price of a GB."""
    loss: float = 0.0
    """Intervals of work that spot nodes lose when they are preempted."""


FREE = MoveCost()


class _Rate(NamedTuple):
    """Order of nodes: the cost of their work, then those that stand, then their price, then the order of the offers."""

    cost: float
    is_new: bool
    price: float
    offer: int


def choose(
    offers: Sequence[Offer], stays: Sequence[float], held: Sequence[NodeCounts], wanted: NodeCounts,
    homes: Collection[str] = (), cost: MoveCost = FREE, left: float = math.inf, *, may_move: bool = True,
) -> list[NodeCounts]:  # fmt: skip
    """Choose how many of the wanted nodes are in each offer.

    Args:
        offers: The current offers.
        stays: Intervals for which spot nodes of each are expected to stay, positive (:func:`.stays.expected_stay`).
        held: Nodes of each offer, without those preempted by now.
        wanted: Nodes wanted; at most as many spot nodes as are on offer together.
        homes: Regions in which the checkpoint is; empty if there is none to move.
        cost: Cost of new nodes.
        left: Intervals for which nodes are wanted.
        may_move: Whether nodes that stand may be left for others.

    Returns:
        Nodes of each offer.

    Raises:
        ValueError: If more spot nodes are wanted than are on offer.

    Example::

        >>> offers = [Offer("us-east-1a", price=0.4, available=1), Offer("us-west-2b", price=0.3, available=1)]
        >>> stands, cost = [NodeCounts(1, 0), NodeCounts()], MoveCost(launch=0.5, egress=0.2)
        >>> [choose(offers, [9.0, 9.0], stands, NodeCounts(1, 0), ["us-east-1"], cost, left) for left in (2.0, 8.0)]
        [[NodeCounts(spot=1, on_demand=0), NodeCounts(spot=0, on_demand=0)], \
[NodeCounts(spot=0, on_demand=0), NodeCounts(spot=1, on_demand=0)]]
    """
    if wanted.spot > (available := sum(offer.available for offer in offers)):
        raise ValueError(f"spot nodes wanted must be at most the {available} on offer, got {wanted.spot}")
    spot, on_demand = list[tuple[_Rate, int]](), list[tuple[_Rate, int]]()
    for at, (offer, stay, has) in enumerate(zip(offers, stays, held, strict=True)):
        away = bool(homes) and offer.region not in homes
        for rates, price, stands, most, lasts, loss in (
            (spot, offer.price, min(has.spot, offer.available), offer.available, min(stay, left), cost.loss),
            (on_demand, offer.on_demand, has.on_demand, wanted.on_demand, left, 0.0),
        ):
            new = cost.launch + away * cost.transfer + loss
            stood = -math.inf if not may_move else work_cost(price, lasts, loss, offer.throughput)
            rates.append((_Rate(stood, False, price, at), stands))
            came = work_cost(price, lasts, new, offer.throughput, away * cost.egress / max(wanted.all, 1))
            rates.append((_Rate(came, True, price, at), max(most - stands, 0)))
    return [
        NodeCounts(*counts)
        for counts in zip(_fill(spot, wanted.spot, len(offers)), _fill(on_demand, wanted.on_demand, len(offers)),
                          strict=True)
    ]  # fmt: skip


def work_cost(price: float, stay: float, lost: float, throughput: float, egress: float = 0.0) -> float:
    """Return the cost of a unit of work on a node, infinite if it does none.

    Args:
        price: Price of the node for an interval.
        stay: Intervals for which it stays.
        lost: Intervals of them without work that counts.
        throughput: Work of an interval.
        egress: Money paid once.

    Example::

        >>> work_cost(0.3, 10.0, 4.0, 2.0), work_cost(0.3, math.inf, 4.0, 2.0), work_cost(0.3, 3.0, 4.0, 2.0)
        (0.25, 0.15, inf)
    """
    if stay == math.inf:
        return price / throughput
    return (price * stay + egress) / (throughput * (stay - lost)) if stay > lost else math.inf


def _fill(rates: list[tuple[_Rate, int]], wanted: int, offers: int) -> list[int]:
    """Return how many of the wanted nodes are in each offer, the cheapest first."""
    counts = [0] * offers
    for rate, most in sorted(rates):
        taken = min(most, wanted)
        counts[rate.offer] += taken
        wanted -= taken
    return counts
