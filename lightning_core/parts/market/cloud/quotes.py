"""Sources of quotes: the current offers, from a command of the user or from a recording."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.parts.market.cloud.user_command import run_command
from lightning_core.parts.market.cloud_events import Quoted
from lightning_core.parts.market.offers import Offer
from lightning_core.parts.market.spot_market import Market

# Seconds that the command may take.
QUOTE_TIMEOUT = 60.0
# Runs of the command per interval; an interval begins with the newest quote.
QUOTES_PER_INTERVAL = 4
MAX_QUOTE_BYTES = 2**15
KEYS = ("price", "available", "on_demand")
OFFER_KEYS = ("zone", "price", "available", "type", "on_demand", "throughput", "region")
# Of several offers: GB of a checkpoint, price of a GB that leaves a region, seconds that a transfer takes.
MOVE_KEYS = ("checkpoint", "egress", "transfer")
# Values of labels of Ray, without the empty one.
LABEL = re.compile("[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?")


def parse_quote(text: str) -> Quoted:
    """Parse the output of the command: one price (version 1, the default), or several offers (version 2).

    Raises:
        ValueError: If it is not a quote; the message names the key.

    Example::

        >>> parse_quote('{"price": 1.22, "available": 3, "on_demand": 4.1}')
        Quoted(price=1.22, available=3, on_demand=4.1, interval=None, offers=(), egress=0.0, transfer=0.0)
        >>> east = '{"zone": "us-east-1a", "type": "p3.2xlarge", "price": 1.1, "available": 0, "on_demand": 3.06}'
        >>> west = '{"zone": "us-west-2b", "type": "p3.2xlarge", "price": 1.2, "available": 2, "on_demand": 3.06}'
        >>> quote = parse_quote(f'{{"version": 2, "offers": [{east}, {west}]}}')
        >>> quote.price, quote.available, [offer.name for offer in quote.offers]
        (1.2, 2, ['p3.2xlarge@us-east-1a', 'p3.2xlarge@us-west-2b'])
    """
    rule = 'must print {"price": P, "available": N}, optionally with "on_demand": P, or {"version": 2, "offers": [...]}'
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{rule}, got {_short(text.strip())}") from None
    if isinstance(body, dict) and "offers" in body:
        return _several(body)
    version = body.pop("version", 1) if isinstance(body, dict) else 1
    if not isinstance(body, dict) or not {"price", "available"} <= body.keys() <= set(KEYS):
        raise ValueError(f"{rule}, got {_short(text.strip())}")
    if version != 1 or isinstance(version, bool):
        raise ValueError(f"version must be 1 without offers, got {_short(version)}")
    numbers = _numbers(body, "")
    return Quoted(numbers["price"], int(numbers["available"]), numbers.get("on_demand", 1.0))


def _several(body: dict[str, Any]) -> Quoted:
    """Read a quote of several offers."""
    if body.get("version") != 2:
        raise ValueError(f"version must be 2 with offers, got {_short(body.get('version'))}")
    offers, moves = body["offers"], {name: value for name, value in body.items() if name not in ("version", "offers")}
    if unknown := moves.keys() - set(MOVE_KEYS):
        raise ValueError(f"a quote with offers may have {', '.join(MOVE_KEYS)}, got {_short(min(unknown))}")
    if not isinstance(offers, list) or not offers:
        raise ValueError(f"offers must be a list of at least one, got {_short(offers)}")
    found = [_offer(f"offers[{at}]: ", offer) for at, offer in enumerate(offers)]
    numbers = _numbers(moves, "")
    if wrong := [name for name, number in numbers.items() if not 0 <= number < math.inf]:
        raise ValueError(f"{wrong[0]} must be at least 0 and finite, got {numbers[wrong[0]]}")
    egress = numbers.get("checkpoint", 0.0) * numbers.get("egress", 0.0)
    return Quoted.of(found, None, egress, numbers.get("transfer", 0.0))


def _offer(where: str, body: object) -> Offer:
    """Read an offer of a quote; ``where`` is the prefix of messages."""
    if not isinstance(body, dict) or not {"zone", "price", "available"} <= body.keys() <= set(OFFER_KEYS):
        raise ValueError(f"{where}must have zone, price and available, and may have {', '.join(OFFER_KEYS[3:])}, "
                         f"got {_short(body)}")  # fmt: skip
    texts = {name: body[name] for name in ("zone", "type", "region") if name in body}
    for name, text in texts.items():
        if not isinstance(text, str) or not LABEL.fullmatch(text):
            raise ValueError(f"{where}{name} must be a label of Ray: 1 to 63 letters, digits, -, _ and ., "
                             f"got {_short(text)}")  # fmt: skip
    numbers = _numbers({name: value for name, value in body.items() if name not in texts}, where)
    try:
        return Offer(**texts, **numbers | {"available": int(numbers["available"])})
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None


def _numbers(body: Mapping[str, object], where: str) -> dict[str, Any]:
    """Check that all values are numbers, and that counts are whole."""
    for key, number in body.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(f"{where}{key} must be a number, got {_short(number)}")
        if abs(number) > sys.float_info.max:  # whole numbers may be of any size
            raise ValueError(f"{where}{key} must be a number that is not too large, got {_short(number)}")
        if key == "available" and number % 1 != 0:
            raise ValueError(f"{where}available must be whole, got {_short(number)}")
    return {key: float(number) for key, number in body.items() if isinstance(number, int | float)}


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


class QuoteCommand:
    """Quotes of a command.

    Args:
        command: The command and its arguments; no shell is involved.

    Raises:
        ValueError: If the command is empty.
    """

    def __init__(self, command: Sequence[str] | str) -> None:
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        if not self._command:
            raise ValueError("the command must not be empty")

    def ask(self) -> Quoted:
        """Run the command; takes up to :data:`QUOTE_TIMEOUT` seconds.

        Raises:
            ValueError: If it cannot be run, or does not print a quote; the message leaves its arguments out.
        """
        printed = run_command(self._command, QUOTE_TIMEOUT, max_output=MAX_QUOTE_BYTES)
        try:
            return parse_quote(printed)
        except ValueError as error:
            raise ValueError(f"{self._command[0]}: {error}") from None


def recorded_quote(market: Market, interval: int) -> Quoted:
    """Return the interval of a recording; after its end, its last one continues.

    Example::

        >>> import numpy as np
        >>> recorded_quote(Market(np.array([0.4, 0.5]), np.array([3, 1])), 7)
        Quoted(price=0.5, available=1, on_demand=1.0, interval=7, offers=(), egress=0.0, transfer=0.0)
    """
    row = min(interval, len(market) - 1)
    return Quoted(float(market.price[row]), int(market.available[row]), market.on_demand, interval)
