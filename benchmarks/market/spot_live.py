"""Run compressed days of a spot market on real Ray nodes, and compare punctuality and cost with virtual time.

The nodes are processes of this machine. An interval of some seconds stands for two hours of a recording of A100 cards,
with a quarter of the lowest number in them, at most two. The policy decides in each interval by what was really
trained. Nodes are preempted with some seconds' notice on even seeds, and without on odd ones. Each day is simulated
in virtual time by the same scheduler, several times, with the delays and the throughput that were measured; beside it
stand a backtest from the second interval on that knows both from the start, and on-demand nodes alone. Costs are those
of each node from its launch to its end, also of those that are there beside their replacement. The ledger is compared
with the provisioner's own record of its nodes.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.market.live_day import (
    KEPT,
    MAX_NODES,
    NOTICE,
    POLICY,
    ROOT,
    SAVES,
    Moments,
    bundle_of,
    invoice_of,
    market_of,
    moments,
    run_live,
    seen_live,
)
from benchmarks.market.virtual_day import Decision, LiveDay, decisions, differences
from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import FloatArray
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES
from lightning_core.storage.atomic_files import write_whole

# Seconds of an interval, intervals to the deadline, batches, and seeds. A node and a worker on it start in 6 to 15 s.
SIZES: dict[Size, tuple[float, int, int, int]] = {
    "quick": (30.0, 4, 1200, 1), "default": (40.0, 12, 9000, 3), "full": (40.0, 12, 9000, 10)
}  # fmt: skip
# Parts of an interval that a preemption costs, how much more may be expected, and days that are simulated.
LOSSES, EXCESS, DAYS = (0.25, 0.5, 0.75), 0.25, 150
# Days in virtual time for each live one, and the largest relative difference of its cost from their mean that needs no
# explanation.
VIRTUAL_DAYS, CLOSE = 20, 0.1


class Day(NamedTuple):
    """Result of one seed."""

    on_time: bool
    cost: float
    invoice: float
    """The same by the provisioner's record of its nodes."""
    simulated: float
    """Mean cost of the days in virtual time."""
    smallest: float
    """The smallest of them."""
    largest: float
    """The largest one."""
    known: float
    """Cost of a backtest that knows all from the start, after the first interval."""
    alone: float
    least: float
    moves: int
    losses: int
    again: int
    batches: int
    held: list[str]
    """Spot and on-demand nodes in each interval, live and in virtual time at the medians of the delays."""
    moments: Moments
    differs: list[str]
    """Where the decisions differ from those in virtual time, or what came of them, by interval."""

    @classmethod
    def of(cls, body: dict[str, Any]) -> Day:
        """Return the day whose fields were written as JSON values."""
        return cls(**body | {"moments": Moments(*body["moments"])})

    @property
    def is_close(self) -> bool:
        """Whether the live cost is close to the simulated one."""
        return abs(self.cost / self.simulated - 1) <= CLOSE


def measure(size: Size, folder: Path | None = None) -> Figures:
    """Run and simulate all seeds, print the tables and return the figures; days that are in the folder are not run."""
    interval, intervals, batches, seeds = SIZES[size]
    if size != "quick":
        print_preemption_costs()
    days = list[Day]()
    for seed in range(seeds):
        kept = None if folder is None else folder / f"{size}-{seed}.json"
        if kept is not None and kept.exists():
            days.append(Day.of(json.loads(kept.read_text())))
        else:
            days.append(run_day(seed, interval, intervals, batches))
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_whole(kept, json.dumps(days[-1]._asdict(), indent=1) + "\n")
        print_day(seed, days[-1])
    rows = [[seed, str(day.on_time), *day[1:13]] for seed, day in enumerate(days)]
    print(f"\n{intervals} intervals of {interval:g} s, {batches} batches, at most {MAX_NODES} nodes, policy {POLICY}")
    header = [
        "seed",
        "on time",
        "cost",
        "invoice",
        "simulated",
        "smallest",
        "largest",
        "all known",
        "on-demand only",
        "optimum",
        "moves",
        "failures",
        "batches again",
        "batches",
    ]
    table(header, rows)
    beside = [day.cost / day.simulated for day in days]
    known = [day.cost / day.known for day in days]
    saved = [1 - day.cost / day.alone for day in days]
    for words, several in (("the simulated cost", beside), ("that with all known from the start", known)):
        ends = f"{min(several):.3f} to {max(several):.3f}"
        print(f"live cost as a multiple of {words}: median {statistics.median(several):.3f}, {ends}")
    ledger = [day.cost / day.invoice for day in days]
    print(f"ledger as a multiple of the invoice: {min(ledger):.3f} to {max(ledger):.3f}")
    print(f"days within {CLOSE:.0%} of the simulated cost: {sum(day.is_close for day in days)} of {len(days)}")
    _print_moments([day.moments for day in days])
    return {
        "live_on_time_pct": 100 * statistics.mean(day.on_time for day in days),
        "live_cost_in_simulated": statistics.median(beside),
        "live_cost_in_simulated_min": min(beside),
        "live_cost_in_simulated_max": max(beside),
        "live_ledger_in_invoice_min": min(ledger),
        "live_ledger_in_invoice_max": max(ledger),
        "live_cost_in_known": statistics.median(known),
        "live_close_pct": 100 * statistics.mean(day.is_close for day in days),
        "live_saved_pct": 100 * statistics.median(saved),
    }


