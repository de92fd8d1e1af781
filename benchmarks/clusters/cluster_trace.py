"""Traces of a cluster: jobs with deadlines, and how fast each model is on how many devices.

A folder has ``*.csv`` with the columns ``submit_time, iteration, model_name, ddl, batch_size, num_gpu`` (times in
seconds, the deadline as a point in time, the batch over all devices), and ``throughputs_*/MODEL.csv``: a row for each
batch, a column for each number of devices, iterations a second; what is empty, ``nan`` or 0 cannot be run.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

# Millions of parameters, from what their authors published; cifar10 is a residual network for small pictures, bert the
# large one, ncf the recommender of MLPerf. What a restart costs grows with them: weights and the optimizer's state are
# saved, read, sent to every device and put together there, and the largest models have the slowest first batches. A
# small one costs what starting processes and opening the data costs.
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
# Seconds, of the smallest and of the largest of them; a model that is not among them costs as much as the middle one.
CHEAPEST, DEAREST = 25.0, 250.0
HOUR = 3600.0

Rates = dict[int, float]  # by number of devices
Table = dict[tuple[str, int], Rates]  # by model and batch


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job of a trace.

    Args:
        name: of the job.
        model: what it trains.
        submitted: seconds from the first job.
        deadline: seconds from its submission.
        batches: to do.
        asked: devices that its user asked for.
        rates: batches a second by number of devices.
    """

    name: str
    model: str
    submitted: float
    deadline: float
    batches: int
    asked: int
    rates: Rates

    def alone(self, devices: int) -> float:
        """Seconds that it takes on so many, without a restart; inf if it cannot run on them."""
        rate = self.rates.get(devices)
        return math.inf if rate is None else self.batches / rate

    @property
    def restart(self) -> float:
        """Seconds that it loses whenever it comes back on other devices."""
        known = sorted(PARAMETERS.values())
        size = PARAMETERS.get(self.model, known[len(known) // 2])
        return CHEAPEST + (DEAREST - CHEAPEST) * (size - known[0]) / (known[-1] - known[0])

    def fixed(self, devices: int) -> int:
        """Devices that it has where sizes are not chosen: what was asked for, or the next smaller number it can use."""
        return max((n for n in self.rates if n <= min(self.asked, devices)), default=min(self.rates))


def find(folder: Path) -> tuple[Path, Path]:
    """The largest trace with deadlines, and the folder of rates that has all its models.

    Raises:
        FileNotFoundError: if there are none.
    """
    traces = [path for path in folder.rglob("*.csv") if "ddl" in path.open().readline().strip().split(",")]
    for trace in sorted(traces, key=lambda path: (-path.stat().st_size, path)):
        models = {row["model_name"] for row in _rows(trace)}
        for rates in sorted(path for path in folder.rglob("throughputs_*") if path.is_dir()):
            if models <= {path.stem for path in rates.glob("*.csv")}:
                return trace, rates
    raise FileNotFoundError(f"no trace with deadlines and rates of all its models in {folder}")


def read(trace: Path, rates: Path) -> list[Wanted]:
    """The jobs of a trace that can run at all, by submission."""
    table = read_rates(rates)
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


def read_rates(folder: Path) -> Table:
    """Batches a second of every model and batch, by number of devices."""
    table: Table = {}
    for path in folder.glob("*.csv"):
        for row in _rows(path):
            batch = int(row.pop("global_batch_size"))
            found = {int(devices): float(rate or 0) for devices, rate in row.items()}
            table[path.stem, batch] = {n: rate for n, rate in sorted(found.items()) if rate > 0}
    return table


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def repeated(jobs: Sequence[Wanted], count: int, seed: int = 0) -> list[Wanted]:
    """So many jobs: the trace again and again, each time after the one before, each job up to an hour off."""
    draw = np.random.default_rng(seed)
    span = jobs[-1].submitted + HOUR
    many = list(jobs[:count])
    for number in range(len(jobs), count):
        again, one = divmod(number, len(jobs))
        job = jobs[one]
        when = max(again * span + job.submitted + draw.uniform(-HOUR, HOUR), 0.0)
        many.append(replace(job, name=f"{job.name}-{again}", submitted=when))
    return sorted(many, key=lambda job: job.submitted)


def made_up(count: int = 60, seed: int = 0) -> list[Wanted]:
    """A small trace where there is none: bursts of short and long jobs that speed up by half or more a doubling."""
    draw = np.random.default_rng(seed)
    models = sorted(PARAMETERS)
    jobs = []
    for number in range(count):
        model = models[draw.integers(len(models))]
        burst = 2 * HOUR * (number // 12)
        one, grows = draw.uniform(0.05, 2.0), draw.uniform(1.5, 1.9)
        rates = {2**k: one * grows**k for k in range(6)}
        asked = 2 ** int(draw.integers(0, 4))
        seconds = float(np.exp(draw.uniform(np.log(600), np.log(6 * HOUR))))
        batches = max(int(seconds * rates[asked]), 1)
        deadline = seconds * draw.uniform(0.6, 2.0)
        jobs.append(Wanted(f"{number}-{model}", model, burst + draw.uniform(0, 900), deadline, batches, asked, rates))
    return sorted(jobs, key=lambda job: job.submitted)


def share_in_reach(jobs: Sequence[Wanted], devices: int) -> float:
    """Part of the jobs that would be in time alone on the whole pool, each on the number of devices that suits it best,
    without a restart. No scheduler meets more.
    """
    in_reach = [any(n <= devices and job.alone(n) <= job.deadline for n in job.rates) for job in jobs]
    return sum(in_reach) / len(jobs)


def share_as_asked(jobs: Sequence[Wanted]) -> float:
    """The same on the number of devices that each user asked for."""
    return sum(job.alone(job.asked) <= job.deadline for job in jobs) / len(jobs)
