"""Run the demo in virtual time: targets that each policy meets over many seeds, at recorded throughputs.

``examples/demo.py`` trains five of these seeds for real. Here nothing is trained: the recordings of the ten trainings
are played to the scheduler.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from benchmarks import common
from benchmarks.common import Figures, Size, table
from examples.digits.drawing import ceiling, draw
from examples.digits.trainings import CURVES
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.targets import LossTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.recorded_curves import load_curves
from lightning_core.simulation.replications import Mean
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation

POLICIES = ("fifo", "edf", "lara", "laira", "guarded_edf", "triage")
SEEDS = {"quick": 40, "default": 200, "full": 1000}
PERIOD = 0.5
# As live: a report takes 20 ms, and ten trainings are built on two cores before the first batch.
DELAYS = Delays(report=0.02, start=1.2)


def play(policies: Sequence[str], seed: int) -> list[int]:
    """Return the number of jobs that could be met, and the numbers that each policy met, for one seed."""
    curves = {curve.name: curve for curve in load_curves(CURVES)}
    throughputs = {name: 1.0 / (curve.seconds_per_batch or 0.02) for name, curve in curves.items()}
    drawn = draw(curves, throughputs, seed)
    jobs = [
        SimulatedJob(
            Job(job.name, job.deadline, LossTarget("loss", job.target), on_miss=OnMiss.STOP),
            curves[job.name].position,
            curves[job.name].loss,
            throughputs[job.name],
        )
        for job in drawn
    ]
    met = [Simulation(Settings(policy=policy, period=PERIOD), jobs, DELAYS).run().met for policy in policies]
    return [ceiling(drawn), *met]


def measure(size: Size) -> Figures:
    """Play all seeds, and print and return the jobs met."""
    seeds = range(1, SEEDS[size] + 1)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        played = list(workers.map(partial(play, POLICIES), seeds, chunksize=4))
    could, *met = (list(column) for column in zip(*played, strict=True))
    print(f"Ten trainings in virtual time, {len(seeds)} seeds; jobs that could be met: {Mean.of(could)}")
    table(
        ["policy", "jobs met", "fraction of those that could be", "multiple of fifo"],
        [
            [name, str(Mean.of(one)), sum(one) / sum(could), sum(one) / sum(met[0])]
            for name, one in zip(POLICIES, met, strict=True)
        ],
    )
    return {
        "ceiling": float(sum(could)),
        **{f"met_{name}": float(sum(one)) for name, one in zip(POLICIES, met, strict=True)},
    }


if __name__ == "__main__":
    common.main("policies.demo", (__doc__ or "").splitlines()[0], measure)
