"""Recordings of several offers, and the market that they are together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_core.parts.market.offers import Offer, region_of
from lightning_core.parts.market.spot_market import Market


@dataclass(frozen=True, eq=False, slots=True)
class OfferTrace:
    """Recording of an offer.

    Args:
        market: The recording.
        zone: Zone of the nodes.
        type: Type of the nodes.
        throughput: Work of a node, relative to a node of the slowest type on offer.
        region: Region of the zone; empty to derive it from the name.

    Raises:
        ValueError: If a value is out of its range.
    """

    market: Market
    zone: str
    type: str = ""
    throughput: float = 1.0
    region: str = ""

    def __post_init__(self) -> None:
        self.at(0)

    def at(self, interval: int) -> Offer:
        """Return the offer in an interval."""
        market, region = self.market, self.region or region_of(self.zone)
        price, available = float(market.price[interval]), int(market.available[interval])
        return Offer(self.zone, self.type, price, available, market.on_demand, self.throughput, region)


def any_of(traces: Sequence[OfferTrace]) -> Market:
    """Return the market of all offers together, as a spot policy sees it.

    It has the nodes of all of them. Its price is the lowest per unit of work among the offers with nodes, or among all
    of them if none has any; likewise its on-demand price.

    Args:
        traces: Recordings that begin at the same time.

    Raises:
        ValueError: If there are none, or they differ in their intervals.
    """
    if not traces:
        raise ValueError("there must be at least one recording of an offer")
    markets = [trace.market for trace in traces]
    for what, values in (("intervals of one length", {market.seconds for market in markets}),
                         ("the same number of intervals", set(map(len, markets)))):  # fmt: skip
        if len(values) > 1:
            raise ValueError(f"recordings of offers must have {what}, got {' and '.join(map(str, sorted(values)))}")
    speed = np.array([trace.throughput for trace in traces])[:, None]
    price = np.array([market.price for market in markets]) / speed
    counts = np.array([market.available for market in markets])
    lowest = np.where(counts > 0, price, np.inf).min(0)
    lowest = np.where(np.isfinite(lowest), lowest, price.min(0))
    on_demand = min(trace.market.on_demand / trace.throughput for trace in traces)
    name = " + ".join(trace.zone for trace in traces)
    return Market(lowest, counts.sum(0), on_demand, markets[0].seconds, name)
