"""The first jobs of a pool: what their spot policies earn by what the selector begins with.

A pool begins at a random interval of the middle third of a recording. Ten jobs of the paper's sizes follow each other,
each after the end of the one before and with its feedback. They are given a policy of the pool by a selector that

- draws evenly until there is feedback (``uniform``);
- takes the first policy until there is feedback, which is what is done where nothing is known (``nothing known``);
- has played jobs in what the recording has before the pool (``the past``);
- has the feedback of ten jobs of an earlier run, from before the pool (``earlier jobs``);
- or has both.

The past is of use to the plans as well: ``semi-markov`` learns from it how long nodes stay. The same jobs are all given
that policy, once without the past and once with it.

A figure is the mean normalised utility of the ten jobs: 0 is to do nothing by the deadline, 1 is to complete free.
Pools are paired: each seed is one place in the recording, with one set of jobs, for all starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.market.spot import paired, spread
from benchmarks.market.spot_traces import DEADLINE, INSTANCES, TRACES, Trace, load
from lightning_core.core.arrays import FloatArray
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.earlier_feedback import play
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.market_terms import DEFAULT_POLICIES, MarketTerms
from lightning_core.parts.market.selector import Selector, normalised
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies.on_demand import on_demand_cost
from lightning_core.parts.market.spot_policies.paper_pool import make_pool

SEEDS: Mapping[Size, int] = {"quick": 10, "default": 40, "full": 100}
JOBS = 10
UNIFORM, NOTHING, PAST, EARLIER, BOTH = STARTS = ("uniform", "nothing known", "the past", "earlier jobs", "both")
PLANNED, PLANNED_PAST = "semi-markov", "semi-markov, with the past"
TERMS = MarketTerms(policies=DEFAULT_POLICIES)


def measure(size: Size, traces: Path, seed: int) -> Figures:
    """Print a table for the first market with prices, in a full run for each one; return the figures of that first."""
    several = [trace for trace in load(traces) if trace.max_nodes > 1 and len(trace.market) >= 30 * DEADLINE]
    of_page = next((trace for trace in several if trace.priced), several[0])
    figures: Figures = {}
    for trace in several if size == "full" else [of_page]:
        pools = [utilities(trace, seed + number) for number in range(SEEDS[size])]
        if trace is of_page:
            figures = figures_of(pools)
        show(trace, pools)
    return figures


def utilities(trace: Trace, seed: int) -> dict[str, float]:
    """Return the mean utility of the first jobs of one pool by what its selector begins with."""
    draw, market = np.random.default_rng(seed), trace.market
    begins = int(draw.integers(len(market) // 3, 2 * len(market) // 3))
    past, present = part(market, 0, begins), part(market, begins, len(market))
    # The jobs follow each other, with a pause now and then.
    slack = min(len(present) - JOBS * DEADLINE, 3 * JOBS * DEADLINE)
    starts = np.sort(draw.integers(0, slack + 1, JOBS)) + DEADLINE * np.arange(JOBS)
    before = np.sort(draw.integers(0, len(past) - DEADLINE + 1, JOBS))
    first_jobs = some_jobs(trace, draw)
    jobs = rows_of(present, first_jobs, starts.tolist())
    earlier = rows_of(past, some_jobs(trace, draw), before.tolist())
    played = play(TERMS, past)
    known: dict[str, tuple[Sequence[Sequence[float]], FloatArray]] = {
        NOTHING: ((), earlier[:0]), PAST: (played, earlier[:0]), EARLIER: ((), earlier), BOTH: (played, earlier),
    }  # fmt: skip
    planned = {
        name: float(rows_of(of, first_jobs, begin.tolist(), ("semi-markov",)).mean())
        for name, of, begin in ((PLANNED, present, starts), (PLANNED_PAST, market, begins + starts))
    }
    found = planned | {UNIFORM: earned(Selector(TERMS.policies), jobs, evenly=True)}
    for start, (rows, feedback) in known.items():
        selector = Selector(TERMS.policies)
        selector.begin(rows, feedback.tolist())
        found[start] = earned(selector, jobs, evenly=False)
    return found


def earned(selector: Selector, jobs: FloatArray, *, evenly: bool) -> float:
    """Return the expected mean utility of jobs that give feedback one after another.

    Args:
        selector: The selector.
        jobs: Utility of each policy for each job, shape ``(jobs, policies)``.
        evenly: Whether it draws while it knows nothing, instead of taking the first policy.
    """
    had = []
    for row in jobs:
        knows = evenly or selector.feedback_count > 0
        had.append(float(selector.weights @ row) if knows else float(row[0]))
        selector.update(row)
    return float(np.mean(had))


def some_jobs(trace: Trace, draw: np.random.Generator) -> list[SpotJob]:
    """Return jobs of the paper's sizes (figures 9 and 10), scaled to the nodes that the market has."""
    part_of = trace.max_nodes / INSTANCES
    jobs = []
    for _ in range(JOBS):
        work, least, most = draw.uniform(70, 120), int(draw.integers(1, 5)), int(draw.integers(12, 17))
        most = max(round(part_of * most), 1)
        job = SpotJob(part_of * work, DEADLINE, min(least, most), most, (), 0.9, 0.9, 0.0, TERMS.grace)
        jobs.append(replace(job, value=TERMS.value * on_demand_cost(job, trace.market.on_demand)))
    return jobs


