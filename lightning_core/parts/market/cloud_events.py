"""Events from a cloud and requests to it: nodes, their prices, and the cost of each interval.

Who brings the nodes (the provisioner) tells what there is as levels, so a message that is lost is repaired by the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple

from lightning_core.core.limits import MAX_DEVICES, MAX_ITEMS, MAX_SECONDS, MAX_TEXT, check_at_most, check_length
from lightning_core.core.reasons import Reason
from lightning_core.parts.market.offers import MAX_AVAILABLE, MAX_PRICE, MIN_ON_DEMAND, Offer, PlacedNodes, together

# Nodes that can be there at once, wanted or not, and intervals of a market: ten years of minutes.
MAX_NODES, MAX_INTERVALS = 4 * MAX_DEVICES, 5_256_000
# Largest number of offers in a quote, and of recorded intervals sent to a pool: no policy learns from more.
MAX_OFFERS, MAX_RECORDED = 100, 20_000


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """The nodes of the pool that are up and not about to leave.

    Args:
        spot: Ids of the spot nodes.
        on_demand: Ids of the on-demand nodes.
        warm: Number of the pool's devices that have a worker and whose nodes are not about to leave.
        places: How many of them are of each offer; those whose zone is not known are left out.
        billed_spot: Ids of the other spot nodes that are billed: those that start, and those that are about to leave.
        billed_on_demand: Ids of such on-demand nodes.

    Raises:
        ValueError: If there are more than :data:`MAX_NODES`, or as many others that are billed, or one is there twice.
    """

    FROM_CLIENTS: ClassVar[bool] = False

    spot: tuple[str, ...] = ()
    on_demand: tuple[str, ...] = ()
    warm: int = 0
    places: tuple[PlacedNodes, ...] = ()
    billed_spot: tuple[str, ...] = ()
    billed_on_demand: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        there, others = (*self.spot, *self.on_demand), (*self.billed_spot, *self.billed_on_demand)
        check_at_most("nodes", len(there), MAX_NODES)
        check_at_most("other nodes that are billed", len(others), MAX_NODES)
        nodes = (*there, *others)
        for node in nodes:
            check_length("the id of a node", node)
        if len(set(nodes)) < len(nodes):
            raise ValueError(f"nodes must be there once each, got {len(nodes)} of which {len(set(nodes))} differ")
        if not 0 <= self.warm <= MAX_NODES:
            raise ValueError(f"warm must be 0 to {MAX_NODES} devices, got {self.warm}")
        for kind, number in (("spot", len(self.spot)), ("on_demand", len(self.on_demand))):
            placed = [getattr(place, kind) for place in self.places]
            if min(placed, default=0) < 0 or sum(placed) > number:
                raise ValueError(f"places must have 0 to all {number} {kind} nodes, got {sum(placed)}")


@dataclass(frozen=True, slots=True)
class Quoted:
    """What is on offer now.

    Args:
        price: Price of a spot node for an interval.
        available: Spot nodes on offer.
        on_demand: Price of an on-demand node for an interval.
        interval: Interval of the market from which on it holds; None: from now on.
        offers: The offers that this is together (:meth:`of`); empty where zones make no difference.
        egress: Price of moving the checkpoints of a pool to another region.
        transfer: Seconds that this takes.

    Raises:
        ValueError: If a number is out of its range, or there are more than :data:`MAX_OFFERS`.
    """

    FROM_CLIENTS: ClassVar[bool] = False

    price: float
    available: int
    on_demand: float = 1.0
    interval: int | None = None
    offers: tuple[Offer, ...] = ()
    egress: float = 0.0
    transfer: float = 0.0

    def __post_init__(self) -> None:
        limits = (("price", 0.0, MAX_PRICE), ("available", 0, MAX_AVAILABLE), ("on_demand", MIN_ON_DEMAND, MAX_PRICE),
                  ("egress", 0.0, MAX_PRICE), ("transfer", 0.0, MAX_SECONDS))  # fmt: skip
        for name, minimum, maximum in limits:
            if not minimum <= (number := getattr(self, name)) <= maximum:
                raise ValueError(f"{name} must be {minimum:g} to {maximum:,.0f}, got {number}")
        if self.interval is not None and not 0 <= self.interval <= MAX_INTERVALS:
            raise ValueError(f"interval must be 0 to {MAX_INTERVALS:,}, got {self.interval}")
        check_at_most("offers", len(self.offers), MAX_OFFERS)
        if self.offers and together(self.offers) != (self.price, self.available, self.on_demand):
            got = self.price, self.available, self.on_demand
            raise ValueError(f"price, available and on_demand must be those of the offers together, got {got}")

    @classmethod
    def of(
        cls, offers: Sequence[Offer], interval: int | None = None, egress: float = 0.0, transfer: float = 0.0
    ) -> Quoted:
        """Return the quote of several offers.

        Raises:
            ValueError: If there are none, or one is there twice.
        """
        return cls(*together(offers), interval, tuple(offers), egress, transfer)


@dataclass(frozen=True, slots=True)
class QuotedBefore:
    """What was on offer before the pool's first interval, interval by interval, the last one right before it.

    Args:
        prices: Price of a spot node in each.
        counts: Spot nodes on offer in each.

    Raises:
        ValueError: If there is none or more than :data:`MAX_RECORDED`, not one of each, or one is out of its range.
    """

    FROM_CLIENTS: ClassVar[bool] = False

    prices: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_recorded("intervals before", self.prices, self.counts)


@dataclass(frozen=True, slots=True)
class QuotedAhead:
    """Prices and spot nodes from the pool's first interval on, where the market replays a recording.

    Args:
        prices: Price of a spot node in each interval.
        counts: Spot nodes on offer in each.

    Raises:
        ValueError: As of :class:`QuotedBefore`.
    """

    FROM_CLIENTS: ClassVar[bool] = False

    prices: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_recorded("intervals ahead", self.prices, self.counts)


def _check_recorded(name: str, prices: Sequence[float], counts: Sequence[int]) -> None:
    check_at_most(name, len(prices), MAX_RECORDED)
    if len(prices) != len(counts) or not prices:
        raise ValueError(f"prices and counts must be as many, got {len(prices)} and {len(counts)}")
    for price, available in zip(prices, counts, strict=True):
        Quoted(price, available)


class CloudPart(StrEnum):
    """What can have trouble."""

    NODES = "nodes"
    QUOTES = "quotes"


@dataclass(frozen=True, slots=True)
class CloudTrouble:
    """Nodes do not come as wanted, or no quote can be had; without words: it is over.

    Args:
        part: What has trouble.
        words: What is wrong.
    """

    FROM_CLIENTS: ClassVar[bool] = False

    part: CloudPart
    words: str = ""

    def __post_init__(self) -> None:
        check_length("words", self.words, MAX_TEXT)


class NodesWanted(NamedTuple):
    """Nodes that the pool wants from now on: a level, as a grant is."""

    version: int
    spot: int
    on_demand: int
    reason: Reason
    places: tuple[PlacedNodes, ...] = ()
    """How many of them in each offer; empty for anywhere."""


class IntervalEnded(NamedTuple):
    """What an interval of the market held, cost and trained: one row of the ledger."""

    number: int
    """Number of the interval, from 0."""
    price: float
    """Price of a spot node."""
    available: int
    """Spot nodes on offer."""
    spot: int
    """Spot nodes held: the largest number of requested ones present at once."""
    on_demand: int
    """On-demand nodes held."""
    surplus: float
    """Mean number of nodes billed beyond those: they start, train until their replacements do, or leave."""
    used: float
    """Mean number of devices that trained."""
    cost: float
    """What the interval cost: each node from its launch to its end, by the second, and minimum charges and egress."""
    batches: int
    """Batches trained in it."""
    incarnations: int
    """Incarnations of jobs that began, on another node or another number of devices."""
    failures: int
    """Incarnations that began because a worker was lost or failed."""
    lost: int
    """Batches that have to be trained again."""


@dataclass(frozen=True, slots=True)
class SelectorFeedback:
    """Counterfactual utility of each spot policy for a job that has ended.

    Args:
        job: Name of the job.
        utilities: Utilities in [0, 1], in the order of the market's policies; empty if the job gives no feedback.
    """

    FROM_CLIENTS: ClassVar[bool] = False

    job: str
    utilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EarlierFeedback:
    """Feedback for a selector that has had none: from before the pool began.

    Args:
        played: Utilities of each spot policy, in [0, 1], in the order of the market's policies, for each job that was
            played in the past of the market; at most :data:`~lightning_core.core.limits.MAX_ITEMS` numbers.
        jobs: The same for each job of earlier runs.

    Raises:
        ValueError: If there are more.
    """

    FROM_CLIENTS: ClassVar[bool] = False

    played: tuple[tuple[float, ...], ...]
    jobs: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        check_at_most("numbers of earlier feedback", sum(map(len, (*self.played, *self.jobs))), MAX_ITEMS)


NOTHING_WANTED = NodesWanted(0, 0, 0, Reason("market.no_nodes"))
CloudEvent = NodesSeen | Quoted | QuotedBefore | QuotedAhead | CloudTrouble | SelectorFeedback | EarlierFeedback
"""Events of the market."""
MarketAnswer = NodesWanted | IntervalEnded
"""What its controller answers beside requests for jobs."""
