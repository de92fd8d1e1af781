"""A market decides within an interval: when offers, their price or nodes change, and not only when the next begins."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.faults.rented import ZONES
from tests.faults.test_kills_on_market import DETECTED
from tests.faults.test_nodes import run_story
from tests.faults.within_interval import INTERVAL, NOTICE, PAUSE, SAVE_EVERY

EAST, WEST = ZONES.values()


class Decision(NamedTuple):
    """The nodes that were wanted from a time on."""

    at: float
    event: str
    """Type of the event to which they are the answer."""
    code: str
    """Code of the reason."""
    spot: int
    on_demand: int
    zones: list[str]

    @property
    def nodes(self) -> tuple[int, int]:
        return self.spot, self.on_demand


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="t") as made:  # Ray's sockets want short paths
        yield Path(made)


def told(folder: Path, name: str) -> dict[str, Any]:
    """Run a story; return what it found."""
    found = run_story("tests.faults.within_interval", folder, story=name, seconds=900.0)
    assert found["left behind"] == 0
    return found


def decided(found: dict[str, Any], since: str, several: int) -> list[Decision]:
    """Return so many decisions since a moment; all of them are in its interval."""
    began = found[since]
    decisions = [decision for row in found["decisions"] if (decision := Decision(*row)).at >= began][:several]
    assert {decision.at // INTERVAL for decision in decisions} == {began // INTERVAL}
    assert {decision.code for decision in decisions} == {"nodes_replanned"}
    return decisions


@pytest.mark.nightly
@pytest.mark.cluster
def test_offers_that_go_and_come_and_prices_that_rise_and_fall_are_acted_on_within_their_interval(folder: Path) -> None:
    found = told(folder, "offers")
    for name in ("gone", "dear"):
        gone, back = decided(found, name, 2)
        assert (gone.nodes, back.nodes) == ((0, 0), (1, 0))
        # A node that is taken may be seen to go before the quote is told.
        assert gone.event in ({"Quoted", "NodesSeen"} if name == "gone" else {"Quoted"})
        assert back.event == "Quoted"
    # It has left each of its nodes with all that it had done, and nothing was billed while nothing was on offer.
    assert [cause for _, _, cause in found["exits"]] == ["released"] * 3 + ["done"]
    assert found["lost"] == 0
    assert found["begun"][1:] == [[number + 1, found["reported"][str(number)]] for number in range(1, 4)]
    on_demand, *spot = found["invoice"]
    assert on_demand["market_type"] == "on-demand"
    assert [row["market_type"] for row in spot] == ["spot"] * 3
    for name, before, after in zip(("gone", "dear"), spot, spot[1:], strict=False):
        assert found[name] < before["until"] - found["offset"] < after["since"] - found["offset"]
        assert (after["since"] - found["offset"]) // INTERVAL == found[name] // INTERVAL


@pytest.mark.nightly
@pytest.mark.cluster
def test_nodes_that_are_taken_within_an_interval_are_replaced_within_it(folder: Path) -> None:
    """In the zone that is left; and by an on-demand node where no zone and no time is left."""
    found = told(folder, "nodes")
    [noticed], [killed], [short] = (decided(found, name, 1) for name in ("notice", "killed", "short of time"))
    assert (noticed.nodes, noticed.zones) == ((1, 0), [WEST])
    assert (killed.nodes, killed.zones) == ((1, 0), [EAST])
    assert short.nodes == (0, 1)
    assert {noticed.event, killed.event, short.event} == {"NodesSeen"}
    # With notice it saves and leaves in time, and continues with the next batch.
    assert [cause for _, _, cause in found["exits"]] == ["released", "released", "lost", "released", "done"]
    for number, name in ((2, "notice"), (4, "short of time")):
        _, left, _ = found["exits"][number - 1]
        assert found[name] < left < found[name] + NOTICE
        assert found["begun"][number] == [number + 1, found["reported"][str(number)]]
    # Without notice it goes back to its last checkpoint.
    assert found["lost"] == found["reported"]["3"] - found["begun"][3][1] <= (SAVE_EVERY + DETECTED) / PAUSE
    first, *spot, last = found["invoice"]
    assert first["market_type"] == last["market_type"] == "on-demand"
    assert [zone for zone, _ in groupby(row["zone"] for row in spot)] == [EAST, WEST, EAST]
