"""The market of a pool, from the events of a journal: its offers, and the cost of each job.

The bill is the market's own (:class:`~lightning_core.parts.market.online.node_bill.NodeBill`), fed with the same
events, so that the costs of all jobs, plus those of none, add up to the ledger.

The journal has which nodes were billed and how many devices each job held, but not on which node it trained. So each
second of the nodes that are up is split over the devices that jobs held, and a job among several that hold spot and
on-demand nodes has a part of both kinds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_core.history.job_history import JobHistory
from lightning_core.parts.market.cloud_events import IntervalEnded, NodesSeen, NodesWanted, Quoted
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import Offer
from lightning_core.parts.market.online.node_bill import NodeBill
from lightning_core.scheduler.settings import Settings

# Offers that are kept, those of the newest quote and those quoted before: more than a quote can have.
MAX_KEPT = 200
# Part of all money below which a difference is of rounding.
ROUNDING = 1e-9


@dataclass
class Money:
    """Money for spot and for on-demand nodes."""

    spot: float = 0.0
    on_demand: float = 0.0

    @property
    def all(self) -> float:
        """Both together."""
        return self.spot + self.on_demand


@dataclass(frozen=True, slots=True)
class Quote:
    """Newest quote of one offer.

    Attributes:
        offer: The offer.
        since: Scheduler time since which price and count hold.
        before: Price and count before that; None if they never were others.
        stands: Whether the newest quote has it.
    """

    offer: Offer
    since: float
    before: tuple[float, int] | None = None
    stands: bool = True


class MarketHistory:
    """The offers of a market, and the money of the jobs on it.

    Args:
        seconds: Seconds of an interval.
        minimum_charge: Seconds for which a node is billed at least.
    """

    def __init__(self, seconds: float, minimum_charge: float = 0.0) -> None:
        self._bill = _Bill(seconds, minimum_charge)
        self._recorded = self._recorded_own = 0.0  # of the intervals that have ended: in the ledger, and of our bill
        self.cloud: list[tuple[float, NodesWanted | IntervalEnded]] = []
        """Nodes wanted, and rows of the ledger, each with its time."""
        self.quotes: dict[str, Quote] = {}
        """Quotes by name of the offer; a market that quotes one price has one offer, with an empty name."""

    @classmethod
    def of(cls, settings: Settings) -> MarketHistory | None:
        """Return the history of a pool with these settings, before its first event; None if it is on no market."""
        terms: Mapping[str, Any] | None = settings.controllers.get("market")
        if terms is None:
            return None
        return cls(float(terms.get("interval", 1800.0)), float(terms.get("minimum_charge", 0.0)))

    # ------------------------------------------------------------------------------------------------ events

    def take(self, event: Any, now: float) -> None:
        """Record an event, and the time that has passed until it."""
        match event:
            case Quoted():
                self._bill.quote(event, now)
                self._quoted(event, now)
            case NodesSeen():
                self._bill.see(event, now)
                self._bill.up = NodeCounts(len(event.spot), len(event.on_demand))
            case _:
                self._bill.advance(now)

    def hold(self, job: JobHistory) -> None:
        """Record a job's new number of devices."""
        held = 0.0
        if job.ended is None and job.grants and job.owned:
            held = job.owned[-1].share * len(job.grants[-1].devices)
        if held:
            self._bill.holding[job] = held
        else:
            self._bill.holding.pop(job, None)

    def answer(self, answer: Any, now: float) -> None:
        """Record a row of the ledger, or which nodes are wanted."""
        self.cloud.append((now, answer))
        if isinstance(answer, IntervalEnded):
            self._recorded += answer.cost
            self._recorded_own += self._bill.take(answer.number)

    # ------------------------------------------------------------------------------------------------ money

    @property
    def jobs(self) -> Mapping[JobHistory, Money]:
        """Cost until now of each job that held a node."""
        return self._bill.jobs

    @property
    def overlap(self) -> Money:
        """Cost of nodes on which no job trained: starting, waiting beside their replacements, or leaving."""
        return self._bill.overlap

    @property
    def minimum_charges(self) -> float:
        """Amount billed for nodes that were returned before their minimum was over."""
        split = math.fsum(money.all for money in (*self.jobs.values(), self.overlap))
        return self._of_rounding(self._recorded_own + self._bill.cost - split)

    @property
    def moves(self) -> float:
        """Costs in the ledger beyond the nodes: checkpoints moved to other regions."""
        return self._of_rounding(self._recorded - self._recorded_own)

    @property
    def in_progress(self) -> float:
        """Cost until now of the interval in progress; it enters the ledger at its end."""
        return self._bill.cost

    @property
    def all(self) -> float:
        """All that was paid until now."""
        return self._recorded + self.in_progress

    def _of_rounding(self, money: float) -> float:
        return 0.0 if abs(money) <= ROUNDING * self.all else money

    # ------------------------------------------------------------------------------------------------ quotes

    def _quoted(self, quote: Quoted, now: float) -> None:
        one = Offer("any", price=quote.price, available=quote.available, on_demand=quote.on_demand)
        offers = {offer.name: offer for offer in quote.offers} or {"": one}
        for name, old in self.quotes.items():
            if name not in offers and old.stands:
                self.quotes[name] = Quote(old.offer, now, (old.offer.price, old.offer.available), stands=False)
        for name, offer in offers.items():
            found = self.quotes.pop(name, None)  # so that the newest ones are at the end
            if found is None:
                self.quotes[name] = Quote(offer, now)
            elif found.stands and (found.offer.price, found.offer.available) == (offer.price, offer.available):
                self.quotes[name] = Quote(offer, found.since, found.before)
            else:
                self.quotes[name] = Quote(offer, now, (found.offer.price, found.offer.available))
        for name in list(self.quotes)[: max(len(self.quotes) - MAX_KEPT, 0)]:
            del self.quotes[name]


class _Bill(NodeBill):
    """The bill of a pool's nodes, and whose each second was.

    Attributes:
        up: Nodes that are up and not about to leave.
        holding: Devices that each job holds, in parts where it has a share of some.
    """

    def __init__(self, seconds: float, minimum_charge: float) -> None:
        super().__init__(seconds, minimum_charge)
        self.up = NodeCounts()
        self.holding: dict[JobHistory, float] = {}
        self.jobs: dict[JobHistory, Money] = {}
        self.overlap = Money()

    def bill(self, since: float, seconds: float) -> None:
        super().bill(since, seconds)
        prices, held = self.prices_at(since), math.fsum(self.holding.values())
        spot, on_demand = (count * price * seconds for count, price in zip(self.counts, prices, strict=True))
        # Jobs that hold more devices than nodes are up train on those that are about to leave.
        used = self.up if held <= self.up.all else self.counts
        if used.all and held:
            part = seconds / max(used.all, held)
            for job, devices in self.holding.items():
                money = self.jobs.setdefault(job, Money())
                paid = Money(*(part * devices * count * price for count, price in zip(used, prices, strict=True)))
                money.spot, money.on_demand = money.spot + paid.spot, money.on_demand + paid.on_demand
                spot, on_demand = spot - paid.spot, on_demand - paid.on_demand
        self.overlap.spot += max(spot, 0.0)
        self.overlap.on_demand += max(on_demand, 0.0)
