"""Market quotes: what is on offer now, as printed by a command of the user's."""

from __future__ import annotations

import json
import logging
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lightning_core.cloud.user_command import run_command
from lightning_core.market import Market

log = logging.getLogger(__name__)

# Seconds that the command may take.
QUOTE_TIMEOUT = 60.0
# Runs of the command per interval; an interval begins with the newest quote.
QUOTES_PER_INTERVAL = 4
# Intervals after the present one that are taken to be like it: further than any deadline.
AHEAD = 10_000
MAX_QUOTE_BYTES = 4096
MAX_AVAILABLE = 10**6
# Prices beyond these would overflow where they are added up or divided by each other.
MIN_ON_DEMAND, MAX_PRICE = 1e-9, 1e9

MarketFeed = Callable[[int], Market]
"""Returns the market as it is known in an interval."""


def market_feed(market: Market | MarketFeed) -> MarketFeed:
    """Return a feed of a recording, whose last interval then continues; a feed is returned as it is."""
    if not isinstance(market, Market):
        return market
    price = np.pad(market.price, (0, AHEAD), mode="edge")
    extended = replace(market, price=price, available=np.pad(market.available, (0, AHEAD), mode="edge"))
    return lambda interval: extended


class Quote(NamedTuple):
    """Nodes on offer and their price."""

    price: float
    """Price of a spot node for an interval."""
    available: int
    """Spot nodes on offer."""
    on_demand: float = 1.0
    """Price of an on-demand node for an interval."""

    @classmethod
    def parse(cls, text: str) -> Quote:
        """Read what the command has printed.

        Raises:
            ValueError: If it is not a quote.

        Example::

            >>> Quote.parse('{"price": 1.22, "available": 3, "on_demand": 4.1}')
            Quote(price=1.22, available=3, on_demand=4.1)
        """
        rule = 'must print {"price": P, "available": N}, optionally with "on_demand": P'
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(f"{rule}, got {_short(text.strip())}") from None
        if not isinstance(body, dict) or not {"price", "available"} <= body.keys() <= set(cls._fields):
            raise ValueError(f"{rule}, got {_short(text.strip())}")
        limits = (("price", 0.0, MAX_PRICE), ("available", 0.0, MAX_AVAILABLE), ("on_demand", MIN_ON_DEMAND, MAX_PRICE))
        for key, minimum, maximum in limits:
            number = body.get(key, 1.0)
            if isinstance(number, bool) or not isinstance(number, int | float) or not minimum <= number <= maximum:
                raise ValueError(f"{key} must be a number from {minimum:g} to {maximum:,.0f}, got {_short(number)}")
        if body["available"] != int(body["available"]):
            raise ValueError(f"available must be whole, got {body['available']}")
        return cls(float(body["price"]), int(body["available"]), float(body.get("on_demand", 1.0)))


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


class Quotes:
    """The market interval by interval, as quoted by a command: a :data:`MarketFeed`.

    A thread runs the command several times an interval, so that nothing waits for it. Where it fails, its last quote
    stays valid.

    Args:
        command: The command and its arguments; no shell is involved.
        seconds: Seconds of an interval.
        before: Price of a spot node and spot nodes on offer by interval, of a run to resume.

    Raises:
        ValueError: If the command cannot be run, or does not print a quote.
    """

    def __init__(
        self, command: Sequence[str] | str, seconds: float, before: Mapping[int, tuple[float, int]] | None = None
    ) -> None:
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        if not self._command:
            raise ValueError("the command must not be empty")
        self._seconds = seconds
        self._intervals = {interval: Quote(*known) for interval, known in (before or {}).items()}
        self._failed = False
        self._closed = threading.Event()
        self.last = self._ask()
        """The newest quote."""
        self._thread = threading.Thread(target=self._run, name="lightning-core-quotes", daemon=True)
        self._thread.start()

    def __call__(self, interval: int) -> Market:
        """Return the market as quoted up to an interval, and as now from there on.

        An interval in which this was not called is taken to be like the one before it.
        """
        self._intervals.setdefault(interval, self.last)
        known, quotes = self._intervals[min(self._intervals)], list[Quote]()
        for number in range(interval + 1):
            known = self._intervals.get(number, known)
            quotes.append(known)
        price, available = (np.pad([quote[k] for quote in quotes], (0, AHEAD), mode="edge") for k in (0, 1))
        return Market(price, available, quotes[-1].on_demand, self._seconds, "quotes")

    def close(self) -> None:
        """Stop running the command."""
        self._closed.set()
        self._thread.join(QUOTE_TIMEOUT)

    def _run(self) -> None:
        while not self._closed.wait(self._seconds / QUOTES_PER_INTERVAL):
            try:
                self.last = self._ask()
            except ValueError as error:
                if not self._failed:
                    log.warning("no new quote, the last one stays valid: %s", error)
                self._failed = True
            else:
                self._failed = False

    def _ask(self) -> Quote:
        printed = run_command(self._command, QUOTE_TIMEOUT, max_output=MAX_QUOTE_BYTES)
        try:
            return Quote.parse(printed)
        except ValueError as error:
            raise ValueError(f"{self._command[0]}: {error}") from None
