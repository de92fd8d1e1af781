"""Plans for the expected future, where each launch costs time and a run of spot nodes has an age.

The number of spot nodes is a semi-Markov process (:mod:`lightning_core.parts.market.run_lengths`): the probability of a
change depends on the time since the last one, so that new nodes are trusted less than those that have lasted. The price
is assumed to stay. Against that process the plan to the deadline is optimal, by backward induction over (interval,
progress, spot and on-demand nodes held, start-up to come, number on offer, its age): a swap of on-demand nodes for spot
ones pays its launch, and the loss of spot nodes pays the next one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.saved_state import StateError, decode, encode
from lightning_core.parts.market.observation import Observation
from lightning_core.parts.market.programs.node_pairs import NodePairs, OnOffer
from lightning_core.parts.market.run_lengths import AGES, RunLengths
from lightning_core.parts.market.spot_job import EXACT, SpotJob

# Cells of the work left, at most; entries of all tables of a plan; and those that are kept for the next intervals.
CELLS, ENTRIES, KEPT = 240, 30_000_000, 8_000_000
# Numbers of nodes of a kind that a plan considers, at least and at most, beside those on offer and held.
FEWEST, MOST = 3, 5
# Fraction of the remaining intervals after which it plans again with newer observations, and change of the price that
# does.
ANEW, PRICE_CHANGE = 0.5, 0.1


class _Basis(NamedTuple):
    """Inputs of a plan."""

    begins: int
    """Interval of the job."""
    job: SpotJob
    left: float
    """Work left at its beginning."""
    price: float
    on_demand: float
    numbers: list[int]
    """Numbers of nodes of a kind that it considers."""
    seen: list[Any]
    """State of the run lengths."""
    limit: int
    """Intervals to which it plans, at most."""
    kept: int
    """Entries of tables that are kept for the next intervals."""


class _NodePlan(NamedTuple):
    """A plan from an interval on."""

    basis: _Basis
    pairs: NodePairs
    unit: float
    """Work of a cell."""
    after: list[FloatArray]
    """Expected worth after each of its intervals, by state of the market, stage, pair and cell."""

    def holds(self, job: SpotJob, interval: int, price: float, exact: set[int]) -> bool:
        """Return whether the plan is still valid, and considers these numbers of spot nodes."""
        basis = self.basis
        same = (basis.job is job or basis.job == job) and exact.issubset(basis.numbers)
        is_price = abs(price - basis.price) <= PRICE_CHANGE * basis.price
        return same and is_price and 0 <= interval - basis.begins < len(self.after)


class SemiMarkov:
    """Maximises the expected utility under a semi-Markov model that is estimated as it goes.

    Of many nodes or intervals a plan considers fewer numbers of nodes: it took 0.1 s for 12 nodes and 10 intervals, 0.4
    s for 12 and 336, 3 s for 64 and 2,000, and twice as long where a launch takes more than an interval. It is
    recomputed after half of the remaining time, or when the price or the job has changed.

    Args:
        window: Number of newest intervals to learn from.
        horizon_limit: Intervals to which it plans; of a deadline after them it plans for an even part of the work.
        others: Spot nodes on offer in other markets, in intervals of the same length, to learn from.

    Raises:
        ValueError: If one is out of its range.
    """

    horizon = 0
    sees_value = True
    decides_on_events = True

    def __init__(self, window: int = 20_000, horizon_limit: int = 600, others: Sequence[IntArray] = ()) -> None:
        for name, value in (("window", window), ("horizon_limit", horizon_limit)):
            if value < 2:
                raise ValueError(f"{name} must be at least 2 intervals, got {value}")
        self.window, self.horizon_limit, self.others = window, horizon_limit, others
        self._plans: dict[int, _NodePlan] = {}  # by row
        self._saved: dict[int, _Basis] = {}  # of plans that are made again when they are asked

    def state(self) -> dict[str, Any]:
        """Return the inputs of its plans as JSON values."""
        known = self._saved | {row: plan.basis for row, plan in self._plans.items()}
        return {"plans": [[row, encode(astuple(one.job)), one.begins, *one[2:]] for row, one in known.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned: the same plans are made again."""
        try:
            plans = [(row, _Basis(begins, SpotJob(*decode(job)), *rest)) for row, job, begins, *rest in state["plans"]]
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"not the state of a semi-Markov policy: {type(error).__name__}: {error}") from None
        self._plans, self._saved = {}, dict(plans)

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        if observation.interval == 0:
            self._plans, self._saved = {}, {}
        chosen = [self._decide(observation, row) for row in range(len(observation.batch))]
        spot, on_demand = np.array(chosen, np.int64).T
        return spot, on_demand

    def _decide(self, observation: Observation, row: int) -> tuple[int, int]:
        batch, interval = observation.batch, observation.interval
        left = float(batch.work[row] - observation.progress[row])
        if left <= EXACT or interval >= batch.deadline[row]:
            return 0, 0
        market, job, now = batch.markets[row], batch.jobs[row], int(batch.starts[row]) + interval
        seen = market.available[max(now + 1 - self.window, 0) : now + 1]
        if row in self._saved:
            self._plans[row] = _plan(self._saved.pop(row))
        price, plan = float(observation.price[row]), self._plans.get(row)
        held = int(observation.spot[row]), int(observation.on_demand[row])
        exact = {min(int(count), job.max_nodes) for count in (observation.available[row], held[0])}
        if plan is None or not plan.holds(job, interval, price, exact):
            intervals = int(min(job.deadline - interval, self.horizon_limit))
            numbers = np.union1d(_numbers(job, intervals), list(exact))
            others = [_levels(numbers, other) for other in self.others]
            runs = RunLengths(_levels(numbers, seen), len(numbers), _ages(intervals), others)
            terms = left, price, market.on_demand, numbers.tolist(), runs.state()
            plan = _plan(_Basis(interval, job, *terms, self.horizon_limit, KEPT // len(batch)))
            self._plans[row] = plan
        pairs, ages = plan.pairs, tuple(plan.basis.seen[2])
        offer = OnOffer(price, market.on_demand, observation.available[row])
        state = RunLengths(_levels(pairs.numbers, seen), len(pairs.numbers), ages).row
        wait = float(np.broadcast_to(observation.launching, len(batch))[row])
        done = max(plan.basis.left - left, 0.0) / plan.unit
        worth = pairs.action_values(plan.after[interval - plan.basis.begins][state], offer, *held, wait, done,
                                    1.0 - observation.elapsed)  # fmt: skip
        good = worth >= worth.max() - EXACT
        # On a tie it keeps its nodes, else the fewest nodes win.
        stays = good & (pairs.numbers[:, None] == held[0]) & (pairs.numbers == held[1])
        number = np.where(stays if stays.any() else good, pairs.total, np.iinfo(np.int64).max)
        spot, on_demand = np.unravel_index(int(number.argmin()), number.shape)
        return int(pairs.numbers[spot]), int(pairs.numbers[on_demand])


def _plan(basis: _Basis) -> _NodePlan:
    """Make a plan; the price is assumed to stay."""
    job, left, price, on_demand = basis.job, basis.left, basis.price, basis.on_demand
    intervals = min(job.deadline - basis.begins, basis.limit)
    work = left * intervals / max(job.due - basis.begins, intervals)
    reach = min(work, intervals * job.throughput[-1])
    unit = max(reach / CELLS, EXACT)
    cells = math.ceil(reach / unit - 1e-6) + 1
    rest = np.maximum(work - np.arange(cells) * unit, 0.0)
    rest[-1] = work - reach
    pairs, runs = NodePairs(job, rest, unit, np.array(basis.numbers)), RunLengths.of(basis.seen)
    level = np.repeat(np.arange(runs.number), len(runs.ages))
    offer = OnOffer(price, on_demand, pairs.numbers[level])
    gone = np.arange(len(pairs.numbers)) > level[:, None]  # spot nodes that are not on offer
    lost = max(job.preemption_cost - job.launch, 0.0) * job.throughput[-1] / unit

    # The safety net lets no job be late that need not be.
    penalty = job.value + job.deadline * job.max_nodes * on_demand
    end = pairs.end(rest, on_demand) - np.where(rest > EXACT, penalty, 0.0)
    worth = np.repeat(end[None], len(level), 0)
    keep = int(np.clip(basis.kept // worth.size, 1, max(math.ceil(ANEW * intervals), 1)))
    after = list[FloatArray]()
    for at in range(intervals - 1, -1, -1):
        expected = runs.expected(worth)
        if at < keep:
            after.append(expected)
        if at:
            worth = pairs.step_back(expected, offer, job.charge(basis.begins + at))
            if lost > EXACT:
                _lose(worth, gone, lost)
    return _NodePlan(basis, pairs, unit, after[::-1])


def _lose(worth: FloatArray, gone: BoolArray, cells: float) -> None:
    """Take from the jobs that have just been preempted the work that it costs them.

    Args:
        worth: Worth by state, stage, pair and cell.
        gone: Whether this many spot nodes are more than are on offer, by state and number.
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


def _ages(intervals: int) -> tuple[int, ...]:
    """Return the ages that matter to a plan of this many intervals."""
    return tuple(age for age in AGES if age <= intervals)


def _numbers(job: SpotJob, intervals: int) -> IntArray:
    """Return the numbers of nodes that a plan of this many intervals considers: as many as its entries allow."""
    entries = ENTRIES / (intervals * len(_ages(intervals)) * CELLS)
    most = int(np.clip(entries ** (1.0 / 3.0), FEWEST, MOST))  # levels on offer, and pairs of numbers
    even = np.round(np.linspace(0, job.max_nodes, min(most, job.max_nodes + 1)))
    return even.astype(np.int64)


def _levels(numbers: IntArray, counts: IntArray) -> IntArray:
    """Return the level of each count: the most of the numbers that are on offer."""
    levels: IntArray = np.searchsorted(numbers, counts, side="right") - 1
    return levels
