"""TODO."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from lightning_core.core.answers import Verdict
from lightning_core.core.events import SelectorFeedback
from lightning_core.core.targets import BatchTarget
from lightning_core.market import JobBatch, LastValue, Market, MarketForecaster, SpotJob, backtest
from lightning_core.market.policies.on_demand import on_demand_cost
from lightning_core.market.selector import normalised
from lightning_core.scheduler.market_jobs import throughput_table
from lightning_core.scheduler.market_terms import MarketTerms
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings

# Intervals in which a job is played again at most; of a longer one several are taken for one.
MAX_INTERVALS = 32


class ReplayableJob(NamedTuple):
    """A job that can teach.

    Args:
        name: of the job.
        job: what the market sees of it; None if it teaches nothing, for its speed or its work is not known, or it lived
            beyond the recording.
        start: the interval in which it began.
    """

    name: str
    job: SpotJob | None
    start: int


class CounterfactualReplay:
    """Makes lessons of a pool's jobs, once their deadlines have passed.

    Args:
        terms: of the market.
        market: its recording.
    """

    def __init__(self, terms: MarketTerms, market: Market) -> None:
        self.terms, self.market = terms, market

    @classmethod
    def of(cls, settings: Settings) -> CounterfactualReplay | None:
        """Of a pool, if it has a market."""
        terms = settings.market_terms()
        return None if terms is None else cls(terms, terms.market())

    def due(self, scheduler: Scheduler, now: float) -> list[ReplayableJob]:
        """Jobs that can teach now."""
        names = [name for name, over in scheduler.awaiting_feedback.items() if over <= now]
        return [ReplayableJob(name, *self._observe(scheduler, name)) for name in names]

    def next(self, scheduler: Scheduler) -> float | None:
        """When a job can teach next, scheduler time."""
        return min(scheduler.awaiting_feedback.values(), default=None)

    def feedback(self, lecture: ReplayableJob) -> SelectorFeedback:
        """What each policy would have made of a job; up to a second or two for one of many intervals and devices."""
        name, job, start = lecture
        if job is None:
            return SelectorFeedback(name, ())
        job = replace(job, value=self.terms.value * on_demand_cost(job, self.market.on_demand))
        times = math.ceil(job.deadline / MAX_INTERVALS)
        if times > 1:
            market = coarsen(self.market, start, times)
            scaled = tuple(times * one for one in job.throughput)
            job, start = replace(job, deadline=job.deadline // times, throughput=scaled), 0
        else:
            market = self.market
        policies = list(self.terms.make().values())
        ledgers = backtest(policies, JobBatch([job], market, [start]), MarketForecaster(LastValue()))
        worth = (normalised(ledger.utility, job, market.on_demand) for ledger in ledgers)
        return SelectorFeedback(name, tuple(float(one[0]) for one in worth))

    def _observe(self, scheduler: Scheduler, name: str) -> tuple[SpotJob | None, int]:
        status, given, speed = scheduler.last(name), scheduler.job(name), scheduler.speedup(name)
        interval = self.market.seconds
        start = math.ceil((status.submitted_at + given.begin) / interval)
        deadline = math.floor(status.deadline / interval) - start
        # What a job has done that did not reach its loss tells nothing of what it would have had to do.
        met = status.batches if status.verdict is Verdict.MET else 0
        work = given.target.batches if isinstance(given.target, BatchTarget) else met
        if deadline < 1 or start + deadline > len(self.market) or not work or not speed.known:
            return None, start
        min_nodes, table = throughput_table(speed, interval)
        kept_fraction, grace = self.terms.kept_fraction, self.terms.grace
        return SpotJob(
            float(work), deadline, min_nodes, len(table) - 1, table, kept_fraction, kept_fraction, 0.0, grace
        ), start


def coarsen(market: Market, start: int, times: int) -> Market:
    """From an interval on, so many intervals as one: the fewest instances in them, and the highest price."""
    intervals = (len(market) - start) // times
    available, price = (
        column[start : start + intervals * times].reshape(intervals, times)
        for column in (market.available, market.price)
    )
    return Market(price.max(1) * times, available.min(1), market.on_demand * times, market.seconds * times, market.name)
