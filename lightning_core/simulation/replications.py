"""Simulations of a bundle with several seeds: mean number of targets met by each policy, with its standard error.

Seeds are played side by side, in as many processes as there are cores. Every policy plays each seed's draw, so that two
policies are compared seed by seed: their difference is far surer than either mean.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import FloatArray
from lightning_core.core.control import WallClock
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.bundle_curves import read_bundle
from lightning_core.simulation.scenario import Delays
from lightning_core.simulation.simulation import Simulation
from lightning_core.view.tables import print_table

DEFAULT = Settings().policy


class Figures(NamedTuple):
    """Result of one policy with one seed.

    Args:
        met: Number of jobs that met their targets in time.
        weight: Sum of the weights of these jobs.
        switches: Number of times that a device passed from one job to another.
    """

    met: int
    weight: float
    switches: int


class Replication(NamedTuple):
    """The result of one seed.

    Args:
        seed: Seed of the draw.
        ceiling: Maximum number of jobs that could be met if all work were known in advance; None on several devices.
        figures: Result of each policy.
        failed: Errors of parts from outside the library that failed under a policy, by their kind and name.
    """

    seed: int
    ceiling: int | None
    figures: Mapping[str, Figures]
    failed: Mapping[str, Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True)
class Experiment:
    """The simulation that is repeated with each seed.

    Args:
        bundle: Path of the bundle file.
        curves: Folder of recordings, if there is one.
        policies: Texts such as ``lara:order=edf``; none for the bundle's own.
        devices: Number of devices instead of the bundle's.
        delays: Times that are spent on other things than training.
        losses: Scheduler times at which the process of each job dies, by name.
        save_every: Batches between two checkpoints; 0 if a job is saved only where it leaves.
        wall_clock: Wall clock at its start.
        shuffle: Whether each seed also draws the order in which the jobs come.
        kept: Path of a store of earlier runs; None to use none.
    """

    bundle: Path
    curves: Path | None
    policies: Sequence[str] = ()
    devices: int | None = None
    delays: Delays = field(default_factory=Delays)
    losses: Mapping[str, Sequence[float]] | None = None
    save_every: int = 0
    wall_clock: WallClock | None = None
    shuffle: bool = False
    kept: Path | None = None

    def replicate(self, seeds: Sequence[int], told: Callable[[int], None] = lambda done: None) -> list[Replication]:
        """Play all seeds.

        Args:
            seeds: One seed or several.
            told: Called with the number of seeds that are done, after each.
        """
        cores = len(os.sched_getaffinity(0))
        context = get_context("forkserver")  # a fork of a process with threads, such as NumPy's, is no safe thing
        with context.Pool(min(cores, len(seeds)), signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
            done = []
            for one in pool.imap(self.play, seeds):
                done.append(one)
                told(len(done))
        return done

    def play(self, seed: int) -> Replication:
        """Play one seed under every policy."""
        bundle = read_bundle(self.bundle, self.curves, seed, self.devices, shuffle=self.shuffle, kept=self.kept)
        jobs = [played.given for played in bundle.jobs]
        # After the last deadline nothing is met any more.
        over = max(given.submitted + given.job.deadline for given in jobs) + 2 * self.delays.report
        figures, failed = {}, {}
        for name, settings in bundle.under(self.policies).items():
            simulation = Simulation(settings, jobs, self.delays, losses=self.losses, save_every=self.save_every,
                                    wall_clock=self.wall_clock)  # fmt: skip
            outcome = simulation.run(until=over)
            weight = sum(job.weight for job in outcome.summary.jobs if job.verdict is Verdict.MET)
            figures[name] = Figures(outcome.met, weight, outcome.switches)
            failed[name] = dict(outcome.failed)
        return Replication(seed, bundle.ceiling, figures, failed)


class Mean(NamedTuple):
    """A mean with its standard error (0 for one value)."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float] | FloatArray) -> Mean:
        """Return the mean of values.

        Example::

            >>> Mean.of([1.0, 2.0, 3.0])
            Mean(value=2.0, error=0.577...)
        """
        x = np.asarray(values, float)
        return cls(float(x.mean()), float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else 0.0)

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.error:.2f}"


