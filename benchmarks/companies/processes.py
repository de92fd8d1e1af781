"""Measure what trainings in real processes do at once on a CPU device of two cores, compared with turns.

Four trainings of one thread each share a device under a pool, once as they are (``beside`` is ``auto``) and once in
turns, in the same warm workers; then they are started without any pool. Two trainings that use both cores do the same.
Work is counted in batches, each as a part of what its training does while it has the device to itself: the median time
from one batch to the next in turns. Nothing is known at first, so that the trials count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import Figures, Size, table
from benchmarks.live.workloads import Stamps, read_stamps
from lightning_core.cluster.bundle import Bundle
from lightning_core.cluster.cluster import Cluster
from lightning_core.core.answers import Grant
from lightning_core.core.codec import decode_answers
from lightning_core.core.jobs import Beside
from lightning_core.scheduler.company.forming import TRIED
from lightning_core.storage.journals.journal import Journal

ROOT = Path(__file__).resolve().parents[2]
CORES = 2
# Seconds at the start of each run that are left out while jobs are built.
START = 1.5
NARROW = ("Narrow1", "Narrow2", "Narrow3", "Narrow4")
BROAD = ("Broad1", "Broad2")
Batch = tuple[torch.Tensor, torch.Tensor]


class Work(pl.LightningModule):
    """A multi-layer perceptron; batches of a few milliseconds.

    Attributes:
        rows: Samples in a batch, and width of the hidden layers, which determine the time per batch.
        threads: Threads that the user has set.
    """

    rows, width, threads = 256, 256, 1

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(self.threads)
        layers = (nn.Linear(64, self.width), nn.ReLU(), nn.Linear(self.width, self.width), nn.ReLU())
        self.net = nn.Sequential(*layers, nn.Linear(self.width, 1))

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        inputs, wanted = batch
        return nn.functional.mse_loss(self.net(inputs), wanted)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        draw = torch.Generator().manual_seed(0)
        data = torch.randn(8, self.rows, 64, generator=draw), torch.randn(8, self.rows, 1, generator=draw)
        return DataLoader(TensorDataset(*data), batch_size=None)


class Narrow1(Work):
    """A training of one thread."""


class Narrow2(Work):
    """A training of one thread with larger batches."""

    rows = 384


class Narrow3(Work):
    """A training of one thread with wider layers."""

    width = 320


class Narrow4(Work):
    """A training of one thread with smaller batches."""

    rows, width = 192, 288


class Broad1(Work):
    """A training of two threads, which are faster than one."""

    rows, width, threads = 512, 1024, 2


class Broad2(Work):
    """A training of two threads with smaller batches."""

    rows, width, threads = 384, 1024, 2


class Run(NamedTuple):
    """One run of some trainings."""

    stamps: dict[str, np.ndarray]
    """Times at which each training's batches ended, in seconds."""
    stood: float | None = None
    """Seconds from the submission until all train beside another; None if they never do."""
    tried: float = 0.0
    """Part of the time of the trainings in trials: the first seconds of each company that was not there before."""


def managed(cluster: Cluster, kinds: tuple[str, ...], seconds: float, folder: Path, beside: Beside) -> Run:
    """Run trainings under the pool."""
    folder.mkdir(parents=True)
    jobs = {kind.lower(): _job(kind, folder / f"{kind}.npy", seconds) for kind in kinds}
    read = Bundle.from_dict({"pool": {"devices": 1, "cores": CORES}, "policy": "uniform", "jobs": jobs}, ROOT)
    bundle = Bundle(read.jobs, replace(read.settings, beside=beside), folder=ROOT)
    (folder / "run").mkdir()
    cluster.run(bundle, folder / "run")
    stamps = {kind: read_stamps(folder / f"{kind}.npy") for kind in kinds}
    return Run(stamps, *_companies(folder / "run" / "journal.db", len(kinds)))


def _job(kind: str, stamps: Path, seconds: float) -> dict[str, Any]:
    return {
        "model": {"class_path": f"benchmarks.companies.processes.{kind}"},
        "trainer": {
            "logger": False,
            "callbacks": [{"class_path": "benchmarks.live.workloads.Stamps", "init_args": {"path": str(stamps)}}],
        },
        "deadline": f"{seconds + START:.3f}s",
        "target": {"batches": 10**9},
        "on_miss": "stop",
    }


def _companies(path: Path, jobs: int) -> tuple[float | None, float]:
    """Return when all trained beside another, and the part of their time in the first seconds of a new company."""
    held, changes = dict[str, int](), list[tuple[float, dict[str, int]]]()
    with Journal.open(path, read_only=True) as journal:
        for entry in journal.entries():
            held = held | {one.job: one.beside for one in decode_answers(entry.answers) if isinstance(one, Grant)}
            if not changes or changes[-1][1] != held:
                changes.append((entry.now, held))
        last = entry.now
    stood, tried, seen = None, 0.0, dict[frozenset[str], float]()
    for (since, now), (until, _) in zip(changes, [*changes[1:], (last, {})], strict=True):
        groups = {frozenset(job for job, other in now.items() if other == group) for group in now.values() if group}
        for group in groups:
            known = seen.get(group, 0.0)
            tried += len(group) * min(until - since, max(TRIED - known, 0.0))
            seen[group] = known + until - since
        if stood is None and sum(map(len, groups)) == jobs:
            stood = since
    return stood, tried / (jobs * last)


