"""What a pool is told of a cloud and wants of it: bounds, and the way through the journal and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.core.answers import Answer
from lightning_core.core.codec import decode_answers, decode_event, encode_answers, encode_event
from lightning_core.core.control import (
    Allowance,
    CloudPart,
    CloudTrouble,
    IntervalEnded,
    NodesSeen,
    NodesWanted,
    Quoted,
)
from lightning_core.core.control.cloud import MAX_INTERVALS, MAX_NODES
from lightning_core.core.control.offers import MAX_AVAILABLE, MAX_PRICE, MIN_ON_DEMAND, Offer, PlacedNodes
from lightning_core.core.limits import MAX_TEXT
from lightning_core.core.reasons import Reason

NAMES = tuple(f"n{k}" for k in range(MAX_NODES + 1))


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (NodesSeen(), '{"kind":"nodes_seen"}'),
        (NodesSeen(("a", "b"), ("c",), 2), '{"kind":"nodes_seen","spot":["a","b"],"on_demand":["c"],"warm":2}'),
        (
            NodesSeen(("a",), billed_spot=("b",), billed_on_demand=("c", "d")),
            '{"kind":"nodes_seen","spot":["a"],"billed_spot":["b"],"billed_on_demand":["c","d"]}',
        ),
        (Quoted(0.4, 3), '{"kind":"quoted","price":0.4,"available":3}'),
        (Quoted(0.4, 3, 2.0, 7), '{"kind":"quoted","price":0.4,"available":3,"on_demand":2.0,"interval":7}'),
        (
            NodesSeen(("a", "b"), ("c",), 0, (PlacedNodes("east-1a", "", 1, 1),)),
            '{"kind":"nodes_seen","spot":["a","b"],"on_demand":["c"],"places":[["east-1a","",1,1]]}',
        ),
        (
            Quoted.of([Offer("east-1a", "p3", 0.4, 0, 3.0), Offer("west-1a", "p4", 0.8, 2, 4.0, 2.0)], 7, 0.2, 9.0),
            '{"kind":"quoted","price":0.4,"available":2,"on_demand":2.0,"interval":7,"offers":[["east-1a","p3",0.4,0,'
            '3.0,1.0,"east-1"],["west-1a","p4",0.8,2,4.0,2.0,"west-1"]],"egress":0.2,"transfer":9.0}',
        ),
        (CloudTrouble(CloudPart.QUOTES, "no answer"), '{"kind":"cloud_trouble","part":"quotes","words":"no answer"}'),
        (CloudTrouble(CloudPart.NODES), '{"kind":"cloud_trouble","part":"nodes"}'),
    ],
)
def test_events_of_the_cloud_go_through_the_journal(event: Any, text: str) -> None:
    assert encode_event(event) == text
    assert decode_event(text) == event


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
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"kind": "nodes_seen", "spot": list(NAMES)}, "nodes must be at most 4,096, got 4097"),
        ({"kind": "nodes_seen", "spot": ["a"], "on_demand": ["a"]}, "once each, got 2 of which 1 differ"),
        ({"kind": "nodes_seen", "spot": ["x" * 10**6]}, "spot: expected at most 8,192 characters, got 1,000,000"),
        ({"kind": "nodes_seen", "spot": [7]}, r"spot\[0\]: expected str, got 7"),
        ({"kind": "nodes_seen", "spot": "ab", "warm": 0}, "spot"),
        ({"kind": "nodes_seen", "on_demand": 3}, "on_demand: expected array, got 3"),
        ({"kind": "nodes_seen", "warm": -1}, "warm must be 0 to 4096 devices, got -1"),
        ({"kind": "nodes_seen", "warm": 4097}, "warm must be 0 to 4096 devices, got 4097"),
        ({"kind": "nodes_seen", "warm": 0.5}, "warm"),
        ({"kind": "quoted", "price": -0.1, "available": 0}, "price must be 0 to 1,000,000,000, got -0.1"),
        ({"kind": "quoted", "price": 1.1e9, "available": 0}, "price must be 0 to 1,000,000,000, got 1100000000.0"),
        ({"kind": "quoted", "price": "0.4", "available": 0}, "price: expected float, got '0.4'"),
        ({"kind": "quoted", "price": 0.4, "available": -1}, "available must be 0 to 1,000,000, got -1"),
        ({"kind": "quoted", "price": 0.4, "available": 1000001}, "available must be 0 to 1,000,000, got 1000001"),
        ({"kind": "quoted", "price": 0.4, "available": 1.5}, "available"),
        ({"kind": "quoted", "price": 0.4, "available": 1, "on_demand": 0}, "on_demand must be 1e-09 to 1,000,000,000"),
        ({"kind": "quoted", "price": 0.4, "available": 1, "on_demand": ["a"]}, "on_demand: expected float, got "),
        ({"kind": "quoted", "price": 0.4, "available": 1, "interval": -1}, "interval must be 0 to 5,256,000, got -1"),
        ({"kind": "quoted", "price": 0.4, "available": 1, "interval": 5256001}, "interval must be 0 to 5,256,000"),
        ({"kind": "quoted", "price": 0.4, "available": 1, "interval": 1.5}, "interval"),
        ({"kind": "quoted", "price": 0.4}, "available"),
        ({"kind": "quoted", "price": 0.4, "available": 1, "egress": -1}, "egress must be 0 to 1,000,000,000, got -1"),
        ({"kind": "quoted", "price": 0.4, "available": 1, "transfer": -1}, "transfer must be 0 to"),
        (
            {"kind": "quoted", "price": 0.4, "available": 1, "offers": [["a", "", 0.5, 1]]},
            "those of the offers together",
        ),
        (
            {"kind": "quoted", "price": 0.4, "available": 2, "offers": [["a", "", 0.4, 1]] * 2},
            "offers must be there once",
        ),
        (
            {"kind": "quoted", "price": 0.4, "available": 1, "offers": [["a"]] * 101},
            "offers must be at most 100, got 101",
        ),
        (
            {"kind": "nodes_seen", "spot": ["a"], "places": [["z", "", 2, 0]]},
            "places must have 0 to all 1 spot nodes, got 2",
        ),
        ({"kind": "nodes_seen", "spot": ["a"], "places": [["z", "", 2, 0], ["y", "", -1, 0]]}, "0 to all 1 spot nodes"),
        ({"kind": "cloud_trouble", "part": "moon", "words": ""}, "moon"),
        ({"kind": "cloud_trouble", "part": "nodes", "words": "x" * (MAX_TEXT + 1)}, "words: expected at most 8,192"),
        ({"kind": "cloud_trouble", "part": "nodes", "words": 3}, "words: expected str, got 3"),
    ],
)
def test_events_beyond_the_bounds_are_refused(body: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        decode_event(json.dumps(body))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    for name in ("price", "on_demand"):
        fields = {"price": "0.4", "available": "1", "on_demand": "1.0"} | {name: number}
        text = ",".join(f'"{one}":{value}' for one, value in fields.items())
        with pytest.raises(ValueError, match=r"\S"):
            decode_event(f'{{"kind":"quoted",{text}}}')


COUNTS = st.integers(0, 2000)
MONEY = st.floats(0.0, 1e12)
PLACES = st.lists(st.builds(PlacedNodes, st.text(max_size=3), st.just("t"), COUNTS, COUNTS), max_size=2).map(tuple)
ANSWERS = st.one_of(
    st.builds(NodesWanted, COUNTS, COUNTS, COUNTS, st.just(Reason("nodes_planned", (2.0, 1.6))), PLACES),
    st.builds(NodesWanted, COUNTS, COUNTS, COUNTS, st.just(Reason("nodes_replaced")), st.just(())),
    st.builds(Allowance, st.none() | MONEY, st.just(Reason("budget", (3.0,)))),
    st.builds(IntervalEnded, COUNTS, MONEY, *[COUNTS] * 3, *[MONEY] * 3, *[COUNTS] * 4),
)


@given(st.lists(ANSWERS, max_size=4))
def test_what_is_wanted_goes_through_the_journal(answers: list[Answer]) -> None:
    again = decode_answers(encode_answers(answers))
    assert again == answers
    assert [type(one) for one in again] == [type(one) for one in answers]
    assert {one.job for one in again} <= {""}


def test_what_is_wanted_somewhere_names_the_places() -> None:
    wanted = NodesWanted(3, 2, 0, Reason("no_nodes"), (PlacedNodes("east-1a", "p3", 2, 0),))
    [body] = json.loads(encode_answers([wanted]))
    assert body["places"] == [["east-1a", "p3", 2, 0]]


def test_what_is_wanted_is_an_answer_of_its_own_kind() -> None:
    wanted = NodesWanted(3, 2, 1, Reason("no_nodes"))
    assert json.loads(encode_answers([wanted])) == [
        {"kind": "nodes_wanted", "version": 3, "spot": 2, "on_demand": 1, "reason": ["no_nodes", [], ""]}
    ]
    assert json.loads(encode_answers([Allowance(None, Reason("withdrawn"))])) == [
        {"kind": "allowance", "money": None, "reason": ["withdrawn", [], ""]}
    ]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason("nodes_planned", (1.0, 1.6)), "the plans of 1 job, for 1.6 an interval"),
        (Reason("nodes_planned", (2.0, 0.125)), "the plans of 2 jobs, for 0.125 an interval"),
        (
            Reason("nodes_kept", (2.0, 0.125)),
            "the plans of 2 jobs; nodes stay until their replacements are ready",
        ),
        (Reason("no_nodes"), "no job needs a node"),
        (Reason("no_money", (1.25,)), "its nodes would cost more than the remaining 1.25"),
        (Reason("budget", (1234.5,)), "1234 may be spent"),
    ],
)
def test_why_nodes_are_wanted_in_words(reason: Reason, words: str) -> None:
    assert str(reason) == words
