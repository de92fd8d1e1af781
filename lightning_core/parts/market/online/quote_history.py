"""History of a market's quotes, interval by interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.parts.market.cloud_events import MAX_INTERVALS, Quoted
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import Offer
from lightning_core.parts.market.spot_market import Market

# Past intervals whose quotes are kept. After a pool was down, at most as many are reported as a plan looks ahead.
BEFORE = 20_000
# Intervals after which a quote is old: spot nodes that are there stay, and none is counted on beside them. For this
# part of the interval, plans wait for a newer one.
STALE, PATIENCE = 1.0, 0.1


class QuoteHistory:
    """Quotes of a market, each of the interval from which on it holds.

    Args:
        seconds: Seconds of an interval.
        ahead: Intervals after the present one that a market has, assumed to be like it.
    """

    def __init__(self, seconds: float, ahead: int) -> None:
        self._seconds, self._ahead = seconds, ahead
        self._quotes: dict[int, Quoted] = {}  # by interval
        self._quoted_at = -math.inf
        self._news: Quoted | None = None  # the newest quote of an interval that had begun, until it is accepted

    def __bool__(self) -> bool:
        """Return whether there was a quote."""
        return bool(self._quotes)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        quotes = [quote_to_list(quote) for quote in self._quotes.values()]
        news = None if self._news is None else quote_to_list(self._news)
        return {"quotes": quotes, "quoted_at": self._quoted_at if self._quotes else None, "news": news}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        quotes = list(map(quote_from_list, state["quotes"]))
        self._quotes = {quote.interval: quote for quote in quotes if quote.interval is not None}
        self._quoted_at = -math.inf if state["quoted_at"] is None else state["quoted_at"]
        self._news = None if state["news"] is None else quote_from_list(state["news"])

    @property
    def newest(self) -> int:
        """The last interval with a quote of its own."""
        return max(self._quotes)

    def number(self, now: float) -> int:
        """Return the number of the interval at a time; the last one does not end."""
        return int(min(now // self._seconds, MAX_INTERVALS))

    def take(self, quote: Quoted, now: float, planned: int | None) -> bool:
        """Record a quote; return whether it is the first one.

        Args:
            quote: The quote.
            now: Scheduler time.
            planned: The newest interval for which plans were made, whose quotes stay; None if there is none.
        """
        number = self.number(now) if quote.interval is None else quote.interval
        is_first = not self._quotes
        has_begun = planned is not None and number <= planned
        if not has_begun or quote.interval is None:
            holds_from = min(number + has_begun, MAX_INTERVALS)
            self._quotes[holds_from] = replace(quote, interval=holds_from)
            self._quoted_at = now
            self._news = replace(quote, interval=number) if has_begun else None
        for old in [one for one in self._quotes if one < number - BEFORE]:
            del self._quotes[old]
        return is_first

    def news(self, number: int) -> Quoted | None:
        """Return the newest quote that came after the plans for an interval were made; None if none did."""
        return self._news if self._news is not None and self._news.interval == number else None

    def accept(self, number: int) -> None:
        """Fix the newest quote of an interval as the one for its plans."""
        if (quote := self.news(number)) is not None:
            self._quotes[number], self._news = quote, None

    def at(self, number: int) -> Quoted:
        """Return the quote of an interval: the newest one up to it."""
        found = max((one for one in self._quotes if one <= number), default=min(self._quotes))
        return self._quotes[found]

    def market(self, number: int, now: float | None = None, present: NodeCounts | None = None) -> Market:
        """Return the market as quoted up to an interval, and as then from there on.

        Args:
            number: Number of the interval.
            now: Scheduler time; an old quote counts for no more spot nodes than the ``present`` ones.
            present: See there.
        """
        numbers = sorted(self._quotes)
        quotes = [self._quotes[one] for one in numbers]
        at = _newest(numbers, number)
        price = np.array([quote.price for quote in quotes])[at]
        available = np.array([quote.available for quote in quotes], np.int64)[at]
        if now is not None and present is not None and self._is_stale(number, now):
            available[-1] = min(int(available[-1]), present.spot)
        ahead, on_demand = (0, self._ahead), self.at(number).on_demand
        price, available = np.pad(price, ahead, mode="edge"), np.pad(available, ahead, mode="edge")
        return Market(price, available, on_demand, self._seconds)

    def counts(self, number: int) -> dict[str, IntArray]:
        """Return the spot nodes of an interval's offers, by name, in each interval up to it, shape ``(T,)``."""
        numbers = [one for one in sorted(self._quotes) if one <= number] or [min(self._quotes)]
        at = _newest(numbers, number)
        several = [{offer.name: offer.available for offer in self._quotes[one].offers} for one in numbers]
        return {
            offer.name: np.array([counts.get(offer.name, 0) for counts in several], np.int64)[at]
            for offer in self.at(number).offers
        }

    def is_awaited(self, number: int, now: float) -> bool:
        """Return whether an interval begins a little later: after an absence there is no quote for it yet."""
        return self._is_stale(number, now) and now - number * self._seconds < PATIENCE * self._seconds

    def _is_stale(self, number: int, now: float) -> bool:
        """Return whether the quote of an interval is too old."""
        return number not in self._quotes and now - self._quoted_at > STALE * self._seconds


def quote_to_list(quote: Quoted) -> list[Any]:
    """Return a quote as JSON values, for a saved state."""
    offers = [list(astuple(offer)) for offer in quote.offers]
    return [quote.price, quote.available, quote.on_demand, quote.interval, offers, quote.egress, quote.transfer]


def quote_from_list(value: Sequence[Any]) -> Quoted:
    """Return the quote that :func:`quote_to_list` wrote."""
    price, available, on_demand, interval, offers, egress, transfer = value
    made = tuple(Offer(*offer) for offer in offers)
    return Quoted(price, available, on_demand, interval, made, egress, transfer)


def _newest(numbers: Sequence[int], number: int) -> IntArray:
    """Return, for each interval up to one, which of the quotes at ``numbers`` holds; the first also before it."""
    return np.clip(np.searchsorted(numbers, np.arange(number + 1), side="right") - 1, 0, None)
