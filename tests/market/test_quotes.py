"""Current offers of a market, as quoted by a command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightning_core.cloud.quotes import Quote, Quotes
from tests.waiting import until


@contextmanager
def asked(path: Path, text: str, seconds: float = 0.08) -> Iterator[Quotes]:
    """Return quotes that are read from a file, which may change."""
    path.write_text(text)
    quotes = Quotes([sys.executable, "-S", "-c", f"print(open({str(path)!r}).read())"], seconds)
    try:
        yield quotes
    finally:
        quotes.close()


def test_a_quote_stays_the_offer_of_its_interval(tmp_path: Path) -> None:
    path = tmp_path / "quote"
    with asked(path, '{"price": 0.4, "available": 3}') as quotes:
        first = quotes(0)
        assert (first.price[0], first.available[0], first.on_demand, first.seconds) == (0.4, 3, 1.0, 0.08)
        assert set(first.price.tolist()) == {0.4}  # for all that is known
        path.write_text('{"price": 1.5, "available": 0, "on_demand": 4}')
        until(lambda: quotes.last == Quote(1.5, 0, 4.0))
        later = quotes(2)
        # Interval 1 was not queried: it equals the one before it.
        assert later.price[:4].tolist() == [0.4, 0.4, 1.5, 1.5]
        assert later.available[:4].tolist() == [3, 3, 0, 0]
        assert later.on_demand == 4.0


def test_the_last_quote_counts_while_the_command_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "quote"
    with asked(path, '{"price": 0.4, "available": 3}') as quotes:
        path.write_text("out of order")
        until(lambda: "no new quote" in caplog.text)
        assert quotes(5).available[5] == 3
        path.write_text('{"price": 0.4, "available": 1}')
        until(lambda: quotes.last == Quote(0.4, 1))
        assert caplog.text.count("no new quote") == 1  # told once, not each time


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 'must print {"price": P, "available": N}'),
        ("3", 'must print {"price": P, "available": N}'),
        ('{"price": 0.4}', 'must print {"price": P, "available": N}'),
        ('{"price": 0.4, "available": 1, "zone": "a"}', 'must print {"price": P, "available": N}'),
        ('{"price": -1, "available": 1}', "price must be a number from 0 to 1,000,000,000, got -1"),
        ('{"price": NaN, "available": 1}', "price must be a number from 0 to 1,000,000,000, got nan"),
        ('{"price": "0.4", "available": 1}', "price must be a number from 0 to 1,000,000,000, got '0.4'"),
        ('{"price": 0.4, "available": true}', "available must be a number from 0 to 1,000,000, got True"),
        ('{"price": 0.4, "available": 1.5}', "available must be whole, got 1.5"),
        ('{"price": 0.4, "available": 1e20}', "available must be a number from 0 to 1,000,000, got 1e+20"),
        (
            '{"price": 0.4, "available": 1, "on_demand": 0}',
            "on_demand must be a number from 1e-09 to 1,000,000,000, got 0",
        ),
    ],
)
def test_invalid_quotes_are_refused_before_anything_starts(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^/") as caught, asked(tmp_path / "quote", text):
        pass
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "the command must not be empty"),
        ("no-such-command-anywhere", "No such file or directory"),
        ("sh -c 'echo broken >&2; exit 3'", "sh: exit code 3: broken"),
    ],
)
def test_a_command_that_cannot_be_run_is_reported(words: str, told: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as caught:
        Quotes(words, 1.0)
    assert told in str(caught.value)
