"""Offers of a cloud: nodes of one type in one zone, with their prices and how many there are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lightning_core.core.limits import MAX_FACTOR, check_length

# Spot nodes that can be on offer. Prices beyond these would overflow where they are added up or divided by each other.
MAX_AVAILABLE, MIN_ON_DEMAND, MAX_PRICE = 10**6, 1e-9, 1e9
# Zones of AWS and Google Cloud: the name of a region that ends with a number, and a letter.
ZONE = re.compile(r"(?P<region>[a-z]+(?:-[a-z]+)*-?[0-9]+)-?[a-z]")


@dataclass(frozen=True, slots=True)
class Offer:
    """Nodes of one type in one zone.

    Args:
        zone: Zone where they stand, such as ``us-east-1a``.
        type: Type of the nodes, such as ``p3.2xlarge``; may be empty.
        price: Price of a spot node for an interval.
        available: Spot nodes on offer.
        on_demand: Price of an on-demand node for an interval.
        throughput: Work of a node, relative to a node of the slowest type on offer; at least 1, so that no node does
            less than was planned.
        region: Region of the zone; empty for what the zone's name says (:func:`region_of`).

    Raises:
        ValueError: If a value is out of its range.

    Example::

        >>> offer = Offer("us-east-1a", "p3.2xlarge", price=0.9, available=3, on_demand=3.06)
        >>> offer.name, offer.region
        ('p3.2xlarge@us-east-1a', 'us-east-1')
    """

    zone: str
    type: str = ""
    price: float = 1.0
    available: int = 0
    on_demand: float = 1.0
    throughput: float = 1.0
    region: str = ""

    def __post_init__(self) -> None:
        for name in ("zone", "type", "region"):
            check_length(name, getattr(self, name))
        if not self.zone:
            raise ValueError("zone must not be empty")
        limits = (("price", 0.0, MAX_PRICE), ("available", 0, MAX_AVAILABLE), ("on_demand", MIN_ON_DEMAND, MAX_PRICE),
                  ("throughput", 1.0, MAX_FACTOR))  # fmt: skip
        for name, minimum, maximum in limits:
            if not minimum <= (number := getattr(self, name)) <= maximum:
                raise ValueError(f"{name} must be {minimum:g} to {maximum:,.0f}, got {number}")
        if not self.region:
            object.__setattr__(self, "region", region_of(self.zone))

    @property
    def name(self) -> str:
        """The type and the zone, ``TYPE@ZONE``; the zone alone without a type."""
        return f"{self.type}@{self.zone}" if self.type else self.zone


class PlacedNodes(NamedTuple):
    """Nodes of an offer."""

    zone: str
    type: str
    spot: int = 0
    on_demand: int = 0

    @property
    def name(self) -> str:
        """Name of the offer."""
        return f"{self.type}@{self.zone}" if self.type else self.zone


def together(offers: Sequence[Offer]) -> tuple[float, int, float]:
    """Return what several offers are together: price of a spot node, spot nodes on offer, price of an on-demand node.

    The prices are the lowest for the work of a node; that of a spot node among the offers with some, if there are any.

    Raises:
        ValueError: If there is no offer, or one is there twice.
    """
    if not offers:
        raise ValueError("offers must not be empty")
    if len({(offer.zone, offer.type) for offer in offers}) < len(offers):
        raise ValueError("offers must be there once each, got one twice")
    with_nodes = [offer for offer in offers if offer.available] or offers
    return (
        min(offer.price / offer.throughput for offer in with_nodes),
        min(sum(offer.available for offer in offers), MAX_AVAILABLE),
        min(offer.on_demand / offer.throughput for offer in offers),
    )


def region_of(zone: str) -> str:
    """Return the region that the name of a zone says, or the zone itself.

    Example::

        >>> [region_of(zone) for zone in ("us-east-1a", "europe-west4-b", "rack 3")]
        ['us-east-1', 'europe-west4', 'rack 3']
    """
    found = ZONE.fullmatch(zone)
    return found["region"] if found else zone
