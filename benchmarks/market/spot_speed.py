"""Time of a backtest of the paper's pool of policies."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.common import Figures, table
from benchmarks.market.spot_traces import load, paper_jobs
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.ledger import Ledger
from lightning_core.parts.market.observation import SpotPolicy
from lightning_core.parts.market.spot_policies.paper_pool import REPAIRED_POOL, distinct, make_pool

JOBS = (250, 500, 1000)


def measure_speed() -> Figures:
    """Print and return the time of the pool by number of jobs, and with separate tables for each policy."""
    trace = next(one for one in load(Path("/nonexistent")) if one.priced)
    last, took = MarketForecaster(LastValue()), {}
    for jobs in JOBS:
        batch, pool = paper_jobs(trace, jobs, seed=3), make_pool(REPAIRED_POOL)
        took[jobs], ledgers = _timed(list(pool.values()), batch, last)
    few = paper_jobs(trace, 50, seed=3)
    alone = sum(_timed([_own(name)], few, last)[0] for name in pool)
    together, _ = _timed(list(make_pool(REPAIRED_POOL).values()), few, last)
    rows = [[jobs, seconds, 1000 * seconds / jobs] for jobs, seconds in took.items()]
    print(f"the paper's pool of {len(pool)} policies, {distinct(ledgers)} of them with different results, on one core")
    table(["jobs", "seconds", "ms per job"], rows)
    print(f"with separate tables for each policy: {alone / together:.1f} times as long (50 jobs)")
    return {"pool_112x1000_s": took[1000], "pool_alone_ratio": alone / together}


def _own(name: str) -> SpotPolicy:
    """Return a policy of the pool with tables of its own."""
    return make_pool(REPAIRED_POOL)[name]


def _timed(policies: list[SpotPolicy], batch: JobBatch, forecasts: MarketForecaster) -> tuple[float, list[Ledger]]:
    began = time.perf_counter()
    ledgers = backtest(policies, batch, forecasts)
    return time.perf_counter() - began, ledgers
