"""Throughputs of trainings by kind and number of GPUs, and jobs that are drawn from them.

``gavel_alone.csv`` has the throughputs of 26 trainings on K80, P100 and V100, by number of GPUs, together or apart
(stanford-futuredata/gavel, ``scheduler/simulation_throughputs.json``; its licence is beside it). Sizes are drawn
as there: 70 % take one GPU, 10 % two, 15 % four and 5 % eight. So are durations, 10^1.5 to 10^3 minutes for four in
five and 10^3 to 10^4 for the rest, cut at a day; and deadlines, 1.2, 2 or 10 times the time on the fastest kind.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray

FILE = Path(__file__).parent / "gavel_alone.csv"
KINDS = ("v100", "p100", "k80")
SIZES, SIZE_PARTS = (1, 2, 4, 8), (0.70, 0.10, 0.15, 0.05)
SLACK = (1.2, 2.0, 10.0)
MINUTE, LONGEST = 60.0, 86_400.0


class DrawnJob(NamedTuple):
    """A job of a cluster."""

    name: str
    model: str
    size: int
    """GPUs that it takes."""
    rates: tuple[float, ...]
    """Batches per second on that many of each kind."""
    batches: int
    submitted: float
    deadline: float
    """Seconds from its submission."""

    @property
    def alone(self) -> FloatArray:
        """Seconds alone on each kind, shape ``(3,)``."""
        return self.batches / np.array(self.rates)


def measured() -> dict[tuple[str, int], tuple[float, ...]]:
    """Return the throughputs of each training on each number of GPUs of one machine, by kind."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    with FILE.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["consolidated"] == "1":
                found.setdefault((row["model"], int(row["gpus"])), {})[row["gpu"]] = float(row["steps_per_s"])
    return {key: tuple(rates[kind] for kind in KINDS) for key, rates in found.items() if len(rates) == len(KINDS)}


def draw(count: int, devices: Mapping[str, int], load: float, seed: int) -> list[DrawnJob]:
    """Draw jobs that arrive at random.

    Args:
        count: Number of jobs.
        devices: GPUs of each kind.
        load: Device-seconds that arrive, over those that there are; those of a job are its mean over the kinds, each
            weighted by its number of GPUs.
        seed: Seed.
    """
    draws, trainings = np.random.default_rng(seed), measured()
    part = np.array([devices[kind] for kind in KINDS]) / sum(devices.values())
    jobs = list[DrawnJob]()
    arrives, total = 0.0, 0.0
    for number in range(count):
        size = int(draws.choice(SIZES, p=SIZE_PARTS))
        options = [key for key in trainings if key[1] == size]
        model, _ = options[draws.integers(len(options))]
        rates = trainings[model, size]
        minutes = 10 ** (draws.uniform(1.5, 3.0) if draws.random() < 0.8 else draws.uniform(3.0, 4.0))
        seconds = min(minutes * MINUTE, LONGEST)
        batches = max(round(seconds * max(rates)), 1)
        slack = float(draws.choice(SLACK))
        jobs.append(DrawnJob(f"job{number}", model, size, rates, batches, arrives, slack * batches / max(rates)))
        total += float((jobs[-1].alone * size) @ part)
        arrives += float(draws.exponential())
    # All arrive within the time in which the cluster would do the load.
    scale = total / (load * sum(devices.values())) / max(arrives, 1e-9)
    return [job._replace(submitted=job.submitted * scale) for job in jobs]


def device_kinds(devices: Mapping[str, int]) -> tuple[str, ...]:
    """Return the kind of each device."""
    return tuple(kind for kind in KINDS for _ in range(devices[kind]))


def most_in_time(jobs: Sequence[DrawnJob], devices: Mapping[str, int], buckets: int = 60) -> float:
    """Return an upper bound of the deadlines that any scheduler meets that knows all arrivals, without restarts.

    A linear program: jobs may be divided among kinds and over time, but a part of a job counts as that part, no job
    does more in an interval than its length, and none counts that is late alone on its fastest kind. Times are rounded
    in favour of the bound.

    Args:
        jobs: The jobs.
        devices: GPUs of each kind.
        buckets: Intervals of time.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    begins = np.array([job.submitted for job in jobs])
    ends = begins + np.array([job.deadline for job in jobs])
    edges = np.quantile(np.concatenate([begins, ends]), np.linspace(0, 1, buckets + 1))
    first = np.maximum(np.searchsorted(edges, begins, "right") - 1, 0)  # its whole first interval counts
    last = np.minimum(np.searchsorted(edges, ends, "left"), buckets)
    length = np.diff(edges)
    n, k = len(jobs), len(KINDS)
    column, cells = 0, list[tuple[int, int, int]]()  # job, kind, interval
    for row in range(n):
        cells += [(row, kind, at) for kind in range(k) for at in range(int(first[row]), int(last[row]))]
    column = len(cells)
    where: IntArray = np.array(cells)
    alone = np.array([job.alone for job in jobs])
    size = np.array([job.size for job in jobs], np.float64)
    seconds = alone[where[:, 0], where[:, 1]]
    at = np.arange(column)
    # Unknowns: part of each job that is done on a kind in an interval.
    in_all = coo_array((np.ones(column), (where[:, 0], at)), (n, column))
    capacity = coo_array(
        (size[where[:, 0]] * seconds, (where[:, 1] * buckets + where[:, 2], at)), (k * buckets, column)
    )
    own = coo_array((seconds, (where[:, 0] * buckets + where[:, 2], at)), (n * buckets, column))
    from scipy.sparse import vstack

    limit = np.concatenate([
        np.ones(n),
        np.concatenate([devices[kind] * length for kind in KINDS]),
        np.tile(length, n),
    ])  # fmt: skip
    best = linprog(-np.ones(column), A_ub=vstack([in_all, capacity, own]).tocsr(), b_ub=limit, method="highs")
    return float(-best.fun)
