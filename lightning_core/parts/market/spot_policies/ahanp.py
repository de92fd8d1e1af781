"""AHANP: adaptive hybrid allocation without prediction (Kong et al., algorithm 3)."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.parts.market.observation import Observation
from lightning_core.parts.market.safety_net import SafetyNet

Mode = Literal["default", "paper"]


class Ahanp:
    """Keeps the number of nodes steady: halves or doubles it by progress and by the change of the spot count.

    As printed, a fleet of on-demand nodes shrinks to the minimum when the first spot nodes appear, a job that is idle
    because spot nodes are dear starts on the minimum, and spot nodes come first even where they cost more than
    on-demand ones. By default the first doubles, the second waits, and the cheaper kind comes first.

    Args:
        sigma: Spot price, relative to the on-demand price, up to which spot nodes are cheap.
        mode: ``"default"``, or ``"paper"`` for the rules as printed.

    Raises:
        ValueError: If ``sigma`` is not above 0, or there is no such mode.
    """

    horizon = 0

    def __init__(self, sigma: float = 0.6, mode: Mode = "default") -> None:
        if not sigma > 0:
            raise ValueError(f"sigma must be above 0, got {sigma}")
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be {' or '.join(get_args(Mode))}, got {mode!r}")
        self.sigma = sigma
        self.paper = mode == "paper"

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        batch, held, available = observation.batch, observation.held, observation.available
        before = batch.available[:, observation.interval - 1] if observation.interval else np.zeros_like(available)
        ahead = observation.progress >= observation.due(-1)
        cheap = observation.price <= self.sigma * batch.on_demand
        appeared = (before == 0) & (available > 0)
        total = np.select(
            [
                ahead & (available == 0),
                ahead & (2 * available <= before),
                ahead & (available <= before),
                ahead & ~cheap,
                ahead,
                appeared,
            ],
            [
                np.zeros_like(held),
                np.maximum((held + 1) // 2, batch.min_nodes),
                held,
                held,
                np.maximum(held, available),
                batch.min_nodes if self.paper else np.maximum(batch.min_nodes, 2 * held),
            ],
            2 * held,
        )
        idles = ahead & ((available == 0) | ((held == 0) & (total == 0) & (not self.paper)))
        total = np.where(idles, 0, np.clip(total, batch.min_nodes, batch.max_nodes))
        if self.paper:
            spot = np.minimum(available, total)
            return spot, total - spot
        return SafetyNet(observation).split(total)
