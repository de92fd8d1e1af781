"""The bill of a pool's nodes, second by second, as a cloud computes it.

A node is billed from its launch to its end, also while it starts, while it trains beside its replacement and while it
leaves, at the price of each second, with a minimum charge. Launches and ends are known from observations alone: it is
billed from the first that lists it to the first that does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lightning_core.core.validation import checked
from lightning_core.parts.market.cloud_events import NodesSeen, Quoted
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import PlacedNodes
from lightning_core.parts.market.online.quote_history import quote_from_list, quote_to_list
from lightning_core.parts.market.zones.node_places import mean_prices

# Maximum unobserved intervals that are billed one by one; later ones are billed with the last of them.
MAX_PASSED = 10_000


class BilledNode(NamedTuple):
    """A node that is billed."""

    is_spot: bool
    since: float
    """Scheduler time of its launch."""


class NodeBill:
    """The bill of a pool's nodes.

    Args:
        seconds: Seconds of an interval, for which prices are.
        minimum_charge: Seconds for which a node is billed at least.
    """

    def __init__(self, seconds: float, minimum_charge: float = 0.0) -> None:
        self._seconds, self._minimum = seconds, minimum_charge
        self._nodes: dict[str, BilledNode] = {}
        self._places: tuple[PlacedNodes, ...] = ()
        self._quotes: list[tuple[float, Quoted]] = []  # each with the interval, or the part of one, from which it holds
        self._until: float | None = None  # scheduler time up to which all is billed
        self._costs: dict[int, float] = {}  # by interval

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "nodes": [[name, *node] for name, node in self._nodes.items()], "places": list(map(list, self._places)),
            "quotes": [[at, quote_to_list(quote)] for at, quote in self._quotes], "until": self._until,
            "costs": [[number, cost] for number, cost in self._costs.items()],
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        self._nodes = {name: BilledNode(bool(is_spot), since) for name, is_spot, since in state["nodes"]}
        self._places = checked(state["places"], tuple[PlacedNodes, ...])
        self._quotes = [(at, quote_from_list(quote)) for at, quote in state["quotes"]]
        self._until = state["until"]
        self._costs = {int(number): cost for number, cost in state["costs"]}

    def __len__(self) -> int:
        """Return the number of nodes that are billed."""
        return len(self._nodes)

    @property
    def cost(self) -> float:
        """Amount that is billed and not yet collected."""
        return sum(self._costs.values())

    # ------------------------------------------------------------------------------------------------ what happens

    def quote(self, quote: Quoted, now: float) -> None:
        """Record a quote: of an interval to come, or of the rest of the one in progress; an older one is ignored."""
        self.advance(now)
        at = now / self._seconds if quote.interval is None else float(quote.interval)
        if self._quotes:
            if quote.interval is not None and at < now // self._seconds:
                return
            at = max(at, now / self._seconds)
        others = [pair for pair in self._quotes if pair[0] != at]
        self._quotes = sorted([*others, (at, quote)], key=lambda pair: pair[0])
        begun = [pair for pair in self._quotes if pair[0] <= now / self._seconds]
        self._quotes = self._quotes[max(len(begun) - 1, 0) :]

    def see(self, nodes: NodesSeen, now: float) -> None:
        """Record the current nodes; a vanished one is charged for the rest of the minimum."""
        self.advance(now)
        names = dict.fromkeys((*nodes.spot, *nodes.billed_spot), True)
        names |= dict.fromkeys((*nodes.on_demand, *nodes.billed_on_demand), False)
        for name, node in self._nodes.items():
            if name not in names and self._quotes:
                rest = max(self._minimum - (now - node.since), 0.0)
                self._add(now, self.prices_at(now)[0 if node.is_spot else 1] * rest)
        self._places = nodes.places
        self._nodes = {name: self._nodes.get(name, BilledNode(kind, now)) for name, kind in names.items()}

    def charge(self, money: float) -> None:
        """Charge something that is no node, at the time up to which all is billed."""
        if money and self._until is not None:
            self._add(self._until, money)

    def advance(self, now: float) -> None:
        """Bill the time up to now."""
        if self._until is None or not self._nodes:
            self._until = now
        if not self._quotes:
            return
        last = self._until // self._seconds + MAX_PASSED
        while self._until < now:  # a price changes where an interval begins, or where a quote is taken in
            number = self._until // self._seconds
            ends = min(now, (number + 1) * self._seconds) if number < last else now
            ends = ends if ends > self._until else now  # where rounding puts both at the same moment
            self.bill(self._until, ends - self._until)
            self._until = ends

    def take(self, number: int) -> float:
        """Collect the amount billed up to the end of an interval, and return it."""
        due = [one for one in self._costs if one <= number]
        return math.fsum(self._costs.pop(one) for one in due)

    def bill(self, since: float, seconds: float) -> None:
        """Bill this many seconds from a time on, in which nodes and prices are the same."""
        self._add(since, self._rate(since / self._seconds) * seconds)

    def prices_at(self, now: float) -> tuple[float, float]:
        """Return the price of a second of a spot and of an on-demand node at a time, at which there was a quote."""
        return self._prices(self._quote(now / self._seconds))

    @property
    def counts(self) -> NodeCounts:
        """The nodes that are billed."""
        spot = sum(node.is_spot for node in self._nodes.values())
        return NodeCounts(spot, len(self._nodes) - spot)

    # ------------------------------------------------------------------------------------------------ money

    def last_moment(self, now: float, money: float, wanted: NodeCounts, leave: float) -> float:
        """Return the time until which a budget pays for the nodes.

        Args:
            now: Scheduler time; all is billed up to it.
            money: Money that is left.
            wanted: Nodes that are wanted: those that are not there yet may be launched at any moment.
            leave: Seconds for which a node that is returned is billed at most.
        """
        if not self._quotes:
            return math.inf
        at = now / self._seconds
        quotes = [self._quote(at), *(quote for when, quote in self._quotes if when > at)]
        there = self.counts
        new = wanted.maximum(there).minus(there)
        coming = [BilledNode(True, now)] * new.spot + [BilledNode(False, now)] * new.on_demand
        begins = list[tuple[float, float]]()  # time and price from which a node costs extra
        prices = [self._prices(quote) for quote in quotes]
        for node in (*self._nodes.values(), *coming):
            kind = 0 if node.is_spot else 1
            sure = max(node.since + self._minimum - now - leave, 0.0)
            money -= max(price[kind] for price in prices) * (leave + sure)
            begins.append((sure, prices[0][kind]))
        return now + _lasts(money, begins)

    # ------------------------------------------------------------------------------------------------ within

    def _add(self, at: float, money: float) -> None:
        number = int(at // self._seconds)
        self._costs[number] = self._costs.get(number, 0.0) + money

    def _quote(self, at: float) -> Quoted:
        """Return the quote that holds at a time in intervals; before the first one, that one."""
        return next((quote for when, quote in reversed(self._quotes) if when <= at), self._quotes[0][1])

    def _prices(self, quote: Quoted) -> tuple[float, float]:
        """Return the price of a second of a spot and an on-demand node; of several zones, the mean of those seen."""
        known = {offer.name for offer in quote.offers}
        spot, on_demand = mean_prices([place for place in self._places if place.name in known], quote)
        return spot / self._seconds, on_demand / self._seconds

    def _rate(self, at: float) -> float:
        """Return the cost of a second at a time in intervals."""
        return self.counts.cost(*self._prices(self._quote(at)))


def _lasts(money: float, begins: Iterable[tuple[float, float]]) -> float:
    """Return for how long money lasts that is spent at prices which begin one after the other; 0 if there is none."""
    if money < 0:
        return 0.0
    time = rate = 0.0
    for begin, price in sorted(begins):
        if rate * (begin - time) > money:
            break
        money, time, rate = money - rate * (begin - time), begin, rate + price
    return time + money / rate if rate else math.inf
