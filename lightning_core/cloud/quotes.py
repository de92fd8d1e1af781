"""What a market offers now: a command of the user's says it, again and again."""

from __future__ import annotations

import json
import logging
import math
import shlex
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lightning_core.market import Market

log = logging.getLogger(__name__)

# How long the command may take, seconds.
PATIENCE = 60.0
# How often it is run in an interval: an interval begins with what was said last.
TIMES = 4
# So many intervals behind the present one are taken to be like it: further than any deadline.
AHEAD = 10_000
# Nobody has more nodes to offer.
MOST = 10**6


class Quote(NamedTuple):
    """What is offered."""

    price: float
    """Of a spot node for an interval."""
    available: int
    """Spot nodes that can be had."""
    on_demand: float = 1.0
    """Price of an on-demand node for an interval."""

    @classmethod
    def parse(cls, text: str) -> Quote:
        """Reads what the command has printed.

        Raises:
            ValueError: if it is no quote.

        Example::

            >>> Quote.parse('{"price": 1.22, "available": 3, "on_demand": 4.1}')
            Quote(price=1.22, available=3, on_demand=4.1)
        """
        words = 'must print {"price": P, "available": N}, and maybe "on_demand": P'
        try:
            said = json.loads(text)
        except ValueError:
            raise ValueError(f"{words}, got {text.strip()[:80]!r}") from None
        if not isinstance(said, dict) or not {"price", "available"} <= said.keys() <= set(cls._fields):
            raise ValueError(f"{words}, got {text.strip()[:80]!r}")
        for rule, minimum in (("price", 0.0), ("available", 0.0), ("on_demand", math.ulp(0.0))):
            number = said.get(rule, 1.0)
            if isinstance(number, bool) or not isinstance(number, int | float) or not minimum <= number < math.inf:
                rules = "positive" if minimum else "at least 0"
                raise ValueError(f"{rule} must be a number, {rules} and finite, got {number!r}")
        if said["available"] != int(said["available"]) or said["available"] > MOST:
            raise ValueError(f"available must be whole and at most {MOST:,}, got {said['available']}")
        return cls(float(said["price"]), int(said["available"]), float(said.get("on_demand", 1.0)))


class Quotes:
    """The market interval by interval, as a command says it: called with an interval, gives what is known in it.

    The command is run several times an interval, beside what goes on: nothing waits for it. Where it fails, what it said
    last counts.

    Args:
        words: the command and its arguments; no shell reads them.
        seconds: of an interval.
        before: price of a spot node and how many there were, by interval, of a run to go on with.

    Raises:
        ValueError: if the command cannot be run, or says no quote.
    """

    def __init__(
        self, words: Sequence[str] | str, seconds: float, before: Mapping[int, tuple[float, int]] | None = None
    ) -> None:
        self._words = shlex.split(words) if isinstance(words, str) else list(words)
        if not self._words:
            raise ValueError("a command must be named, got none")
        self._seconds = seconds
        self._intervals = {interval: Quote(*known) for interval, known in (before or {}).items()}
        self._failed = False
        self._over = threading.Event()
        self.last = self._ask()
        """What was said last."""
        self._thread = threading.Thread(target=self._run, name="lightning-core-quotes", daemon=True)
        self._thread.start()

    def __call__(self, interval: int) -> Market:
        """The market up to an interval as it was, an interval that nobody asked of as the one before it; then on as now."""
        self._intervals.setdefault(interval, self.last)
        known, quotes = self._intervals[min(self._intervals)], list[Quote]()
        for number in range(interval + 1):
            known = self._intervals.get(number, known)
            quotes.append(known)
        price, available = (np.pad([quote[k] for quote in quotes], (0, AHEAD), mode="edge") for k in (0, 1))
        return Market(price, available, quotes[-1].on_demand, self._seconds, "quotes")

    def close(self) -> None:
        """Nobody asks any more."""
        self._over.set()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while not self._over.wait(self._seconds / TIMES):
            try:
                self.last = self._ask()
            except ValueError as error:
                if not self._failed:
                    log.warning("no news of the market, so it is as before: %s", error)
                self._failed = True
            else:
                self._failed = False

    def _ask(self) -> Quote:
        name = self._words[0]  # the whole command may have a key in it
        try:
            done = subprocess.run(
                self._words, check=True, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"{name}: no answer within {PATIENCE:g} s") from None
        except subprocess.CalledProcessError as error:
            last = (error.stderr or "").strip().rpartition("\n")[2]
            raise ValueError(f"{name}: exit code {error.returncode}{last and ': ' + last}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
        try:
            return Quote.parse(done.stdout)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
