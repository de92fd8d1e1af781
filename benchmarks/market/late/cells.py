"""Plays all policies on one set of recordings, with one deadline and one start-up time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.market.late.contestants import LEARNERS, POLICIES, with_zones
from benchmarks.market.late.hindsight import optimum
from benchmarks.market.late.node_play import Job, Policy, on_demand_cost, play
from benchmarks.market.late.recordings import Recording
from lightning_core.core.arrays import BoolArray, FloatArray

HOUR = 3600.0
WORK = 48.0
OPTIMUM = "optimum"


@dataclass(slots=True)
class Cell:
    """Costs and lateness of all jobs under each policy.

    Attributes:
        costs: Cost over on-demand by policy, in the order of the jobs.
        late: Late jobs by policy.
    """

    costs: dict[str, list[float]] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)

    def mean(self, policy: str) -> tuple[float, float]:
        """Return the mean cost and its standard error over the jobs."""
        return mean(np.array(self.costs[policy]))

    def difference(self, policy: str, other: str) -> tuple[float, float]:
        """Return the mean of the difference of two policies on the same jobs, and its standard error."""
        return mean(np.array(self.costs[policy]) - np.array(self.costs[other]))


def mean(values: FloatArray) -> tuple[float, float]:
    """Return the mean and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def play_cell(
    recordings: Sequence[Recording],
    deadline: float,
    start_up: float,
    starts: int,
    seed: int,
    policies: Mapping[str, Callable[[], Policy]] = POLICIES,
    learners: Mapping[str, Callable[[Sequence[BoolArray]], Policy]] = LEARNERS,
) -> Cell:
    """Play policies from random starts in each recording.

    A policy sees what precedes its job's start in the recording. One that learns plays once more, with whole recordings
    of all other zones.

    Args:
        recordings: The recordings.
        deadline: Hours from the start of a job.
        start_up: Hours that a launch takes.
        starts: Starts in each recording.
        seed: Seed of the starts. With the same one, the jobs of all deadlines start at about the same times.
        policies: Factories of the policies, by name.
        learners: Factories of policies from recordings of other zones, by name.
    """
    cell = Cell()
    for number, recording in enumerate(recordings):
        job = Job(WORK * HOUR, deadline * HOUR, start_up * HOUR, recording.tick)
        begins = recording.starts(starts, job.ticks, (seed, number)).tolist()
        base = on_demand_cost(job)
        others = [other.available for other in recordings if other.zone != recording.zone]
        made = {name: make() for name, make in policies.items()}
        made |= {with_zones(name): learn(others) for name, learn in learners.items()}
        for name, policy in made.items():
            outcomes = [play(policy, job, recording.available, start) for start in begins]
            cell.costs.setdefault(name, []).extend(outcome.cost / base for outcome in outcomes)
            cell.late[name] = cell.late.get(name, 0) + sum(not outcome.on_time for outcome in outcomes)
        cell.costs.setdefault(OPTIMUM, []).extend((optimum(job, recording.available, begins) / base).tolist())
    cell.late[OPTIMUM] = 0
    return cell
