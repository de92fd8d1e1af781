"""A compressed day on real raylets that come and go: is it in time, and does it cost what the simulation says?

A training whose nodes are processes of this machine is given intervals of some seconds: each is two hours of a
recording of A100 cards, with the least number in them, of which a quarter counts, two at most. Its policy decides
interval by interval by what it has really trained. Nodes go with some seconds' notice on even seeds, and without any
on odd ones. Beside it the same intervals played by the simulation from the second on, at the speed that was measured:
with what starts and losses cost here, and as if preemptions cost nothing and no time was kept free for them; and what
on-demand nodes alone would have cost.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Figures, Size, main, table
from lightning_core.cloud.simulated_cloud import local_machines, make_token

make_token()  # Ray looks for it once, when it is imported

from lightning_core.cloud.market_replay import MarketReplay  # noqa: E402
from lightning_core.cloud.simulated_provisioner import SimulatedProvisioner  # noqa: E402
from lightning_core.cluster.bundle import Bundle  # noqa: E402
from lightning_core.cluster.cluster import Cluster  # noqa: E402
from lightning_core.cluster.spot_watcher import SpotWatcher  # noqa: E402
from lightning_core.core.answers import Verdict  # noqa: E402
from lightning_core.core.arrays import FloatArray  # noqa: E402
from lightning_core.core.codec import decode_event  # noqa: E402
from lightning_core.core.events import Checkpoint, ExitCause, Report, WorkerExited  # noqa: E402
from lightning_core.market import JobBatch, LastValue, Market, MarketForecaster, SpotJob, backtest  # noqa: E402
from lightning_core.market.online.node_counts import NodeCounts  # noqa: E402
from lightning_core.market.policies import SPOT_POLICIES  # noqa: E402
from lightning_core.market.traces import shipped_trace  # noqa: E402
from lightning_core.storage.journal import Journal  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MOST, POLICY = 2, "chain"
HOURS, NOTICE = 2, 5.0
# Seconds of an interval, intervals to the deadline, batches, and seeds.
SIZES: dict[Size, tuple[float, int, int, int]] = {
    "quick": (12.0, 2, 300, 1), "default": (20.0, 12, 4500, 3), "full": (20.0, 12, 4500, 10)
}  # fmt: skip
# Part of an interval in which the number of nodes changes that is left, and seconds between two saves.
KEPT, SAVES = 0.8, 5.0
# Parts of an interval that a loss costs, and days on which it is simulated.
LOSSES, DAYS = (0.25, 0.5, 0.75), 150
# Within so many seconds behind its end it is known that a node is gone.
KNOWN = 10.0


class Day(NamedTuple):
    """One seed."""

    on_time: bool
    cost: float
    simulated: float
    lossless: float
    """Simulated, with nothing lost where nodes go, and no time kept free for that."""
    alone: float
    least: float
    moves: int
    losses: int
    again: int
    batches: int
    held: list[str]
    """Spot and on-demand nodes in each interval, live and by the simulation."""
    moments: Moments


class Moments(NamedTuple):
    """What a journal says of nodes that were taken away."""

    is_safe: list[float]
    """Seconds from each notice until the checkpoint that it led to was accepted."""
    back: list[float]
    """Seconds from each end of a node without notice until a batch was done again."""
    begun: list[bool]
    """Whether each life began where an accepted checkpoint of the one before it had ended."""


def moments(journal: Path, notices: Sequence[float], ends: Sequence[float]) -> Moments:
    """Of a run of one job.

    Args:
        journal: of the run.
        notices: when it was said that a node will be taken away, in scheduler time.
        ends: when nodes went without notice.
    """
    with Journal.open(journal, read_only=True) as entries:
        story = [(entry.now, decode_event(entry.event)) for entry in entries.entries()]
    found, saves, span = Moments([], [], []), {0}, 1
    left: float | None = None  # when the job's node went
    used = -math.inf  # the notice that has led to a checkpoint
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
        said, gone = (max((one for one in several if one <= now), default=-math.inf) for several in (notices, ends))
        if event.cause is ExitCause.RELEASED:
            if now - said <= KNOWN and said > max(gone, used):
                found.is_safe.append(now - said)
                used = said
        elif now - gone <= NOTICE + KNOWN:
            left = gone
    return found


def measure(size: Size) -> Figures:
    """Live and simulated, seed by seed."""
    interval, intervals, batches, seeds = SIZES[size]
    reckoned()
    days = list[Day]()
    for seed in range(seeds):
        days.append(run_day(seed, interval, intervals, batches))
        print(f"day {seed} is over: {days[-1]}", flush=True)
    rows = [[seed, str(day.on_time), *day[1:-2]] for seed, day in enumerate(days)]
    print(f"\n{intervals} intervals of {interval:g} s, {batches} batches, at most {MOST} nodes, {POLICY}")
    header = [
        "seed",
        "on time",
        "cost",
        "simulated",
        "nothing lost",
        "on-demand",
        "at the least",
        "moves",
        "losses",
        "again",
        "batches",
    ]
    table(header, rows)
    print("\nspot nodes that there were, spot+on-demand held by interval, live and simulated; then % of the work done")
    for seed, day in enumerate(days):
        print(f"{seed:4}  " + "\n      ".join(day.held))
    beside = [day.cost / day.simulated for day in days]
    lossless = [day.cost / day.lossless for day in days]
    saved = [1 - day.cost / day.alone for day in days]
    for words, several in (("simulated", beside), ("simulated with nothing lost where nodes go", lossless)):
        ends = f"{min(several):.3f} to {max(several):.3f}"
        print(f"live cost in the {words}: median {statistics.median(several):.3f}, {ends}")
    is_safe = [seconds for day in days for seconds in day.moments.is_safe]
    back = [seconds for day in days for seconds in day.moments.back]
    for words, several in (("a notice to a safe checkpoint", is_safe), ("a node's end to a batch again", back)):
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
    """Of a day, and a day more."""
    whole = shipped_trace(interval=HOURS * 3600.0)
    start = int(np.random.default_rng(seed).integers(0, len(whole) - 2 * intervals))
    window = slice(start, start + 2 * intervals)
    return Market(whole.price[window], np.minimum(whole.available[window] // 4, MOST), seconds=interval)


def reckoned() -> None:
    """What it is worth to reckon with losses, by the simulation: every node that goes does so without notice."""
    intervals = SIZES["full"][1]
    print(f"{DAYS} days by the simulation, on which spot nodes go without notice, each time at a part of an interval")
    rows = list[list[object]]()
    for part in LOSSES:
        job = SpotJob(
            0.5 * MOST * intervals,
            intervals,
            max_nodes=MOST,
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
    table(["intervals lost", "reckoned with", "late", "cost"], rows)


def run_day(seed: int, interval: float, intervals: int, batches: int) -> Day:
    """One day."""
    market = market_of(seed, interval, intervals)
    with tempfile.TemporaryDirectory(prefix="lc-") as folder, local_machines() as machines:
        nodes = SimulatedProvisioner(machines, notice=0.0 if seed % 2 else NOTICE)
        asked = time.monotonic()
        nodes.scale_to(NodeCounts(0, 1))
        job: dict[str, Any] = {
            "seed_everything": 1,
            "model": {
                "class_path": "benchmarks.live.numbered_training.Network",
                "init_args": {"folder": folder, "pause": 0.03},
            },
            "data": {"class_path": "benchmarks.live.numbered_training.Data"},
            "trainer": {"logger": False},
            "deadline": f"{interval * intervals:.0f}s", "target": {"batches": batches},
            "min_devices": 1, "max_devices": MOST, "save_every": f"{SAVES:g}s",
        }  # fmt: skip
        pool = {"devices": 2 * MOST}
        bundle = Bundle.from_dict({"pool": pool, "policy": "fifo", "period": "0.5s", "jobs": {"a": job}}, ROOT)
        with Cluster(2 * MOST, devices=2 * MOST, min_devices=1) as cluster:
            run = SpotWatcher(
                cluster,
                nodes,
                nodes.present,
                market,
                lambda _: SPOT_POLICIES[POLICY](),
                kept_fraction=KEPT,
                setup=time.monotonic() - asked,
            )
            world = MarketReplay(nodes, market, run)
            summary = bundle.run(run_dir=Path(folder) / "run", cluster=cluster, watcher=world)
        nodes.close()
        found = moments(Path(folder) / "run" / "journal.db", world.preempted_at[: 0 if seed % 2 else None],
                        world.preempted_at[: None if seed % 2 else 0])  # fmt: skip
    [ended], [planned] = summary.jobs, run.jobs
    # In the first interval nothing was known of its speed: simulated are the others.
    first = run.rows[0]
    rest = replace(planned, work=max(planned.work - first.batches, 1.0), deadline=planned.deadline - 1)
    # Where nodes go a start is lost, and without notice what was not saved.
    gone = planned.preemption_cost - (0.0 if seed % 2 else SAVES / interval)
    simulated, lossless = (
        backtest(
            [SPOT_POLICIES[POLICY]()],
            JobBatch([job], market, [1]),
            MarketForecaster(LastValue()),
            preemption_cost=lost,
            held=(first.spot, first.on_demand),
        )[0]
        for job, lost in ((rest, gone), (replace(rest, preemption_cost=0.0), 0.0))
    )
    held = [
        "there     " + " ".join(f"{count:3}" for count in market.available[:intervals]),
        "live      " + " ".join(f"{row.spot}+{row.on_demand}" for row in run.rows),
        "simulated     "
        + " ".join(f"{spot}+{other}" for spot, other in zip(simulated.spot[0], simulated.on_demand[0], strict=True)),
        "live      " + _percents(np.cumsum([row.batches for row in run.rows]) / batches),
        "simulated     " + _percents((first.batches + simulated.progress[0]) / batches),
    ]
    others = run.reference_costs()
    assert others is not None  # its speed was measured
    return Day(
        ended.verdict is Verdict.MET, run.cost, first.cost + float(simulated.cost[0]),
        first.cost + float(lossless.cost[0]), *others,
        sum(row.incarnations for row in run.rows), sum(row.failures for row in run.rows), ended.lost_batches,
        ended.batches, held, found,
    )  # fmt: skip


def _percents(parts: FloatArray) -> str:
    return " ".join(f"{round(100 * part):3}" for part in parts)


if __name__ == "__main__":
    os.chdir(ROOT)
    main("market.spot_live", str(__doc__).partition("\n")[0], measure)
