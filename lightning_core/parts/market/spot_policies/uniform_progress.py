"""Even progress up to the deadline (Wu et al., "Can't Be Late", NSDI 2024)."""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import BoolArray, IntArray
from lightning_core.core.saved_state import Stateful
from lightning_core.parts.market.observation import Observation
from lightning_core.parts.market.spot_job import EXACT


class UniformProgress:
    """Holds spot nodes whenever there are any, and on-demand nodes only where there are none and the job is behind."""

    horizon = 0

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        batch, spot = observation.batch, observation.usable
        lacks = observation.due() - observation.progress
        enough = np.maximum(1 - batch.launch, 0.0)[:, None] * batch.throughput >= lacks[:, None] - EXACT
        fewest = np.where(enough.any(1), enough.argmax(1), batch.max_nodes)
        return spot, np.where((spot == 0) & (lacks > EXACT), np.minimum(fewest, batch.max_nodes), 0)


class AllOrNothing(Stateful):
    """Uniform Progress as published: all the nodes that a job can use, or none.

    An idle job takes spot nodes whenever there are enough, even if it is behind, and on-demand nodes once it is behind
    even progress. Spot nodes are kept until they are preempted. A job stays on on-demand nodes, whatever is on offer,
    until it is as far as even progress will be after two changes (rule 3, hysteresis).
    """

    horizon = 0
    STATE = ("_on",)

    def __init__(self) -> None:
        self._on: BoolArray = np.zeros(0, np.bool_)  # rows on on-demand nodes

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        batch = observation.batch
        if observation.interval == 0 or len(self._on) != len(batch):  # the first interval that it is shown
            self._on = np.zeros(len(batch), np.bool_)
        even, step = observation.due(-1), batch.work / batch.due
        on = self._on | (observation.on_demand > 0)  # by its own decision, or the safety net's
        stays = on & (observation.progress < even + 2 * batch.launch * step - EXACT)
        spot = ~stays & (observation.usable >= batch.max_nodes)
        self._on = stays | (~spot & (observation.progress < even - EXACT))
        return np.where(spot, batch.max_nodes, 0), np.where(self._on, batch.max_nodes, 0)
