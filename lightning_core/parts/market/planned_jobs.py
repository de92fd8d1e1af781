"""The jobs of a pool on a spot market, each with its own plan of nodes in each interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.control import Ask
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.pool_view import PoolView
from lightning_core.parts.market.cloud_events import QuotedAhead, QuotedBefore
from lightning_core.parts.market.forecasters import LiveMarketForecaster, make_live_forecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.job_model import JobModel, JobSpan, min_size, sure_work, with_margin
from lightning_core.parts.market.market_job import MarketJob
from lightning_core.parts.market.market_terms import MarketTerms
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.online.current_interval import Rest
from lightning_core.parts.market.online.start_up_times import StartUpTimes
from lightning_core.parts.market.programs.optimum import optimum
from lightning_core.parts.market.spot_job import SpotJob, end_of_grace
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies.on_demand import on_demand_cost, steady_cost
from lightning_core.parts.market.zones.node_places import Leeway

# Intervals after the present one that plans consider, assumed to be like it. A later deadline is moved there.
AHEAD = 10_000
# Without a deadline there is always time to wait for spot nodes: they are held whenever they are on offer.
BEST_EFFORT_POLICY = "max-spot"
# Maximum ended jobs that are kept, for their reference costs.
MAX_ENDED = 1000


class _OpenJob(NamedTuple):
    """A job that should train, at the beginning of an interval."""

    status: JobStatus
    terms: Job
    planned: MarketJob
    had: NodeCounts
    """Its nodes of the last interval that are still present."""


class Plans(NamedTuple):
    """Total nodes of the plans of all jobs."""

    nodes: NodeCounts
    asks: list[Ask]
    """Requested number of devices of each job."""
    jobs: int
    """Number of jobs that hold a node."""


class PlannedJobs:
    """The jobs of a pool and their plans.

    Args:
        seconds: Seconds of an interval.
        policy: Spec of the spot policy of all jobs; empty for the one that was drawn for each.
        forecaster: Spec of the forecaster of prices and counts.
        kept_fraction: Fraction of an interval that is left for training when nodes change, until that is measured.
        save_every: Seconds of training between two checkpoints of a job that does not say.
        initial_throughput: Batches per second on one device until they have been measured; None: each job begins on as
            few on-demand nodes as it can train on.
        minimum_charge: Seconds for which a node is billed at least.
        drawn: Policy that was drawn for each job.
        terms: Terms of the market, by which a deadline may be soft; None: none is.
    """

    def __init__(
        self, seconds: float, policy: str, forecaster: str, kept_fraction: float, save_every: float,
        initial_throughput: float | None, minimum_charge: float, drawn: Mapping[str, str] = MappingProxyType({}),
        terms: MarketTerms | None = None,
    ) -> None:  # fmt: skip
        self._seconds, self._policy = seconds, policy
        self._forecasts = make_live_forecaster(forecaster, seconds)
        self._model = JobModel(seconds, kept_fraction, save_every, initial_throughput, minimum_charge)
        self._start_up, self._drawn, self._terms = StartUpTimes(), drawn, terms
        self._jobs: dict[str, MarketJob] = {}
        self._before: QuotedBefore | None = None
        self._ahead: QuotedAhead | None = None

    # ------------------------------------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        jobs = {name: planned.state() for name, planned in self._jobs.items()}
        before, ahead = (
            None if known is None else [list(known.prices), list(known.counts)]
            for known in (self._before, self._ahead)
        )  # fmt: skip
        return {"jobs": jobs, "start_up": self._start_up.state(), "before": before, "ahead": ahead}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        self._jobs = {name: MarketJob.of(planned, self._forecasts) for name, planned in state["jobs"].items()}
        self._start_up.restore(state["start_up"])
        for known, kind in (("before", QuotedBefore), ("ahead", QuotedAhead)):
            if state[known] is not None:
                self.begin(kind(*map(tuple, state[known])))

    def begin(self, known: QuotedBefore | QuotedAhead) -> None:
        """Take the past market, from which policies and forecasters learn, or the recording that holds the future."""
        if isinstance(known, QuotedBefore):
            self._before = known
        else:
            self._ahead = known
        if not isinstance(self._forecasts, LiveMarketForecaster) and self._ahead is not None:
            self._forecasts.first = 0 if self._before is None else len(self._before.prices)
            prices, counts = (np.array(column) for column in (self._ahead.prices, self._ahead.counts))
            self._forecasts.recording = Market(prices, counts, seconds=self._seconds)

    def begins_with(self, before: QuotedBefore) -> bool:
        """Return whether this is the initial state."""
        return self._before == before

    @property
    def awaits_recording(self) -> bool:
        """True if the forecaster knows the future and has no recording yet."""
        return not isinstance(self._forecasts, LiveMarketForecaster) and self._ahead is None

    @property
    def names(self) -> list[str]:
        """Names of the jobs whose batches still count."""
        return [name for name, planned in self._jobs.items() if not planned.ended]

    @property
    def jobs(self) -> list[SpotJob]:
        """The jobs as the market sees them, at the throughput measured last."""
        return [planned.job for planned in self._jobs.values() if planned.job is not None]

    def reference_costs(self, market: Market) -> tuple[float, float] | None:
        """Return the cost of the jobs on on-demand nodes alone, and at the offline optimum, with the value lost there.

        Both follow from the measured throughput; None while that of a job is unknown.
        """
        jobs = [(planned.span.start, planned.job) for planned in self._jobs.values() if planned.job is not None]
        if len(jobs) < len(self._jobs) or not jobs:
            return None
        on_demand = sum(on_demand_cost(job, market.on_demand) for _, job in jobs)
        batch = JobBatch([job for _, job in jobs], market, [start for start, _ in jobs])
        return on_demand, float((batch.value - optimum(batch)).sum())

    # ------------------------------------------------------------------------------------------------ what happens

    def __contains__(self, name: str) -> bool:
        """Return whether the batches of a job still count."""
        return name in self._jobs and not self._jobs[name].ended

    def awaits(self, name: str) -> bool:
        """Return whether a report of a job has news: its start-up is being measured."""
        return self._start_up.is_measuring(name)

    def observe(self, now: float, jobs: Mapping[str, JobStatus]) -> None:
        """Record the current jobs, by name, and measure start-up times."""
        self._start_up.observe(now, jobs)

    def count_batches(self, jobs: Mapping[str, JobStatus]) -> int:
        """Return the batches that all jobs have trained since they were last counted."""
        trained = 0
        for name, planned in self._jobs.items():
            if planned.ended or (status := jobs.get(name)) is None:
                continue
            if planned.is_of(status):
                trained += status.batches - planned.span.batches
                planned.span = planned.span._replace(batches=status.batches)
            planned.ended = status.state is State.ENDED or not planned.is_of(status)
            if planned.ended and planned.job is not None and planned.is_of(status) and status.target.work is None:
                planned.job = replace(planned.job, work=max(float(status.batches), 1.0))  # as it was
        ended = [name for name, planned in self._jobs.items() if planned.ended]
        for name in ended[: max(len(ended) - MAX_ENDED, 0)]:
            del self._jobs[name]
        return trained

    # ------------------------------------------------------------------------------------------------ decisions

    def decide(
        self, market: Market, number: int, now: float, pool: PoolView, jobs: Mapping[str, JobStatus],
        present: NodeCounts, money: float | None = None, dearest: tuple[float, float] | None = None,
        elapsed: float | None = None, *, preempted: bool,
    ) -> Plans:  # fmt: skip
        """Have each plan decide at the beginning of an interval, or those that decide on events within it.

        Args:
            market: The market; nothing after this interval is looked at.
            number: Number of the interval.
            now: Scheduler time.
            pool: The pool.
            jobs: Statuses of the jobs, by name.
            present: Nodes that are up and not draining.
            money: Money that is left; None for any. A job whose nodes would cost more goes without.
            dearest: Highest price of a spot and of an on-demand node; None for those of the market.
            elapsed: Fraction of the interval that is over, if plans have decided for it already: those that do not
                decide on events stay, and new jobs are left alone. None at its beginning.
            preempted: Whether nodes have just vanished, so that the work they lost is not yet known.
        """
        open_jobs, free = self._open_jobs(number, now, pool, jobs, present)
        for name in self._jobs.keys() - {job.status.name for job in open_jobs}:
            self._jobs[name].held = NodeCounts()  # it is held, or over
        if elapsed is not None:
            open_jobs = [job for job in open_jobs if job.planned.decided == number]
        prices = dearest or (float(market.price[number]), market.on_demand)
        wanted, asks, holding = NodeCounts(), list[Ask](), 0
        for job in open_jobs:
            status, planned, had = job.status, job.planned, job.had
            lost = preempted and had != planned.held
            was = planned.held if lost else had
            work = _work(status, job.terms, pool)
            held, rest = planned.held, 1.0 if elapsed is None else 1.0 - elapsed
            if elapsed is None or planned.on_events:
                held = self._decide(job, work, pool, market, number, was, wanted.spot, 1.0 - rest, preempted=lost)
            cost = rest * held.cost(*prices)
            is_short = money is not None and cost > money
            held = NodeCounts() if is_short else held
            money = money if money is None or is_short else money - cost
            planned.held, planned.decided = held, number
            if not held.all:
                self._start_up.cancel(status.name)
            elif not had.all and not self._start_up.is_measuring(status.name):
                self._start_up.request(status.name, now, _batches_done(status), node_present=free > 0)
                free = max(free - held.all, 0)
            wanted, holding = wanted.plus(held), holding + (held.all > 0)
            asks += planned.ask(status, work, money if is_short else None)
        return Plans(wanted, asks, holding)

    def leeway(self, number: int, jobs: Mapping[str, JobStatus]) -> Leeway:
        """Return the leeway for moving the nodes of the jobs that hold some, from an interval on."""
        launch, left, may_move = self._start_up.seconds / self._seconds, 1.0, True
        for name, planned in self._jobs.items():
            if not planned.held.all or (status := jobs.get(name)) is None:
                continue
            if (job := planned.job) is None:  # its throughput is being measured
                may_move = False
                continue
            work = max(job.work - _batches_done(status), 0.0)
            left = max(left, work / job.throughput[min(planned.held.all, job.max_nodes)])
            # After this interval and two more launches, on-demand nodes still complete it in time.
            rest = planned.span.start + planned.span.deadline - number - 1 - 2 * launch - job.preemption_cost
            may_move &= rest * with_margin(job).throughput[-1] >= work
        return Leeway(launch, left, may_move)

    def cannot_wait(
        self, market: Market, rest: Rest, now: float, pool: PoolView, jobs: Mapping[str, JobStatus],
        money: float | None = None, *, decided: bool = False,
    ) -> Plans:  # fmt: skip
        """Return the on-demand nodes to add within an interval: for jobs that cannot wait for the next one.

        Jobs that have just come, or may train only now, and those that have lost nodes.

        Args:
            market: The market; nothing after this interval is looked at.
            rest: Rest of the interval.
            now: Scheduler time.
            pool: The pool.
            jobs: Statuses of the jobs, by name.
            money: See :meth:`decide`.
            decided: Whether plans that decide on events have just done so.
        """
        left, more, asks = rest.present, 0, list[Ask]()
        for status in _by_deadline(jobs):
            if not pool.is_active(status.name):
                continue
            terms = pool.job(status.name)
            if (planned := self._planned(status, terms, rest.number, now)) is None:
                continue
            is_new = planned.decided < rest.number
            if is_new:
                planned.held, planned.decided = NodeCounts(), rest.number
            had = planned.held.minimum(left)
            left = left.minus(had)  # the nodes that are left belong to the most urgent job
            if not is_new and (had == planned.held or not rest.preempted or (decided and planned.on_events)):
                continue
            work = _work(status, terms, pool)
            must = self._must_have(status, terms, work, planned, market, rest, had, pool, is_new=is_new)
            added = must.on_demand - planned.held.on_demand
            cost = added * market.on_demand * (1.0 - rest.elapsed)
            is_short = money is not None and cost > money
            if added > 0 and not is_short:
                money = None if money is None else money - cost
                more += added
                if not planned.held.all and not self._start_up.is_measuring(status.name):
                    self._start_up.request(status.name, now, _batches_done(status), node_present=False)
                planned.held = must
            asks += planned.ask(status, work, money if is_short and is_new else None)
        return Plans(NodeCounts(0, more), asks, len(asks))

    def decide_on_events(self, number: int) -> bool:
        """Return whether the plan of a job decides again within an interval."""
        return any(one.on_events and not one.ended and one.decided == number for one in self._jobs.values())

    def give_up(self, pool: PoolView, jobs: Mapping[str, JobStatus], left: float) -> list[Ask]:
        """Release all nodes because of the remaining money, and return the requests for the jobs."""
        asks = list[Ask]()
        for name, planned in self._jobs.items():
            if planned.held.all:
                planned.held = NodeCounts()
                self._start_up.cancel(name)
                asks += planned.ask(jobs[name], None, left) if pool.is_active(name) else []
        return asks

    def begins_at(self, pool: PoolView, now: float) -> float | None:
        """Return when the next job begins that has not; None if there is none."""
        new = [(name, status) for name in pool.names() if name not in self._jobs and (status := pool.status(name))]
        times = (status.submitted_at + pool.job(name).begin for name, status in new)
        return min((time for time in times if time > now), default=None)

    def _must_have(
        self, status: JobStatus, terms: Job, work: float | None, planned: MarketJob, market: Market, rest: Rest,
        had: NodeCounts, pool: PoolView, *, is_new: bool,
    ) -> NodeCounts:  # fmt: skip
        job = None if work is None else self._spot_job(terms, work, planned.span, pool, market.on_demand)
        if job is None:  # its throughput or its work is unknown: it must train somewhere for that to be measured
            return NodeCounts(0, min_size(terms)) if is_new else planned.held
        interval, done = rest.number - planned.span.start, float(_batches_done(status))
        seen = self._seen(market, planned.span)
        return planned.plan.must_have(with_margin(job), *seen, interval, done, had, rest.elapsed)

    def _open_jobs(
        self, number: int, now: float, pool: PoolView, jobs: Mapping[str, JobStatus], present: NodeCounts
    ) -> tuple[list[_OpenJob], int]:
        """Return the jobs that should train, the most urgent first, and the number of nodes that none of them had.

        A job did not have the nodes that it held by plan but that never came.
        """
        left, found = present, list[_OpenJob]()
        for status in _by_deadline(jobs):
            if not pool.is_active(status.name):
                continue
            terms = pool.job(status.name)
            if (planned := self._planned(status, terms, number, now)) is None:
                continue
            had = planned.held.minimum(left)
            left = left.minus(had)
            found.append(_OpenJob(status, terms, planned, had))
        return found, left.all

    def _planned(self, status: JobStatus, terms: Job, number: int, now: float) -> MarketJob | None:
        """Return a job with its plan; None while it may not train."""
        name, on_hold = status.name, terms.on_miss is OnMiss.HOLD and now > status.deadline
        known = self._jobs.get(name)
        if known is not None and (known.ended or not known.is_of(status)):  # the name means another job now
            known = None
            del self._jobs[name]
            self._start_up.cancel(name)
        if known is None and now < status.submitted_at + terms.begin:
            return None
        span = JobSpan(number, 1, status.batches) if known is None else known.span
        # The deadline may have been changed since.
        is_best_effort = status.deadline == math.inf
        last = number + AHEAD if is_best_effort else min(int(status.deadline // self._seconds), number + AHEAD)
        due = max(last - span.start, 1)
        span = span._replace(deadline=due, soft_deadline=None)
        if self._terms is not None and self._terms.is_soft(terms) and not is_best_effort:
            end = min(end_of_grace(due, self._terms.grace), number + AHEAD - span.start)
            span = span._replace(deadline=end, soft_deadline=due)
        drawn = self._policy or self._drawn.get(status.name, "")
        policy = BEST_EFFORT_POLICY if is_best_effort else drawn
        if known is None:
            known = self._jobs[name] = MarketJob(policy, self._forecasts, status.submitted_at, span)
        elif known.policy != policy:  # it has lost its deadline, or got one; its nodes stay until it decides
            known = self._jobs[name] = MarketJob(
                policy, self._forecasts, status.submitted_at, span, known.held, decided=known.decided, job=known.job
            )
        known.span = span
        return None if on_hold or status.paused else known

    def _decide(
        self, job: _OpenJob, work: float | None, pool: PoolView, market: Market, number: int, was: NodeCounts,
        reserved: int, elapsed: float, *, preempted: bool,
    ) -> NodeCounts:  # fmt: skip
        status, terms, planned, _ = job
        span = planned.span
        planned.job = spot_job = None if work is None else self._spot_job(terms, work, span, pool, market.on_demand)
        if spot_job is None:  # one is unknown: it must train somewhere for that to be measured
            return NodeCounts(0, min_size(terms))
        interval, done = number - span.start, float(_batches_done(status))
        return planned.plan.decide(
            with_margin(spot_job), *self._seen(market, span), interval, done, was, reserved, elapsed,
            preempted=preempted,
        )  # fmt: skip

    def _seen(self, market: Market, span: JobSpan) -> tuple[Market, int]:
        """Return the market including its past before the pool, and the interval in which a job began."""
        if self._before is None:
            return market, span.start
        prices, counts = self._before.prices, self._before.counts
        whole = replace(market, price=np.append(prices, market.price), available=np.append(counts, market.available))
        return whole, len(prices) + span.start

    def _spot_job(self, terms: Job, work: float, span: JobSpan, pool: PoolView, on_demand: float) -> SpotJob | None:
        hand_over, throughputs = pool.resize_seconds(terms.name), pool.throughputs(terms.name)
        job = self._model.spot_job(terms, work, span, throughputs, self._start_up.seconds, hand_over)
        if job is None or span.soft_deadline is None or self._terms is None:
            return job
        return replace(job, value=self._terms.value * steady_cost(job, on_demand), grace=self._terms.grace)


def _work(status: JobStatus, terms: Job, pool: PoolView) -> float | None:
    """Return the batches of a job from its beginning; None while nothing is known of them."""
    if (work := terms.target.work) is not None:
        return float(work)
    return sure_work(status.batches, pool.forecast_work(terms.name))


def _by_deadline(jobs: Mapping[str, JobStatus]) -> list[JobStatus]:
    """Return the jobs, the most urgent first."""
    return sorted(jobs.values(), key=lambda status: (status.deadline, status.name))


def _batches_done(status: JobStatus) -> int:
    """Return the batches of a job that need not be trained again."""
    return min(status.batches, status.checkpoint_batches or 0) if status.state is State.RECOVERING else status.batches
