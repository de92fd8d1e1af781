"""Jobs of a pool as the market sees them: their measured throughput, and the feedback from those that have ended.

A job that has ended shows what each spot policy would have made of it: it is replayed through the recorded prices, at
its measured throughput, up to its deadline (counterfactual replay, Kong et al., algorithm 2). The recording must reach
that far, so the feedback is due once the deadline has passed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from lightning_core.core.answers import State, Verdict
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.cloud_events import SelectorFeedback
from lightning_core.parts.market.forecasters import make_market_forecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.job_model import sure_work
from lightning_core.parts.market.market_controller import MARKET, MarketController
from lightning_core.parts.market.market_terms import MarketTerms, terms_of
from lightning_core.parts.market.online.throughput_table import throughput_table
from lightning_core.parts.market.selector import normalised
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies.on_demand import on_demand_cost
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings

# Intervals in which a job is replayed; of a longer one several intervals are merged into one.
MAX_INTERVALS = 32


def batches_left(scheduler: Scheduler, name: str) -> float:
    """Return the batches that a job has left: of one with a loss to reach, what a market would plan it with.

    Raises:
        ValueError: If it has a loss to reach, and nothing is known of its work.
    """
    status = scheduler.last(name)
    if (work := status.target.work) is not None:
        return float(max(work - status.batches, 1))
    if status.state is State.ENDED:
        raise ValueError(f"job {name!r}: has ended: say how much work is left")
    planned = sure_work(status.batches, scheduler.forecast_work(name))
    if planned is None or planned == math.inf:
        raise ValueError(f"job {name!r}: {status.target} is not forecast to be reached: say how much work is left")
    return planned - status.batches


class ReplayableJob(NamedTuple):
    """A job whose feedback is due."""

    name: str
    """Name of the job."""
    job: SpotJob | None
    """The job as the market sees it; None if its throughput or work is unknown, or it outlived the recording."""
    start: int
    """Interval in which it began."""
    market: Market | None
    """The market, as far as it is known; None if nothing is."""


class CounterfactualReplay:
    """Makes the selector's feedback from a pool's jobs, once their deadlines have passed.

    Args:
        terms: Terms of the market.
        market: Recording of the market; None for what the pool was quoted.
    """

    def __init__(self, terms: MarketTerms, market: Market | None) -> None:
        self.terms, self._market = terms, market

    @classmethod
    def of(cls, settings: Settings) -> CounterfactualReplay | None:
        """Return the replay of a pool; None if it has no market."""
        terms = terms_of(settings)
        return None if terms is None else cls(terms, None if terms.quoted else terms.market())

    def due(self, scheduler: Scheduler, now: float) -> list[ReplayableJob]:
        """Return the jobs whose feedback is due.

        Args:
            scheduler: The pool's scheduler.
            now: Scheduler time; infinite for all jobs that have ended, as far as the market is known.
        """
        names = [name for name, over in awaiting_feedback(scheduler).items() if over <= now]
        if not names:
            return []
        market = self._market or _quoted(scheduler, now)
        if market is None:  # no job has trained before the first quote
            return [ReplayableJob(name, None, 0, None) for name in names]
        return [ReplayableJob(name, *self._observe(scheduler, name, market), market) for name in names]

    def next(self, scheduler: Scheduler) -> float | None:
        """Return when the next feedback is due, scheduler time; None if none is awaited."""
        return min(awaiting_feedback(scheduler).values(), default=None)

    def feedback(self, replayable: ReplayableJob) -> SelectorFeedback:
        """Return what each policy would have made of a job.

        A job of many intervals and nodes takes up to a second or two.
        """
        name, job, start, market = replayable
        if job is None or market is None:
            return SelectorFeedback(name, ())
        job = replace(job, value=self.terms.value * on_demand_cost(job, market.on_demand))
        times = math.ceil(job.deadline / MAX_INTERVALS)
        if times > 1:
            market = coarsen(market, start, times)
            scaled = tuple(times * one for one in job.throughput)
            charge = None if job.minimum_charge is None else job.minimum_charge / times
            soft = None if job.soft_deadline is None else max(job.soft_deadline // times, 1)
            job = replace(
                job, deadline=job.deadline // times, throughput=scaled, minimum_charge=charge, soft_deadline=soft
            )
            start = 0
        policies = list(self.terms.make().values())
        forecasts = make_market_forecaster(self.terms.forecaster, market.seconds)
        ledgers = backtest(policies, JobBatch([job], market, [start]), forecasts)
        worth = (normalised(ledger.utility, job, market.on_demand) for ledger in ledgers)
        return SelectorFeedback(name, tuple(float(one[0]) for one in worth))

    def _observe(self, scheduler: Scheduler, name: str, market: Market) -> tuple[SpotJob | None, int]:
        status, given, speed = scheduler.last(name), scheduler.job(name), scheduler.speedup(name)
        interval = market.seconds
        start = math.ceil((status.submitted_at + given.begin) / interval)
        deadline = math.floor(status.deadline / interval) - start
        # The batches of a job that did not reach its loss do not tell how many it would have needed.
        met = status.batches if status.verdict is Verdict.MET else 0
        work = given.target.work or met
        if deadline < 1 or start + deadline > len(market) or not work or not speed.known:
            return None, start
        min_nodes, table = throughput_table(speed, interval)
        kept, grace, charge = self.terms.kept_fraction, self.terms.grace, min(self.terms.minimum_charge / interval, 1.0)
        job = SpotJob(float(work), deadline, min_nodes, len(table) - 1, table, kept, kept, grace=grace,
                      minimum_charge=charge)  # fmt: skip
        if self.terms.is_soft(given):  # as far as it is recorded
            soft = job.softened()
            job = replace(soft, deadline=min(soft.deadline, len(market) - start))
        return job, start


def awaiting_feedback(scheduler: Scheduler) -> dict[str, float]:
    """Return the jobs that have ended and have not given feedback, with the scheduler time at which they can."""
    market = scheduler.controllers.get(MARKET)
    if not isinstance(market, MarketController) or (choice := market.choice) is None:
        return {}
    known = [name for name in choice.without_feedback if scheduler.directive(name) is not None]
    over = {name: choice.due_at(scheduler.job(name), scheduler.last(name)) for name in known}
    return {name: due for name, due in over.items() if due is not None}


def _quoted(scheduler: Scheduler, now: float) -> Market | None:
    """Return the market as it was quoted to a pool; None before the first quote."""
    controller = scheduler.controllers.get(MARKET)
    known = now if math.isfinite(now) else scheduler.now
    return controller.quoted(known) if isinstance(controller, MarketController) else None


def coarsen(market: Market, start: int, times: int) -> Market:
    """Return a market from an interval on, with this many intervals merged: fewest nodes, highest price."""
    intervals = (len(market) - start) // times
    available, price = (
        column[start : start + intervals * times].reshape(intervals, times)
        for column in (market.available, market.price)
    )
    return Market(price.max(1) * times, available.min(1), market.on_demand * times, market.seconds * times, market.name)
