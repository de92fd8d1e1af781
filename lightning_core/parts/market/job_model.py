"""The market's model of a job: its work, its throughput, and its cost of changing nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import LEVELS, FloatArray
from lightning_core.core.jobs import Job
from lightning_core.core.speedup import SpeedUp
from lightning_core.parts.market.online.throughput_table import throughput_table
from lightning_core.parts.market.spot_job import SpotJob

# Fraction of a job's throughput that its plan does not count on: the safety net would else be exact to the second.
THROUGHPUT_MARGIN = 0.05
# Probability that a job with a loss to reach needs no more work than it is planned with, in steps of 0.05. Its plan and
# its safety net use the same work: planned with less than guarded, jobs cost no less and are late more often.
SURE = 0.95
# Maximum planned work of such a job, as a multiple of the work that its nodes can do by its deadline.
MAX_WORK = 2.0


class JobSpan(NamedTuple):
    """The intervals in which a job lives."""

    start: int
    """Interval in which it began."""
    deadline: int
    """Intervals from there to its deadline, or to the end of its grace if that is soft."""
    batches: int = 0
    """Batches that the ledger has counted."""
    soft_deadline: int | None = None
    """Intervals from there to its deadline if that is soft; None if it is not."""


@dataclass(frozen=True, slots=True)
class JobModel:
    """Model parameters shared by all jobs.

    Args:
        seconds: Seconds of an interval.
        kept_fraction: Fraction of an interval that is left for training when nodes change, until that is measured.
        save_every: Seconds of training between two checkpoints of a job that does not say.
        initial_throughput: Batches per second on one device until they have been measured; None if they are unknown.
        minimum_charge: Seconds for which a node is billed at least.
    """

    seconds: float
    kept_fraction: float
    save_every: float
    initial_throughput: float | None
    minimum_charge: float

    def spot_job(
        self, terms: Job, work: float, span: JobSpan, throughputs: Mapping[int, float], start_up: float,
        hand_over: float | None,
    ) -> SpotJob | None:  # fmt: skip
        """Return a job as the market sees it; None while its throughput is unknown.

        Args:
            terms: The job, with its present terms.
            work: Batches from its beginning; inf if it never reaches its target.
            span: The intervals in which it lives.
            throughputs: Expected batches per second by number of devices; empty while unknown.
            start_up: Seconds from requesting nodes to a batch.
            hand_over: Seconds that it takes to save, move to other nodes and restore; None while unknown.
        """
        if not throughputs and self.initial_throughput is not None:
            throughputs = {size: size * self.initial_throughput for size in terms.sizes or (terms.max_devices,)}
        if not throughputs:
            return None
        speedup = SpeedUp(tuple(throughputs), tuple(throughputs.values()))
        min_nodes, table = throughput_table(speedup, self.seconds)
        if terms.target.work is None:  # no plan can do more, and it must be finite
            work = min(work, MAX_WORK * span.deadline * table[-1])
        change = 1.0 - self.kept_fraction if hand_over is None else hand_over / self.seconds
        launch = max(start_up / self.seconds, change)
        save_every = self.save_every if terms.save_every is None else terms.save_every
        return SpotJob(
            work, span.deadline, min_nodes, len(table) - 1, table, value=0.0,
            preemption_cost=(start_up + save_every) / self.seconds, launch_time=launch,
            hand_over_time=min(change, 1.0), minimum_charge=min(self.minimum_charge / self.seconds, 1.0),
            soft_deadline=span.soft_deadline,
        )  # fmt: skip


def sure_work(batches: int, forecast: FloatArray) -> float | None:
    """Return the work that a job is planned with that has a loss to reach; None while nothing is known of it.

    Args:
        batches: Batches done; a job that has not ended has at least one more to do.
        forecast: Quantiles of its work at :data:`~lightning_core.core.arrays.LEVELS`, shape ``(20,)``; NaN for none.

    Returns:
        Batches from its beginning: between the two quantiles next to :data:`SURE`, halfway on a scale of logarithms.

    Example::

        >>> round(sure_work(0, np.linspace(100.0, 290.0, 20)))
        285
    """
    if np.isnan(forecast).any():
        return None
    below = round(SURE * len(LEVELS)) - 1
    return max(math.sqrt(forecast[below] * forecast[below + 1]), batches + 1.0)


def with_margin(job: SpotJob) -> SpotJob:
    """Return a job as its plan sees it, a little slower than measured."""
    return replace(job, throughput=tuple((1 - THROUGHPUT_MARGIN) * throughput for throughput in job.throughput))


def min_size(job: Job) -> int:
    """Return the fewest devices that a job can train on."""
    return min(job.sizes or (job.max_devices,))
