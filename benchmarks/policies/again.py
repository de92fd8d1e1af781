"""Plan an evening with the runs of the evening before it and without, in virtual time, over many seeds.

``examples/again.py`` trains one of these seeds for real. Here the recordings of its trainings are played to the
scheduler. What the first evening leaves goes through the store in which a pool keeps it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import common
from benchmarks.common import Figures, Size, table
from benchmarks.curves.verdicts import JudgedJob
from examples.digits import virtual
from examples.digits.drawing import DrawnJob, ceiling
from examples.digits.evenings import draw_evenings, model_of, recorded
from examples.digits.virtual import DELAYS, PERIOD
from lightning_core.cli.history_commands import ImportTerms, read_runs
from lightning_core.core.answers import Verdict
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.recorded_curves import Curve
from lightning_core.simulation.replications import Mean
from lightning_core.simulation.scenario import Outcome, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.runs.run_store import FILE, RunStore

SEEDS = {"quick": 40, "default": 200, "full": 1000}
BATCH_SIZE = 64


class Evening(NamedTuple):
    """What came of an evening."""

    met: int
    infeasible: int
    """Jobs told infeasible that were not: they could still be met alone, or were met after all."""
    wasted: float
    """Seconds of the device on jobs that missed."""


class Pair(NamedTuple):
    """The second evening of a seed, planned twice."""

    ceiling: int
    """Jobs that could be met if all work were known in advance."""
    without: Evening
    with_runs: Evening


def play(seed: int, throughputs: Mapping[str, float] | None = None) -> Pair:
    """Play both evenings of a seed, the second one without and with the runs of the first.

    Args:
        seed: Seed of the draw.
        throughputs: Batches per second of each training; None for those of the recordings.
    """
    curves = recorded()
    if throughputs is None:
        throughputs = {name: 1.0 / (curve.seconds_per_batch or 0.02) for name, curve in curves.items()}
    first, second = draw_evenings(curves, throughputs, seed)
    jobs = simulated(second, curves, throughputs)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.db"
        Simulation(settings(), simulated(first, curves, throughputs), DELAYS, journal).run()
        knowing = remembering(jobs, journal)
    ends = [judged(second, throughputs, Simulation(settings(), some, DELAYS).run()) for some in (jobs, knowing)]
    return Pair(ceiling(second), *ends)


def settings() -> Settings:
    """Return the settings of every evening."""
    return Settings(period=PERIOD)


def simulated(
    drawn: Sequence[DrawnJob], curves: Mapping[str, Curve], throughputs: Mapping[str, float]
) -> list[SimulatedJob]:
    """Return drawn jobs for a simulation."""
    return [
        replace(one, job=replace(one.job, model=model_of(one.job.name), batch_size=BATCH_SIZE))
        for one in virtual.simulated(drawn, curves, throughputs)
    ]


def remembering(jobs: Sequence[SimulatedJob], journal: Path) -> list[SimulatedJob]:
    """Return jobs with the runs of a journal that a pool would give them."""
    runs, _ = read_runs(journal, ImportTerms())
    store = RunStore(journal.with_name(FILE))
    try:
        store.add(runs)
        return [
            replace(one, earlier=tuple(run.for_job(BATCH_SIZE, "") for run in store.similar(one.job, None)))
            for one in jobs
        ]
    finally:
        store.close()


def judged(drawn: Sequence[DrawnJob], throughputs: Mapping[str, float], outcome: Outcome) -> Evening:
    """Hold what came of an evening against what could be."""
    jobs = [
        JudgedJob(one.work, one.deadline, throughputs[one.name], end.batches, end.verdict is Verdict.MET, end.verdicts)
        for one, end in zip(drawn, outcome.jobs, strict=True)
    ]
    wrong = sum(job.was_wrongly_told_infeasible for job in jobs)
    wasted = sum(end.busy for end in outcome.jobs if end.verdict is not Verdict.MET)
    return Evening(outcome.met, wrong, wasted)


def measure(size: Size) -> Figures:
    """Play all seeds, and print and return what was met."""
    seeds = range(1, SEEDS[size] + 1)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        played = list(workers.map(play, seeds, chunksize=4))
    could = np.array([pair.ceiling for pair in played])
    met = np.array([(pair.without.met, pair.with_runs.met) for pair in played])
    print(f"The second of two evenings in virtual time, {len(seeds)} seeds; jobs that could be met: "
          f"{Mean.of(could.tolist())}")  # fmt: skip
    arms = {"without": [pair.without for pair in played], "with": [pair.with_runs for pair in played]}
    rows = {
        name: (
            sum(one.met for one in ends) / could.sum(),
            sum(one.wasted for one in ends) / len(ends),
            float(sum(one.infeasible for one in ends)),
        )
        for name, ends in arms.items()
    }
    table(
        ["runs of the first", "jobs met", "of those that could be", "seconds on jobs that missed", "wrongly told"],
        [[name, str(Mean.of([one.met for one in arms[name]])), *row] for name, row in rows.items()],
    )
    better, worse = (met[:, 1] > met[:, 0]).mean(), (met[:, 1] < met[:, 0]).mean()
    print(f"With them more jobs are met in {better:.0%} of the seeds, fewer in {worse:.0%}")
    return {
        "seeds": float(len(seeds)),
        "met_without": rows["without"][0],
        "met_with": rows["with"][0],
        "better_pct": 100 * float(better),
        "worse_pct": 100 * float(worse),
        "wasted_s_without": rows["without"][1],
        "wasted_s_with": rows["with"][1],
        "told_infeasible_wrongly_without": rows["without"][2],
        "told_infeasible_wrongly_with": rows["with"][2],
    }


if __name__ == "__main__":
    common.main("policies.again", (__doc__ or "").splitlines()[0], measure)
