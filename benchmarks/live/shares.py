"""Measure whether a job gets its share: its progress on a shared device, compared with share times solo throughput.

Each mix of shares is run three times in the same warm workers: every job alone, one after the other; all together under
fixed shares; every job alone again. The mean of the two solo throughputs is the reference. While one job trains alone
the others are held, which shows what a held job costs and how soon a grant acts.
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import ray

from benchmarks.common import Figures, Size, main, table
from benchmarks.live.workloads import job, read_stamps
from lightning_core.cluster.bundle import Bundle
from lightning_core.cluster.cluster import Cluster
from lightning_core.core.answers import JobStatus
from lightning_core.core.jobs import Beside

# Seconds over which a share must hold.
WINDOW = 10.0
# Seconds after a job's start that are left out, and seconds for which each job warms its process up.
START, WARM_UP = 0.5, 0.5
# Hidden units of each job: batches of different length.
WIDTHS = (128, 256, 192, 320, 160)


class Alone(NamedTuple):
    """Results of a run of every job alone, one after the other."""

    throughputs: list[float]
    reaction: float
    """Longest time from a changed grant to the last batch of the job that stops or the first of the next one."""
    held_cpu: float
    """Cores that a held worker used beyond an idle one."""


class _Offset:
    """A watcher that measures by how much the monotonic clock is ahead of scheduler time."""

    def __init__(self) -> None:
        self.seconds = np.inf

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        self.seconds = min(self.seconds, time.monotonic() - now)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def run_alone(cluster: Cluster, jobs: int, seconds: float, folder: Path) -> tuple[list[np.ndarray], list[float]]:
    """Run every job alone under fifo: each ends at its deadline, and the next one is granted the device.

    Returns:
        The times of each job's batches, and when each job ended, both in scheduler time.
    """
    names = [f"job{k}" for k in range(jobs)]
    specs = {n: job(WIDTHS[k], folder / f"{n}.npy", seconds * (k + 1)) for k, n in enumerate(names)}
    offset = _Offset()
    bundle = Bundle.from_dict({"policy": "fifo", "period": "1s", "jobs": specs})
    bundle.check()
    (folder / "run").mkdir(parents=True)
    summary = cluster.run(bundle, folder / "run", offset)
    stamps = [read_stamps(folder / f"{name}.npy") - offset.seconds for name in names]
    return stamps, [float(status.finished_at or 0.0) for status in summary.jobs]


def alone(cluster: Cluster, jobs: int, seconds: float, folder: Path) -> Alone:
    """Measure every job alone, and what the last one costs while it is held.

    Raises:
        RuntimeError: If a job trained no two batches between its start and its end.
    """
    # The last worker has no job: it is the idle one to compare with. The last job is held until the others have ended.
    pids: list[int] = ray.get(cluster.pool_manager.pids.remote())
    held, idle = psutil.Process(pids[jobs - 1]), psutil.Process(pids[-1])
    used: list[float] = []

    def watch_cpu() -> None:
        time.sleep(1.0)  # past the start
        before = [sum(p.cpu_times()[:2]) for p in (held, idle)]
        start = time.monotonic()
        time.sleep(max(seconds * (jobs - 1) - 1.5, 0.5))
        after = [sum(p.cpu_times()[:2]) for p in (held, idle)]
        used.append(((after[0] - before[0]) - (after[1] - before[1])) / (time.monotonic() - start))

    thread = threading.Thread(target=watch_cpu)
    thread.start()
    stamps, ends = run_alone(cluster, jobs, seconds, folder)
    thread.join()
    throughputs, reactions = [], []
    for k, times in enumerate(stamps):
        steady = times[(times > seconds * k + START) & (times < ends[k])]
        if len(steady) < 2:
            raise RuntimeError(
                f"job{k} must train at least 2 batches between {START:g} s and {seconds:g} s after its start, trained "
                f"{len(steady)}: run the benchmark again while the machine is less busy"
            )
        throughputs.append((len(steady) - 1) / (steady[-1] - steady[0]))
        reactions.append(max(times[-1] - ends[k], 0.0))
        if k:
            reactions.append(times[0] - ends[k - 1])
    return Alone(throughputs, max(reactions), used[0])


def together(cluster: Cluster, shares: list[float], seconds: float, folder: Path) -> list[np.ndarray]:
    """Run all jobs under fixed shares and return the times at which each job's batches ended."""
    specs = {f"job{k}": job(WIDTHS[k], folder / f"job{k}.npy", seconds) for k in range(len(shares))}
    bundle = Bundle.from_dict({"policy": {"name": "fixed", "shares": shares}, "jobs": specs})
    bundle = replace(bundle, settings=replace(bundle.settings, beside=Beside.NEVER))
    bundle.check()
    (folder / "run").mkdir(parents=True)
    cluster.run(bundle, folder / "run")
    return [read_stamps(folder / f"job{k}.npy") for k in range(len(shares))]


