"""What a pool is told of a cloud and wants of it: bounds, and the way through the journal and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.core.codec import decode_answers, decode_event, encode_answers, encode_event
from lightning_core.core.control import PartAnswer, part_objects
from lightning_core.core.events import PartEvent
from lightning_core.core.limits import MAX_TEXT
from lightning_core.core.reasons import Reason
from lightning_core.parts.market.cloud_events import (
    MAX_INTERVALS,
    MAX_NODES,
    CloudPart,
    CloudTrouble,
    EarlierFeedback,
    IntervalEnded,
    NodesSeen,
    NodesWanted,
    Quoted,
    QuotedAhead,
    QuotedBefore,
    SelectorFeedback,
)
from lightning_core.parts.market.offers import MAX_AVAILABLE, MAX_PRICE, MIN_ON_DEMAND, Offer, PlacedNodes

NAMES = tuple(f"n{k}" for k in range(MAX_NODES + 1))


@pytest.mark.parametrize(
    ("event", "name", "body"),
    [
        (NodesSeen(("a", "b"), ("c",), 2, (PlacedNodes("east-1a", "", 1, 1),), ("d",)), "nodes_seen",
         {"spot": ["a", "b"], "on_demand": ["c"], "warm": 2, "places": [["east-1a", "", 1, 1]], "billed_spot": ["d"],
          "billed_on_demand": []}),
        (Quoted(0.4, 3, 2.0, 7), "quoted",
         {"price": 0.4, "available": 3, "on_demand": 2.0, "interval": 7, "offers": [], "egress": 0.0, "transfer": 0.0}),
        (CloudTrouble(CloudPart.QUOTES, "no answer"), "trouble", {"part": "quotes", "words": "no answer"}),
        (SelectorFeedback("a", (0.5,)), "selector_feedback", {"job": "a", "utilities": [0.5]}),
        (EarlierFeedback(((0.5, 0.25),)), "earlier_feedback", {"played": [[0.5, 0.25]], "jobs": []}),
        (QuotedBefore((0.4,), (3,)), "quoted_before", {"prices": [0.4], "counts": [3]}),
        (QuotedAhead((0.4,), (3,)), "quoted_ahead", {"prices": [0.4], "counts": [3]}),
    ],
)  # fmt: skip
def test_events_of_the_market_go_through_the_journal(event: Any, name: str, body: dict[str, Any]) -> None:
    sent = PartEvent.of(event)
    assert (sent.name, sent.body) == (f"market.{name}", body)
    again = decode_event(encode_event(sent))
    assert isinstance(again, PartEvent)
    assert again.decoded() == event


def test_several_offers_go_through_the_journal() -> None:
    quote = Quoted.of([Offer("east-1a", "p3", 0.4, 0, 3.0), Offer("west-1a", "p4", 0.8, 2, 4.0, 2.0)], 7, 0.2, 9.0)
    again = decode_event(encode_event(PartEvent.of(quote)))
    assert isinstance(again, PartEvent)
    assert again.decoded() == quote


def through(event: Any) -> Any:
    again = decode_event(encode_event(PartEvent.of(event)))
    assert isinstance(again, PartEvent)
    return again.decoded()


@pytest.mark.parametrize(
    "event",
    [
        NodesSeen(NAMES[: MAX_NODES // 2], NAMES[MAX_NODES // 2 : MAX_NODES], MAX_NODES),
        Quoted(0.0, 0, MIN_ON_DEMAND, 0),
        Quoted(MAX_PRICE, MAX_AVAILABLE, MAX_PRICE, MAX_INTERVALS),
        CloudTrouble(CloudPart.NODES, "x" * MAX_TEXT),
    ],
)
def test_the_bounds_themselves_are_taken(event: Any) -> None:
    assert through(event) == event


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"of": "nodes_seen", "spot": list(NAMES)}, "nodes must be at most 4,096, got 4097"),
        ({"of": "nodes_seen", "spot": ["a"], "on_demand": ["a"]}, "once each, got 2 of which 1 differ"),
        ({"of": "nodes_seen", "spot": ["x" * 10**6]}, "spot: expected at most 8,192 characters, got 1,000,000"),
        ({"of": "nodes_seen", "spot": [7]}, r"spot\[0\]: expected str, got 7"),
        ({"of": "nodes_seen", "spot": "ab", "warm": 0}, "spot"),
        ({"of": "nodes_seen", "on_demand": 3}, "on_demand: expected array, got 3"),
        ({"of": "nodes_seen", "warm": -1}, "warm must be 0 to 4096 devices, got -1"),
        ({"of": "nodes_seen", "warm": 4097}, "warm must be 0 to 4096 devices, got 4097"),
        ({"of": "nodes_seen", "warm": 0.5}, "warm"),
        ({"of": "quoted", "price": -0.1, "available": 0}, "price must be 0 to 1,000,000,000, got -0.1"),
        ({"of": "quoted", "price": 1.1e9, "available": 0}, "price must be 0 to 1,000,000,000, got 1100000000.0"),
        ({"of": "quoted", "price": "0.4", "available": 0}, "price: expected float, got '0.4'"),
        ({"of": "quoted", "price": 0.4, "available": -1}, "available must be 0 to 1,000,000, got -1"),
        ({"of": "quoted", "price": 0.4, "available": 1000001}, "available must be 0 to 1,000,000, got 1000001"),
        ({"of": "quoted", "price": 0.4, "available": 1.5}, "available"),
        ({"of": "quoted", "price": 0.4, "available": 1, "on_demand": 0}, "on_demand must be 1e-09 to 1,000,000,000"),
        ({"of": "quoted", "price": 0.4, "available": 1, "on_demand": ["a"]}, "on_demand: expected float, got "),
        ({"of": "quoted", "price": 0.4, "available": 1, "interval": -1}, "interval must be 0 to 5,256,000, got -1"),
        ({"of": "quoted", "price": 0.4, "available": 1, "interval": 5256001}, "interval must be 0 to 5,256,000"),
        ({"of": "quoted", "price": 0.4, "available": 1, "interval": 1.5}, "interval"),
        ({"of": "quoted", "price": 0.4}, "available"),
        ({"of": "quoted", "price": 0.4, "available": 1, "egress": -1}, "egress must be 0 to 1,000,000,000, got -1"),
        ({"of": "quoted", "price": 0.4, "available": 1, "transfer": -1}, "transfer must be 0 to"),
        (
            {"of": "quoted", "price": 0.4, "available": 1, "offers": [{"zone": "a", "price": 0.5, "available": 1}]},
            "those of the offers together",
        ),
        (
            {"of": "quoted", "price": 0.4, "available": 2, "offers": [{"zone": "a", "price": 0.4, "available": 1}] * 2},
            "offers must be there once",
        ),
        (
            {"of": "quoted", "price": 0.4, "available": 1, "offers": [{"zone": "a"}] * 101},
            "offers must be at most 100, got 101",
        ),
        (
            {"of": "nodes_seen", "spot": ["a"], "places": [["z", "", 2, 0]]},
            "places must have 0 to all 1 spot nodes, got 2",
        ),
        ({"of": "nodes_seen", "spot": ["a"], "places": [["z", "", 2, 0], ["y", "", -1, 0]]}, "0 to all 1 spot nodes"),
        ({"of": "trouble", "part": "moon", "words": ""}, "moon"),
        ({"of": "trouble", "part": "nodes", "words": "x" * (MAX_TEXT + 1)}, "words: expected at most 8,192"),
        ({"of": "trouble", "part": "nodes", "words": 3}, "words: expected str, got 3"),
    ],
)
def test_events_beyond_the_bounds_are_refused(body: dict[str, Any], words: str) -> None:
    name = body.pop("of")
    text = json.dumps({"kind": "part_event", "name": f"market.{name}", "body": body})
    with pytest.raises((ValueError, TypeError), match=words):
        decode_event(text).decoded()  # type: ignore[union-attr]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    for name in ("price", "on_demand"):
        fields = {"price": "0.4", "available": "1", "on_demand": "1.0"} | {name: number}
        text = ",".join(f'"{one}":{value}' for one, value in fields.items())
        with pytest.raises(ValueError, match=r"\S"):
            decode_event(f'{{"kind":"part_event","name":"market.quoted","body":{{{text}}}}}')


def test_an_event_with_a_number_that_is_none_is_not_sent() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        PartEvent.of(SelectorFeedback("a", (float("nan"),)))


COUNTS = st.integers(0, 2000)
MONEY = st.floats(0.0, 1e12)
PLACES = st.lists(st.builds(PlacedNodes, st.text(max_size=3), st.just("t"), COUNTS, COUNTS), max_size=2).map(tuple)
ANSWERS = st.one_of(
    st.builds(NodesWanted, COUNTS, COUNTS, COUNTS, st.just(Reason("market.nodes_planned", (2.0, 1.6))), PLACES),
    st.builds(NodesWanted, COUNTS, COUNTS, COUNTS, st.just(Reason("market.nodes_replaced")), st.just(())),
    st.builds(IntervalEnded, COUNTS, MONEY, *[COUNTS] * 3, *[MONEY] * 3, *[COUNTS] * 4),
)


@given(st.lists(ANSWERS, max_size=4))
def test_what_is_wanted_goes_through_the_journal(answers: list[Any]) -> None:
    again = decode_answers(encode_answers(list(map(PartAnswer.of, answers))))
    assert {one.job for one in again} <= {""}
    assert part_objects(again) == answers
    assert [type(one) for one in part_objects(again)] == [type(one) for one in answers]


def test_what_is_wanted_somewhere_names_the_places() -> None:
    wanted = NodesWanted(3, 2, 0, Reason("market.no_nodes"), (PlacedNodes("east-1a", "p3", 2, 0),))
    [body] = json.loads(encode_answers([PartAnswer.of(wanted)]))
    assert body["body"]["places"] == [["east-1a", "p3", 2, 0]]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason("market.nodes_planned", (1.0, 1.6)), "the plans of 1 job, for 1.6 an interval"),
        (Reason("market.nodes_planned", (2.0, 0.125)), "the plans of 2 jobs, for 0.125 an interval"),
        (
            Reason("market.nodes_kept", (2.0, 0.125)),
            "the plans of 2 jobs; nodes stay until their replacements are ready",
        ),
        (Reason("market.no_nodes"), "no job needs a node"),
        (Reason("market.no_money", (1.25,)), "its nodes would cost more than the remaining 1.25"),
    ],
)
def test_why_nodes_are_wanted_in_words(reason: Reason, words: str) -> None:
    assert str(reason) == words
