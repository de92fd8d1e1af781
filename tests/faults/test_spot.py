"""Nodes that a market gives and takes: drained, killed, stopped, all gone, back again; the training ends in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.spot import BATCHES, COUNTS, DEADLINE, NOTICE, SAVE_EVERY
from tests.faults.test_nodes import lived_through


@pytest.mark.nightly
@pytest.mark.cluster
def test_whatever_the_market_takes_the_training_ends_by_its_deadline(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    found = lived_through("tests.faults.spot", tmp_path)
    rows = found["rows"]
    assert (found["verdict"], found["batches"]) == ("met", BATCHES)
    assert found["at"] <= DEADLINE
    # No more spot nodes than there were, and none where there were none.
    assert all(row["spot"] <= COUNTS[row["number"]] for row in rows)
    assert rows[2]["spot"] == 0
    assert max(row["spot"] for row in rows[3:]) == 2
    # One was drained, one killed, one hung: two losses, and what was lost is what had not been saved.
    assert found["taken"] >= 1
    assert found["restarts"] == 2
    assert {"killed at", "stopped at"} <= set(found)
    fastest = max(row["batches"] for row in rows) / 20.0
    assert sum(row["again"] for row in rows) == found["lost"] <= 2 * fastest * (SAVE_EVERY + 2.0)
    # The ledger's batches are those that were done, and each step was; until it hears of its end it trains on.
    assert sum(row["batches"] for row in rows) == BATCHES
    assert BATCHES <= found["steps"] <= BATCHES + 2 * fastest
    # Nothing that was not accepted is gone on from.
    assert found["moments"]["begun"]
    assert all(found["moments"]["begun"])
    # The checkpoint of the notice was whole before the node went.
    assert found["moments"]["safe"]
    assert max(found["moments"]["safe"]) < NOTICE
    cost = sum(row["cost"] for row in rows)
    assert cost < len(rows) * 1.0  # less than one on-demand node all the time, which could not have ended it
    back, safe = max(found["moments"]["back"]), max(found["moments"]["safe"])
    words = (
        f"ended {DEADLINE - found['at']:.0f} s before its deadline for {cost:.1f}; saved {safe:.1f} s after a notice, "
    )
    words += f"trains again {back:.1f} s after a loss"
    record_property("figure", words)