def rows_of(market: Market, jobs: Sequence[SpotJob], starts: Sequence[int], policies: Sequence[str] = ()) -> FloatArray:
    """Return the normalised utility of each policy for each job, shape ``(jobs, policies)``; of all by default."""
    made = list(make_pool(policies or TERMS.policies).values())
    ledgers = backtest(made, JobBatch(jobs, market, starts), MarketForecaster(LastValue()))
    columns = np.array([ledger.utility for ledger in ledgers]).T
    return np.array([normalised(row, job, market.on_demand) for row, job in zip(columns, jobs, strict=True)])


def part(market: Market, begin: int, end: int) -> Market:
    """Return the intervals of a market from one to before another."""
    return replace(market, price=market.price[begin:end], available=market.available[begin:end])


def column(pools: Sequence[Mapping[str, float]], start: str) -> FloatArray:
    """Return the utility of each pool under a start."""
    return np.array([pool[start] for pool in pools])


def show(trace: Trace, pools: Sequence[Mapping[str, float]]) -> None:
    """Print the means of a market, and how far each is above a uniform start and above nothing known."""
    print(f"\n{trace.name}: the first {JOBS} jobs of {len(pools)} pools, {len(TERMS.policies)} policies; mean "
          "normalised utility, and paired differences")  # fmt: skip
    rows = []
    for start in STARTS:
        each = column(pools, start)
        above = [paired(each, column(pools, other)) for other in (UNIFORM, NOTHING)]
        rows.append([start, f"{each.mean():.4f} ± {spread(each):.4f}", *(f"{m:+.4f} ± {s:.4f}" for m, s in above)])
    table(["begins with", "utility", f"above {UNIFORM}", f"above {NOTHING}"], rows)
    planned, with_past = (column(pools, name) for name in (PLANNED, PLANNED_PAST))
    gain = "{:+.4f} ± {:.4f}".format(*paired(with_past, planned))
    print(f"{PLANNED} for all jobs: {planned.mean():.4f} ± {spread(planned):.4f}; with the past {gain}")


def figures_of(pools: Sequence[Mapping[str, float]]) -> Figures:
    """Return the figures for the page."""
    figures: Figures = {"uniform": float(column(pools, UNIFORM).mean())}
    for name, start in {"nothing": NOTHING, "past": PAST, "earlier": EARLIER, "both": BOTH}.items():
        gain, error = paired(column(pools, start), column(pools, UNIFORM))
        figures |= {f"{name}_gain": gain, f"{name}_gain_se": error}
    gain, error = paired(column(pools, PLANNED_PAST), column(pools, PLANNED))
    return figures | {"plans_gain": gain, "plans_gain_se": error}


if __name__ == "__main__":
    main("market.spot_first_jobs", __doc__ or "", measure, numbers={"seed": (0, "first seed")}, traces=TRACES)
