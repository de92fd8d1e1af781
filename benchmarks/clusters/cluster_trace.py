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
# variant, ncf the recommender of MLPerf. Restarts by model cost more the more there are: weights and the optimizer's
# state are saved, read and sent to every device, and the largest models have the slowest first batches. A small model
# costs what starting processes and opening the data costs.
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
# Seconds of a restart of the smallest and of the largest model, by model; an unknown one costs as much as the median
# one. These two are assumed: they stand for new processes and cold data, and no measurement is behind them.
CHEAPEST, DEAREST = 25.0, 250.0
# Seconds that every restart costs, by the end of the name of a figure; None for those by model. 0.3: what was measured
# for two warm workers (``benchmarks.live.resize``), rounded up. 8: the middle of the 2 to 16 s of ElasticFlow's paper.
RESTARTS = {"0": 0.0, "03": 0.3, "8": 8.0, "model": None}
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
        throughputs: Batches per second by number of devices; empty if it can run on none.
        restart: Seconds that it loses whenever it resumes on other devices.
    """

    name: str
    model: str
    submitted: float
    deadline: float
    batches: int
    asked: int
    throughputs: Throughputs
    restart: float = 0.0

    def alone(self, devices: int) -> float:
        """Return its seconds on this many devices, without a restart; inf if it cannot run on them."""
        throughput = self.throughputs.get(devices)
        return math.inf if throughput is None else self.batches / throughput

    def can_run(self, devices: int) -> bool:
        """Return whether it can run on a pool of this size, and has work and time at all."""
        return self.batches > 0 and self.deadline > 0 and any(n <= devices for n in self.throughputs)

    def fastest(self, devices: int) -> int:
        """Return the number of devices on which it is fastest, the fewest of several."""
        there = [n for n in self.throughputs if n <= devices]
        return max(there, key=lambda n: (self.throughputs[n], -n))

    def fixed(self, devices: int) -> int:
        """Return its devices if sizes are not chosen: what was asked for, or the next smaller number it can use."""
        return max((n for n in self.throughputs if n <= min(self.asked, devices)), default=min(self.throughputs))


def find(folder: Path) -> list[tuple[Path, Path]]:
    """Return each trace with deadlines, the largest first, and a folder of throughputs that has all its models.

    Raises:
        FileNotFoundError: If there is none.
    """
    traces = [path for path in folder.rglob("*.csv") if "ddl" in path.open().readline().strip().split(",")]
    tables = sorted(path for path in folder.rglob("throughputs_*") if path.is_dir())
    found = []
    for trace in sorted(traces, key=lambda path: (-path.stat().st_size, path)):
        models = {row["model_name"] for row in _rows(trace)}
        fits = (table for table in tables if models <= {path.stem for path in table.glob("*.csv")})
        found += [(trace, table) for table in fits][:1]
    if not found:
        raise FileNotFoundError(f"{folder} has no trace with deadlines and throughputs of all its models")
    return found


def read(trace: Path, throughputs: Path) -> list[Wanted]:
    """Return the jobs of a trace by submission, those that cannot run too."""
    table = read_throughputs(throughputs)
    rows = list(_rows(trace))
    first = min(float(row["submit_time"]) for row in rows)
    jobs = [
        Wanted(
            f"{number}-{row['model_name']}",
            row["model_name"],
            float(row["submit_time"]) - first,
            float(row["ddl"]) - float(row["submit_time"]),
            int(float(row["iteration"])),
            int(float(row["num_gpu"])),
            table.get((row["model_name"], int(row["batch_size"])), {}),
        )
        for number, row in enumerate(rows)
    ]
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


def with_restarts(jobs: Sequence[Wanted], seconds: float | None) -> list[Wanted]:
    """Return the jobs with what a restart costs each of them; None for that of its model."""
    return [replace(job, restart=restart_of(job.model) if seconds is None else seconds) for job in jobs]


def restart_of(model: str) -> float:
    """Return the assumed seconds of a restart of a model, which grow with its parameters."""
    known = sorted(PARAMETERS.values())
    size = PARAMETERS.get(model, known[len(known) // 2])
    return CHEAPEST + (DEAREST - CHEAPEST) * (size - known[0]) / (known[-1] - known[0])


def jittered(jobs: Sequence[Wanted], seed: int, by: float = 600.0) -> list[Wanted]:
    """Return the jobs with each submission shifted by up to ``by`` seconds; none comes before the first did."""
    draw = np.random.default_rng(seed)
    moved = [replace(job, submitted=max(job.submitted + draw.uniform(-by, by), 0.0)) for job in jobs]
    return sorted(moved, key=lambda job: job.submitted)


def drawn(jobs: Sequence[Wanted], count: int, devices: int, load: float, seed: int) -> list[Wanted]:
    """Return jobs drawn with replacement from a trace that arrive at random, for a pool of another size or load.

    Models, batches, devices asked for and deadlines are those of the trace, so as heavy-tailed as there.

    Args:
        jobs: Jobs of the trace, all of which can run.
        count: Number of jobs.
        devices: Devices of the pool.
        load: Device-seconds that the jobs take as asked for, as a multiple of those there are while they arrive.
        seed: Seed of the draws.
    """
    draw = np.random.default_rng(seed)
    chosen = [jobs[at] for at in draw.integers(len(jobs), size=count)]
    needed = sum(job.alone(job.fixed(devices)) * job.fixed(devices) for job in chosen)
    arrivals = np.sort(draw.uniform(0.0, needed / (load * devices), count))
    return [
        replace(job, name=f"{number}-{job.model}", submitted=float(when - arrivals[0]))
        for number, (job, when) in enumerate(zip(chosen, arrivals, strict=True))
    ]


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
    return in_reach(jobs, devices) / len(jobs)


def in_reach(jobs: Sequence[Wanted], devices: int) -> int:
    """Return the number of jobs that would be on time alone on the pool."""
    return sum(any(n <= devices and job.alone(n) <= job.deadline for n in job.throughputs) for job in jobs)


def fraction_as_asked(jobs: Sequence[Wanted]) -> float:
    """Return the same on the number of devices that each user asked for."""
    return sum(job.alone(job.asked) <= job.deadline for job in jobs) / len(jobs)