def measure_shares(cluster: Cluster, shares: list[float], solo: float, shared: float) -> dict[str, float]:
    """Return the worst share error over any ten seconds, device use, reaction and the cost of being held."""
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        run_alone(cluster, len(shares), WARM_UP, folder / "warm")  # a process's first seconds are slower
        before = alone(cluster, len(shares), solo, folder / "before")
        stamps = together(cluster, shares, shared, folder / "together")
        after = alone(cluster, len(shares), solo, folder / "after")
    solos = [(a + b) / 2 for a, b in zip(before.throughputs, after.throughputs, strict=True)]
    begin, end = max(s[0] for s in stamps) + START, min(s[-1] for s in stamps)
    starts = np.linspace(begin, end - WINDOW, 20)
    done = np.array([[np.sum((s >= t) & (s < t + WINDOW)) / (r * WINDOW) for s, r in zip(stamps, solos, strict=True)]
                     for t in starts])  # fmt: skip
    error = np.abs(done / np.array(shares) - 1)
    print(f"\nshares {shares}: work done {np.round(done.mean(0), 3).tolist()}, of the device {done.sum(1).mean():.3f}")
    drift = max(abs(a / b - 1) for a, b in zip(before.throughputs, after.throughputs, strict=True))
    return {
        "jobs": len(shares),
        "share_error": float(error.max()),
        "device_use": float(done.sum(1).min()),
        "reaction_s": max(before.reaction, after.reaction),
        "held_cpu": (before.held_cpu + after.held_cpu) / 2,
        "solo_drift": drift,
    }


def measure(size: Size) -> Figures:
    """Run every mix of shares of a size, and return the worst figures."""
    mixes = {
        "quick": [[0.5, 0.3, 0.2]],
        "default": [[0.7, 0.3], [0.5, 0.3, 0.2], [0.4, 0.25, 0.15, 0.1, 0.1]],
        "full": [[0.5, 0.5], [0.7, 0.3], [0.9, 0.1], [0.5, 0.3, 0.2], [0.4, 0.3, 0.2, 0.1], [0.2] * 5,
                 [0.4, 0.25, 0.15, 0.1, 0.1]],
    }[size]  # fmt: skip
    solo, shared = {"quick": (1.4, 11.0), "default": (3.0, 16.0), "full": (5.0, 30.0)}[size]
    with Cluster(workers=max(map(len, mixes)) + 1) as cluster:
        rows = [measure_shares(cluster, shares, solo, shared) for shares in mixes]
    print()
    table(list(rows[0]), [list(row.values()) for row in rows])
    return {
        "worst_share_error": max(row["share_error"] for row in rows),
        "device_use": min(row["device_use"] for row in rows),
        "reaction_s": max(row["reaction_s"] for row in rows),
        "held_cpu": max(row["held_cpu"] for row in rows),
    }


if __name__ == "__main__":
    main("live.shares", __doc__.splitlines()[0], measure)
