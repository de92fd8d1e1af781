"""Run the demo in virtual time: targets that each policy meets over many seeds, at recorded throughputs.

``examples/demo.py`` trains one of these seeds for real. Here nothing is trained: the recordings of the ten trainings
are played to the scheduler.
"""

from __future__ import annotations

import os

from benchmarks import common
from benchmarks.common import Figures, Size, table
from examples.digits.trainings import CURVES
from examples.digits.virtual import PERIOD, play_seeds
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.recorded_curves import load_curves
from lightning_core.simulation.replications import Mean

POLICIES = ("fifo", "edf", "lara", "laira", "guarded_edf", "triage")
SEEDS = {"quick": 40, "default": 200, "full": 1000}


def measure(size: Size) -> Figures:
    """Play all seeds, and print and return the jobs met."""
    seeds = range(1, SEEDS[size] + 1)
    curves = {curve.name: curve for curve in load_curves(CURVES)}
    throughputs = {name: 1.0 / (curve.seconds_per_batch or 0.02) for name, curve in curves.items()}
    settings = [Settings(policy=policy, period=PERIOD) for policy in POLICIES]
    played = play_seeds(curves, throughputs, settings, seeds, processes=len(os.sched_getaffinity(0)))
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
