"""Traces of a cluster: jobs with deadlines, and the throughput of each model by number of devices.

A folder has ``*.csv`` with the columns ``submit_time, iteration, model_name, ddl, batch_size, num_gpu`` (times in
seconds, ``ddl`` the absolute deadline, the batch over all devices), and ``throughputs_*/MODEL.csv``: a row for each
batch, a column for each number of devices, in iterations per second; empty, ``nan`` or 0 means that it cannot run.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

# Millions of parameters, as their authors published; cifar10 is a residual network for small images, bert the large
# variant, ncf the recommender of MLPerf. The cost of a restart grows with them: weights and the optimizer's state are
# saved, read and sent to every device, and the largest models have the slowest first batches. A small model costs what
# starting processes and opening the data costs.
PARAMETERS = {
    "bert": 340,
    "cifar10": 1,
    "deepspeech2": 120,
    "gpt2": 124,
    "imagenet": 26,
    "inception3": 27,
    "ncf": 32,
    "resnet50": 26,
    "resnet50_cifar10": 24,
    "vgg16": 138,
    "yolov3": 62,
}
# Seconds of a restart of the smallest and of the largest model; an unknown model costs as much as the median one.
CHEAPEST, DEAREST = 25.0, 250.0
HOUR = 3600.0

Throughputs = dict[int, float]  # by number of devices
Table = dict[tuple[str, int], Throughputs]  # by model and batch


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job of a trace.

    Args:
        name: Name of the job.
        model: Name of the model.
        submitted: Seconds since the first job.
        deadline: Seconds from its submission.
        batches: Number of batches to train.
        asked: Devices that its user asked for.
        throughputs: Batches per second by number of devices.
    """

    name: str
    model: str
    submitted: float
    deadline: float
    batches: int
    asked: int
    throughputs: Throughputs

    def alone(self, devices: int) -> float:
        """Return its seconds on this many devices, without a restart; inf if it cannot run on them."""
        throughput = self.throughputs.get(devices)
        return math.inf if throughput is None else self.batches / throughput

    @property
    def restart(self) -> float:
        """Seconds that it loses whenever it resumes on other devices."""
        known = sorted(PARAMETERS.values())
        size = PARAMETERS.get(self.model, known[len(known) // 2])
        return CHEAPEST + (DEAREST - CHEAPEST) * (size - known[0]) / (known[-1] - known[0])

    def fixed(self, devices: int) -> int:
        """Return its devices if sizes are not chosen: what was asked for, or the next smaller number it can use."""
        return max((n for n in self.throughputs if n <= min(self.asked, devices)), default=min(self.throughputs))


def find(folder: Path) -> tuple[Path, Path]:
    """Return the largest trace with deadlines, and the folder of throughputs that has all its models.

    Raises:
        FileNotFoundError: If there is none.
    """
    traces = [path for path in folder.rglob("*.csv") if "ddl" in path.open().readline().strip().split(",")]
    for trace in sorted(traces, key=lambda path: (-path.stat().st_size, path)):
        models = {row["model_name"] for row in _rows(trace)}
        for throughputs in sorted(path for path in folder.rglob("throughputs_*") if path.is_dir()):
            if models <= {path.stem for path in throughputs.glob("*.csv")}:
                return trace, throughputs
    raise FileNotFoundError(f"{folder} has no trace with deadlines and throughputs of all its models")


def read(trace: Path, throughputs: Path) -> list[Wanted]:
    """Return the jobs of a trace that can run at all, by submission."""
    table = read_throughputs(throughputs)
    rows = list(_rows(trace))
    first = min(float(row["submit_time"]) for row in rows)
    jobs = []
    for number, row in enumerate(rows):
        submitted, due = float(row["submit_time"]), float(row["ddl"])
        by_devices = table.get((row["model_name"], int(row["batch_size"])))
        batches = int(float(row["iteration"]))
        if by_devices and due > submitted and batches > 0:
            jobs.append(
                Wanted(
                    f"{number}-{row['model_name']}",
                    row["model_name"],
                    submitted - first,
                    due - submitted,
                    batches,
                    int(float(row["num_gpu"])),
                    by_devices,
                )
            )
    return sorted(jobs, key=lambda job: job.submitted)


def read_throughputs(folder: Path) -> Table:
    """Return the batches per second of every model and batch, by number of devices."""
    table: Table = {}
    for path in folder.glob("*.csv"):
        for row in _rows(path):
            batch = int(row.pop("global_batch_size"))
            found = {int(devices): float(throughput or 0) for devices, throughput in row.items()}
            table[path.stem, batch] = {n: throughput for n, throughput in sorted(found.items()) if throughput > 0}
    return table


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def repeated(jobs: Sequence[Wanted], count: int, seed: int = 0) -> list[Wanted]:
    """Return ``count`` jobs: the trace repeated, with each submission shifted by up to an hour."""
    draw = np.random.default_rng(seed)
    span = jobs[-1].submitted + HOUR
    many = list(jobs[:count])
    for number in range(len(jobs), count):
        again, one = divmod(number, len(jobs))
        job = jobs[one]
        when = max(again * span + job.submitted + draw.uniform(-HOUR, HOUR), 0.0)
        many.append(replace(job, name=f"{job.name}-{again}", submitted=when))
    return sorted(many, key=lambda job: job.submitted)


def synthetic(count: int = 60, seed: int = 0) -> list[Wanted]:
    """Return a small synthetic trace: bursts of jobs that are 1.5 times as fast or more on twice the devices."""
    draw = np.random.default_rng(seed)
    models = sorted(PARAMETERS)
    jobs = []
    for number in range(count):
        model = models[draw.integers(len(models))]
        burst = 2 * HOUR * (number // 12)
        one, grows = draw.uniform(0.05, 2.0), draw.uniform(1.5, 1.9)
        throughputs = {2**k: one * grows**k for k in range(6)}
        asked = 2 ** int(draw.integers(0, 4))
        seconds = float(np.exp(draw.uniform(np.log(600), np.log(6 * HOUR))))
        batches = max(int(seconds * throughputs[asked]), 1)
        deadline = seconds * draw.uniform(0.6, 2.0)
        jobs.append(
            Wanted(f"{number}-{model}", model, burst + draw.uniform(0, 900), deadline, batches, asked, throughputs)
        )
    return sorted(jobs, key=lambda job: job.submitted)


def fraction_in_reach(jobs: Sequence[Wanted], devices: int) -> float:
    """Return the fraction of jobs that would be on time alone on the pool, on their best number of devices.

    Restarts are not counted, so no scheduler meets more.
    """
    in_reach = [any(n <= devices and job.alone(n) <= job.deadline for n in job.throughputs) for job in jobs]
    return sum(in_reach) / len(jobs)


def fraction_as_asked(jobs: Sequence[Wanted]) -> float:
    """Return the same on the number of devices that each user asked for."""
    return sum(job.alone(job.asked) <= job.deadline for job in jobs) / len(jobs)
