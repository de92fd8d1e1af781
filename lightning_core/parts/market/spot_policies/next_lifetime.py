"""Spot nodes only if they are forecast to live long enough to be worth the change (Wu et al., section 5.4)."""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.parts.market.observation import Observation


class NextLifetime:
    """Holds all nodes that a job can use, or none, by the forecast lifetime of spot nodes.

    With ``k`` the ratio of the on-demand price to the spot price and ``d`` the intervals that a change costs, it moves
    from idle to spot nodes if they live longer than ``k d / (k - 1)``, and from on-demand nodes if longer than twice
    that. An idle job gets on-demand nodes only from the safety net, so the policy is useless without it.

    Args:
        horizon: Intervals that it looks ahead.

    Raises:
        ValueError: If ``horizon`` is below 1.
    """

    def __init__(self, horizon: int = 5) -> None:
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1 interval, got {horizon}")
        self.horizon = horizon

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        batch = observation.batch
        enough = observation.forecast.counts[:, : self.horizon + 1] >= batch.max_nodes[:, None]
        lives = np.where(enough.all(1), np.inf, enough.argmin(1))
        ratio = batch.on_demand / np.maximum(observation.price, 1e-9)
        pays = np.where(ratio > 1, ratio * batch.launch / np.maximum(ratio - 1, 1e-9), np.inf)
        waits = np.where(observation.on_demand > 0, 2 * pays, np.where(observation.spot > 0, 0.0, pays))
        spot = enough[:, 0] & (lives > waits)
        return np.where(spot, batch.max_nodes, 0), np.where(~spot & (observation.on_demand > 0), batch.max_nodes, 0)
