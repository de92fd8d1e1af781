"""Plays drawn jobs in virtual time: recordings of the trainings, to the scheduler that ships."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from examples.digits.drawing import SECONDS, DrawnJob, ceiling, draw
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.targets import LossTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.recorded_curves import Curve
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation

PERIOD = 0.5
# As live: a report takes 20 ms, and the trainings are built on two cores before the first batch.
DELAYS = Delays(report=0.02, start=1.2)


def simulated(
    drawn: Sequence[DrawnJob], curves: Mapping[str, Curve], throughputs: Mapping[str, float]
) -> list[SimulatedJob]:
    """Return drawn jobs for a simulation."""
    return [
        SimulatedJob(
            Job(one.name, one.deadline, LossTarget("loss", one.target), on_miss=OnMiss.STOP),
            curves[one.name].position,
            curves[one.name].loss,
            throughputs[one.name],
        )
        for one in drawn
    ]


def play(
    curves: Mapping[str, Curve],
    throughputs: Mapping[str, float],
    policies: Sequence[Settings],
    seconds: float,
    seed: int,
) -> list[int]:
    """Return the number of jobs of a seed that could be met, and the number that each policy meets."""
    drawn = draw(curves, throughputs, seed, seconds)
    jobs = simulated(drawn, curves, throughputs)
    return [ceiling(drawn), *(Simulation(settings, jobs, DELAYS).run().met for settings in policies)]


def play_seeds(
    curves: Mapping[str, Curve],
    throughputs: Mapping[str, float],
    policies: Sequence[Settings],
    seeds: Sequence[int],
    seconds: float = SECONDS,
    processes: int = 2,
) -> list[list[int]]:
    """Return what :func:`play` does of each seed, several at once."""
    # A fork of a process with threads, such as Ray's, is not safe.
    with ProcessPoolExecutor(processes, get_context("forkserver")) as workers:
        return list(workers.map(partial(play, curves, throughputs, policies, seconds), seeds, chunksize=2))
