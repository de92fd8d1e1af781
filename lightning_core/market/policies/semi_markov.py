"""Plans for the expected future, where each launch costs time and a run of spot nodes has an age.

The number of spot nodes is a semi-Markov process (:mod:`lightning_core.market.run_lengths`): how likely it changes
depends on how long it has been as it is, so that nodes that have just come are trusted less than those that have
lasted. The price is assumed to stay. Against that process the plan to the deadline is optimal, by backward induction
over (interval, progress, spot and on-demand nodes held, start-up to come, number on offer, its age): a swap of
on-demand nodes for spot ones pays its launch, and the loss of spot nodes pays the next one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.market.observation import Observation
from lightning_core.market.programs.node_pairs import NodePairs
from lightning_core.market.run_lengths import AGES, RunLengths
from lightning_core.market.spot_job import EXACT, SpotJob

# Cells of the work left, at most; entries of all tables of a plan; and those that are kept for the next intervals.
CELLS, ENTRIES, KEPT = 240, 30_000_000, 8_000_000
# Numbers of nodes of a kind that a plan considers, at least and at most, beside those on offer and held.
FEWEST, MOST = 3, 5
# Fraction of the intervals left after which it plans anew, with what has been seen since; and change of the price.
ANEW, PRICE_CHANGE = 0.5, 0.02


class _Plan(NamedTuple):
    """A plan from an interval on."""

    begins: int
    """Interval of the job."""
    until: int
    """Interval from which on it is made anew."""
    job: SpotJob
    left: float
    """Work left at its beginning."""
    price: float
    pairs: NodePairs
    unit: float
    ages: tuple[int, ...]
    after: list[FloatArray]
    """Expected worth after each of its intervals, by state of the market, stage, pair and cell."""

    def holds(self, job: SpotJob, interval: int, price: float, exact: set[int]) -> bool:
        """Return whether it still says what to do, and considers these numbers of spot nodes."""
        same = (self.job is job or self.job == job) and exact.issubset(self.pairs.numbers.tolist())
        return same and self.begins <= interval < self.until and abs(price - self.price) <= PRICE_CHANGE * self.price


class SemiMarkov:
    """Maximises the expected utility under a semi-Markov model that is estimated as it goes.

    A plan takes up to two seconds, whatever the job; where it has many nodes or intervals, it considers fewer numbers
    of nodes. It is made anew after half of the time left, or when the price or the job has changed.

    Args:
        window: Number of newest intervals to learn from.
        horizon_limit: Intervals to which it plans; of a deadline after them it plans for an even part of the work.
        others: Spot nodes on offer in other markets, in intervals of the same length, to learn from.

    Raises:
        ValueError: If one is out of its range.
    """

    horizon = 0

    def __init__(self, window: int = 20_000, horizon_limit: int = 600, others: Sequence[IntArray] = ()) -> None:
        for name, value in (("window", window), ("horizon_limit", horizon_limit)):
            if value < 2:
                raise ValueError(f"{name} must be at least 2 intervals, got {value}")
        self.window, self.horizon_limit, self.others = window, horizon_limit, others
        self._plans: dict[int, _Plan] = {}  # by row

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        if observation.interval == 0:
            self._plans = {}
        chosen = [self._decide(observation, row) for row in range(len(observation.batch))]
        spot, on_demand = np.array(chosen, np.int64).T
        return spot, on_demand

    def _decide(self, observation: Observation, row: int) -> tuple[int, int]:
        batch, interval = observation.batch, observation.interval
        left = float(batch.work[row] - observation.progress[row])
        if left <= EXACT or interval >= batch.deadline[row]:
            return 0, 0
        market, now = batch.markets[row], int(batch.starts[row]) + interval
        seen = market.available[max(now + 1 - self.window, 0) : now + 1]
        price = float(observation.price[row])
        plan, job = self._plans.get(row), batch.jobs[row]
        exact = {min(int(count), job.max_nodes) for count in (observation.available[row], observation.spot[row])}
        if plan is None or not plan.holds(job, interval, price, exact):
            terms = price, market.on_demand, seen, self.others, self.horizon_limit, KEPT // len(batch)
            plan = self._plans[row] = _plan(job, interval, left, exact, *terms)
        pairs, step = plan.pairs, interval - plan.begins
        cost = pairs.costs(price, market.on_demand)
        cost[pairs.numbers > int(observation.available[row])] = math.inf
        runs = RunLengths(_levels(pairs.numbers, seen), len(pairs.numbers), plan.ages)
        held = int(observation.spot[row]), int(observation.on_demand[row])
        wait = float(np.broadcast_to(observation.launching, len(batch))[row])
        done = max(plan.left - left, 0.0) / plan.unit
        worth = pairs.action_values(plan.after[step][runs.state], cost, *held, wait, done)
        good = worth >= worth.max() - EXACT
        # On a tie it keeps what it has, else the fewest nodes win.
        stays = good & (pairs.numbers[:, None] == held[0]) & (pairs.numbers == held[1])
        number = np.where(stays if stays.any() else good, pairs.total, np.iinfo(np.int64).max)
        spot, on_demand = np.unravel_index(int(number.argmin()), number.shape)
        return int(pairs.numbers[spot]), int(pairs.numbers[on_demand])


def _plan(
    job: SpotJob, interval: int, left: float, exact: set[int], price: float, on_demand: float, seen: IntArray,
    others: Sequence[IntArray], limit: int, kept: int,
) -> _Plan:  # fmt: skip
    """Return a plan from an interval on.

    Args:
        job: The job.
        interval: Its interval.
        left: Work left.
        exact: Numbers of nodes that it considers in any case.
        price: Price of a spot node, which is taken to stay.
        on_demand: Price of an on-demand node.
        seen: Spot nodes on offer so far, shape ``(T,)``, those of this interval last.
        others: Spot nodes on offer in other markets.
        limit: Intervals to which it plans, at most.
        kept: Entries of tables that are kept for the next intervals.
    """
    intervals = min(job.deadline - interval, limit)
    work = left * intervals / (job.deadline - interval)
    reach = min(work, intervals * job.throughput[-1])
    unit = max(reach / CELLS, EXACT)
    ages = tuple(age for age in AGES if age <= intervals)
    cells = math.ceil(reach / unit - 1e-6) + 1
    numbers = _numbers(job, ENTRIES / (intervals * len(ages) * cells))
    pairs = NodePairs(job, unit, np.union1d(numbers, list(exact)))
    known = [_levels(pairs.numbers, other) for other in others]
    chain = RunLengths(_levels(pairs.numbers, seen), len(pairs.numbers), ages, known).transitions()
    level = np.arange(len(chain)) // len(ages)
    cost = np.repeat(pairs.costs(price, on_demand)[None], len(chain), 0)
    gone = np.arange(len(pairs.numbers)) > level[:, None]  # spot nodes that are not on offer
    cost[gone] = math.inf
    lost = max(job.preemption_cost - job.launch, 0.0) * job.throughput[-1] / unit

    rest = np.maximum(work - np.arange(cells) * unit, 0.0)
    rest[-1] = work - reach
    # The safety net lets no job be late that need not be.
    penalty = job.value + job.deadline * job.max_nodes * on_demand
    end = pairs.end(job, rest, on_demand) - np.where(rest > EXACT, penalty, 0.0)
    worth = np.repeat(end[None], len(chain), 0)
    keep = int(np.clip(kept // worth.size, 1, max(math.ceil(ANEW * intervals), 1)))
    after = list[FloatArray]()
    for at in range(intervals - 1, -1, -1):
        expected = np.matmul(chain, worth.reshape(len(chain), -1)).reshape(worth.shape)
        if at < keep:
            after.append(expected)
        if at:
            worth = pairs.step_back(expected, cost)
            if lost > EXACT:
                _lose(worth, gone, lost)
    return _Plan(interval, interval + keep, job, left, price, pairs, unit, ages, after[::-1])


def _lose(worth: FloatArray, gone: BoolArray, cells: float) -> None:
    """Take from the jobs that have just been preempted the work that it costs them.

    Args:
        worth: Worth by state, stage, pair and cell.
        gone: Whether so many spot nodes are more than are on offer, by state and number.
        cells: Work lost; a job that is done loses none.
    """
    at = np.maximum(np.arange(worth.shape[-1]) - cells, 0.0)
    at[-1] = worth.shape[-1] - 1
    below = np.floor(at).astype(np.int64)
    part = at - below
    above = np.minimum(below + 1, worth.shape[-1] - 1)
    for state, number in np.argwhere(gone).tolist():
        some = worth[state, :, number]
        worth[state, :, number] = (1.0 - part) * some[..., below] + part * some[..., above]


def _numbers(job: SpotJob, entries: float) -> IntArray:
    """Return the numbers of nodes that are considered, as many as so many entries of an interval allow."""
    most = int(np.clip(entries ** (1.0 / 3.0), FEWEST, MOST))  # levels on offer, and pairs of numbers
    even = np.round(np.linspace(0, job.max_nodes, min(most, job.max_nodes + 1)))
    return np.union1d(even.astype(np.int64), [job.min_nodes])


def _levels(numbers: IntArray, counts: IntArray) -> IntArray:
    """Return the level of each count: the most of the numbers that are on offer."""
    levels: IntArray = np.searchsorted(numbers, counts, side="right") - 1
    return levels
