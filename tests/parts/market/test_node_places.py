"""Where the nodes of a pool are, interval by interval, of what is quoted and what was seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from lightning_core.parts.market.cloud_events import NodesSeen, Quoted
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import Offer, PlacedNodes
from lightning_core.parts.market.zones.node_places import Leeway, NodePlaces, dearest, mean_prices

EAST, WEST = "us-east-1a", "us-west-2b"
SECONDS = 100.0
CALM = Leeway(launch=0.5, left=20.0, may_move=True)


def quoted(*offers: Offer, transfer: float = 0.0, egress: float = 0.0) -> Quoted:
    return replace(Quoted.of(offers), transfer=transfer, egress=egress)


class Pool:
    """Nodes that are wanted interval after interval, on offers that were always there.

    Args:
        offers: Offers of the first quote.
    """

    def __init__(self, *offers: Offer) -> None:
        self.places = NodePlaces()
        self.past = {offer.name: np.full(30, offer.available) for offer in offers}

    def place(
        self, quote: Quoted, spot: int, on_demand: int = 0, leeway: Leeway | None = CALM
    ) -> tuple[PlacedNodes, ...]:
        return self.places.place(quote, self.past, NodeCounts(spot, on_demand), leeway, SECONDS)

    def see(self, placed: Sequence[PlacedNodes], interval: int = 0) -> None:
        self.places.see(nodes(placed), interval)


def nodes(placed: Sequence[PlacedNodes]) -> NodesSeen:
    spot = tuple(f"spot-{number}" for number in range(sum(place.spot for place in placed)))
    return NodesSeen(spot, places=tuple(placed))


def test_nodes_of_both_kinds_have_the_zone_and_type_of_their_offer() -> None:
    small, large = Offer(EAST, "small", 0.5, 2, 0.9), Offer(EAST, "large", 0.6, 2, 1.0)
    pool = Pool(small, large)
    assert pool.place(quoted(small, large), 3, 1) == (
        PlacedNodes(EAST, "large", 1, 0), PlacedNodes(EAST, "small", 2, 1),
    )  # fmt: skip
    assert pool.places.homes == {"us-east-1"}
    pool.places.leave()
    assert pool.places.homes == frozenset()
    assert pool.place(Quoted(0.5, 1), 3) == ()


def test_nodes_beyond_those_on_offer_are_looked_for_where_most_of_the_others_are() -> None:
    cheap, dear = Offer(EAST, price=0.4, available=1), Offer(WEST, price=0.6, available=2)
    pool = Pool(cheap, dear)
    assert pool.place(quoted(cheap, dear), 5) == (PlacedNodes(EAST, "", 1), PlacedNodes(WEST, "", 4))
    nowhere = [Offer(EAST, price=0.4), Offer(WEST, price=0.3)]
    assert Pool(*nowhere).place(quoted(*nowhere), 2) == (PlacedNodes(EAST, "", 2),)


@pytest.mark.parametrize(("transfer", "egress", "moves"), [(50.0, 0.0, True), (3000.0, 0.0, False), (50.0, 9.0, False)])
def test_a_move_to_another_region_counts_its_transfer_in_intervals_and_its_egress(
    transfer: float, egress: float, moves: bool
) -> None:
    here, there = Offer(EAST, price=0.5, available=1), Offer(WEST, price=0.5, available=0)
    pool = Pool(here, there)
    pool.past[WEST] = np.full(30, 1)
    pool.see(pool.place(quoted(here, there), 1))
    cheaper = Offer(WEST, price=0.2, available=1)
    expected = PlacedNodes(WEST if moves else EAST, "", 1)
    assert pool.place(quoted(here, cheaper, transfer=transfer, egress=egress), 1) == (expected,)
    assert pool.places.homes == {"us-west-2" if moves else "us-east-1"}


@pytest.mark.parametrize("seen", [True, False])
def test_nodes_that_are_there_or_are_coming_stay_within_an_interval(seen: bool) -> None:
    here, there = Offer(EAST, price=0.5, available=2), Offer("us-east-1b", price=0.6, available=2)
    pool = Pool(here, there)
    first = pool.place(quoted(here, there), 2)
    assert first == (PlacedNodes(EAST, "", 2),)
    if seen:
        pool.see(first)
    cheaper = Offer("us-east-1b", price=0.01, available=2)
    assert pool.place(quoted(here, cheaper), 2, leeway=None) == first
    fewer = Offer(EAST, price=0.5, available=1)
    left = 2 if seen else 1  # those that are there are, whatever is quoted
    rest = () if seen else (PlacedNodes("us-east-1b", "", 1),)
    assert pool.place(quoted(fewer, cheaper), 2, leeway=None) == (PlacedNodes(EAST, "", left), *rest)
    assert pool.place(quoted(here, cheaper), 2) == (PlacedNodes("us-east-1b", "", 2),)


def test_an_offer_that_has_lost_a_node_has_no_others_until_the_next_interval() -> None:
    here = Offer(EAST, price=0.5, available=5)
    quote = quoted(here)
    pool = Pool(here)
    pool.see(pool.place(quote, 2))
    assert pool.places.available(quote) == 5
    pool.see([PlacedNodes(EAST, "", 1)], 3)
    assert pool.places.available(quote) == 1
    other = NodePlaces()
    other.restore(json.loads(json.dumps(pool.places.state())))
    assert other.available(quote) == 1
    assert other.state() == pool.places.state()
    for places in (pool.places, other):
        places.see(nodes([PlacedNodes(EAST, "", 1)]), 4)
        assert places.available(quote) == 5


def test_a_node_that_was_given_back_is_no_loss() -> None:
    here = Offer(EAST, price=0.5, available=5)
    pool = Pool(here)
    pool.see(pool.place(quoted(here), 2))
    pool.place(quoted(here), 1)
    pool.see([PlacedNodes(EAST, "", 1)], 3)
    assert pool.places.available(quoted(here)) == 5


def test_new_nodes_are_where_they_are_expected_to_stay_longer() -> None:
    restless, steady = Offer(EAST, price=0.5, available=1), Offer("us-east-1b", price=0.5, available=1)
    pool = Pool(restless, steady)
    pool.past[EAST] = np.arange(30) % 2
    assert pool.place(quoted(restless, steady), 1) == (PlacedNodes("us-east-1b", "", 1),)
    pool = Pool(restless, steady)
    pool.past["us-east-1b"] = np.arange(30) % 2
    assert pool.place(quoted(restless, steady), 1) == (PlacedNodes(EAST, "", 1),)


def test_prices_of_nodes_are_those_of_their_places() -> None:
    quote = quoted(Offer(EAST, price=0.4, available=2, on_demand=1.0), Offer(WEST, price=0.6, on_demand=2.0))
    placed = [PlacedNodes(EAST, "", 1, 1), PlacedNodes(WEST, "", 3, 0)]
    assert mean_prices(placed, quote) == pytest.approx(((0.4 + 3 * 0.6) / 4, 1.0))
    assert mean_prices([PlacedNodes(WEST, "", 0, 2)], quote) == (0.4, 2.0)
    assert dearest(quote) == (0.6, 2.0)
    assert dearest(Quoted(0.5, 1, 3.0)) == (0.5, 3.0)
