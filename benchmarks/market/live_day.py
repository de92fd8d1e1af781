"""A compressed day of a spot market on real Ray nodes, which are processes of this machine."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lightning_core.cluster.local_machines import make_token

make_token()  # Ray reads it once, at import

from lightning_core.cluster.bundle import Bundle  # noqa: E402
from lightning_core.cluster.cluster import Cluster  # noqa: E402
from lightning_core.core.codec import decode_event  # noqa: E402
from lightning_core.core.events import (  # noqa: E402
    Checkpoint,
    ExitCause,
    PartEvent,
    Report,
    WorkerExited,
)
from lightning_core.parts.market.cloud.cloud_spec import CloudSpec  # noqa: E402
from lightning_core.parts.market.cloud.machine_notes import MachineNotes  # noqa: E402
from lightning_core.parts.market.cloud.provisioner import SPOT  # noqa: E402
from lightning_core.parts.market.cloud.rented_nodes import RentedNodes  # noqa: E402
from lightning_core.parts.market.cloud_events import NodesSeen  # noqa: E402
from lightning_core.parts.market.market_controller import MARKET, MarketController  # noqa: E402
from lightning_core.parts.market.market_ledger import MarketLedger, read_ledger  # noqa: E402
from lightning_core.parts.market.market_section import MarketSection  # noqa: E402
from lightning_core.parts.market.spot_job import SpotJob  # noqa: E402
from lightning_core.parts.market.spot_market import Market  # noqa: E402
from lightning_core.parts.market.supply import MarketSupply  # noqa: E402
from lightning_core.parts.market.traces import shipped_trace  # noqa: E402
from lightning_core.run.follow import Watcher  # noqa: E402
from lightning_core.scheduler.summary import Summary  # noqa: E402
from lightning_core.storage.journals.journal import Journal  # noqa: E402
from lightning_core.storage.journals.replay import replay  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MAX_NODES, POLICY = 2, "semi-markov"
HOURS, NOTICE = 2, 5.0
# Part that remains of an interval in which the number of nodes changes, and seconds between two checkpoints.
KEPT, SAVES = 0.8, 5.0
# Maximum seconds until it is known that a node has ended.
KNOWN = 10.0


class Moments(NamedTuple):
    """Times around preemptions, from a journal."""

    is_safe: list[float]
    """Seconds from each notice until its checkpoint was accepted."""
    back: list[float]
    """Seconds from each preemption without notice to the next batch."""
    begun: list[bool]
    """Whether each incarnation began at an accepted checkpoint."""


def market_of(seed: int, interval: float, intervals: int) -> Market:
    """Return the market of a day and the day after."""
    whole = shipped_trace(interval=HOURS * 3600.0)
    start = int(np.random.default_rng(seed).integers(0, len(whole) - 2 * intervals))
    window = slice(start, start + 2 * intervals)
    return Market(whole.price[window], np.minimum(whole.available[window] // 4, MAX_NODES), seconds=interval)


def bundle_of(folder: Path, deadline: float, batches: int) -> Bundle:
    """Return the bundle of a day: one job of so many batches, with a deadline in seconds."""
    job: dict[str, Any] = {
        "seed_everything": 1,
        "model": {
            "class_path": "benchmarks.live.numbered_training.Network",
            "init_args": {"folder": str(folder), "pause": 0.03},
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
    terms = {"trace": str(trace), "interval": market.seconds, "policies": (policy,), "kept_fraction": KEPT}
    placed = replace(bundle, supply=MarketSupply(MarketSection(terms, {}))).supplied()
    with Cluster.of(placed) as cluster:
        cloud = replace(CloudSpec.of(placed.settings, {}, cluster.name, "cpu", simulated=True), notice=notice)
        return cluster.run(placed, folder / "run", watcher, nodes=RentedNodes(cloud))


def seen_live(path: Path, market: Market) -> tuple[MarketLedger, SpotJob, list[float]]:
    """Return the ledger of a journal, its job as the market sees it, and when nodes were preempted."""
    spot, preempted_at = frozenset[str](), list[float]()
    with Journal.open(path) as journal:
        controller = replay(journal).scheduler.controllers[MARKET]
        for entry in journal.entries():
            sent = decode_event(entry.event)
            event = sent.decoded() if isinstance(sent, PartEvent) else sent
            if not isinstance(event, NodesSeen):
                continue
            gone, spot = spot - set(event.spot), frozenset(event.spot)
            interval = int(entry.now // market.seconds)
            if gone and market.available[interval] < len(gone) + len(spot):
                preempted_at.append(interval * market.seconds)
    assert isinstance(controller, MarketController)
    [planned] = controller.jobs
    return read_ledger(path), planned, preempted_at


def invoice_of(run_dir: Path, market: Market) -> float:
    """Return what the nodes of a run cost by the provisioner's own record of when each began and ended.

    Its clock is another one than the scheduler's: the first node is taken to have begun when the pool heard of it.
    """
    rows = MachineNotes(run_dir / "nodes").invoice()
    with Journal.open(run_dir / "journal.db", read_only=True) as journal:
        events = ((entry.now, decode_event(entry.event)) for entry in journal.entries())
        first = next(now for now, event in events if isinstance(event, NodesSeen) and event != NodesSeen())
    offset, cost = min(row["since"] for row in rows) - first, 0.0
    for row in rows:
        since, until = row["since"] - offset, row["until"] - offset
        for number in range(int(since // market.seconds), int(until // market.seconds) + 1):
            begins, ends = number * market.seconds, (number + 1) * market.seconds
            price = market.price[min(number, len(market) - 1)] if row["market_type"] == SPOT else market.on_demand
            cost += float(price) * (min(until, ends) - max(since, begins)) / market.seconds
    return cost


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
