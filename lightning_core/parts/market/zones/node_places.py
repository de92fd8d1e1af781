"""Places of a pool's nodes, interval by interval: the knowledge of its offers, and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.core.validation import checked
from lightning_core.parts.market.cloud_events import NodesSeen, Quoted
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import Offer, PlacedNodes
from lightning_core.parts.market.zones.stays import expected_stay
from lightning_core.parts.market.zones.where import MoveCost, choose

NONE = PlacedNodes("", "")


class Leeway(NamedTuple):
    """Leeway of the jobs with nodes, in intervals."""

    launch: float = 0.0
    """Duration of a launch."""
    left: float = 1.0
    """Time for which nodes are needed."""
    may_move: bool = False
    """Whether all of them have time for a launch that their plans do not know of."""


class NodePlaces:
    """Chooses the places of a pool's requested nodes, from quotes and from the observed nodes.

    Requested nodes that have not come yet count as placed. An offer that has lost nodes within an interval has no more
    until the next one, whatever its quote.
    """

    def __init__(self) -> None:
        self._seen: tuple[PlacedNodes, ...] = ()
        self._wanted: tuple[PlacedNodes, ...] = ()
        self._homes: list[str] = []  # regions in which the checkpoints are
        self._lost: dict[str, int] = {}  # interval in which an offer has lost nodes, by its name
        self._leeway = Leeway()

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        seen, wanted = (list(map(list, places)) for places in (self._seen, self._wanted))
        return {"seen": seen, "wanted": wanted, "homes": list(self._homes), "lost": dict(self._lost),
                "leeway": list(self._leeway)}  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        self._seen, self._wanted = (checked(state[name], tuple[PlacedNodes, ...]) for name in ("seen", "wanted"))
        self._homes, self._lost = list(state["homes"]), dict(state["lost"])
        self._leeway = Leeway(*state["leeway"])

    @property
    def homes(self) -> frozenset[str]:
        """The regions in which the checkpoints are."""
        return frozenset(self._homes)

    def leave(self) -> None:
        """Forget where the checkpoints are: the jobs are over."""
        self._homes = []

    def see(self, nodes: NodesSeen, interval: int) -> None:
        """Record the nodes of an interval."""
        now, wanted = _by_name(nodes.places), _by_name(self._wanted)
        for name, before in _by_name(self._seen).items():
            kept = min(before.spot, wanted.get(name, NONE).spot)  # a node beyond those was returned
            if now.get(name, NONE).spot < kept:
                self._lost[name] = interval
        self._lost = {name: at for name, at in self._lost.items() if at >= interval}
        self._seen = nodes.places

    def place(
        self, quote: Quoted, counts: Mapping[str, IntArray], wanted: NodeCounts, leeway: Leeway | None, seconds: float
    ) -> tuple[PlacedNodes, ...]:
        """Choose where the wanted nodes are; empty where the quote has no offers.

        Args:
            quote: The current offers.
            counts: Spot nodes of each offer in the intervals so far, by its name.
            wanted: Nodes wanted.
            leeway: Leeway of the jobs; None within an interval: as at its beginning, with all placed nodes kept.
            seconds: Seconds of an interval.
        """
        if not quote.offers:
            self._wanted = ()
            return ()
        self._leeway = leeway = leeway or self._leeway._replace(may_move=False)
        offers = [self._as_known(offer) for offer in quote.offers]
        held = [self._stands(offer) for offer in offers]
        within = min(wanted.spot, sum(offer.available for offer in offers))
        stays = [_stay(counts[offer.name], within, offer) for offer in offers]
        cost = MoveCost(leeway.launch, quote.transfer / seconds, quote.egress)
        nodes = choose(offers, stays, held, NodeCounts(within, wanted.on_demand), self._homes, cost, leeway.left,
                       may_move=leeway.may_move)  # fmt: skip
        beyond = wanted.spot - within  # wanted, and nowhere on offer: where they would be looked for first
        first = max(range(len(offers)), key=lambda at: (nodes[at].spot, -at))
        self._wanted = tuple(sorted(
            PlacedNodes(offer.zone, offer.type, has.spot + beyond * (at == first), has.on_demand)
            for at, (offer, has) in enumerate(zip(offers, nodes, strict=True))
            if has.all or (beyond and at == first)
        ))  # fmt: skip
        if wanted.all:
            regions = {offer.name: offer.region for offer in offers}
            self._homes = sorted({regions[place.name] for place in self._wanted})
        return self._wanted

    def available(self, quote: Quoted) -> int:
        """Return the spot nodes on offer, as known since the last quote."""
        return sum(self._as_known(offer).available for offer in quote.offers)

    def _as_known(self, offer: Offer) -> Offer:
        """Return the current state of an offer: with its present nodes, and no others after a loss."""
        there = _by_name(self._seen).get(offer.name, NONE).spot
        available = there if offer.name in self._lost else max(offer.available, there)
        values = offer.price, available, offer.on_demand, offer.throughput, offer.region
        return Offer(offer.zone, offer.type, *values)

    def _stands(self, offer: Offer) -> NodeCounts:
        seen, wanted = (_by_name(places).get(offer.name, NONE) for places in (self._seen, self._wanted))
        spot = min(max(seen.spot, wanted.spot), offer.available)
        return NodeCounts(spot, max(seen.on_demand, wanted.on_demand))


def mean_prices(places: Sequence[PlacedNodes], quote: Quoted) -> tuple[float, float]:
    """Return the mean price of a spot and of an on-demand node in their places; that of the quote if there is none."""
    offers = {offer.name: offer for offer in quote.offers}
    spot, on_demand = sum(place.spot for place in places), sum(place.on_demand for place in places)
    return (
        sum(place.spot * offers[place.name].price for place in places) / spot if spot else quote.price,
        sum(place.on_demand * offers[place.name].on_demand for place in places) / on_demand
        if on_demand else quote.on_demand,
    )  # fmt: skip


def dearest(quote: Quoted) -> tuple[float, float]:
    """Return the highest price of a spot and of an on-demand node that could be wanted."""
    spot = [offer.price for offer in quote.offers]
    return max(spot, default=quote.price), max((offer.on_demand for offer in quote.offers), default=quote.on_demand)


def _stay(counts: IntArray, wanted: int, offer: Offer) -> float:
    nodes = min(wanted, offer.available)
    if not nodes:
        return 1.0
    return expected_stay(np.append(counts[:-1], max(int(counts[-1]), nodes)), nodes)


def _by_name(places: Sequence[PlacedNodes]) -> dict[str, PlacedNodes]:
    return {place.name: place for place in places}
