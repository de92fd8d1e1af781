"""One training on nodes of a market: real raylets that are drained, killed and stopped.

Run as ``python -m tests.faults.spot FOLDER``, in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.live.numbered_training import seen_samples as seen
from benchmarks.market.live_day import moments, run_live, seen_live
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import JobStatus, State
from lightning_core.parts.market.cloud.provisioner import SPOT
from lightning_core.parts.market.spot_market import Market
from tests.builders import numbered
from tests.conftest import ROOT

INTERVAL, NOTICE, MOST = 20.0, 10.0, 2
# Spot nodes by interval: two; one (drained with notice); none; two again.
COUNTS = [2, 1, 0, *[2] * 15]
# Time for a preemption must be left until the end: a node takes about half an interval to start, which plans count.
BATCHES, DEADLINE = 2300, 320.0
SAVE_EVERY = 5.0


class Faults:
    """A watcher that kills and stops nodes.

    Args:
        nodes: Folder of the notes about the nodes.
        found: Where it notes when.
    """

    def __init__(self, nodes: Path, found: dict[str, Any]) -> None:
        self._nodes, self._found = nodes, found
        self._killed = self._stopped = 0.0
        self._pid = 0

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        for job in jobs:
            if job.state is State.ENDED:
                continue
            # Without notice, once both are back; and one that hangs a while later, and comes back.
            if now >= 4 * INTERVAL and not self._killed and len(job.devices) == 2 and job.state is State.RUNNING:
                self._killed = self._found["killed at"] = now
                os.kill(self._raylet(), signal.SIGKILL)
            self._hang(now, job)

    def close(self) -> None:
        """Leave nothing stopped."""

    def _hang(self, now: float, job: JobStatus) -> None:
        if self._killed and not self._stopped and now > self._killed + 25 and len(job.devices) == 2:
            self._pid = self._raylet()
            os.kill(self._pid, signal.SIGSTOP)
            self._stopped = self._found["stopped at"] = now
        if self._pid and now > self._stopped + 6:
            os.kill(self._pid, signal.SIGCONT)
            self._pid = 0

    def _raylet(self) -> int:
        """Return the process of the newest spot node that stays."""
        notes = [json.loads(path.read_text()) for path in sorted(self._nodes.glob("node-*.json"))]
        pid = [note["pid"] for note in notes if note["market_type"] == SPOT and note["ends_at"] is None][-1]
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def job(folder: Path) -> dict[str, Any]:
    terms = {"min_devices": 1, "max_devices": MOST, "save_every": f"{SAVE_EVERY:.0f}s"}
    return numbered(folder, f"{DEADLINE:.0f}s", BATCHES, 0.03, **terms)


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    content = {"pool": {"devices": 2 * MOST}, "policy": "fifo", "period": "0.5s", "jobs": {"a": job(folder / "a")}}
    market = Market(np.full(len(COUNTS), 0.4), np.array(COUNTS), seconds=INTERVAL)
    faults = Faults(folder / "run" / "nodes", found)
    [ended] = run_live(folder, market, Bundle.from_dict(content, ROOT), NOTICE, "max-spot", faults).jobs
    ledger, _, preempted_at = seen_live(folder / "run" / "journal.db", market)
    ends = [found[key] for key in ("killed at", "stopped at") if key in found]
    story = moments(folder / "run" / "journal.db", preempted_at, ends)
    found |= {"verdict": str(ended.verdict), "at": ended.finished_at, "restarts": ended.restarts,
              "lost": ended.lost_batches, "batches": ended.batches,
              "rows": [row._asdict() for row in ledger.rows], "preempted": len(preempted_at),
              "steps": len(seen(folder / "a")), "moments": story._asdict()}  # fmt: skip
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
