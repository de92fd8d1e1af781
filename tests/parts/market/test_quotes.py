"""Current offers of a market, as quoted by a command or as a recording has them."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from lightning_core.parts.market.cloud.quotes import QuoteCommand, parse_quote, recorded_quote
from lightning_core.parts.market.cloud_events import Quoted
from lightning_core.parts.market.offers import MAX_AVAILABLE, Offer
from lightning_core.parts.market.spot_market import Market


def several(zone: object = "a", times: int = 1, **values: object) -> str:
    """Return the quote of an offer."""
    moves = {name: values.pop(name) for name in ("checkpoint", "egress", "transfer") if name in values}
    offer = {"zone": zone, "price": 1, "available": 2, **values}
    return json.dumps({"version": 2, "offers": [offer] * times, **moves})


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
        ('{"version": 1, "available": 2, "price": 1}', Quoted(1.0, 2)),
        (
            '{"version": 2, "offers": [{"zone": "a", "price": 1, "available": 2}]}',
            Quoted(1.0, 2, offers=(Offer("a", price=1.0, available=2),)),
        ),
        (
            several("us-east-1a", type="p3", on_demand=3, throughput=2, checkpoint=10, egress=0.02, transfer=60),
            Quoted(0.5, 2, 1.5, None, (Offer("us-east-1a", "p3", 1.0, 2, 3.0, 2.0),), 0.2, 60.0),
        ),
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
        ('{"version": 2, "price": 0.4, "available": 1}', "version must be 1 without offers, got 2"),
        ('{"offers": []}', "version must be 2 with offers, got None"),
        ('{"version": 2, "offers": {}}', "offers must be a list of at least one, got {}"),
        ('{"version": 2, "offers": [1], "price": 1}', "may have checkpoint, egress, transfer, got 'price'"),
        ('{"version": 2, "offers": [1]}', "offers[0]: must have zone, price and available"),
        (several(size=1), "offers[0]: must have zone, price and available"),
        (several(zone="a b"), "offers[0]: zone must be a label"),
        (several(zone=3), "offers[0]: zone must be a label"),
        (several(type=""), "offers[0]: type must be a label"),
        (several(price="1"), "offers[0]: price must be a number"),
        (several(available=0.5), "offers[0]: available must be whole"),
        (several(price=-1), "offers[0]: price must be 0 to"),
        (several(throughput=0.5), "offers[0]: throughput must be 1 to"),
        (several(times=2), "offers must be there once each"),
        (several(times=101), "offers must be there once each"),
        (several(egress=-1), "egress must be at least 0"),
        (several(transfer=math.inf), "transfer must be a number that is not too large"),
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
