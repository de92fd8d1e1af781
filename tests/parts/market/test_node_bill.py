"""The bill of the nodes of a pool, by values worked by hand: prices are for ten seconds."""

from __future__ import annotations

import math

import pytest

from lightning_core.parts.market.cloud_events import NodesSeen, Quoted
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import Offer, PlacedNodes
from lightning_core.parts.market.online.node_bill import NodeBill
from lightning_core.testing.checks import saved_and_restored


def bill(minimum_charge: float = 0.0, price: float = 1.0) -> NodeBill:
    made = NodeBill(10.0, minimum_charge)
    made.quote(Quoted(price, 4, 3.0, 0), 0.0)
    return made


def test_each_node_is_billed_by_the_second_while_it_starts_trains_and_leaves() -> None:
    made = bill()
    made.see(NodesSeen(billed_spot=("a",)), 2.0)
    made.see(NodesSeen(("a",), billed_on_demand=("b",)), 5.0)
    made.see(NodesSeen((), ("b",), billed_spot=("a",)), 7.0)
    made.see(NodesSeen((), ("b",)), 8.0)
    made.advance(12.0)
    assert made.take(0) == pytest.approx(6 * 0.1 + 5 * 0.3)
    assert made.take(1) == pytest.approx(0.6)
    assert (made.cost, len(made)) == (0.0, 1)


@pytest.mark.promise("R29")
def test_a_price_holds_from_when_it_is_quoted() -> None:
    """One of an interval from its beginning on, any other at once; of an interval that is over it changes nothing."""
    made = bill()
    made.see(NodesSeen(("a",)), 0.0)
    made.quote(Quoted(2.0, 4, interval=1), 1.0)
    made.quote(Quoted(5.0, 4), 4.0)
    made.advance(15.0)
    assert made.take(1) == pytest.approx(4 * 0.1 + 6 * 0.5 + 5 * 0.2)
    made.quote(Quoted(9.0, 4, interval=0), 15.0)
    made.quote(Quoted(4.0, 4, interval=1), 15.0)  # late: from now on
    made.advance(20.0)
    assert made.cost == pytest.approx(5 * 0.4)


def test_before_the_first_quote_nodes_are_billed_once_it_comes() -> None:
    made = NodeBill(10.0)
    made.see(NodesSeen(("a",)), 3.0)
    made.advance(8.0)
    assert made.cost == 0.0
    made.quote(Quoted(1.0, 4), 9.0)
    made.advance(13.0)
    assert [made.take(0), made.take(1)] == pytest.approx([0.7, 0.3])


def test_a_node_that_ends_is_charged_for_the_minimum_at_the_price_of_its_end() -> None:
    made = bill(minimum_charge=6.0)
    made.see(NodesSeen(("a", "b")), 1.0)
    made.quote(Quoted(2.0, 4), 3.0)
    made.see(NodesSeen(("b",)), 5.0)
    assert made.cost == pytest.approx(2 * (2 * 0.1 + 2 * 0.2) + 2 * 0.2)
    made.see(NodesSeen(), 8.0)
    assert made.cost == pytest.approx(1.6 + 3 * 0.2)


def test_in_several_zones_a_node_costs_what_it_costs_where_it_is() -> None:
    made = NodeBill(10.0)
    made.quote(Quoted.of([Offer("east-1a", "", 1.0, 2), Offer("west-1a", "", 3.0, 2)]), 0.0)
    places = PlacedNodes("east-1a", "", 1, 0), PlacedNodes("west-1a", "", 2, 0), PlacedNodes("gone", "", 1, 0)
    made.see(NodesSeen(("a", "b", "c"), places=places[:2]), 0.0)
    made.advance(10.0)
    assert made.cost == pytest.approx(7.0)
    made.see(NodesSeen(("a", "b", "c", "d"), places=places), 10.0)  # where it is, the quote does not say
    made.advance(20.0)
    assert made.cost == pytest.approx(7.0 + 4 * 7.0 / 3)


def test_a_long_absence_is_billed_with_its_last_interval() -> None:
    made = bill()
    made.see(NodesSeen(("a",)), 0.0)
    made.advance(1e7)
    assert len(made.state()["costs"]) == 10_001
    assert made.cost == pytest.approx(1e6)


@pytest.mark.parametrize(
    ("money", "minimum", "leave", "wanted", "until"),
    [
        (2.0, 0.0, 0.0, NodeCounts(), 10.0),  # two nodes for 0.4 a second together
        (2.0, 0.0, 2.0, NodeCounts(), 8.0),  # they are billed for two seconds more
        (2.0, 0.0, 0.0, NodeCounts(3, 0), 5.0 + 2.0 / 0.6),  # two more for 0.1 may come at any moment
        (2.0, 7.0, 0.0, NodeCounts(), 10.0),  # the minimum is over before that
        (2.0, 30.0, 0.0, NodeCounts(), 5.0),  # it is not, and costs more
        (2.2, 7.0, 1.0, NodeCounts(), 9.5),
        (math.inf, 0.0, 0.0, NodeCounts(), math.inf),
    ],
)
def test_nodes_can_stay_for_as_long_as_money_lasts(
    money: float, minimum: float, leave: float, wanted: NodeCounts, until: float
) -> None:
    made = bill(minimum)
    made.see(NodesSeen(("a",), ("b",)), 0.0)
    made.advance(5.0)
    assert made.last_moment(5.0, money, wanted, leave) == pytest.approx(until)


def test_a_price_that_will_rise_counts_for_nodes_that_leave() -> None:
    made = bill()
    made.see(NodesSeen(("a",)), 0.0)
    made.quote(Quoted(2.0, 4, interval=1), 0.0)
    assert made.last_moment(0.0, 0.9, NodeCounts(), 2.0) == pytest.approx(5.0)
    assert made.last_moment(0.0, 0.3, NodeCounts(), 2.0) == 0.0


def test_a_bill_that_is_saved_and_restored_goes_on() -> None:
    made = bill(6.0)
    made.see(NodesSeen(("a",), ("b",)), 2.0)
    made.quote(Quoted(2.0, 4, interval=2), 3.0)
    again = saved_and_restored(made, NodeBill(10.0, 6.0))
    for one in (made, again):
        one.see(NodesSeen(("a",)), 4.0)
        one.advance(25.0)
    assert made.state() == again.state()
