"""Plans for the expected future: the count of spot nodes as a Markov chain, estimated from its own past.

It takes nodes of either kind to replace each other for nothing, as in the paper (overhead ``"total"``): there it is the
exact plan. Where launches are counted, :mod:`.semi_markov` is.

A transition is as likely as it was frequent, with a prior that the count mostly stays. The price is assumed to stay.
Against that chain the plan to the deadline is optimal, by backward induction over (interval, progress, nodes held,
count): it optimizes the mean over all futures, where a policy with a single forecast believes it to the last interval.
"""

from __future__ import annotations

import math

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.parts.market.observation import Observation
from lightning_core.parts.market.programs.progress_grid import CELLS, JobGroup, group_of
from lightning_core.parts.market.programs.window_planner import step_back
from lightning_core.parts.market.safety_net import SafetyNet
from lightning_core.parts.market.spot_job import EXACT, SpotJob, intervals_after, value_at


def transitions(counts: IntArray, max_nodes: int, *, stays: float = 0.9, belief: float = 4.0) -> FloatArray:
    """Return the estimated transition probabilities of the count.

    Args:
        counts: Counts seen so far, one an interval; larger ones are taken as ``max_nodes``.
        max_nodes: Most nodes that a job can use.
        stays: Prior probability that the count stays.
        belief: Weight of the prior, in transitions from each count.

    Returns:
        Shape ``(max_nodes + 1, max_nodes + 1)``; rows add up to 1.
    """
    observation = np.minimum(counts, max_nodes)
    states = max_nodes + 1
    pairs = np.bincount(observation[:-1] * states + observation[1:], minlength=states * states).reshape(states, states)
    often = np.bincount(observation, minlength=states) + 1.0 / states
    prior = stays * np.eye(states) + (1 - stays) * often / often.sum()
    weights = pairs + belief * prior
    chain: FloatArray = weights / weights.sum(1, keepdims=True)
    return chain


class Chain:
    """Maximises the expected utility under a Markov chain that is estimated as it goes.

    A decision takes a few milliseconds per interval up to the deadline, and grows with the square of ``max_nodes``.

    Args:
        window: Number of newest intervals to learn from.
        stays: Prior probability that the count stays.
        belief: Weight of that prior, in transitions.

    Raises:
        ValueError: If one is out of its range.
    """

    horizon = 0
    sees_value = True

    def __init__(self, window: int = 672, stays: float = 0.9, belief: float = 4.0) -> None:
        if window < 2:
            raise ValueError(f"window must be at least 2 intervals, got {window}")
        if not 0 <= stays <= 1:
            raise ValueError(f"stays must be at least 0 and at most 1, got {stays}")
        if not 0 < belief < math.inf:
            raise ValueError(f"belief must be positive and finite, got {belief}")
        self.window, self.stays, self.belief = window, stays, belief

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        return SafetyNet(observation).split(
            np.array([self._decide(observation, row) for row in range(len(observation.batch))], np.int64)
        )

    def _decide(self, observation: Observation, row: int) -> int:
        batch, interval = observation.batch, observation.interval
        left = float(batch.work[row] - observation.progress[row])
        intervals = int(batch.deadline[row]) - interval
        if left <= EXACT or intervals <= 0:
            return 0
        job, market, now = batch.jobs[row], batch.markets[row], int(batch.starts[row]) + interval
        counts = market.available[max(now + 1 - self.window, 0) : now + 1]
        chain = transitions(counts, job.max_nodes, stays=self.stays, belief=self.belief)
        group = group_of(job)
        if left / group.unit > CELLS:  # a finer grid would not change the plan
            group = group_of(job, left / CELLS)
        cost = _costs(job, float(observation.price[row]), market.on_demand)
        worth = _expected(job, left, intervals - 1, chain, cost, group, market.on_demand)
        number, held, count = (
            np.arange(job.max_nodes + 1),
            int(observation.held[row]),
            min(int(counts[-1]), job.max_nodes),
        )
        cell = np.minimum(group.gains(np.array([held]))[0], worth.shape[2] - 1)
        return int((worth[number, count, cell] - cost[count]).argmax())


def _expected(
    job: SpotJob, left: float, intervals: int, chain: FloatArray, cost: FloatArray, group: JobGroup, on_demand: float
) -> FloatArray:
    """Return the expected value after this interval, with this many to come.

    Returns:
        Worth by the nodes held in this interval, by its count, and by the cells of the work left that are done in it.
    """
    fastest = int(group.same[-1])
    cells = (
        min(math.ceil(left / group.unit), (intervals + 1) * fastest) + 1
    )  # the remaining work, or the work possible by then
    rest = np.maximum(left - np.arange(cells) * group.unit, 0.0)
    wait = np.where(np.arange(job.max_nodes + 1) == job.max_nodes, 0.0, job.launch)[:, None]
    late = intervals_after(rest, job.throughput[-1], wait)
    charged = job.value - job.value_at(job.deadline)
    end = value_at(job.deadline + late, job.due, job.value, job.grace) - late * job.max_nodes * on_demand + charged
    worth = np.repeat(end[:, None, :], job.max_nodes + 1, axis=1)
    for interval in range(intervals, 0, -1):
        charge = job.charge(job.deadline - 1 - intervals + interval) * (rest[: worth.shape[2]] > EXACT)
        worth = np.matmul(chain, step_back(worth, cost, group, charge)[:, :, : interval * fastest + 1])
    return worth


def _costs(job: SpotJob, price: float, on_demand: float) -> FloatArray:
    """Return the cost of 0 to ``max_nodes`` nodes by the count of spot nodes; inf where not allowed."""
    number = np.arange(job.max_nodes + 1)
    spot = np.minimum(number, number[:, None]) * (price <= on_demand)
    cost = spot * price + (number - spot) * on_demand
    return np.where((number == 0) | (number >= job.min_nodes), cost, math.inf)