def unmanaged(kinds: tuple[str, ...], seconds: float, folder: Path) -> Run:
    """Start trainings without any pool, all at once."""
    folder.mkdir(parents=True)
    line = [sys.executable, "-m", "benchmarks.companies.processes", "--train"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LIGHTNING_CORE_")}
    processes = [
        subprocess.Popen(
            [*line, kind, str(folder / f"{kind}.npy"), str(seconds)], cwd=ROOT, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        for kind in kinds
    ]  # fmt: skip
    for process in processes:  # all have imported what they need
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
    return Run({kind: read_stamps(folder / f"{kind}.npy") for kind in kinds})


def train(kind: str, stamps: str, seconds: str) -> None:
    """Train as a user's script does, which knows of no pool."""
    model = globals()[kind]()
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
                             "enable_model_summary": False}  # fmt: skip
    trainer = pl.Trainer(
        max_epochs=-1, accelerator="cpu", callbacks=[Stamps(stamps)], max_time={"seconds": int(float(seconds))}, **quiet
    )
    print(flush=True)
    sys.stdin.readline()
    trainer.fit(model)


def batch_seconds(stamps: np.ndarray) -> float:
    """Return the median time from one batch to the next: in turns, that of a training that has the device."""
    return float(np.median(np.diff(stamps)))


def work(run: Run, lone: dict[str, float], seconds: float = np.inf) -> float:
    """Return the work of all trainings per second, as a multiple of one alone, while all of them trained."""
    begin = max(stamps[0] for stamps in run.stamps.values()) + START / 2
    end = min(min(stamps[-1] for stamps in run.stamps.values()), begin + seconds)
    done = {kind: int(np.sum((stamps >= begin) & (stamps < end))) for kind, stamps in run.stamps.items()}
    return float(sum(count * lone[kind] for kind, count in done.items()) / (end - begin))


def faster_with_two_threads() -> float:
    """Return how many times faster a training is with two threads than with one, in a process like a worker."""
    line = [sys.executable, "-m", "benchmarks.companies.processes", "--threads"]
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def compare_threads() -> float:
    """Return how many times faster a training is with two threads than with one."""
    taken = dict[int, list[float]]()
    model = Broad1()
    inputs, wanted = next(iter(model.train_dataloader()))
    for threads in (1, 2) * 4:
        torch.set_num_threads(threads)
        stamps = list[float]()
        for _ in range(12):
            model.training_step((inputs, wanted), 0).backward()  # type: ignore[no-untyped-call]
            stamps.append(time.perf_counter())
        taken.setdefault(threads, []).append(batch_seconds(np.array(stamps[2:])))
    one, two = median(taken[1]), median(taken[2])
    return one / two


def measure(size: Size) -> Figures:
    """Run everything, print the tables and return the figures."""
    rounds, short, long = {"quick": (1, 4.0, 15.0), "default": (3, 8.0, 30.0), "full": (5, 12.0, 90.0)}[size]
    found: dict[str, list[float]] = {}
    rows = list[list[object]]()
    found["two_threads"] = [faster_with_two_threads()]
    with Cluster(workers=len(NARROW), devices=1, cores=CORES) as cluster, tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        managed(cluster, NARROW, 1.0, folder / "warm", Beside.NEVER)  # a process's first seconds are slower
        for number in range(rounds):
            for kinds, name in ((NARROW, "cpu"), (BROAD, "cpu_full")):
                at = folder / f"{name}{number}"
                turns = managed(cluster, kinds, short, at / "turns", Beside.NEVER)
                lone = {kind: batch_seconds(stamps) for kind, stamps in turns.stamps.items()}
                auto = managed(cluster, kinds, long, at / "auto", Beside.AUTO)
                free = unmanaged(kinds, short, at / "free") if kinds is NARROW else None
                again = managed(cluster, kinds, short, at / "again", Beside.NEVER)
                reference = (work(turns, lone) + work(again, lone)) / 2
                figures = {f"sum_{name}": work(auto, lone) / reference, f"tried_{name}": auto.tried}
                if free is not None:
                    figures["turns_cpu"] = reference  # of batches that are much shorter than a quantum
                    figures[f"all_at_once_{name}"] = work(free, lone) / reference
                    if auto.stood is not None:
                        figures[f"stood_s_{name}"] = auto.stood
                for figure, value in figures.items():
                    found.setdefault(figure, []).append(value)
                rows.append([number, name, *(f"{k}={v:.3g}" for k, v in figures.items()), f"{os.getloadavg()[0]:.1f}"])
    for row in rows:
        print(*row)
    medians: Figures = {name: median(values) for name, values in found.items()}
    table(["figure", "median", "least", "most"], [[k, medians[k], min(v), max(v)] for k, v in found.items()])
    return medians


if __name__ == "__main__":
    if sys.argv[1] == "--threads":
        print(compare_threads())
    else:
        train(*sys.argv[2:5])
