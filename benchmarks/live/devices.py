"""Two devices: do two jobs side by side do the work of two, and four that share them their halves?

The same model all over: alone on one device, two on two devices, four on two devices, alone again. The mean of the two
solo rates is the yardstick.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.live.workloads import job
from lightning_core.cluster.bundle import Bundle
from lightning_core.cluster.cluster import Cluster

WIDTH = 192
# Of each run, seconds left out at the beginning: jobs are built, and beside each other.
START = 2.0


def rates(cluster: Cluster, jobs: int, devices: int, seconds: float, folder: Path) -> list[float]:
    """Batches a second of each job, all under equal shares."""
    specs = {f"job{k}": job(WIDTH, folder / f"job{k}.npy", seconds + START) for k in range(jobs)}
    bundle = Bundle.from_dict({"pool": {"devices": devices}, "policy": "uniform", "jobs": specs})
    bundle.check()
    (folder / "run").mkdir(parents=True)
    cluster.run(bundle, folder / "run")
    stamps = [np.load(folder / f"job{k}.npy") for k in range(jobs)]
    begin, end = max(s[0] for s in stamps) + START / 2, min(s[-1] for s in stamps)
    return [float(np.sum((s >= begin) & (s < end)) / (end - begin)) for s in stamps]


def measure(size: Size) -> Figures:
    seconds = {"quick": 4.0, "default": 12.0, "full": 30.0}[size]
    with Cluster(workers=4, devices=2) as cluster, tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        rates(cluster, 4, 2, 1.0, folder / "warm")  # a process's first seconds are slower: thrown away
        [before] = rates(cluster, 1, 1, seconds, folder / "before")
        two = rates(cluster, 2, 2, seconds, folder / "two")
        four = rates(cluster, 4, 2, seconds, folder / "four")
        [after] = rates(cluster, 1, 1, seconds, folder / "after")
    alone = (before + after) / 2
    rows = [
        ["alone, before and after", *(rate / alone for rate in (before, after)), "", ""],
        ["two on two devices", *(rate / alone for rate in two), "", ""],
        ["four on two devices", *(rate / alone for rate in four)],
    ]
    table(["progress of what one does alone", "job0", "job1", "job2", "job3"], rows)
    return {
        "two_on_two": sum(two) / alone / 2,
        "four_on_two": sum(four) / alone / 2,
        "worst_half": max(abs(rate / alone / 0.5 - 1) for rate in four),
        "solo_drift": abs(before / after - 1),
    }


if __name__ == "__main__":
    main("live.devices", __doc__.splitlines()[0], measure)
