"""Backward induction over the pairs of spot and on-demand nodes that a job may hold, where launches cost time.

A state before an interval is the pair that was held in the one before, also where some of its spot nodes are no longer
on offer, the start-up still to come, and the progress; a decision is the next pair. Three things can happen, and each
has its own gain of progress:

    launch: some kind of node becomes more. The job restarts on all of them, for ``launch`` intervals. If it has nodes
        and none of them was preempted, it trains on them for ``overlap`` intervals, and pays for those that it
        replaces.
    stay: the pair is the same. A start-up in progress continues.
    shrink: nodes were returned or lost, and none launched. That costs ``shrink_time``.

The gain of a launch after the overlap does not depend on the nodes held before, and the cost of the replaced nodes is a
sum over both kinds. So running maxima over one kind and then the other find the best launch, and likewise the best pair
that only returns nodes. An interval takes O(pairs * cells). Only if a minimum charge is longer than a launch, the last
interval of a job compares each pair with each other one.

Remaining start-up is counted in stages: stage 0 has none, and stage k has the rest ``K - k`` intervals after a launch,
where K is ``launch`` rounded up. For a launch of up to one interval, stage 0 is the only one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.parts.market.spot_job import EXACT, SpotJob, intervals_after, value_at


class OnOffer(NamedTuple):
    """The offer in an interval."""

    price: float
    """Price of a spot node."""
    on_demand: float
    """Price of an on-demand node."""
    available: IntArray
    """Spot nodes on offer, of any shape: one number for each state of the market."""


class NodePairs:
    """The pairs that a job may hold, and the cells of progress that each gains in an interval.

    Args:
        job: The job.
        left: Work left by cell of progress, descending, shape ``(cells,)``.
        unit: Work of a cell.
        numbers: Numbers of nodes of each kind that are considered, ascending, from 0; all by default.

    Attributes:
        numbers: The same, shape ``(M,)``.
        total: Nodes of a pair, shape ``(M, M)``: spot nodes by row, on-demand nodes by column.
        allowed: Whether a pair may be held.
        stages: Stages of a start-up.
        waits: Start-up still to come before an interval in each stage, in intervals, shape ``(stages + 1,)``; the last
            is that of a launch.
    """

    def __init__(self, job: SpotJob, left: FloatArray, unit: float, numbers: IntArray | None = None) -> None:
        self.job, self.left = job, left / unit
        self.numbers = np.arange(job.max_nodes + 1) if numbers is None else numbers
        self.total = self.numbers[:, None] + self.numbers
        self.allowed: BoolArray = (self.total == 0) | ((self.total >= job.min_nodes) & (self.total <= job.max_nodes))
        self.stages = max(math.ceil(job.launch - 1e-9), 1)
        self.waits = np.maximum(job.launch - np.arange(self.stages, -1, -1), 0.0)
        totals = np.unique(self.total[self.allowed]).tolist()
        self._of_total = [np.nonzero(self.allowed & (self.total == total)) for total in totals]
        self._throughput = np.array(job.throughput) / unit
        self.work: FloatArray = self._throughput[np.minimum(self.total, job.max_nodes)]
        self._by_second = job.minimum_charge is not None
        self._minimum = job.minimum_charge or 0.0
        # Intervals for which those that are replaced are paid.
        self._paid_meanwhile = job.overlap if self._by_second else math.ceil(job.overlap)

    def costs(self, offer: OnOffer) -> FloatArray:
        """Return the cost of each pair for a whole interval, shape ``(..., M, M)``; inf where it cannot be held."""
        cost = self.numbers[:, None] * offer.price + self.numbers * offer.on_demand
        on_offer = (self.numbers <= np.asarray(offer.available)[..., None])[..., None]
        return np.where(self.allowed & on_offer, cost, math.inf)

    def end(self, left: FloatArray, on_demand: float) -> FloatArray:
        """Return the value at the deadline, less the cost of the remaining work (V~ of eq. 9); charges are added back.

        Args:
            left: Work left by cell, in the unit of the job, shape ``(cells,)``.
            on_demand: Price of an on-demand node.

        Returns:
            Shape ``(stages, M, M, cells)``.
        """
        job = self.job
        worth = np.empty((self.stages, *self.total.shape, len(left)))
        charged = job.value - job.value_at(job.deadline)
        for stage in range(self.stages):
            for column, number in enumerate(self.numbers.tolist()):
                wait = self.waits[stage] if number == job.max_nodes else job.launch
                late = intervals_after(left, job.throughput[-1], wait)
                value = value_at(job.deadline + late, job.due, job.value, job.grace)
                worth[stage, :, column] = value - late * job.max_nodes * on_demand + charged
        return worth

    # ------------------------------------------------------------------------------------------------ backwards

    def step_back(self, after: FloatArray, offer: OnOffer, charge: float = 0.0) -> FloatArray:
        """Return the value before an interval from the value after it.

        Args:
            after: Value by the nodes held in the interval, shape ``(..., stages, M, M, cells)``, with the states of the
                market first. The last cell is a finished job, or the farthest progress that it can make.
            offer: Offers in the interval, by state of the market.
            charge: Value that a job which is not done loses in the interval.

        Returns:
            Value by the nodes held before it, of the same shape.
        """
        before, cost, job = np.empty_like(after), self.costs(offer), self.job
        anew, swapped = self._launched(after[..., self.stages - 1, :, :, :], cost, offer)
        there = (self.numbers <= np.asarray(offer.available)[..., None])[..., None] & self.allowed & (self.total > 0)
        for stage in range(self.stages):
            then = after[..., max(stage - 1, 0), :, :, :]
            wait = float(self.waits[stage])
            best = stays = self._moved(then, wait, cost)
            if job.shrink_time > wait:
                best = self._moved(then, job.shrink_time, cost)
            for n in range(1, len(self.numbers)):  # the best of all pairs with no more nodes of either kind
                np.maximum(best[..., n, :, :], best[..., n - 1, :, :], out=best[..., n, :, :])
            for n in range(1, len(self.numbers)):
                np.maximum(best[..., n, :], best[..., n - 1, :], out=best[..., n, :])
            if best is not stays:
                np.maximum(best, stays, out=best)
            launched = anew
            if swapped is not None:
                meanwhile = self._gained(swapped, max(job.overlap - wait, 0.0))
                launched = np.where(there[..., None], meanwhile, anew)
            before[..., stage, :, :, :] = np.maximum(best, launched, out=best)
        return np.subtract(before, charge * (self.left > EXACT), out=before) if charge else before

    def _launched(self, after: FloatArray, cost: FloatArray, offer: OnOffer) -> tuple[FloatArray, FloatArray | None]:
        """Return the value of the best launch by the nodes before: none or a preemption, and all of them.

        The second is by the progress at the end of the overlap; None if it is as the first.
        """
        launch = self.job.launch
        worth = self._moved(after, launch, cost)
        anew = worth.max(axis=(-3, -2))[..., None, None, :]
        late = self._minimum > launch + EXACT and self._done
        if not self.job.overlap and not late:
            return anew, None
        swapped = self._replacing(worth, offer)
        if late:
            first = int(np.searchsorted(-self.left, -(self._minimum - launch) * self._throughput[-1] - EXACT))
            anew = np.repeat(np.repeat(anew, len(self.numbers), -3), len(self.numbers), -2)
            few = self._with_minimum(worth[..., first:], self.left[first:], offer)
            anew[..., first:], swapped[..., first:] = few
        return anew, swapped

    def _replacing(self, worth: FloatArray, offer: OnOffer) -> FloatArray:
        """Return the best launch from each pair, less the cost of the nodes that it replaces: maxima over pairs."""
        several = len(self.numbers)
        spot, on_demand = (np.diff(self.numbers) * price * self._paid_meanwhile for price in offer[:2])
        more_on_demand = np.empty_like(worth)  # of each number of spot nodes, by on-demand nodes held
        more_on_demand[..., -1, :] = -math.inf
        for n in range(several - 2, -1, -1):
            np.maximum(more_on_demand[..., n + 1, :], worth[..., n + 1, :], out=more_on_demand[..., n, :])
        best = np.maximum(worth, more_on_demand)
        for n in range(1, several):  # or with fewer of them
            np.maximum(best[..., n, :], best[..., n - 1, :] - on_demand[n - 1], out=best[..., n, :])
        for n in range(1, several):  # more on-demand nodes, and fewer spot nodes or as many
            fewer = more_on_demand[..., n - 1, :, :] - spot[n - 1]
            np.maximum(more_on_demand[..., n, :, :], fewer, out=more_on_demand[..., n, :, :])
        more_spot = best[..., several - 1, :, :].copy()
        for n in range(several - 2, -1, -1):
            np.maximum(more_on_demand[..., n, :, :], more_spot, out=more_on_demand[..., n, :, :])
            np.maximum(more_spot, best[..., n, :, :], out=more_spot)
        return more_on_demand

    def _with_minimum(self, worth: FloatArray, left: FloatArray, offer: OnOffer) -> tuple[FloatArray, FloatArray]:
        """Return both results of :meth:`_launched` for the last cells, where a job is done within the minimum."""
        ends = self.job.launch + left / np.maximum(self.work[..., None], EXACT)
        extra = np.where(ends <= 1 + EXACT, np.maximum(self._minimum - ends, 0.0), 0.0)  # by pair and cell
        anew, swapped = np.empty_like(worth), np.empty_like(worth)
        row, column = self.numbers[:, None], self.numbers
        for at, (spot, on_demand) in enumerate((s, o) for s in self.numbers.tolist() for o in self.numbers.tolist()):
            kept = np.minimum(spot, np.asarray(offer.available))[..., None, None]
            more = np.maximum(row - kept, 0) * offer.price + np.maximum(column - on_demand, 0) * offer.on_demand
            surplus = np.maximum(spot - row, 0) * offer.price + np.maximum(on_demand - column, 0) * offer.on_demand
            billed = worth - more[..., None] * extra
            here = divmod(at, len(self.numbers))
            anew[..., here[0], here[1], :] = billed.max(axis=(-3, -2))
            billed = billed - (surplus * self._paid_meanwhile)[..., None]
            billed[..., ~self.launches(spot, on_demand), :] = -math.inf
            swapped[..., here[0], here[1], :] = billed.max(axis=(-3, -2))
        return anew, swapped

    def launches(self, spot: int, on_demand: int) -> BoolArray:
        """Return whether each pair launches nodes beside this many that are held, shape ``(M, M)``."""
        return (self.numbers[:, None] > spot) | (self.numbers > on_demand)

    def action_values(
        self, after: FloatArray, offer: OnOffer, spot: int, on_demand: int, wait: float, cell: float,
        length: float = 1.0,
    ) -> FloatArray:  # fmt: skip
        """Return the value of holding each pair in an interval, or for the rest of it, shape ``(M, M)``.

        Args:
            after: Value by the nodes held in the interval, shape ``(stages, M, M, cells)``.
            offer: Offer in the interval: one number of spot nodes.
            spot: Spot nodes held, and ``on_demand`` those of the other kind: any numbers.
            on_demand: See there.
            wait: Start-up still to come, in intervals.
            cell: Progress, in cells.
            length: Fraction of the interval that is left. A launch that takes longer delays the next one.
        """
        job, launches, held = self.job, self.launches(spot, on_demand), spot + on_demand
        less = max(wait, job.shrink_time)
        waits = np.where(launches, job.launch, np.where(self.total < held, less, wait))
        hands_over = launches & (job.overlap > 0 and spot <= offer.available and held >= job.min_nodes)
        had = float(self._throughput[min(held, job.max_nodes)])
        before = np.where(hands_over, max(job.overlap - wait, 0.0) * had, 0.0)
        stage = np.clip(np.ceil(waits - 1e-9).astype(np.int64) - 1, 0, self.stages - 1)
        trains = length - waits if self.stages == 1 else np.maximum(length - waits, 0.0)
        at = np.maximum(cell + before + trains * self.work, 0.0)
        last = after.shape[-1] - 1
        below = np.minimum(np.floor(at + 1e-9).astype(np.int64), last)
        part = np.clip(at - below, 0.0, 1.0)
        row, column = np.indices(self.total.shape)
        low, high = (after[stage, row, column, np.minimum(below + more, last)] for more in (0, 1))
        worth: FloatArray = (1.0 - part) * low + part * high

        ends: FloatArray = np.full(self.total.shape, length)
        if self._by_second and self._done:
            left = float(np.interp(cell, np.arange(last + 1), self.left)) - before
            ends = waits + np.maximum(left, 0.0) / np.maximum(self.work, EXACT)
            ends = np.where(ends <= length + EXACT, ends, length)
        kept = min(spot, int(offer.available))
        more = np.maximum(self.numbers[:, None] - kept, 0) * offer.price
        more = more + np.maximum(self.numbers - on_demand, 0) * offer.on_demand
        surplus = np.maximum(kept - self.numbers[:, None], 0) * offer.price
        surplus = surplus + np.maximum(on_demand - self.numbers, 0) * offer.on_demand
        cost = self.costs(offer)
        billed = np.where(np.isinf(cost), math.inf, np.where(np.isinf(cost), 0.0, cost) * ends)
        return (
            worth - billed - more * np.maximum(self._minimum - ends, 0.0) - hands_over * surplus * self._paid_meanwhile
        )

    @property
    def _done(self) -> bool:
        """Return whether a job in the last cell is done."""
        return bool(self.left[-1] <= EXACT)

    def _moved(self, after: FloatArray, wait: float, cost: FloatArray) -> FloatArray:
        """Return ``after`` shifted by the cells that each pair gains after so long a wait, less its cost."""
        moved, not_allowed = np.empty_like(after), np.isinf(cost)
        cost = np.where(not_allowed, 0.0, cost)
        for rows, columns in self._of_total:  # they gain the same
            work = float(self.work[rows[0], columns[0]])
            target = _gained(after[..., rows, columns, :], max(1.0 - wait, 0.0) * work)
            moved[..., rows, columns, :] = target - cost[..., rows, columns, None] * self._paid(wait, work)
        moved[not_allowed] = -math.inf
        return moved

    def _paid(self, wait: float, work: float) -> FloatArray | float:
        """Return the fraction of an interval that is billed, by cell: up to the time at which the job is done."""
        if not self._by_second or not self._done or not work:
            return 1.0
        ends = wait + self.left / work
        return np.where(ends <= 1.0 + EXACT, ends, 1.0)

    def _gained(self, worth: FloatArray, intervals: float) -> FloatArray:
        """Return the value before each pair has trained for this many intervals."""
        gained = np.empty_like(worth)
        for rows, columns in self._of_total:
            gain = intervals * float(self.work[rows[0], columns[0]])
            gained[..., rows, columns, :] = _gained(worth[..., rows, columns, :], gain)
        gained[..., ~self.allowed, :] = -math.inf
        return gained


def _gained(worth: FloatArray, gain: float) -> FloatArray:
    """Return the value by the cell from which this many are gained; between two cells it is linear."""
    whole = math.floor(gain + 1e-9)
    part, gained = gain - whole, _shifted(worth, whole)
    if part <= 1e-9:
        return gained
    between: FloatArray = (1.0 - part) * gained + part * _shifted(worth, whole + 1)
    return between


def _shifted(worth: FloatArray, cells: int) -> FloatArray:
    """Return the value by the cell from which this many are gained; beyond the last cell there is none."""
    if cells == 0:
        return worth
    shifted = np.empty_like(worth)
    inside = max(worth.shape[-1] - cells, 0)
    shifted[..., :inside] = worth[..., cells:]
    shifted[..., inside:] = worth[..., -1:]
    return shifted
