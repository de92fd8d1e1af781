"""Compare plans that decide on events with plans that keep their intervals, in virtual time on recorded markets.

What is on offer is quoted every ten minutes (AWS zones, one node) or half-hour (A100 cards, at most four nodes), and
nodes go without notice when they are no longer on offer. The shipped controller plans by `semi-markov` in intervals of
an hour, or of two: at their beginning alone; on events within them, too; or in intervals as short as the quotes are
apart. All three play the same jobs, so differences are paired. A node takes six minutes to come, and a job six more to
train on it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.market.late.cells import mean
from benchmarks.market.late.recordings import load
from benchmarks.market.spot_traces import PRICE, TRACES
from lightning_core.core.answers import Verdict
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES, SemiMarkov
from lightning_core.parts.market.traces import shipped_trace
from lightning_core.parts.market.virtual_cloud import VirtualCloud
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation

HOUR = 3600.0
# Hours of work on the most nodes, hours to the deadline, and seconds between two reports.
WORK, DEADLINES, REPORTS = 24.0, (26.0, 35.0), 300.0
# Seconds until a node comes, until its job trains there, and until a job has left its nodes.
COMES, STARTS, LEAVES = 360.0, 360.0, 60.0
# Jobs of each recording.
STARTS_IN_EACH: dict[Size, int] = {"quick": 1, "default": 2, "full": 12}
INTERVALS, EVENTS, SHORT = "intervals", "events", "short intervals"
WAYS = (INTERVALS, EVENTS, SHORT)


class SemiMarkovInIntervals(SemiMarkov):
    """The same policy, which decides at the beginning of an interval alone."""

    decides_on_events = False


IN_INTERVALS = "semi-markov-in-intervals"


class Play(NamedTuple):
    """What a job cost in one of the ways."""

    cost: float
    """Relative to that of on-demand nodes from start to end."""
    is_late: bool
    moves: int
    """Times that it began on other nodes."""


def measure(size: Size, traces: Path) -> Figures:
    """Play all jobs in all ways, print a table for each market and deadline, and return the figures."""
    recordings, recorded = load(traces, "first")
    print(f"{len(recordings)} {'recordings' if recorded else 'SEEDED markets'} of one node, and one of A100 cards")
    starts = STARTS_IN_EACH[size]
    figures: Figures = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for deadline in DEADLINES[:1] if size == "quick" else DEADLINES:
            ticks = round((deadline + 2) * 6)
            one = [
                Market(np.full(ticks, PRICE), one.available[start : start + ticks].astype(np.int64), seconds=one.tick)
                for number, one in enumerate(recordings)
                for start in one.starts(starts, ticks, (7, number))
            ]
            for name, markets, hours in (("aws", one, 1.0), ("a100", _a100(deadline, starts * 4), 2.0)):
                played = list(pool.map(play, markets, [hours] * len(markets), [deadline] * len(markets)))
                figures |= _told(f"{name}_{deadline:.0f}", played)
    return figures


def _a100(deadline: float, number: int) -> list[Market]:
    """Return windows of the shipped recording, with a quarter of its nodes, at most four."""
    whole, length = shipped_trace(), round((deadline + 2) * 2)
    starts = np.random.default_rng(11).integers(0, len(whole) - length, number).tolist()
    return [
        replace(
            whole, price=whole.price[at : at + length], available=np.minimum(whole.available[at : at + length] // 4, 4)
        )
        for at in starts
    ]


def play(market: Market, hours: float, deadline: float) -> list[Play]:
    """Play a job in each of the ways.

    Args:
        market: The market, quote by quote; its prices are for an hour.
        hours: Hours of an interval of the plans.
        deadline: Hours to the deadline.
    """
    return [
        _play(market, hours * HOUR, deadline, events=False),
        _play(market, hours * HOUR, deadline, events=True),
        _play(market, market.seconds, deadline, events=False),
    ]


def _play(market: Market, interval: float, deadline: float, *, events: bool) -> Play:
    most = max(int(market.available.max()), 1)
    sizes = tuple(range(1, most + 1))
    work = round(WORK * HOUR * most)
    cells = [*range(int(REPORTS * most), work, int(REPORTS * most)), work]
    job = Job("a", deadline * HOUR, BatchTarget(work), sizes=sizes, max_devices=most, can=frozenset(Capability),
              save_every=600.0)  # fmt: skip
    given = SimulatedJob(job, cells, [1.0] * len(cells), float(most), 0.0, list(map(float, sizes)))
    hours = interval / HOUR
    priced = replace(market, price=market.price * hours, on_demand=market.on_demand * hours)
    cloud = VirtualCloud(priced, COMES)
    cloud.ahead = False
    terms = {"interval": interval, "policy": "semi-markov" if events else IN_INTERVALS, "initial_throughput": 1.0}
    delays = Delays(start=STARTS, release=LEAVES, report_every=REPORTS)
    with patch.dict(SPOT_POLICIES, {IN_INTERVALS: SemiMarkovInIntervals}):
        settings = Settings("edf", period=HOUR, devices=2 * most, controllers={"market": terms})
        outcome = Simulation(settings, [given], delays, nodes=cloud).run()
    alone = market.on_demand * most * (WORK + (COMES + STARTS) / HOUR)
    return Play(
        outcome.nodes.cost / alone,
        outcome.jobs[0].verdict is not Verdict.MET,
        sum(row.incarnations for row in outcome.nodes.rows),
    )


def _told(name: str, played: Sequence[Sequence[Play]]) -> Figures:
    """Print a table, and return its figures."""
    costs = np.array([[way.cost for way in ways] for ways in played])
    late = np.array([[way.is_late for way in ways] for ways in played]).sum(0)
    moves = np.array([[way.moves for way in ways] for ways in played]).mean(0)
    print(f"\n{name}: {len(played)} jobs of {WORK:g} h")
    rows = list[list[object]]()
    for number, way in enumerate(WAYS):
        less, error = mean(costs[:, number] - costs[:, 0])
        shown = f"{less:+.4f} ± {error:.4f}"
        rows.append([way, float(costs[:, number].mean()), shown, int(late[number]), float(moves[number])])
    table(["decides", "cost over on-demand", "less the first", "late", "moves"], rows)
    less, error = mean(costs[:, 1] - costs[:, 0])
    return {
        f"{name}_intervals": float(costs[:, 0].mean()), f"{name}_events": float(costs[:, 1].mean()),
        f"{name}_short": float(costs[:, 2].mean()), f"{name}_events_less": less, f"{name}_events_less_se": error,
        f"{name}_late": float(late.sum()), f"{name}_moves_intervals": float(moves[0]),
        f"{name}_moves_events": float(moves[1]),
    }  # fmt: skip


if __name__ == "__main__":
    main("market.spot_events", str(__doc__).partition("\n")[0], measure, traces=TRACES)
