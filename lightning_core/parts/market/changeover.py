"""Cost of a change of a job's nodes from one interval to the next, in time and in money.

The interval of a job that launches nodes, with a hand-over time:

    0            overlap        launch                    end
    |-- trains on --|-- saves, ---|-- trains on those ------|
    |   the nodes   |   moves,    |   that it holds now     |
    |   it had      |   restores  |                         |

The old nodes are billed up to ``overlap``, and the new ones from the launch on. After a preemption, or with no nodes
before, there is nothing to train on, and the whole launch is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.spot_job import EXACT

if TYPE_CHECKING:
    from lightning_core.parts.market.observation import Observation


def throughput_of(batch: JobBatch, total: IntArray) -> FloatArray:
    """Return the work done in a whole interval on this many nodes, shape ``(B,)``."""
    throughput: FloatArray = np.take_along_axis(batch.throughput, total[:, None], 1)[:, 0]
    return throughput


class Changeover:
    """Work and cost of nodes in an interval, given the nodes held before it; columns of shape ``(B,)``.

    Args:
        observation: The interval.
    """

    def __init__(self, observation: Observation) -> None:
        self.observation, self.batch = observation, observation.batch
        self.left = self.batch.work - observation.progress
        self._had = throughput_of(self.batch, np.minimum(observation.held, self.batch.max_nodes))

    @property
    def preempted(self) -> BoolArray:
        """Return whether some of the spot nodes that were held are no longer on offer."""
        preempted: BoolArray = self.observation.spot > self.observation.available
        return preempted

    def launches(self, spot: IntArray, on_demand: IntArray) -> BoolArray:
        """Return whether nodes are launched: of some kind there are more (in the paper: more of both together)."""
        observation = self.observation
        if self.batch.overhead == "total":
            return spot + on_demand > observation.held
        launches: BoolArray = (spot > observation.spot) | (on_demand > observation.on_demand)
        return launches

    def hands_over(self, spot: IntArray, on_demand: IntArray) -> BoolArray:
        """Return whether the job trains on the nodes that it had while others are launched."""
        has = (self.observation.held >= self.batch.min_nodes) & ~self.preempted & (self.batch.overlap > 0)
        return self.launches(spot, on_demand) & has

    def wait(self, spot: IntArray, on_demand: IntArray) -> FloatArray:
        """Return the intervals from the beginning of this one until such nodes train (eq. 2)."""
        observation, batch, total = self.observation, self.batch, spot + on_demand
        less = np.maximum(observation.launching, batch.shrink_time)
        wait = np.where(total < observation.held, less, observation.launching)
        wait = np.where(self.launches(spot, on_demand), batch.launch, wait)
        return np.where(total > 0, wait, 0.0)

    def work_before(self, spot: IntArray, on_demand: IntArray) -> FloatArray:
        """Return the work done on the nodes that were held before, while others are launched."""
        trains = np.maximum(self.batch.overlap - self.observation.launching, 0.0)
        return np.where(self.hands_over(spot, on_demand), trains * self._had, 0.0)

    def fraction_left(self, spot: IntArray, on_demand: IntArray) -> FloatArray:
        """Return the fraction of the interval left for training on such nodes."""
        return np.maximum(1.0 - self.wait(spot, on_demand), 0.0)

    def work_done(self, spot: IntArray, on_demand: IntArray) -> FloatArray:
        """Return the work done in the interval."""
        after = self.fraction_left(spot, on_demand) * throughput_of(self.batch, spot + on_demand)
        return self.work_before(spot, on_demand) + after

    def completes(self, spot: IntArray, on_demand: IntArray, lost: FloatArray | float = 0.0) -> BoolArray:
        """Return whether the job is done within the interval, if a preemption has just lost so much of its work."""
        completes: BoolArray = self.work_done(spot, on_demand) >= self.left + lost - EXACT
        return completes

    def bill(self, spot: IntArray, on_demand: IntArray, lost: FloatArray | float = 0.0) -> FloatArray:
        """Return the cost of the interval.

        Billed by the second, that is nodes until the job is done, those that are launched for the minimum at least, and
        those that it had before for as long as they train on.

        Args:
            spot: Spot nodes in the interval.
            on_demand: On-demand nodes.
            lost: Work that a preemption has just lost.
        """
        observation, batch = self.observation, self.batch
        by_second, minimum = batch.by_second, batch.minimum_charge
        completes = by_second & self.completes(spot, on_demand, lost)
        ends = np.where(completes, self._ends(spot, on_demand, self.left + lost), 1.0)
        stays = np.where(by_second, np.minimum(ends, batch.overlap), 1.0) * self.hands_over(spot, on_demand)
        bill = np.zeros(len(batch))
        for number, held, price in (
            (spot, np.minimum(observation.spot, observation.available), observation.price),
            (on_demand, observation.on_demand, batch.on_demand),
        ):
            launched, surplus = np.maximum(number - held, 0), np.maximum(held - number, 0)
            bill = bill + price * (number * ends + launched * np.maximum(minimum - ends, 0.0) + surplus * stays)
        return bill

    def _ends(self, spot: IntArray, on_demand: IntArray, left: FloatArray) -> FloatArray:
        """Return the fraction of the interval after which a job with this much work left is done, if it is."""
        before, throughput = self.work_before(spot, on_demand), throughput_of(self.batch, spot + on_demand)
        on_old = self.observation.launching + left / np.maximum(self._had, EXACT)
        on_new = self.wait(spot, on_demand) + (left - before) / np.maximum(throughput, EXACT)
        return np.clip(np.where((before > 0) & (before >= left - EXACT), on_old, on_new), 0.0, 1.0)
