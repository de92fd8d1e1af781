"""Play the same bundles to the scheduler in virtual time, once under each policy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.curves.bundles import KINDS, Bundle, Recording, draw, recordings
from benchmarks.curves.histories import MATCHING, Mismatch, earlier_runs
from benchmarks.curves.verdicts import JudgedJob
from lightning_core.core.answers import Verdict
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.recorded_curves import load_curves
from lightning_core.simulation.scenario import Delays, Outcome
from lightning_core.simulation.simulation import Simulation

SPLIT = Path(__file__).parent / "split.json"


class Cell(NamedTuple):
    """Bundles of one size, pure or mixed."""

    size: int
    pure: bool

    def __str__(self) -> str:
        return f"{self.size} {'pure' if self.pure else 'mixed'}"


@dataclass(frozen=True)
class Contender:
    """A policy with its constants, under the name of its row.

    Args:
        policy: Name in :data:`lightning_core.policies.POLICIES`.
        arguments: Arguments of the policy.
        estimator: Name of the estimator; the policy's own if empty.
        estimator_arguments: Arguments of the estimator.
        delays: Delays beside training.
        history: Earlier runs that each job has.
        mismatch: What is wrong with them.
        schedule: Whether jobs report their learning rates, where the recording has them.
    """

    policy: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    estimator: str = ""
    estimator_arguments: Mapping[str, Any] = field(default_factory=dict)
    delays: Delays = field(default_factory=Delays)
    history: int = 0
    mismatch: Mismatch = MATCHING
    schedule: bool = False

    def settings(self, size: int) -> Settings:
        """Return settings with a period of 1 s, or 2 s from a hundred jobs on."""
        return Settings(
            policy=self.policy,
            policy_args=self.arguments,
            estimator=self.estimator,
            estimator_args=self.estimator_arguments,
            period=2.0 if size >= 100 else 1.0,
        )


class Played(NamedTuple):
    """Outcome of one bundle under one policy."""

    met: int
    ceiling: int
    switches: int
    rounds: int
    deciding: float
    jobs: tuple[JudgedJob, ...] = ()


def reporting(folder: Path) -> list[Recording]:
    """Return the recordings of a folder on which nothing was tuned, by families of tasks."""
    tuned = set(json.loads(SPLIT.read_text())["tuned_on"])
    return recordings([curve for curve in load_curves(folder) if curve.family not in tuned])


def tuning(folder: Path) -> list[Recording]:
    """Return the recordings of a folder for tuning."""
    tuned = set(json.loads(SPLIT.read_text())["tuned_on"])
    return recordings([curve for curve in load_curves(folder) if curve.family in tuned])


def play(
    pool: Sequence[Recording],
    cells: Mapping[Cell, int],
    contenders: Mapping[str, Contender],
    *,
    first_seed: int = 0,
    processes: int | None = None,
) -> dict[Cell, dict[str, list[Played]]]:
    """Play the same bundles under every contender.

    Args:
        pool: Recordings to draw bundles from.
        cells: Number of bundles of each cell.
        contenders: Policies by row name.
        first_seed: Seed of the first bundle of each cell; the following bundles have the following seeds.
        processes: Number of processes; one per core if None.

    Returns:
        Outcome of each bundle, in order, by cell and row name.

    Raises:
        AssertionError: If a contender is above the ceiling: then the ceiling or the simulation is wrong.
    """
    tasks = [
        (name, cell, first_seed + k, contender)
        for cell, bundles in sorted(cells.items(), reverse=True)  # the longest first, so that no core ends with one
        for k in range(bundles)
        for name, contender in contenders.items()
    ]
    results: dict[Cell, dict[str, list[Played]]] = {cell: {name: [] for name in contenders} for cell in cells}
    for (name, cell, seed, _), played in zip(tasks, _played(pool, tasks, processes), strict=True):
        if played.met > played.ceiling:
            raise AssertionError(
                f"{name} met {played.met} of a bundle of {cell}, seed {seed}: above its ceiling, {played.ceiling}"
            )
        results[cell][name].append(played)
    return results


Task = tuple[str, Cell, int, Contender]
_POOL: list[Recording] = []


def _played(pool: Sequence[Recording], tasks: Sequence[Task], processes: int | None) -> Iterator[Played]:
    processes = processes or len(os.sched_getaffinity(0))
    if processes == 1:
        yield from map(partial(_play_one, pool), tasks)
        return
    context = get_context("fork")  # shares the recordings
    with ProcessPoolExecutor(processes, context, _take, (pool,)) as workers:
        yield from workers.map(_play_task, tasks, chunksize=4)


def _take(pool: Iterable[Recording]) -> None:
    _POOL[:] = pool


def _play_task(task: Task) -> Played:
    return _play_one(_POOL, task)


def _play_one(pool: Sequence[Recording], task: Task) -> Played:
    _, cell, seed, contender = task
    kind = KINDS[seed % len(KINDS)]
    bundle = draw(pool, cell.size, pure=cell.pure, kind=kind, seed=seed, schedule=contender.schedule)
    jobs = bundle.jobs
    if contender.history:
        random = np.random.default_rng(seed)
        jobs = tuple(
            replace(job, earlier=earlier_runs(one, pool, contender.history, random, contender.mismatch))
            for job, one in zip(jobs, bundle.recordings, strict=True)
        )
    outcome = Simulation(contender.settings(cell.size), jobs, contender.delays).run()
    judged = _judged(bundle, outcome)
    return Played(outcome.met, bundle.ceiling, outcome.switches, outcome.rounds, outcome.deciding, judged)


def _judged(bundle: Bundle, outcome: Outcome) -> tuple[JudgedJob, ...]:
    given = zip(bundle.jobs, bundle.work.tolist(), outcome.jobs, strict=True)
    return tuple(
        JudgedJob(work, one.job.deadline, one.throughput, end.batches, end.verdict is Verdict.MET, end.verdicts)
        for one, work, end in given
    )
