"""Sources of quotes: what is on offer now, as printed by a command of the user's, or as a recording has it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence

from lightning_core.cloud.user_command import run_command
from lightning_core.core.control import Quoted
from lightning_core.market import Market

# Seconds that the command may take.
QUOTE_TIMEOUT = 60.0
# Runs of the command per interval; an interval begins with the newest quote.
QUOTES_PER_INTERVAL = 4
MAX_QUOTE_BYTES = 4096
KEYS = ("price", "available", "on_demand")


def parse_quote(text: str) -> Quoted:
    """Read what the command has printed.

    Raises:
        ValueError: If it is not a quote.

    Example::

        >>> parse_quote('{"price": 1.22, "available": 3, "on_demand": 4.1}')
        Quoted(price=1.22, available=3, on_demand=4.1, interval=None)
    """
    rule = 'must print {"price": P, "available": N}, optionally with "on_demand": P'
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{rule}, got {_short(text.strip())}") from None
    if not isinstance(body, dict) or not {"price", "available"} <= body.keys() <= set(KEYS):
        raise ValueError(f"{rule}, got {_short(text.strip())}")
    for key, number in body.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(f"{key} must be a number, got {_short(number)}")
        if abs(number) > sys.float_info.max:  # whole numbers may be of any size
            raise ValueError(f"{key} must be a number that is not too large, got {_short(number)}")
    if body["available"] % 1 != 0:
        raise ValueError(f"available must be whole, got {_short(body['available'])}")
    return Quoted(float(body["price"]), int(body["available"]), float(body.get("on_demand", 1.0)))


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
    """Return what a recording says of an interval; behind its end, its last one continues.

    Example::

        >>> import numpy as np
        >>> recorded_quote(Market(np.array([0.4, 0.5]), np.array([3, 1])), 7)
        Quoted(price=0.5, available=1, on_demand=1.0, interval=7)
    """
    row = min(interval, len(market) - 1)
    return Quoted(float(market.price[row]), int(market.available[row]), market.on_demand, interval)
