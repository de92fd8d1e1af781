"""Run compressed days of a spot market on real Ray nodes, and compare punctuality and cost with the simulation.

The nodes are processes of this machine. An interval of some seconds stands for two hours of a recording of A100 cards,
with a quarter of the lowest number in them, at most two. The policy decides in each interval by what was really
trained. Nodes are preempted with some seconds' notice on even seeds, and without on odd ones. The same intervals are
simulated from the second one on, at the throughput that was measured: with the measured costs of starts and
preemptions, with free preemptions, and with on-demand nodes alone.
"""

from __future__ import annotations

import csv
import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Figures, Size, main, table
from lightning_core.cloud.simulated_cloud import make_token

make_token()  # Ray reads it once, at import

from lightning_core.cli.on_market.market_options import MarketOptions  # noqa: E402
from lightning_core.cluster.bundle import Bundle  # noqa: E402
from lightning_core.cluster.cluster import Cluster  # noqa: E402
from lightning_core.control import MarketController  # noqa: E402
from lightning_core.core.answers import Verdict  # noqa: E402
from lightning_core.core.arrays import FloatArray  # noqa: E402
from lightning_core.core.codec import decode_event  # noqa: E402
from lightning_core.core.control import Asker, NodesSeen  # noqa: E402
from lightning_core.core.events import Checkpoint, ExitCause, Report, WorkerExited  # noqa: E402
from lightning_core.history.ledger import Ledger as LiveLedger  # noqa: E402
from lightning_core.history.ledger import read_ledger  # noqa: E402
from lightning_core.market import JobBatch, LastValue, Ledger, Market, MarketForecaster, SpotJob, backtest  # noqa: E402
from lightning_core.market.policies import SPOT_POLICIES  # noqa: E402
from lightning_core.market.traces import shipped_trace  # noqa: E402
from lightning_core.run.follow import Watcher  # noqa: E402
from lightning_core.scheduler.summary import Summary  # noqa: E402
from lightning_core.storage.journals.journal import Journal  # noqa: E402
from lightning_core.storage.journals.replay import replay  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MAX_NODES, POLICY = 2, "chain"
HOURS, NOTICE = 2, 5.0
# Seconds of an interval, intervals to the deadline, batches, and seeds. A node and a worker on it start in 10 to 15 s.
SIZES: dict[Size, tuple[float, int, int, int]] = {
    "quick": (30.0, 4, 1200, 1), "default": (40.0, 12, 9000, 3), "full": (40.0, 12, 9000, 10)
}  # fmt: skip
# Part that remains of an interval in which the number of nodes changes, and seconds between two checkpoints.
KEPT, SAVES = 0.8, 5.0
# Parts of an interval that a preemption costs, and days that are simulated.
LOSSES, DAYS = (0.25, 0.5, 0.75), 150
# Maximum seconds until it is known that a node has ended.
KNOWN = 10.0


class Day(NamedTuple):
    """Result of one seed."""

    on_time: bool
    cost: float
    simulated: float
    lossless: float
    """Simulated cost if preemptions cost nothing and no time is reserved for them."""
    alone: float
    least: float
    moves: int
    losses: int
    again: int
    batches: int
    held: list[str]
    """Spot and on-demand nodes in each interval, live and simulated."""
    moments: Moments


class Moments(NamedTuple):
    """Times around preemptions, from a journal."""

    is_safe: list[float]
    """Seconds from each notice until its checkpoint was accepted."""
    back: list[float]
    """Seconds from each preemption without notice to the next batch."""
    begun: list[bool]
    """Whether each incarnation began at an accepted checkpoint."""


def moments(journal: Path, notices: Sequence[float], ends: Sequence[float]) -> Moments:
    """Return the times around preemptions in a run of one job.

    Args:
        journal: Journal of the run.
        notices: Times of preemption notices, in scheduler time.
        ends: Times of preemptions without notice.
    """
    with Journal.open(journal, read_only=True) as entries:
        story = [(entry.now, decode_event(entry.event)) for entry in entries.entries()]
    found, saves, span = Moments([], [], []), {0}, 1
    left: float | None = None  # when the job's node was preempted
    used = -math.inf  # the last notice that led to a checkpoint
    for now, event in story:
        if not isinstance(event, Report | WorkerExited) or event.incarnation != span:
            continue
        if isinstance(event.checkpoint, Checkpoint):
            saves.add(event.checkpoint.batches)
        if isinstance(event, Report):
            if event.number == 1:
                found.begun.append(event.batches_at_start in saves)
            if left is not None and event.batches > event.batches_at_start:
                found.back.append(now - left)
                left = None
            continue
        span += 1
        notice, end = (max((one for one in several if one <= now), default=-math.inf) for several in (notices, ends))
        if event.cause is ExitCause.RELEASED:
            if now - notice <= KNOWN and notice > max(end, used):
                found.is_safe.append(now - notice)
                used = notice
        elif now - end <= NOTICE + KNOWN:
            left = end
    return found


