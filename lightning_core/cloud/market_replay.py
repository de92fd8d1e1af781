"""Replays a market on simulated nodes: spot nodes come and go as a recording says."""

from __future__ import annotations

from typing import Protocol

from lightning_core.cloud.quotes import MarketFeed, market_feed
from lightning_core.cloud.simulated_provisioner import SimulatedProvisioner
from lightning_core.core.answers import JobStatus
from lightning_core.market import Market


class Inner(Protocol):
    """A watcher that a replay passes the jobs on to."""

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """Take in the jobs as of scheduler time ``now``."""

    def close(self) -> None:
        """Release what it holds: the run is over."""


class MarketReplay:
    """Offers simulated nodes as a market has them; watches a run and passes the jobs on to another watcher.

    Args:
        nodes: Simulated nodes.
        market: Recording or feed, whose first interval is the run's first.
        watcher: Watcher of the run.
    """

    def __init__(self, nodes: SimulatedProvisioner, market: Market | MarketFeed, watcher: Inner) -> None:
        self._nodes, self._market_feed, self._watcher = nodes, market_feed(market), watcher
        self._market = self._market_feed(0)
        self._interval = -1
        self.preempted_at: list[float] = []
        """Scheduler times at which nodes were preempted, or given notice."""

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """Take in the jobs as of scheduler time ``now``."""
        interval = int(now // self._market.seconds)
        if interval != self._interval:
            self._interval, self._market = interval, self._market_feed(interval)
            before = self._nodes.preempted
            self._nodes.offer(int(self._market.available[interval]))
            if self._nodes.preempted > before:
                self.preempted_at.append(now)
        self._watcher.update(now, jobs)

    def close(self) -> None:
        """Close the inner watcher: the run is over."""
        self._watcher.close()
