"""One training on nodes of a market: real raylets that are drained, killed and stopped.

Run as ``python -m tests.faults.spot FOLDER``, in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.live.numbered_training import seen_samples as seen
from benchmarks.market.spot_live import moments
from lightning_core.cloud.market_replay import MarketReplay
from lightning_core.cloud.provisioner import SPOT
from lightning_core.cloud.simulated_cloud import local_machines
from lightning_core.cloud.simulated_provisioner import SimulatedProvisioner
from lightning_core.cluster.bundle import Bundle
from lightning_core.cluster.cluster import Cluster
from lightning_core.cluster.spot_watcher import SpotWatcher
from lightning_core.core.answers import JobStatus, State
from lightning_core.market import Market
from lightning_core.market.online.node_counts import NodeCounts
from lightning_core.market.policies import SPOT_POLICIES
from tests.conftest import ROOT

INTERVAL, NOTICE, MOST = 20.0, 10.0, 2
# Spot nodes by interval: two; one (drained with notice); none; two again.
COUNTS = [2, 1, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2]
BATCHES, DEADLINE = 2300, 200.0
SAVE_EVERY = 5.0


class World(MarketReplay):
    """The market, and further faults of the nodes."""

    def __init__(self, nodes: SimulatedProvisioner, market: Market, run: SpotWatcher, found: dict[str, Any]) -> None:
        super().__init__(nodes, market, run)
        self.nodes, self.found = nodes, found
        self._killed = self._stopped = 0.0
        self._pid = 0

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        for job in jobs:
            if job.state is State.ENDED:
                continue
            # Without notice, once both are back; and one that hangs a while later, and comes back.
            if now >= 4 * INTERVAL and not self._killed and len(job.devices) == 2 and job.state is State.RUNNING:
                self._killed = self.found["killed at"] = now
                os.kill(self.nodes.processes(SPOT)[-1], signal.SIGKILL)
            self._hang(now, job)
        super().update(now, jobs)

    def _hang(self, now: float, job: JobStatus) -> None:
        if self._killed and not self._stopped and now > self._killed + 25 and len(job.devices) == 2:
            self._pid = self.nodes.processes(SPOT)[-1]
            os.kill(self._pid, signal.SIGSTOP)
            self._stopped = now
            self.found["stopped at"] = now
        if self._pid and now > self._stopped + 6:
            os.kill(self._pid, signal.SIGCONT)
            self._pid = 0


def job(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    return {
        "seed_everything": 1,
        "model": {
            "class_path": "benchmarks.live.numbered_training.Network",
            "init_args": {"folder": str(folder), "pause": 0.03},
        },
        "data": {"class_path": "benchmarks.live.numbered_training.Data"},
        "trainer": {"logger": False, "callbacks": [{"class_path": "benchmarks.live.numbered_training.Writes"}]},
        "deadline": f"{DEADLINE:.0f}s",
        "target": {"batches": BATCHES},
        "min_devices": 1,
        "max_devices": MOST,
        "save_every": f"{SAVE_EVERY:.0f}s",
    }


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    content = {"pool": {"devices": 2 * MOST}, "policy": "fifo", "period": "0.5s", "jobs": {"a": job(folder / "a")}}
    bundle = Bundle.from_dict(content, ROOT)
    market = Market(np.full(len(COUNTS), 0.4), np.array(COUNTS), seconds=INTERVAL)
    with local_machines() as machines:
        nodes = SimulatedProvisioner(machines, NOTICE)
        asked = time.monotonic()
        nodes.scale_to(NodeCounts(0, 1))
        with Cluster(2 * MOST, devices=2 * MOST, min_devices=1) as pool:
            setup = time.monotonic() - asked
            spot = SpotWatcher(
                pool,
                nodes,
                nodes.present,
                market,
                lambda _: SPOT_POLICIES["max-spot"](),
                kept_fraction=0.8,
                setup=setup,
            )
            watcher = World(nodes, market, spot, found)
            [ended] = bundle.run(run_dir=folder / "run", cluster=pool, watcher=watcher).jobs
        nodes.close()
    ends = [found[key] for key in ("killed at", "stopped at") if key in found]
    story = moments(folder / "run" / "journal.db", watcher.preempted_at, ends)
    found |= {"verdict": str(ended.verdict), "at": ended.finished_at, "restarts": ended.restarts,
              "lost": ended.lost_batches, "batches": ended.batches,
              "rows": [row._asdict() for row in spot.rows], "preempted": nodes.preempted,
              "steps": len(seen(folder / "a")), "moments": story._asdict()}  # fmt: skip
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
