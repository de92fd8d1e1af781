"""Current offers of a market, as quoted by a command or as a recording has them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from lightning_core.cloud.quotes import QuoteCommand, parse_quote, recorded_quote
from lightning_core.core.control import Quoted
from lightning_core.core.control.offers import MAX_AVAILABLE
from lightning_core.market import Market

RULE = 'must print {"price": P, "available": N}'


def test_a_command_quotes_what_it_prints_now(tmp_path: Path) -> None:
    path = tmp_path / "quote"
    quotes = QuoteCommand([sys.executable, "-S", "-c", f"print(open({str(path)!r}).read())"])
    path.write_text('{"price": 0.4, "available": 3}')
    assert quotes.ask() == Quoted(0.4, 3, 1.0, None)
    path.write_text('\n {"price": 1.5, "available": 0, "on_demand": 4}\n')
    assert quotes.ask() == Quoted(1.5, 0, 4.0, None)
    path.write_text("out of order")
    with pytest.raises(ValueError, match=r"python[^ ]*: must print .*, got \'out of order\'"):
        quotes.ask()


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ('{"price": 0, "available": 0}', Quoted(0.0, 0)),
        ('{"price": 1e9, "available": 1000000, "on_demand": 1e-9}', Quoted(1e9, MAX_AVAILABLE, 1e-9)),
        ('{"available": 2.0, "price": 1}', Quoted(1.0, 2)),
    ],
)
def test_quotes_are_read_up_to_their_limits(text: str, quote: Quoted) -> None:
    assert parse_quote(text) == quote


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", RULE),
        ("3", RULE),
        ("null", RULE),
        ('[{"price": 0.4, "available": 1}]', RULE),
        ('{"price": 0.4}', RULE),
        ('{"price": 0.4, "available": 1, "zone": "a"}', RULE),
        ('{"price": 0.4, "available": 1} {"price": 0.4, "available": 1}', RULE),
        ('{"price": -1, "available": 1}', "price must be 0 to 1,000,000,000, got -1.0"),
        ('{"price": NaN, "available": 1}', "price must be 0 to 1,000,000,000, got nan"),
        ('{"price": "0.4", "available": 1}', "price must be a number, got '0.4'"),
        ('{"price": null, "available": 1}', "price must be a number, got None"),
        ('{"price": 0.4, "available": true}', "available must be a number, got True"),
        ('{"price": 0.4, "available": 1.5}', "available must be whole, got 1.5"),
        ('{"price": 0.4, "available": NaN}', "available must be whole, got nan"),
        ('{"price": 0.4, "available": Infinity}', "available must be a number that is not too large, got inf"),
        ('{"price": 0.4, "available": -1}', "available must be 0 to 1,000,000, got -1"),
        ('{"price": 0.4, "available": 1e20}', "available must be 0 to 1,000,000, got 100000000000000000000"),
        ('{"price": 0.4, "available": 1, "on_demand": 0}', "on_demand must be 1e-09 to 1,000,000,000, got 0.0"),
    ],
)
def test_what_is_no_quote_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as caught:
        parse_quote(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "the command must not be empty"),
        ("no-such-command-anywhere s3cret", "no-such-command-anywhere: No such file or directory"),
        ("sh -c 'echo broken >&2; exit 3' s3cret", "sh: exit code 3: broken"),
    ],
)
def test_a_command_that_cannot_be_run_is_reported(words: str, told: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as caught:
        QuoteCommand(words).ask()
    assert str(caught.value) == told


def test_a_recording_quotes_interval_by_interval_and_its_last_one_continues() -> None:
    market = Market(np.array([0.4, 0.5]), np.array([3, 1]), on_demand=2.0)
    assert recorded_quote(market, 0) == Quoted(0.4, 3, 2.0, 0)
    assert recorded_quote(market, 1) == Quoted(0.5, 1, 2.0, 1)
    assert recorded_quote(market, 9) == Quoted(0.5, 1, 2.0, 9)
