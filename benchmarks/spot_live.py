"""A compressed day on real raylets that come and go: is it in time, and does it cost what the simulation says?

A training whose nodes are processes of this machine is given slots of some seconds from a recording of A100 cards, of
which a quarter counts, two at most. Its policy decides slot by slot by what it has really trained. Beside it the same
slots played by the simulation, at the speed that was measured, and what on-demand nodes alone would have cost.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Figures, Size, main, table
from lightning_core.launch.machines import local_machines, make_token

make_token()  # Ray looks for it once, when it is imported

from lightning_core.launch.bundle import Bundle  # noqa: E402
from lightning_core.launch.cluster import Cluster  # noqa: E402
from lightning_core.launch.provision import LocalNodes  # noqa: E402
from lightning_core.launch.spot import MadeUp, SpotRun  # noqa: E402
from lightning_core.market import Batch, Foreseen, LastValue, Market, play  # noqa: E402
from lightning_core.market.live import Nodes  # noqa: E402
from lightning_core.market.policies import SPOT_POLICIES  # noqa: E402
from lightning_core.market.traces import shipped  # noqa: E402
from lightning_core.types import Verdict  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
MOST, POLICY = 2, "chain"
# Seconds of a slot, slots to the deadline, batches, and seeds.
SIZES: dict[Size, tuple[float, int, int, int]] = {
    "quick": (12.0, 2, 150, 1), "default": (20.0, 8, 2000, 3), "full": (20.0, 8, 2000, 10)
}  # fmt: skip
# Part of a slot in which the number of nodes changes that is left, and batches a second on a device, to begin with.
KEPT, FIRST = 0.8, 14.0


class Day(NamedTuple):
    """One seed."""

    on_time: bool
    cost: float
    simulated: float
    alone: float
    moves: int
    losses: int
    again: int
    batches: int


def measure(size: Size) -> Figures:
    """Live and simulated, seed by seed."""
    slot, slots, batches, seeds = SIZES[size]
    days = [lived(seed, slot, slots, batches) for seed in range(seeds)]
    rows = [[seed, str(day.on_time), *day[1:]] for seed, day in enumerate(days)]
    print(f"\n{slots} slots of {slot:g} s, {batches} batches, at most {MOST} nodes, {POLICY}")
    table(["seed", "on time", "cost", "simulated", "on-demand", "moves", "losses", "again", "batches"], rows)
    beside = [day.cost / day.simulated for day in days]
    saved = [1 - day.cost / day.alone for day in days]
    print(f"live cost in the simulated: median {statistics.median(beside):.3f}, {min(beside):.3f} to {max(beside):.3f}")
    return {
        "live_on_time_pct": 100 * statistics.mean(day.on_time for day in days),
        "live_cost_in_simulated": statistics.median(beside),
        "live_saved_pct": 100 * statistics.median(saved),
    }


def lived(seed: int, slot: float, slots: int, batches: int) -> Day:
    """One day."""
    whole = shipped()
    start = int(np.random.default_rng(seed).integers(0, len(whole) - 2 * slots))
    window = slice(start, start + 2 * slots)
    market = Market(whole.price[window], np.minimum(whole.available[window] // 4, MOST), seconds=slot)
    with tempfile.TemporaryDirectory(prefix="lc-") as folder, local_machines() as machines:
        nodes = LocalNodes(machines, notice=5.0)
        nodes.want(Nodes(0, 1))
        job: dict[str, Any] = {
            "seed_everything": 1,
            "model": {"class_path": "benchmarks.resize.Network", "init_args": {"folder": folder, "pause": 0.03}},
            "data": {"class_path": "benchmarks.resize.Data"},
            "trainer": {"logger": False},
            "deadline": f"{slot * slots:.0f}s", "target": {"batches": batches},
            "min_devices": 1, "max_devices": MOST, "save_every": "5s",
        }  # fmt: skip
        pool = {"devices": 2 * MOST}
        bundle = Bundle.from_dict({"pool": pool, "policy": "fifo", "period": "0.5s", "jobs": {"a": job}}, ROOT)
        with Cluster(2 * MOST, devices=2 * MOST, least=1) as cluster:
            run = SpotRun(
                cluster, nodes, nodes.there, market, lambda _: SPOT_POLICIES[POLICY](), kept=KEPT, first=FIRST
            )
            summary = bundle.run(run_dir=Path(folder) / "run", cluster=cluster, watcher=MadeUp(nodes, market, run))
        nodes.close()
    [ended], [planned] = summary.jobs, run.jobs
    policy = [SPOT_POLICIES[POLICY]()]
    [ledger] = play(policy, Batch([planned], market, [0]), Foreseen(LastValue()))
    others = run.beside_others()
    assert others is not None  # its speed was measured
    return Day(
        ended.verdict is Verdict.MET, run.cost, float(ledger.cost[0]), others[0], sum(row.moves for row in run.rows),
        sum(row.losses for row in run.rows), ended.lost, ended.batches,
    )  # fmt: skip


if __name__ == "__main__":
    os.chdir(ROOT)
    main("spot_live", str(__doc__).partition("\n")[0], measure)
