"""Which quote holds for which interval, and what is done where there is none of late."""

from __future__ import annotations

import json

import pytest

from lightning_core.parts.market.cloud_events import Quoted
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.online import quote_history
from lightning_core.parts.market.online.quote_history import QuoteHistory

SECONDS = 60.0
PRESENT = NodeCounts(1, 2)


def quoted(available: int, interval: int | None = None, price: float = 0.4) -> Quoted:
    return Quoted(price, available, 1.0, interval)


def history(*taken: tuple[Quoted, float], ahead: int = 2) -> QuoteHistory:
    made = QuoteHistory(SECONDS, ahead)
    for number, (quote, now) in enumerate(taken):
        assert made.take(quote, now, None) == (number == 0)
    return made


def offered(
    quotes: QuoteHistory, number: int, now: float | None = None, present: NodeCounts | None = None
) -> list[int]:
    return list(map(int, quotes.market(number, now, present).available))


def test_a_quote_holds_from_its_interval_on_and_the_future_is_like_the_present() -> None:
    quotes = history((quoted(3), 10.0), (quoted(5, price=0.6), 130.0))
    assert quotes.newest == 2
    assert [quotes.at(number).available for number in (0, 1, 2, 9)] == [3, 3, 5, 5]
    assert offered(quotes, 2) == [3, 3, 5, 5, 5]
    market = quotes.market(2)
    assert market.price.tolist() == [0.4, 0.4, 0.6, 0.6, 0.6]
    assert (market.on_demand, market.seconds) == (1.0, SECONDS)


@pytest.mark.parametrize(
    ("now", "counted"),
    [
        (65.0, 3),  # of the interval before, and 55 s old
        (70.0, 3),  # as old as it may be
        (70.1, 1),  # older: those that are there stay, and none is counted on beside them
    ],
)
def test_of_an_old_quote_no_more_nodes_count_than_are_there(now: float, counted: int) -> None:
    quotes = history((quoted(3), 10.0))
    assert offered(quotes, 1, now, PRESENT)[1:] == [counted] * 3
    assert offered(quotes, 1, now, NodeCounts(9, 0))[1] == 3  # nor more than were on offer
    assert offered(quotes, 1)[1] == 3
    assert offered(quotes, 0, now, PRESENT)[0] == 3  # it has a quote of its own


def test_a_newer_quote_is_waited_for_a_tenth_of_the_interval() -> None:
    quotes = history((quoted(3), 10.0))
    assert [quotes.is_awaited(2, now) for now in (120.0, 125.9, 126.0)] == [True, True, False]
    assert not quotes.is_awaited(1, 62.0)  # the last one is not old yet
    quotes.take(quoted(4), 121.0, 1)
    assert not quotes.is_awaited(2, 122.0)


def test_what_comes_after_the_plans_is_news_until_they_go_by_it() -> None:
    quotes = history((quoted(3), 10.0))
    quotes.take(quoted(1), 30.0, planned=0)
    assert (quotes.at(0).available, quotes.at(1).available) == (3, 1)  # plans went by the one before
    news = quotes.news(0)
    assert news is not None
    assert news.available == 1
    assert quotes.news(1) is None
    quotes.accept(1)  # not of that interval
    assert quotes.at(0).available == 3
    quotes.accept(0)
    assert quotes.at(0).available == 1
    assert quotes.news(0) is None


def test_a_quote_of_an_interval_that_has_been_planned_comes_too_late() -> None:
    quotes = history((quoted(3), 10.0))
    quotes.take(quoted(9, interval=0), 30.0, planned=0)
    assert quotes.at(0).available == quotes.at(1).available == 3


def test_old_quotes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quote_history, "BEFORE", 2)
    quotes = history(*((quoted(number), number * SECONDS) for number in range(6)))
    assert [quotes.at(number).available for number in (0, 2, 3, 4, 5)] == [3, 3, 3, 4, 5]


def test_what_is_remembered_comes_back() -> None:
    quotes = history((quoted(3), 10.0))
    quotes.take(quoted(1), 30.0, planned=0)
    again = QuoteHistory(SECONDS, 2)
    assert not again
    again.restore(json.loads(json.dumps(QuoteHistory(SECONDS, 2).state())))
    assert not again
    again.restore(json.loads(json.dumps(quotes.state())))
    assert again
    assert again.state() == quotes.state()
    assert again.news(0) == quotes.news(0)
    assert offered(again, 1, 75.0, PRESENT) == offered(quotes, 1, 75.0, PRESENT)
