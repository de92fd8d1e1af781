"""The spot markets that the benchmark plays in, and its jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.market import JobBatch, Market, SpotJob
from lightning_core.market.traces import PRICES, read_events, read_intervals, read_spot_traces, shipped_trace

TRACES = Path(__file__).parents[2] / "../shared/data/spot"
# What a spot instance costs where nothing was recorded, in on-demand prices: about what it does on AWS.
PRICE = 0.33
# The paper's job, on as many instances: 8 of them need 5 hours for it. What it is worth and for how long the paper
# does not say; these are the values that its percentages are closest with.
INSTANCES, WORK, DEADLINE, VALUE, GRACE = 12, 80.0, 10, 120.0, 1.5


@dataclass(frozen=True)
class Trace:
    """A market.

    Args:
        market: the market.
        priced: whether its prices were recorded; if not, an instance costs ``PRICE``.
    """

    market: Market
    priced: bool

    @property
    def name(self) -> str:
        return self.market.name

    @property
    def max_nodes(self) -> int:
        """Instances that a job can use: the paper's, or all that there ever were."""
        return min(int(self.market.available.max()), INSTANCES)

    def job(self, deadline: int = DEADLINE, growth_fraction: float = 0.9) -> SpotJob:
        """The paper's, on as many instances as there are."""
        part = self.max_nodes / INSTANCES
        return SpotJob(
            part * WORK,
            deadline,
            1,
            self.max_nodes,
            growth_fraction=growth_fraction,
            shrink_fraction=growth_fraction,
            value=part * VALUE,
            grace=GRACE,
        )

    def jobs(self, count: int, seed: int = 0, deadline: int = DEADLINE, growth_fraction: float = 0.9) -> JobBatch:
        """So many of them, at random intervals."""
        starts = np.random.default_rng(seed).integers(0, len(self.market) - deadline + 1, count)
        return JobBatch([self.job(deadline, growth_fraction)] * count, self.market, [int(start) for start in starts])

    @property
    def extreme(self) -> float:
        """Part of its intervals in which there were none, or all that a job can use."""
        available = self.market.available
        return float(((available == 0) | (available >= self.max_nodes)).mean())


def paper_jobs(trace: Trace, count: int, seed: int) -> JobBatch:
    """So many of the jobs that figures 9 and 10 are of, at random intervals. A few cannot be ended in time."""
    draw = np.random.default_rng(seed)
    jobs = [
        SpotJob(
            float(draw.uniform(70, 120)), DEADLINE, int(draw.integers(1, 5)), int(draw.integers(12, 17)), value=VALUE
        )
        for _ in range(count)
    ]
    starts = draw.integers(0, len(trace.market) - DEADLINE + 1, count)
    return JobBatch(jobs, trace.market, [int(start) for start in starts])


def load(folder: Path) -> list[Trace]:
    """All markets in a folder and below it; the shipped one and a made-up one if there are none.

    A CSV is one if it has a column of counts; a JSON if it is a recording of the public spot traces. Markets that a
    job does not fit into are left out, and those that never had an instance; what is left out is told.
    """
    found = []
    for path in sorted([*folder.rglob("*.csv"), *folder.rglob("*.json")], key=lambda path: (path.suffix, path)):
        try:
            trace = _trace(path)
        except ValueError as error:
            print(f"left out: {error}")
            continue
        if len(trace.market) > 2 * DEADLINE and trace.max_nodes:
            found.append(trace)
        else:
            print(f"left out: {path}: {len(trace.market)} intervals, at most {trace.max_nodes} instances")
    return found or [Trace(shipped_trace(), priced=True), Trace(all_or_nothing(0), priced=False)]


def _trace(path: Path) -> Trace:
    if path.suffix == ".json":
        return Trace(read_spot_traces(path, PRICE), priced=False)
    header = path.open(encoding="utf-8-sig").readline().strip().split(",")
    if "change" in header:
        return Trace(read_events(path, PRICE), priced=False)
    priced = bool(set(header) & set(PRICES))
    return Trace(read_intervals(path, None if priced else PRICE), priced)


def all_or_nothing(seed: int, intervals: int = 800, max_nodes: int = 16) -> Market:
    """A market that is made up: all instances for some hours, then none."""
    draw = np.random.default_rng(seed)
    lives = draw.geometric(0.1, intervals)
    counts = np.repeat(np.arange(intervals) % 2 * max_nodes, lives)[:intervals]
    return Market(np.full(intervals, PRICE), counts, name="made up")


def scaled(market: Market, counts: float | None = None, prices: float | None = None) -> Market:
    """With so many instances, or such prices, in the mean."""
    available: FloatArray = market.available.astype(float)
    price = market.price
    if counts is not None:
        available = np.floor(available * counts / available.mean() + 0.5)
    if prices is not None:
        price = price * prices / price.mean()
    return Market(price, available.astype(np.int64), market.on_demand, market.seconds, market.name)
