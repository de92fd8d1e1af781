"""The benchmark of decisions on events: what a job costs in each of the ways, on a market worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.market import spot_events
from benchmarks.market.spot_traces import PRICE
from lightning_core.parts.market.spot_market import Market


@pytest.mark.nightly
def test_on_events_a_job_trains_from_when_a_node_is_on_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hours of work by the sixth; a spot node is on offer from 20 minutes on for two hours, and then no more."""
    monkeypatch.setattr(spot_events, "WORK", 2.0)
    available = np.array([0] * 2 + [1] * 12 + [0] * 40)
    market = Market(np.full(len(available), PRICE), available, seconds=600.0)
    intervals, events, short = spot_events.play(market, 1.0, 6.0)
    assert not any(way.is_late for way in (intervals, events, short))
    assert events.cost == pytest.approx(short.cost)
    assert events.cost < intervals.cost - 0.1  # which waits for an hour, and does not get done on that node