def measure(size: Size) -> Figures:
    """Run and simulate all seeds, print the tables and return the figures."""
    interval, intervals, batches, seeds = SIZES[size]
    print_preemption_costs()
    days = list[Day]()
    for seed in range(seeds):
        days.append(run_day(seed, interval, intervals, batches))
        print(f"day {seed}: {days[-1]}", flush=True)
    rows = [[seed, str(day.on_time), *day[1:-2]] for seed, day in enumerate(days)]
    print(f"\n{intervals} intervals of {interval:g} s, {batches} batches, at most {MAX_NODES} nodes, policy {POLICY}")
    header = [
        "seed",
        "on time",
        "cost",
        "simulated",
        "free preemptions",
        "on-demand only",
        "optimum",
        "moves",
        "failures",
        "batches again",
        "batches",
    ]
    table(header, rows)
    print("\nspot nodes available, spot+on-demand nodes held by interval, and % of the work done, live and simulated")
    for seed, day in enumerate(days):
        print(f"{seed:4}  " + "\n      ".join(day.held))
    beside = [day.cost / day.simulated for day in days]
    lossless = [day.cost / day.lossless for day in days]
    saved = [1 - day.cost / day.alone for day in days]
    for words, several in (("the simulated cost", beside), ("that with free preemptions", lossless)):
        ends = f"{min(several):.3f} to {max(several):.3f}"
        print(f"live cost as a multiple of {words}: median {statistics.median(several):.3f}, {ends}")
    is_safe = [seconds for day in days for seconds in day.moments.is_safe]
    back = [seconds for day in days for seconds in day.moments.back]
    for words, several in (
        ("a notice to a safe checkpoint", is_safe),
        ("a preemption without notice to the next batch", back),
    ):
        if several:
            print(f"from {words}: median {statistics.median(several):.1f} s, worst {max(several):.1f} s, "
                  f"of {len(several)}")  # fmt: skip
    assert all(
        all(day.moments.begun) for day in days
    )  # no incarnation went on from a checkpoint that had not been accepted
    return {
        "live_on_time_pct": 100 * statistics.mean(day.on_time for day in days),
        "live_cost_in_simulated": statistics.median(beside),
        "live_saved_pct": 100 * statistics.median(saved),
    }


