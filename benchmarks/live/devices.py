"""Measure the work of two jobs, and of four, on two devices, compared with one job alone.

All jobs train the same model: one alone on one device, two on two devices, four on two devices, and one alone again.
The mean of the two solo throughputs is the reference.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.live.workloads import job, read_stamps
from lightning_core.cluster.bundle import Bundle
from lightning_core.cluster.cluster import Cluster

WIDTH = 192
# Seconds at the start of each run that are left out while jobs are built.
START = 2.0


def run_jobs(cluster: Cluster, jobs: int, devices: int, seconds: float, folder: Path) -> list[np.ndarray]:
    """Return the times of each job's batches, all under equal shares."""
    specs = {f"job{k}": job(WIDTH, folder / f"job{k}.npy", seconds + START) for k in range(jobs)}
    bundle = Bundle.from_dict({"pool": {"devices": devices}, "policy": "uniform", "jobs": specs})
    bundle.check()
    (folder / "run").mkdir(parents=True)
    cluster.run(bundle, folder / "run")
    return [read_stamps(folder / f"job{k}.npy") for k in range(jobs)]


def throughputs(stamps: list[np.ndarray]) -> list[float]:
    """Return the batches per second of each job while all of them trained.

    Raises:
        RuntimeError: If a job trained no batch in that time.
    """
    begin = max((s[0] for s in stamps if len(s)), default=0.0) + START / 2
    end = min((s[-1] for s in stamps if len(s)), default=0.0)
    done = [int(np.sum((s >= begin) & (s < end))) for s in stamps]
    if not all(done):
        raise RuntimeError(
            f"every job must train in the time that is measured, got {done} batches in {end - begin:.1f} s: run the "
            "benchmark again while the machine is less busy"
        )
    return [batches / (end - begin) for batches in done]


def measure(size: Size) -> Figures:
    """Run all four settings, print the table and return its figures."""
    seconds = {"quick": 4.0, "default": 12.0, "full": 30.0}[size]
    with Cluster(workers=4, devices=2) as cluster, tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        run_jobs(cluster, 4, 2, 1.0, folder / "warm")  # a process's first seconds are slower
        [before] = throughputs(run_jobs(cluster, 1, 1, seconds, folder / "before"))
        two = throughputs(run_jobs(cluster, 2, 2, seconds, folder / "two"))
        four = throughputs(run_jobs(cluster, 4, 2, seconds, folder / "four"))
        [after] = throughputs(run_jobs(cluster, 1, 1, seconds, folder / "after"))
    alone = (before + after) / 2
    rows = [
        ["alone, before and after", *(one / alone for one in (before, after)), "", ""],
        ["two on two devices", *(one / alone for one in two), "", ""],
        ["four on two devices", *(one / alone for one in four)],
    ]
    table(["throughput, of one job alone", "job0", "job1", "job2", "job3"], rows)
    return {
        "two_on_two": sum(two) / alone / 2,
        "four_on_two": sum(four) / alone / 2,
        "worst_half": max(abs(one / alone / 0.5 - 1) for one in four),
        "solo_drift": abs(before / after - 1),
    }


if __name__ == "__main__":
    main("live.devices", __doc__.splitlines()[0], measure)
