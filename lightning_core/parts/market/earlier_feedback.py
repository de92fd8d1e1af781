"""Initial feedback of the spot policy selector: the past of the market, and the jobs of earlier runs.

Where it is recorded how the market was before the pool began, jobs like those of the paper (Kong et al., section 6: ten
intervals, work that takes 45 to 90 % of what all nodes can do) are played there under each policy, from starts that are
spread evenly over the past. What jobs of earlier runs have shown is read from the file that such a run leaves.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.cloud_events import MAX_RECORDED, EarlierFeedback, QuotedAhead, QuotedBefore
from lightning_core.parts.market.counterfactual import CounterfactualReplay
from lightning_core.parts.market.feedback_file import Rows, feedback_to_text
from lightning_core.parts.market.forecasters import make_market_forecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.market_controller import MARKET, MarketController
from lightning_core.parts.market.market_terms import MarketTerms, terms_of
from lightning_core.parts.market.selector import normalised
from lightning_core.parts.market.spot_job import SpotJob, end_of_grace
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies.on_demand import on_demand_cost
from lightning_core.parts.market.traces import INTERVAL
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings

# Jobs that are played in the past, their deadline in intervals, and the most nodes that one can use.
PLAYED, DEADLINE, MAX_NODES = 24, 10, 12
# Work of a job relative to what all its nodes do by the deadline, at least and at most.
LEAST_WORK, MOST_WORK = 0.45, 0.9


def known_before(settings: Settings) -> list[QuotedBefore | QuotedAhead | EarlierFeedback]:
    """Return the events with which a pool on a market begins, in their order; none if nothing is known.

    Raises:
        ValueError: As :func:`earlier_feedback`; or the future is known in intervals of another length than the pool's.
        OSError: If the recording cannot be read.
    """
    if (terms := terms_of(settings)) is None or not terms.knows_more:
        return []
    interval, feedback = settings.controllers["market"].get("interval", INTERVAL), earlier_feedback(terms)
    past = None if interval != terms.seconds else terms.past()
    before = ahead = None
    if past is not None:
        before = QuotedBefore(*(tuple(column[-MAX_RECORDED:].tolist()) for column in (past.price, past.available)))
    if terms.knows_future:
        if interval != terms.seconds:
            raise ValueError(f"interval must be that of the recording, {terms.seconds:g} s, for forecaster "
                             f"{terms.forecaster!r}, which knows the future, got {interval:g}")  # fmt: skip
        market = terms.market()
        ahead = QuotedAhead(*(tuple(column.tolist()) for column in (market.price, market.available)))
    return [event for event in (before, ahead, feedback) if event is not None]


def earlier_feedback(terms: MarketTerms) -> EarlierFeedback | None:
    """Return what the selector begins with; None if nothing is known.

    Playing the past takes some seconds.

    Raises:
        ValueError: If a recording or a file of feedback is wrong.
        OSError: If the recording cannot be read.
    """
    if len(terms.policies) == 1:  # there is nothing to choose
        return None
    past = terms.past()
    played = () if past is None else play(terms, past)
    jobs = terms.earlier_jobs()
    return EarlierFeedback(played, jobs) if played or jobs else None


def play(terms: MarketTerms, past: Market) -> Rows:
    """Return the utility of each policy for each job that is played in the past; none if it is too short."""
    most = min(int(past.available.max()), MAX_NODES)
    last = len(past) - (end_of_grace(DEADLINE, terms.grace) if terms.soft_deadlines else DEADLINE)
    if most < 1 or last < 0:
        return ()
    starts = np.unique(np.linspace(0, last, PLAYED).astype(np.int64)).tolist()
    # Multiples of the golden ratio are spread evenly, and are not in step with the days of a market.
    parts = LEAST_WORK + (MOST_WORK - LEAST_WORK) * np.modf(np.arange(1, len(starts) + 1) * (5**0.5 - 1) / 2)[0]
    kept, grace = terms.kept_fraction, terms.grace
    jobs = []
    for part in parts.tolist():
        job = SpotJob(part * DEADLINE * most, DEADLINE, 1, most, (), kept, kept, grace=grace)
        job = replace(job, value=terms.value * on_demand_cost(job, past.on_demand))
        jobs.append(job.softened() if terms.soft_deadlines else job)
    policies = list(terms.make().values())
    forecasts = make_market_forecaster(terms.forecaster, past.seconds)
    ledgers = backtest(policies, JobBatch(jobs, past, starts), forecasts)
    columns = np.array([ledger.utility for ledger in ledgers]).T
    rows = [normalised(row, job, past.on_demand) for row, job in zip(columns, jobs, strict=True)]
    return tuple(map(tuple, np.array(rows).tolist()))


def feedback_text(scheduler: Scheduler) -> str | None:
    """Return the file that a run or pool which is over leaves; None without a selector, or before any job.

    The newest jobs whose deadline is yet to come, so that they have given no feedback, are played as far as the market
    is recorded.
    """
    market = scheduler.controllers.get(MARKET)
    if not isinstance(market, MarketController) or market.choice is None:
        return None
    policies, rows = market.choice.selector.names, market.choice.selector.jobs_seen
    try:
        replay = CounterfactualReplay.of(scheduler.settings)
        due = [] if replay is None else replay.due(scheduler, float("inf"))[-PLAYED:]
        later = [] if replay is None else [replay.feedback(job).utilities for job in due]
    except (OSError, ValueError):  # the market's recording is gone
        later = []
    rows = np.array([*rows.tolist(), *filter(None, later)])
    return feedback_to_text(policies, rows) if len(rows) else None