def market_of(seed: int, interval: float, intervals: int) -> Market:
    """Return the market of a day and the day after."""
    whole = shipped_trace(interval=HOURS * 3600.0)
    start = int(np.random.default_rng(seed).integers(0, len(whole) - 2 * intervals))
    window = slice(start, start + 2 * intervals)
    return Market(whole.price[window], np.minimum(whole.available[window] // 4, MAX_NODES), seconds=interval)


def print_preemption_costs() -> None:
    """Print simulated days without notices, with and without a policy that expects preemptions."""
    intervals = SIZES["full"][1]
    print(f"{DAYS} simulated days with preemptions without notice, each of which costs a part of an interval")
    rows = list[list[object]]()
    for part in LOSSES:
        job = SpotJob(
            0.5 * MAX_NODES * intervals,
            intervals,
            max_nodes=MAX_NODES,
            throughput=(0.0, 1.0, 1.55),
            growth_fraction=1 - part,
            shrink_fraction=KEPT,
            value=0.0,
        )
        for words, preemption_cost in (("yes", part), ("no", 0.0)):
            batch = JobBatch([replace(job, preemption_cost=preemption_cost)] * DAYS, [market_of(seed, 1.0, intervals)
            for seed in range(DAYS)],
                          [0] * DAYS)  # fmt: skip
            [ledger] = backtest([SPOT_POLICIES[POLICY]()], batch, MarketForecaster(LastValue()), preemption_cost=part)
            rows.append([part, words, int((~ledger.on_time).sum()), float(ledger.cost.mean())])
    table(["intervals lost", "expected", "days late", "cost"], rows)


def run_day(seed: int, interval: float, intervals: int, batches: int) -> Day:
    """Run and simulate one day."""
    market, notice = market_of(seed, interval, intervals), 0.0 if seed % 2 else NOTICE
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        run_dir = Path(folder) / "run"
        summary = run_live(Path(folder), market, _bundle(folder, interval * intervals, batches), notice)
        run, planned, preempted_at = seen_live(run_dir / "journal.db", market)
        found = moments(run_dir / "journal.db", preempted_at if notice else [], [] if notice else preempted_at)
    [ended] = summary.jobs
    # The throughput is unknown in the first interval: the others are simulated.
    first = run.rows[0]
    rest = replace(planned, work=max(planned.work - first.batches, 1.0), deadline=planned.deadline - 1)
    # A preemption costs a start, and without notice what was not saved.
    loss = planned.preemption_cost - (0.0 if seed % 2 else SAVES / interval)
    held = first.spot, first.on_demand
    simulated = _simulate(rest, market, held, loss)
    lossless = _simulate(replace(rest, preemption_cost=0.0), market, held, 0.0)
    nodes_held = zip(simulated.spot[0], simulated.on_demand[0], strict=True)
    lines = [
        "available " + " ".join(f"{count:3}" for count in market.available[:intervals]),
        "live      " + " ".join(f"{row.spot}+{row.on_demand}" for row in run.rows),
        "simulated     " + " ".join(f"{spot}+{on_demand}" for spot, on_demand in nodes_held),
        "live      " + _percents(np.cumsum([row.batches for row in run.rows]) / batches),
        "simulated     " + _percents((first.batches + simulated.progress[0]) / batches),
    ]
    others = run.references
    assert others is not None  # its throughput was measured
    return Day(
        ended.verdict is Verdict.MET, run.cost, first.cost + float(simulated.cost[0]),
        first.cost + float(lossless.cost[0]), *others,
        sum(row.incarnations for row in run.rows), sum(row.failures for row in run.rows), ended.lost_batches,
        ended.batches, lines, found,
    )  # fmt: skip


def run_live(
    folder: Path, market: Market, bundle: Bundle, notice: float, policy: str = POLICY, watcher: Watcher | None = None
) -> Summary:
    """Run a bundle on a market, on nodes of this machine, in ``folder / "run"``.

    Args:
        folder: Empty folder.
        market: The market.
        bundle: Jobs.
        notice: Seconds from a preemption notice to the end of a node; 0 for none.
        policy: Spot policy of all jobs.
        watcher: Watcher that is shown the jobs.
    """
    trace = folder / "market.csv"
    with trace.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["available", "price"])
        rows.writerows(zip(market.available.tolist(), market.price.tolist(), strict=True))
    options = MarketOptions(trace, interval=f"{market.seconds:g}s", policy=policy)
    placed = options.apply(bundle)
    settings = options.rented(
        replace(placed.settings, market={**(placed.settings.market or {}), "kept_fraction": KEPT})
    )
    devices = settings.devices
    with Cluster(devices, devices=devices, min_devices=0) as cluster:
        cloud = replace(options.cloud(settings, "cpu", cluster.name), notice=notice)
        return cluster.run(replace(placed, settings=settings), folder / "run", watcher, cloud=cloud)


def seen_live(path: Path, market: Market) -> tuple[LiveLedger, SpotJob, list[float]]:
    """Return the ledger of a journal, its job as the market sees it, and when nodes were preempted."""
    spot, preempted_at = frozenset[str](), list[float]()
    with Journal.open(path) as journal:
        controller = replay(journal).scheduler.controllers[Asker.MARKET]
        for entry in journal.entries():
            event = decode_event(entry.event)
            if not isinstance(event, NodesSeen):
                continue
            gone, spot = spot - set(event.spot), frozenset(event.spot)
            interval = int(entry.now // market.seconds)
            if gone and market.available[interval] < len(gone) + len(spot):
                preempted_at.append(interval * market.seconds)
    assert isinstance(controller, MarketController)
    [planned] = controller.jobs
    return read_ledger(path), planned, preempted_at


def _bundle(folder: str, deadline: float, batches: int) -> Bundle:
    job: dict[str, Any] = {
        "seed_everything": 1,
        "model": {
            "class_path": "benchmarks.live.numbered_training.Network",
            "init_args": {"folder": folder, "pause": 0.03},
        },
        "data": {"class_path": "benchmarks.live.numbered_training.Data"},
        "trainer": {"logger": False},
        "deadline": f"{deadline:.0f}s",
        "target": {"batches": batches},
        "min_devices": 1,
        "max_devices": MAX_NODES,
        "save_every": f"{SAVES:g}s",
    }
    pool = {"devices": 2 * MAX_NODES}
    return Bundle.from_dict({"pool": pool, "policy": "fifo", "period": "0.5s", "jobs": {"a": job}}, ROOT)


def _simulate(job: SpotJob, market: Market, held: tuple[int, int], preemption_cost: float) -> Ledger:
    """Play a job from the second interval on, with the nodes that it held in the first."""
    batch, forecasts = JobBatch([job], market, [1]), MarketForecaster(LastValue())
    return backtest([SPOT_POLICIES[POLICY]()], batch, forecasts, preemption_cost=preemption_cost, held=held)[0]


def _percents(parts: FloatArray) -> str:
    return " ".join(f"{round(100 * part):3}" for part in parts)


if __name__ == "__main__":
    os.chdir(ROOT)
    main("market.spot_live", str(__doc__).partition("\n")[0], measure)
