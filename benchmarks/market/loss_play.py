"""Plays a job on a recorded market as a pool does: by the plan that ships, from what is known in each interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.market.loss_jobs import LossJob
from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.jobs import Job
from lightning_core.core.targets import LossTarget
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import make_live_forecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.job_model import JobModel, JobSpan, sure_work, with_margin
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.observation import Observation
from lightning_core.parts.market.online.online_plan import OnlinePlan
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES

# Hours of a launch, and between two checkpoints; hours that the work takes on one node.
LAUNCH, SAVE_EVERY, WORK = 0.2, 0.05, 12.0
HOUR = 3600.0
# Part of its training after which a user may expect a job to reach its loss.
GUESS = 0.5

Knowledge = Callable[[LossJob, int, float], float]
"""Returns the work that a job is planned with, from the cells seen and the batches done."""


class Played(NamedTuple):
    """What a job with a loss to reach has cost on a market, and when it was done."""

    cost: float
    """Money."""
    late: int
    """Intervals after its deadline until it was done; 0 if it was in time."""


def by_forecast(job: LossJob, cells: int, batches: float) -> float:
    """Return what a pool plans with: a high quantile of the forecast."""
    return _sure(job, job.forecasts[cells], batches)


def by_history(job: LossJob, cells: int, batches: float) -> float:
    """Return the same where earlier runs of its task are known."""
    return _sure(job, job.with_history[cells], batches)


def by_median(job: LossJob, cells: int, batches: float) -> float:
    """Return the median of the forecast."""
    return max(float(np.median(_bounded(job, job.forecasts[cells]))), batches + 1.0)


def by_guess(job: LossJob, cells: int, batches: float) -> float:
    """Return a part of its training that is guessed beforehand; all of it once that is over."""
    return GUESS * job.bound if batches < GUESS * job.bound else job.bound


def by_bound(job: LossJob, cells: int, batches: float) -> float:
    """Return the end of the training."""
    return job.bound


def by_truth(job: LossJob, cells: int, batches: float) -> float:
    """Return the work that it will turn out to be."""
    return job.needs


def _bounded(job: LossJob, forecast: FloatArray) -> FloatArray:
    """Return quantiles of its work, shape ``(20,)``: at most the end of the training, which is known from the start."""
    return np.full_like(forecast, job.bound) if np.isnan(forecast).any() else np.minimum(forecast, job.bound)


def _sure(job: LossJob, forecast: FloatArray, batches: float) -> float:
    work = sure_work(math.floor(batches), _bounded(job, forecast))
    assert work is not None  # its end is known
    return work


class LossPlanner:
    """The plan of a job as a policy of a backtest, which knows the work no better than it is told.

    Args:
        job: The job.
        policy: Spec of a policy in :data:`~lightning_core.parts.market.spot_policies.SPOT_POLICIES`.
        knowledge: Returns the work that the job is planned with at any time, from the little or much that is known.
        as_planned: The job as the market sees it if its work is so much.
    """

    horizon = 0  # what its own plan looks ahead by is its own

    def __init__(
        self, job: LossJob, policy: str, knowledge: Knowledge, as_planned: Callable[[float], SpotJob]
    ) -> None:  # fmt: skip
        self._job, self._knowledge, self._as_planned, self._cells = job, knowledge, as_planned, 0
        self._plan = OnlinePlan(SPOT_POLICIES.make(policy), make_live_forecaster("last", job.market.seconds))

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        job, done = self._job, float(observation.progress[0] * observation.batch.units[0])
        held = NodeCounts(int(observation.spot[0]), int(observation.on_demand[0]))
        self._cells = max(self._cells, int(np.searchsorted(job.seen, done + 1e-6, "right")))
        nodes = NodeCounts()
        if done < job.needs * (1 - 1e-9):
            planned = with_margin(self._as_planned(self._knowledge(job, self._cells, done)))
            preempted = bool(observation.spot[0] > observation.available[0])
            at = job.start, observation.interval
            nodes = self._plan.decide(planned, job.market, *at, done, held, preempted=preempted)
        return np.array([nodes.spot]), np.array([nodes.on_demand])


def intervals_of(deadline: float, market: Market) -> int:
    """Return the intervals from the start of a job to its deadline, so many hours later."""
    return int(deadline * HOUR / market.seconds)


def play(job: LossJob, deadline: float, policy: str, knowledge: Knowledge) -> Played:
    """Play a job of one node from its start to its loss.

    Args:
        job: The job.
        deadline: Hours from its start to its deadline.
        policy: Spec of a policy in :data:`~lightning_core.parts.market.spot_policies.SPOT_POLICIES`.
        knowledge: Returns the work that the job is planned with at any time, from the little or much that is known.
    """
    market = job.market
    seconds, intervals = market.seconds, intervals_of(deadline, market)
    throughputs = {1: job.needs / (WORK * HOUR)}
    # A launch stops the training, and nodes are billed by the second.
    model = JobModel(seconds, 1.0 - LAUNCH * HOUR / seconds, SAVE_EVERY * HOUR, None, 0.0)
    terms = Job(job.curve, intervals * seconds, LossTarget("loss", 0.0))

    def with_work(work: float) -> SpotJob:
        made = model.spot_job(terms, work, JobSpan(job.start, intervals), throughputs, LAUNCH * HOUR, None)
        assert made is not None  # its throughput is known
        return made

    really = with_work(job.needs)
    planner = LossPlanner(job, policy, knowledge, with_work)
    [ledger] = backtest(
        [planner], JobBatch([really], market, [job.start]), make_live_forecaster("last", seconds),
        guarded=False, preemption_cost=really.preemption_cost,
    )  # fmt: skip
    return Played(float(ledger.cost[0]), int(ledger.late[0]))
