"""The offline optimum over pairs of nodes without a grid: labels of progress and cost that no other plan dominates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.parts.market.programs.node_pairs import NodePairs, OnOffer
from lightning_core.parts.market.spot_job import EXACT, SpotJob, intervals_after, value_at

# Labels whose progress differs by less are the same.
LABEL_TOLERANCE = 1e-12

Labels = tuple[FloatArray, FloatArray]
"""Work done and money paid, each of shape ``(labels,)``, of plans that no other one dominates."""


@dataclass(frozen=True, slots=True)
class _Transition:
    """An interval on one pair after another.

    Attributes:
        had: Work of the nodes held before, in an interval.
        has: Work of those held now.
        before: Work done on those held before.
        begins: Interval from which those train, start-up being still to come.
        wait: Intervals until those held now train.
        price: Cost of the nodes held now in an interval.
        surplus: Cost of the nodes that they replace.
        launched: Cost of the launched nodes in an interval.
        job: The job.
    """

    had: float
    has: float
    before: float
    begins: float
    wait: float
    price: float
    surplus: float
    launched: float
    job: SpotJob

    @property
    def gain(self) -> float:
        """Work of the interval."""
        return self.before + max(1.0 - self.wait, 0.0) * self.has

    @property
    def whole(self) -> float:
        """Cost of the interval where the job is not done in it."""
        by_second = self.job.minimum_charge is not None
        return self.price + self.surplus * (self.job.overlap if by_second else math.ceil(self.job.overlap))

    def bill(self, left: FloatArray) -> FloatArray:
        """Return the cost of an interval in which this much work is left and done."""
        if (minimum := self.job.minimum_charge) is None:
            return np.full(len(left), self.whole)
        on_old = self.begins + left / max(self.had, EXACT)
        on_new = self.wait + (left - self.before) / max(self.has, EXACT)
        ends = np.where((self.before > 0) & (left <= self.before + EXACT), on_old, on_new)
        bill: FloatArray = (
            self.price * ends
            + self.launched * np.maximum(minimum - ends, 0.0)
            + self.surplus * np.minimum(ends, self.job.overlap)
        )
        return bill


def _change(job: SpotJob, before: tuple[int, int], wait: float, after: tuple[int, int], offer: OnOffer) -> _Transition:
    kept = min(before[0], int(offer.available))
    launches = after[0] > before[0] or after[1] > before[1]
    hands_over = launches and kept == before[0] and sum(before) >= job.min_nodes and job.overlap > 0
    stands_still = max(wait, job.shrink_time) if sum(after) < sum(before) else wait
    waits = job.launch if launches else stands_still
    had, has = job.throughput[min(sum(before), job.max_nodes)], job.throughput[sum(after)]
    prices = offer.price, offer.on_demand
    price, surplus, launched = (
        sum(max(number, 0) * one for number, one in zip(numbers, prices, strict=True))
        for numbers in (
            after, (kept - after[0], before[1] - after[1]), (after[0] - kept, after[1] - before[1])
        )
    )  # fmt: skip
    meanwhile = max(job.overlap - wait, 0.0) * had if hands_over else 0.0
    surplus = surplus if hands_over else 0.0
    return _Transition(had, has, meanwhile, wait, waits if sum(after) else 0.0, price, surplus, launched, job)


def by_pair_labels(job: SpotJob, price: FloatArray, available: IntArray, on_demand: float = 1.0) -> float:
    """Return the highest utility of a job of any throughput where launches cost time; arguments as of by_pairs()."""
    pairs = NodePairs(job, np.zeros(1), 1.0)
    held: dict[tuple[int, int, int], Labels] = {(0, 0, 0): (np.zeros(1), np.zeros(1))}  # by spot, on-demand, stage
    best = -math.inf
    for interval in range(job.deadline):
        after = dict[tuple[int, int, int], list[Labels]]()
        offer = OnOffer(float(price[interval]), on_demand, available[interval])
        for before, (done, paid) in held.items():
            for pair in np.argwhere(pairs.allowed & (pairs.numbers <= offer.available)[:, None]).tolist():
                change = _change(job, before[:2], float(pairs.waits[before[2]]), (pair[0], pair[1]), offer)
                ended = done + change.gain >= job.work - EXACT
                if ended.any():
                    bill = change.bill(job.work - done[ended])
                    best = max(best, job.value_at(interval + 1) - float((paid[ended] + bill).min()))
                if not ended.all():
                    labels = done[~ended] + change.gain, paid[~ended] + change.whole
                    stage = min(max(math.ceil(change.wait - 1e-9) - 1, 0), pairs.stages - 1)
                    after.setdefault((pair[0], pair[1], stage), []).append(labels)
        if not after:
            return best
        held = {to: _union(several) for to, several in after.items()}
    for (_, number, stage), (done, paid) in held.items():
        wait = pairs.waits[stage] if number == job.max_nodes else job.launch
        late = intervals_after(job.work - done, job.throughput[-1], wait)
        worth = value_at(job.deadline + late, job.due, job.value, job.grace)
        best = max(best, float((worth - late * job.max_nodes * on_demand - paid).max()))
    return best


def _union(several: Iterable[Labels]) -> Labels:
    done, paid = (np.concatenate(column) for column in zip(*several, strict=True))
    return undominated(done, paid)


def undominated(done: FloatArray, paid: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the undominated labels: no other has as much progress at as little cost."""
    order = np.lexsort((-done, paid))
    done, paid = done[order], paid[order]
    farthest = np.maximum.accumulate(np.concatenate([[-math.inf], done[:-1]]))
    kept = done > farthest + LABEL_TOLERANCE
    return done[kept], paid[kept]