def print_day(seed: int, day: Day) -> None:
    """Print what a day held, and why its cost is not close to the simulated one if it is not."""
    words = f"within {CLOSE:.0%}" if day.is_close else f"not within {CLOSE:.0%}"
    costs = f"cost {day.cost:.4g}, simulated {day.simulated:.4g} ({day.smallest:.4g} to {day.largest:.4g})"
    print(f"\nday {seed}: {costs}, {day.cost / day.simulated:.3f}: {words}")
    print("spot nodes available, spot+on-demand nodes held by interval, and % of the work done")
    print("  " + "\n  ".join(day.held))
    if not day.is_close:
        print("where live and simulated part, by interval:\n  " + "\n  ".join(day.differs or ["nowhere"]))
        if day.smallest <= day.cost <= day.largest:
            print("  some simulated days cost as much: the plans were close to one another", flush=True)


def _print_moments(found: Sequence[Moments]) -> None:
    is_safe = [seconds for one in found for seconds in one.is_safe]
    back = [seconds for one in found for seconds in one.back]
    for words, several in (
        ("a notice to a safe checkpoint", is_safe),
        ("a preemption without notice to the next batch", back),
    ):
        if several:
            print(f"from {words}: median {statistics.median(several):.1f} s, worst {max(several):.1f} s, "
                  f"of {len(several)}")  # fmt: skip
    # No incarnation went on from a checkpoint that had not been accepted.
    assert all(all(one.begun) for one in found)


def print_preemption_costs() -> None:
    """Print simulated days without notices, with and without a policy that expects preemptions, or too much of them."""
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
        for words, preemption_cost in (("yes", part), ("too much", part + EXCESS), ("no", 0.0)):
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
        summary = run_live(Path(folder), market, bundle_of(Path(folder), interval * intervals, batches), notice)
        return compare(Path(folder) / "run", summary.jobs[0].verdict is Verdict.MET, market, notice)


def compare(run_dir: Path, on_time: bool, market: Market, notice: float) -> Day:
    """Simulate a day that was run live, and return what it was beside the simulation.

    Args:
        run_dir: Its folder; the journal of the simulation is written into it.
        on_time: Whether the job was on time.
        market: Its market.
        notice: Seconds from a preemption notice to the end of a node; 0 for none.
    """
    journal = run_dir / "journal.db"
    run, planned, preempted_at = seen_live(journal, market)
    found = moments(journal, preempted_at if notice else [], [] if notice else preempted_at)
    beside, day = journal.with_name("virtual.db"), LiveDay(journal, market, notice)
    median = day.measured.medians()
    day.play(median, beside)
    costs = day.costs(VIRTUAL_DAYS)
    live, virtual = decisions(journal), decisions(beside)
    hand_over = min((median.release + median.start) / market.seconds, planned.launch)
    known = _backtest(
        replace(planned, hand_over_time=hand_over), market, live[0], 0.0 if notice else SAVES / market.seconds
    )
    lines = [
        "available " + " ".join(f"{count:3}" for count in market.available[: len(live)]),
        *(f"{name:10}" + " ".join(f"{one.held.spot}+{one.held.on_demand}" for one in several)
          for name, several in (("live", live), ("simulated", virtual))),
        *(f"{name:10}" + _percents(np.cumsum([one.batches for one in several]) / planned.work)
          for name, several in (("live", live), ("simulated", virtual))),
    ]  # fmt: skip
    others = run.references
    assert others is not None  # its throughput was measured
    return Day(
        on_time, run.cost, invoice_of(run_dir, market), statistics.mean(costs), min(costs), max(costs), known, *others,
        sum(row.incarnations for row in run.rows), sum(row.failures for row in run.rows),
        sum(row.lost for row in run.rows), sum(row.batches for row in run.rows), lines, found,
        list(differences(live, virtual, planned.work)),
    )  # fmt: skip


def _backtest(planned: SpotJob, market: Market, first: Decision, unsaved: float) -> float:
    """Return what the first interval cost, and then a job whose throughput and start-up are known.

    Args:
        planned: The job as the market saw it at last.
        market: The market.
        first: The first interval as it was.
        unsaved: Fraction of an interval that is not saved when nodes are preempted.
    """
    rest = replace(planned, work=max(planned.work - first.batches, 1.0), deadline=planned.deadline - 1)
    # A preemption costs a start, and without notice what was not saved.
    start = planned.preemption_cost - SAVES / market.seconds
    batch, forecasts = JobBatch([rest], market, [1]), MarketForecaster(LastValue())
    policies, held = [SPOT_POLICIES[POLICY]()], (first.held.spot, first.held.on_demand)
    [ledger] = backtest(policies, batch, forecasts, preemption_cost=start + unsaved, held=held)
    return first.cost + float(ledger.cost[0])


def _percents(parts: FloatArray) -> str:
    return " ".join(f"{round(100 * part):3}" for part in parts)


if __name__ == "__main__":
    os.chdir(ROOT)
    main("market.spot_live", str(__doc__).partition("\n")[0], measure, folder=None)
