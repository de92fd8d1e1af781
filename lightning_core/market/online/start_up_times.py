"""Measured start-up times: from the request for a job's first node to its first batch there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lightning_core.core.answers import JobStatus


class NodeRequest(NamedTuple):
    """A request for nodes by a job that had none."""

    at: float
    """Scheduler time of the request."""
    batches: int
    """Batches trained by then."""
    node_present: bool
    """Whether a node was already up for it."""


class StartUpTimes:
    """Longest start-up times seen.

    Args:
        setup: Seconds that bringing up the first node and a worker on it took, before the run began.
    """

    def __init__(self, setup: float = 0.0) -> None:
        self._setup = setup
        self._first_batch = 0.0  # seconds to the first batch on a node that was up already
        self._lags: list[float] = []  # seconds to the first batch on a node that had to be brought up
        self._requests: dict[str, NodeRequest] = {}

    @property
    def longest(self) -> float:
        """Seconds from requesting nodes to a batch; before one was measured, the setup and the first batch added."""
        return max(self._lags, default=self._setup + self._first_batch)

    def request(self, job: str, now: float, batches: int, *, node_present: bool) -> None:
        """Start measuring for a job, unless a measurement is under way."""
        self._requests.setdefault(job, NodeRequest(now, batches, node_present))

    def is_measuring(self, job: str) -> bool:
        """Return whether a job waits for its first batch."""
        return job in self._requests

    def cancel(self, job: str) -> None:
        """Stop measuring for a job: its plan holds no nodes any more."""
        self._requests.pop(job, None)

    def observe(self, now: float, jobs: Mapping[str, JobStatus]) -> None:
        """Take in the jobs as they are now, by name."""
        for name, request in list(self._requests.items()):
            if name not in jobs:
                continue
            batches = jobs[name].batches
            if batches < request.batches:  # only now is it known how many have to be trained again
                self._requests[name] = request._replace(batches=batches)
            elif batches > request.batches:
                lag = now - request.at
                if request.node_present:  # bringing up a node is not part of it
                    self._first_batch = max(self._first_batch, lag)
                else:
                    self._lags.append(lag)
                del self._requests[name]
