"""Compare plans over several zones with the best single zone, and with moves that cost nothing.

A job needs 48 hours of one node by a deadline of 52, 70 or 92 hours. Each launch takes 0.2 hours, and 0.02 hours longer
where the checkpoint of 10 GB comes from another region, which costs 0.02 $ a GB. The zones are those of AWS recorded
for 45 days for "Can't Be Late" (NSDI 2024), in intervals of half an hour: nine zones in three regions. The recordings
do not come with this project; without them the markets are seeded.

Every job starts at the same time in all of them, so that differences are paired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.market.late.cells import mean
from benchmarks.market.late.node_play import SPOT_PRICE
from benchmarks.market.late.recordings import Recording, load
from benchmarks.market.spot_traces import TRACES
from lightning_core.core.arrays import FloatArray
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.observation import SpotPolicy
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES
from lightning_core.parts.market.traces import resample
from lightning_core.parts.market.zones.offer_trace import OfferTrace, any_of
from lightning_core.parts.market.zones.zone_backtest import backtest_zones

# All times in hours. Prices are relative to an on-demand node, which costs 3.06 $ an hour.
HOURS, INTERVAL, LAUNCH, TRANSFER = 48.0, 0.5, 0.2, 0.02
EGRESS = 10 * 0.02 / 3.06 / INTERVAL
DEADLINES = {"quick": (52,), "default": (52, 70, 92), "full": (52, 70, 92)}
STARTS = {"quick": 12, "default": 16, "full": 96}
POLICY, OTHERS = "semi-markov", ("uniform-progress", "max-spot")
# Region whose zones are the three: that of most spot nodes.
THREE = "us-west-2"
FORECASTS = MarketForecaster(LastValue())


class Row(NamedTuple):
    """What became of the jobs, each figure by job."""

    cost: FloatArray
    """Cost over on-demand."""
    late: int = 0
    moves: FloatArray | None = None
    egress: FloatArray | None = None
    """Money for egress, over on-demand."""


def measure(size: Size, traces: Path, seed: int) -> Figures:
    """Print a table for each deadline, and return the figures."""
    recordings, recorded = load(traces, "second")
    offers = [offer(recording) for recording in recordings]
    three = [one for one in offers if one.zone.startswith(THREE)] or offers[:3]
    print(f"{len(offers)} {'zones' if recorded else 'SEEDED markets, for the recordings are not there'}, "
          f"{STARTS[size]} starts; up: one {100 * mean_up(offers, each=True):.0f} % at best, "
          f"any of three {100 * mean_up(three):.0f} %, any of all {100 * mean_up(offers):.0f} %")  # fmt: skip
    figures: Figures = {}
    late = jobs = 0
    for deadline in DEADLINES[size]:
        policies = (POLICY, *OTHERS) if size == "full" else (POLICY,)
        for policy in policies:
            rows = play(SPOT_POLICIES[policy], deadline, offers, three, STARTS[size], seed)
            standings(f"{policy}, deadline {deadline} h", rows)
            late, jobs = late + sum(row.late for row in rows.values()), jobs + STARTS[size] * recorded
            if policy == POLICY:
                figures |= figures_of(deadline, rows)
    return {**figures, "late_jobs": float(late), "recorded_jobs": float(jobs)}


def offer(recording: Recording) -> OfferTrace:
    """Return a recording as an offer, in half hours: a node is there if it was there in all of one."""
    times = np.arange(len(recording.available), dtype=float) * recording.tick
    end = len(recording.available) * recording.tick
    counts, _ = resample(times, recording.available.astype(np.int64), None, INTERVAL * 3600, end=end)
    market = Market(np.full(len(counts), SPOT_PRICE), counts, seconds=INTERVAL * 3600, name=recording.zone)
    return OfferTrace(market, recording.zone)


def mean_up(offers: Sequence[OfferTrace], *, each: bool = False) -> float:
    """Return the share of intervals with a spot node in any of some offers, or in the best one of them."""
    up = np.array([one.market.available > 0 for one in offers])
    return float(up.mean(1).max() if each else up.any(0).mean())


def play(
    make: Callable[[], SpotPolicy], deadline: int, offers: Sequence[OfferTrace], three: Sequence[OfferTrace],
    starts: int, seed: int,
) -> dict[str, Row]:  # fmt: skip
    """Play a policy in each zone alone, in three, in all, and in all with moves that cost nothing."""
    job = SpotJob(
        HOURS / INTERVAL, round(deadline / INTERVAL), max_nodes=1, growth_fraction=1.0, shrink_fraction=1.0,
        value=0.0, launch_time=LAUNCH / INTERVAL,
    )  # fmt: skip
    intervals = len(offers[0].market)
    begins = np.random.default_rng(seed).integers(0, intervals - job.deadline + 1, starts).tolist()
    base = math.ceil((HOURS + LAUNCH) / INTERVAL)

    def zones(some: Sequence[OfferTrace]) -> Row:
        transfer = TRANSFER / INTERVAL if len({one.at(0).region for one in some}) > 1 else 0.0
        slow = SpotJob(job.work, job.deadline, 1, 1, (), 1.0, 1.0, 0.0, launch_time=job.launch + transfer)
        [ledger] = backtest_zones(
            [make()], [slow] * starts, some, begins, FORECASTS, transfer=transfer, egress=EGRESS
        )  # fmt: skip
        return Row(ledger.cost / base, int((~ledger.on_time).sum()), ledger.moves.astype(float), ledger.egress / base)

    alone = [zones([one]) for one in offers]
    best = min(range(len(offers)), key=lambda at: float(alone[at].cost.mean()))
    [free] = backtest([make()], JobBatch([job] * starts, any_of(offers), begins), FORECASTS)
    return {
        "each zone alone, mean": Row(np.mean([row.cost for row in alone], axis=0), sum(row.late for row in alone)),
        f"best zone, {offers[best].zone}": alone[best]._replace(late=0),
        "best zone of each job": Row(np.min([row.cost for row in alone], axis=0)),
        f"{len(three)} zones of a region": zones(three),
        f"{len(offers)} zones": zones(offers),
        f"{len(offers)} zones, moves free": Row(free.cost / base, int((~free.on_time).sum())),
    }


NAMES = ("alone", "best", "own_best", "three", "all", "free")


def figures_of(deadline: int, rows: dict[str, Row]) -> Figures:
    """Return the figures of a deadline."""
    named = dict(zip(NAMES, rows.values(), strict=True))
    figures: Figures = {f"{name}_{deadline}": float(row.cost.mean()) for name, row in named.items()}
    for other in ("best", "own_best", "free"):
        figures[f"all_minus_{other}_{deadline}"], figures[f"all_minus_{other}_se_{deadline}"] = mean(
            named["all"].cost - named[other].cost
        )
    for name in ("three", "all"):
        moves, egress = named[name].moves, named[name].egress
        assert moves is not None
        assert egress is not None  # both are plans over several zones
        figures[f"{name}_moves_{deadline}"] = float(moves.mean())
        figures[f"{name}_egress_{deadline}"] = float(egress.mean())
    return figures


def standings(title: str, rows: dict[str, Row]) -> None:
    """Print costs, moves and egress, and what all zones cost more than the others."""
    print(f"\n{title}: cost over on-demand")
    everywhere = list(rows.values())[-2].cost
    body = []
    for name, row in rows.items():
        less, error = mean(everywhere - row.cost)
        shown = ["", ""] if row.moves is None or row.egress is None else [row.moves.mean(), row.egress.mean()]
        body.append([name, "{:.3f} ± {:.3f}".format(*mean(row.cost)), f"{less:+.3f} ± {error:.3f}", *shown, row.late])
    table(["", "cost", "all zones less this", "moves of a job", "egress", "late jobs"], body)


if __name__ == "__main__":
    main(
        "market.zones",
        str(__doc__).partition("\n")[0],
        measure,
        numbers={"seed": (0, "seed of the starts of the jobs")},
        traces=TRACES,
    )
