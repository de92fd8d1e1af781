"""Markets and jobs of the spot benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.spot_job import Overhead, SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.traces import PRICES, read_events, read_intervals, read_spot_traces, shipped_trace

TRACES = Path(__file__).parents[2] / "../shared/data/spot"
# Price of a spot instance where none was recorded, relative to on-demand: about that of AWS.
PRICE = 0.33
# The paper's job, for which 8 instances need 5 hours. The paper does not give its value and grace period: these come
# closest to its percentages, which depend on both.
INSTANCES, WORK, DEADLINE, VALUE, GRACE = 12, 80.0, 10, 120.0, 1.5


@dataclass(frozen=True)
class Trace:
    """A market.

    Args:
        market: The market.
        priced: Whether its prices were recorded; if not, an instance costs ``PRICE``.
    """

    market: Market
    priced: bool

    @property
    def name(self) -> str:
        return self.market.name

    @property
    def max_nodes(self) -> int:
        """Instances that a job can use: the paper's number, or the most that the market ever had."""
        return min(int(self.market.available.max()), INSTANCES)

    def job(self, deadline: int = DEADLINE, growth_fraction: float = 0.9, overhead: Overhead = "launches") -> SpotJob:
        """Return the paper's job, scaled to the instances that the market has."""
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
            overhead=overhead,
        )

    def jobs(
        self, count: int, seed: int = 0, deadline: int = DEADLINE, growth_fraction: float = 0.9,
        overhead: Overhead = "launches",
    ) -> JobBatch:  # fmt: skip
        """Return ``count`` such jobs, submitted at random intervals."""
        starts = np.random.default_rng(seed).integers(0, len(self.market) - deadline + 1, count)
        return JobBatch(
            [self.job(deadline, growth_fraction, overhead)] * count, self.market, [int(start) for start in starts]
        )

    @property
    def extreme(self) -> float:
        """Fraction of intervals with no instance, or with all that a job can use."""
        available = self.market.available
        return float(((available == 0) | (available >= self.max_nodes)).mean())


def paper_jobs(trace: Trace, count: int, seed: int) -> JobBatch:
    """Return ``count`` jobs of figures 9 and 10, submitted at random intervals. A few cannot be on time."""
    draw = np.random.default_rng(seed)
    jobs = [
        SpotJob(
            float(draw.uniform(70, 120)),
            DEADLINE,
            int(draw.integers(1, 5)),
            int(draw.integers(12, 17)),
            value=VALUE,
            overhead="total",
        )
        for _ in range(count)
    ]
    starts = draw.integers(0, len(trace.market) - DEADLINE + 1, count)
    return JobBatch(jobs, trace.market, [int(start) for start in starts])


def load(folder: Path) -> list[Trace]:
    """Return all markets in a folder and below it; the shipped one and a synthetic one if there are none.

    A market is a CSV with a column of counts, or a JSON of the public spot traces. Markets that are too short for a job
    or never had an instance are left out, and named on the screen.
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
    """Return a synthetic market: all instances for some hours, then none."""
    draw = np.random.default_rng(seed)
    lives = draw.geometric(0.1, intervals)
    counts = np.repeat(np.arange(intervals) % 2 * max_nodes, lives)[:intervals]
    return Market(np.full(intervals, PRICE), counts, name="synthetic")


def scaled(market: Market, counts: float | None = None, prices: float | None = None) -> Market:
    """Return the market scaled to a mean number of instances, or a mean price."""
    available: FloatArray = market.available.astype(float)
    price = market.price
    if counts is not None:
        available = np.floor(available * counts / available.mean() + 0.5)
    if prices is not None:
        price = price * prices / price.mean()
    return Market(price, available.astype(np.int64), market.on_demand, market.seconds, market.name)
