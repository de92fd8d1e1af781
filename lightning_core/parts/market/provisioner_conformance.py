"""Conformance suite for provisioners, however they bring up nodes.

Run it on a provisioner of your own, with a function that counts its nodes. It brings up three nodes and returns
them::

    check_provisioner(MyProvisioner, lambda: count_nodes("GPU"), timeout=600.0)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from lightning_core.parts.market.cloud.provisioner import Provisioner
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import PlacedNodes
from lightning_core.testing.checks import require

# Seconds within which a request must return: the run that makes it has jobs to look after.
REQUEST_SECONDS = 5.0
# Seconds between two looks at the nodes.
POLL_SECONDS = 0.02
# Requests, one after the other: the same again, less of both kinds, from one kind to the other, all away.
REQUESTS = (
    NodeCounts(1, 1), NodeCounts(1, 1), NodeCounts(2, 1), NodeCounts(1, 0), NodeCounts(0, 1), NodeCounts(0, 0),
)  # fmt: skip

# Requests by offer, one after the other: two zones, one node in the other zone, another type there.
PLACES = (
    (PlacedNodes("zone-a", "", 1, 0), PlacedNodes("zone-b", "", 0, 1)),
    (PlacedNodes("zone-b", "", 1, 0),),
    (PlacedNodes("zone-b", "large", 1, 0),),
)
T = TypeVar("T")


def check_provisioner(
    make: Callable[[], Provisioner],
    count: Callable[[], NodeCounts],
    timeout: float = 60.0,
    count_places: Callable[[], Sequence[PlacedNodes]] | None = None,
) -> None:
    """Check that nodes come and go as requested, that requests return at once, and that closing returns all nodes.

    Args:
        make: Creates the provisioner; called three times, each time after the one before was closed.
        count: Returns the existing nodes.
        timeout: Seconds that a change of the nodes may take.
        count_places: Returns the nodes of each offer that has some, sorted; None if the provisioner knows no offers.

    Raises:
        AssertionError: If a rule is broken; the message names it.
    """
    require(count() == NodeCounts(), f"there must be no nodes at first, got {_words(count())}")
    checks = [_check_requests, _check_newest_request, _check_close_at_once]
    if count_places is not None:
        checks.append(partial(_check_places, count_places))
    for check in checks:
        provisioner = make()
        require(isinstance(provisioner, Provisioner), "a provisioner must have the methods scale_to and close")
        try:
            check(provisioner, count, timeout)
        finally:
            provisioner.close()
        _wait(count, NodeCounts(), timeout, "close() must return all nodes")


def _check_requests(provisioner: Provisioner, count: Callable[[], NodeCounts], timeout: float) -> None:
    for wanted in REQUESTS:
        _request(provisioner, wanted)
        _wait(count, wanted, timeout, f"a request for {_words(wanted)} must be met")
    _request(provisioner, NodeCounts(1, 1))
    _wait(count, NodeCounts(1, 1), timeout, "nodes must come back after all were returned")


def _check_newest_request(provisioner: Provisioner, count: Callable[[], NodeCounts], timeout: float) -> None:
    """Several requests at once: the newest holds."""
    for wanted in (NodeCounts(0, 1), NodeCounts(2, 0), NodeCounts(1, 0)):
        _request(provisioner, wanted)
    _wait(count, NodeCounts(1, 0), timeout, "the newest of several requests must hold")


def _check_close_at_once(provisioner: Provisioner, count: Callable[[], NodeCounts], timeout: float) -> None:
    """Close right after a request: a node that is still on its way must not stay."""
    _request(provisioner, NodeCounts(1, 1))


def _check_places(
    count_places: Callable[[], Sequence[PlacedNodes]],
    provisioner: Provisioner, count: Callable[[], NodeCounts], timeout: float,
) -> None:  # fmt: skip
    """Nodes come where they are requested, move as requested, and may then be anywhere again."""
    for places in PLACES:
        wanted = NodeCounts(sum(place.spot for place in places), sum(place.on_demand for place in places))
        _request(provisioner, wanted, places)
        rule = f"a request for nodes of offers must be met: {', '.join(map(str, places))}"
        _wait_until(lambda: list(count_places()), list(places), timeout, rule, str)
    _request(provisioner, NodeCounts(1, 0))
    _wait(count, NodeCounts(1, 0), timeout, "a request without offers must be met")


def _request(provisioner: Provisioner, wanted: NodeCounts, places: Sequence[PlacedNodes] = ()) -> None:
    began = time.monotonic()
    if places:
        provisioner.scale_to(wanted, places)
    else:
        provisioner.scale_to(wanted)
    took = time.monotonic() - began
    require(took < REQUEST_SECONDS, f"scale_to must return within {REQUEST_SECONDS:g} s, took {took:.1f} s")


def _wait(count: Callable[[], NodeCounts], wanted: NodeCounts, timeout: float, rule: str) -> None:
    _wait_until(count, wanted, timeout, rule, _words)


def _wait_until(count: Callable[[], T], wanted: T, timeout: float, rule: str, words: Callable[[T], str]) -> None:
    until = time.monotonic() + timeout
    while (found := count()) != wanted:
        require(time.monotonic() < until, f"{rule} within {timeout:g} s, got {words(found)}")
        time.sleep(POLL_SECONDS)


def _words(counts: NodeCounts) -> str:
    return f"{counts.spot} spot and {counts.on_demand} on-demand nodes"