@dataclass(frozen=True)
class PolicyResult:
    """Result of one policy over all seeds.

    Args:
        met: Number of jobs met.
        weight: Sum of the weights of the jobs met.
        switches: Number of times that a device passed from one job to another.
        of_ceiling: Fraction of the jobs that could be met; None on several devices.
        ahead: Number of jobs met in excess of the policy that all are compared with, seed by seed.
    """

    met: Mean
    weight: Mean
    switches: Mean
    of_ceiling: float | None
    ahead: Mean


def compared_with(names: Sequence[str]) -> str:
    """Return the policy that the others are compared with: the default if it is among them, else the first.

    Example::

        >>> compared_with(["fifo", "triage", "edf"]), compared_with(["fifo", "edf"])
        ('triage', 'fifo')
    """
    return DEFAULT if DEFAULT in names else names[0]


def sums(done: Sequence[Replication]) -> dict[str, PolicyResult]:
    """Return a row for each policy."""
    names = list(done[0].figures)
    met = {name: np.array([one.figures[name].met for one in done], float) for name in names}
    other = met[compared_with(names)]
    ceiling = sum(one.ceiling or 0 for one in done)
    return {
        name: PolicyResult(
            Mean.of(met[name]),
            Mean.of([one.figures[name].weight for one in done]),
            Mean.of([one.figures[name].switches for one in done]),
            None if done[0].ceiling is None else float(met[name].sum() / max(ceiling, 1)),
            Mean.of(met[name] - other),
        )
        for name in names
    }


def print_seeds(done: Sequence[Replication], jobs: int) -> None:
    """Print a row for each policy.

    Args:
        done: Results of all seeds.
        jobs: Number of jobs of the bundle.
    """
    rows = sums(done)
    other = compared_with(list(rows))
    title = f"{len(done)} seeds from {done[0].seed} on, mean ± standard error"
    if done[0].ceiling is not None:
        ceiling = Mean.of([one.ceiling or 0 for one in done])
        title += f"; at most {ceiling} of {jobs} could be met if the curves were known in advance"
    columns: dict[str, Callable[[PolicyResult], str]] = {"met": lambda row: str(row.met)}
    if any(row.weight != row.met for row in rows.values()):
        columns["met, by weight"] = lambda row: str(row.weight)
    if done[0].ceiling is not None:
        columns["of possible"] = lambda row: f"{100 * (row.of_ceiling or 0.0):.0f} %"
    columns["switches"] = lambda row: f"{row.switches.value:.0f} ± {row.switches.error:.0f}"
    if len(rows) > 1:
        columns[f"more than {other}"] = lambda row: (
            "" if row is rows[other] else f"{row.ahead.value:+.2f} ± {row.ahead.error:.2f}"
        )
    print_table(["policy", *columns], [[name, *(say(row) for say in columns.values())] for name, row in rows.items()],
                title)  # fmt: skip


def to_dict(done: Sequence[Replication]) -> dict[str, Any]:
    """Return JSON values: the results of each seed, and the means of each policy."""
    rows = sums(done)
    return {
        "seeds": [
            {
                "seed": one.seed,
                "ceiling": one.ceiling,
                "policies": {name: figures._asdict() for name, figures in one.figures.items()},
            }
            for one in done
        ],
        "compared_with": compared_with(list(rows)),
        "policies": {
            name: {
                "met": row.met._asdict(),
                "weight": row.weight._asdict(),
                "switches": row.switches._asdict(),
                "of_ceiling": row.of_ceiling,
                "ahead": row.ahead._asdict(),
            }
            for name, row in rows.items()
        },
    }
