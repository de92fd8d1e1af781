"""A training that takes memory until it is refused more or killed, once; and a run of it in a limited cgroup."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lightning_core.cluster.bundle import Bundle
from tests.conftest import ROOT
from tests.tiny import Batch, Line

# Bytes that it takes at a time, and at most: it must have been stopped before.
SIP, MOST = 2**24, 6 * 2**30
# Bytes beyond what it has that a process may have of addresses, or all processes of the cgroup together.
ROOM = 400 * 2**20
THIRSTY_BATCH = 30
# Files of a cgroup that say how much memory it uses, and may use.
OF_CGROUPS_1, OF_CGROUPS_2 = ("memory.usage_in_bytes", "memory.limit_in_bytes"), ("memory.current", "memory.max")


class Thirst(Line):
    """Trains a little, then takes more and more memory; not again once it has done so.

    Args:
        marker: File that says that it has done so.
        how: ``"torch"`` or ``"python"``, whose allocator is refused memory by ``RLIMIT_AS``; ``"cuda"``, which is
            refused memory of its GPU; or ``"kernel"``, which is to kill it.
    """

    def __init__(self, marker: str, how: str) -> None:
        super().__init__(pause=0.01)
        self.marker, self.how = Path(marker), how

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.steps == THIRSTY_BATCH and not self.marker.exists():
            self.marker.touch()
            if self.how == "kernel":
                drink("torch")
            with limited_on_gpu() if self.how == "cuda" else limited():
                drink(self.how)
        return loss


def drink(how: str) -> None:
    """Take memory until there is none."""
    taken: list[Any] = []
    while len(taken) * SIP < MOST:
        if how == "python":
            taken.append(bytearray(b"x") * SIP)
        else:
            taken.append(torch.ones(SIP, dtype=torch.uint8, device="cuda" if how == "cuda" else "cpu"))
        time.sleep(0.002)
    raise AssertionError(f"it was given {MOST:,} bytes")


@contextmanager
def limited() -> Iterator[None]:
    """Let this process have little more of addresses than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def limited_on_gpu() -> Iterator[None]:
    """Let this process have little more of its GPU's memory than it has."""
    most = torch.cuda.memory_reserved() + ROOM
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.mem_get_info()[1])
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def bundle(folder: Path, how: str) -> Bundle:
    """Return a job that runs out of memory, and one that shares its device and soon makes room for it."""
    common: dict[str, Any] = {"data": {"class_path": "tests.tiny.Points"}, "trainer": {"logger": False}}
    model = {"class_path": "tests.faults.thirst.Thirst", "init_args": {"marker": str(folder / "marker"), "how": how}}
    other = {"class_path": "tests.tiny.Line", "init_args": {"pause": 0.01}}
    jobs = {
        "thirsty": {**common, "model": model, "target": {"batches": 150}, "deadline": "300s"},
        "other": {**common, "model": other, "target": {"batches": 600}, "deadline": "300s"},
    }
    pool = {"kind": "gpu" if how == "cuda" else "cpu"}
    made = Bundle.from_dict({"pool": pool, "policy": "uniform", "period": "0.5s", "jobs": jobs}, ROOT)
    return replace(made, settings=replace(made.settings, stay=0.5))


def main(folder: Path, group: Path) -> None:
    """Run both jobs in a cluster whose processes are all in one cgroup, which is limited once they are up."""
    import ray

    from lightning_core.cluster.cluster import Cluster
    from lightning_core.cluster.ray_cluster import start_local_ray

    with tempfile.TemporaryDirectory(prefix="lc-") as temp:
        start_local_ray(Path(temp), devices=1)
        try:
            with Cluster(workers=2) as cluster:
                first_version = (group / "memory.limit_in_bytes").exists()
                used, limit = OF_CGROUPS_1 if first_version else OF_CGROUPS_2
                (group / limit).write_text(str(int((group / used).read_text()) + ROOM))
                summary = bundle(folder, "kernel").run(run_dir=folder / "run", cluster=cluster)
        finally:
            ray.shutdown()
    (folder / "verdicts.json").write_text(json.dumps({job.name: str(job.verdict) for job in summary.jobs}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
