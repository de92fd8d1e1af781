"""Measured start-up times: from the request for a job's first node to its first batch there.

Plans and the safety net use the 90th percentile of recent start-up times. With less, many starts would be later than
planned. With the longest one, a single start delayed by a lack of nodes would make plans dearer for weeks
(docs/decisions.md).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from lightning_core.core.answers import JobStatus
from lightning_core.core.saved_state import Stateful


class NodeRequest(NamedTuple):
    """A request for nodes by a job that had none."""

    at: float
    """Scheduler time of the request."""
    batches: int
    """Batches trained by then."""
    node_present: bool
    """Whether a node was already up for it."""


# Start-up times of nodes that are remembered, and the fraction of them that takes no longer than plans count with.
REMEMBERED, FRACTION = 20, 0.9


class StartUpTimes(Stateful):
    """Start-up times seen of late."""

    STATE = ("_first_batch", "_lags", "_requests")

    def __init__(self) -> None:
        self._first_batch = 0.0  # seconds to the first batch on a node that was up already
        # Seconds to the first batch on a node that had to be brought up.
        self._lags: deque[float] = deque(maxlen=REMEMBERED)
        self._requests: dict[str, NodeRequest] = {}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._requests = {job: NodeRequest(*request) for job, request in self._requests.items()}

    @property
    def seconds(self) -> float:
        """Seconds from requesting nodes to a batch; of a node that was up already, before another one was measured."""
        if not self._lags:
            return self._first_batch
        return sorted(self._lags)[math.ceil(FRACTION * len(self._lags)) - 1]

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
        """Record the current jobs, by name."""
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
