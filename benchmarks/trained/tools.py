"""Train the same bundle under Slurm's requeue, under ASHA in Ray Tune, all at once, and in a pool, on one device.

The ten trainings of the demo, with targets and deadlines drawn by its rules (:mod:`examples.digits.drawing`) over two
minutes, at the throughputs of this machine. How many targets can be met is not known: some are lower than the
recordings go, and a fast machine trains on beyond their ends. *Lines* are those that a user writes beside the training
itself: a deadline and a target a job in the pool's bundle, the batch script, the Tune function and its callback, a line
a job in a shell. Needs Debian's packages slurmctld, slurmd, slurm-client and munge.
"""

from __future__ import annotations

import inspect
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.policies.standings import error
from benchmarks.trained import by_other_tools
from benchmarks.trained.paper_tables import history_of, played
from benchmarks.trained.plays import JobPlayed
from examples import demo
from examples.digits.drawing import DrawnJob, draw
from examples.digits.trainings import CURVES
from examples.slurm import local_slurm
from examples.unmanaged import Unmanaged, all_at_once
from lightning_core.cluster.cluster import Cluster
from lightning_core.core.answers import Verdict
from lightning_core.simulation.recorded_curves import load_curves

POOL, SLURM, TUNE, AT_ONCE = "pool, triage", "Slurm, requeued", "Ray Tune, ASHA", "all at once"
WHAT = ("met", "met_se", "seconds", "seconds_missed", "lines")
SECONDS = 120.0
SEEDS: dict[Size, Sequence[int]] = {"quick": (1,), "default": (1, 2, 3), "full": range(1, 11)}


def lines(jobs: int) -> dict[str, int]:
    """Return the lines that a user writes for a number of jobs, beside the trainings."""
    reports, _, _ = inspect.getsource(by_other_tools.trial).partition("class Reports")[2].partition("(folder / f")
    tuner = inspect.getsource(by_other_tools.tune_all).partition("ray.init")[2]
    of_tune = [line for line in f"{reports}{tuner}".splitlines() if line.strip()]
    return {POOL: 2 * jobs, SLURM: len(by_other_tools.SLURM_ARRAY.splitlines()), TUNE: len(of_tune), AT_ONCE: jobs}


def play(jobs: Sequence[DrawnJob], cluster: Cluster, folder: Path) -> dict[str, list[JobPlayed]]:
    """Train jobs under each tool, and return what came of them."""

    def in_pool() -> list[JobPlayed]:
        bundle = demo.bundle_of({job.name: demo.terms(job) for job in jobs}, "triage")
        demo.run(cluster, bundle, folder / "pool", "triage")
        return [played(one) for one in history_of(folder / "pool").jobs]

    def under_slurm() -> Unmanaged:
        with tempfile.TemporaryDirectory(prefix="s") as short, local_slurm.slurm(Path(short), cpus=1) as slurm:
            return by_other_tools.under_slurm(given, slurm, _new(Path(short) / "array"))

    given = [demo.unmanaged(job) for job in jobs]
    ways: dict[str, Callable[[], Unmanaged]] = {
        SLURM: under_slurm,
        TUNE: lambda: by_other_tools.under_tune(given, _new(folder / "tune")),
        AT_ONCE: lambda: all_at_once(given),
    }
    found = {POOL: in_pool()}
    for name, way in ways.items():
        began = time.monotonic()
        found[name] = [JobPlayed(one.verdict is Verdict.MET, one.best, one.busy) for one in way().jobs]
        print(f"   {name}: {sum(one.met for one in found[name])} met ({time.monotonic() - began:.0f} s)", flush=True)
    return found


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def measure(size: Size) -> Figures:
    """Train all seeds under each tool, and print and return what came of them."""
    if absent := local_slurm.missing():
        raise SystemExit(f"needs Slurm and munge: {absent} not found")
    curves = {curve.name: curve for curve in load_curves(CURVES)}
    came: dict[str, list[list[JobPlayed]]] = {POOL: [], SLURM: [], TUNE: [], AT_ONCE: []}
    with tempfile.TemporaryDirectory() as temp, Cluster(len(curves)) as cluster:
        for seed in SEEDS[size]:
            folder = _new(Path(temp) / str(seed))
            jobs = draw(curves, demo.throughputs_of(cluster, curves, folder / "alone"), seed, SECONDS)
            print(f"seed {seed}, {len(jobs)} jobs", flush=True)
            for name, some in play(jobs, cluster, folder).items():
                came[name].append(some)
    figures: Figures = {"seeds": float(len(SEEDS[size]))}
    written = lines(len(curves))
    rows: list[list[object]] = []
    for name, plays in came.items():
        met = np.array([sum(one.met for one in some) for some in plays], float)
        busy = [sum(one.busy for one in some) for some in plays]
        missed = [sum(one.busy for one in some if not one.met) for some in plays]
        doubt = error(met) if len(met) > 1 else None
        numbers = (float(met.mean()), doubt, float(np.mean(busy)), float(np.mean(missed)), float(written[name]))
        key = name.partition(",")[0].lower().replace(" ", "_")
        figures |= {f"{key}_{what}": number for what, number in zip(WHAT, numbers, strict=True)}
        rows.append([name, *("" if number is None else number for number in numbers)])
    table(["tool", "met", "standard error", "device seconds", "on jobs that missed", "lines"], rows)
    return figures


if __name__ == "__main__":
    main("trained.tools", (__doc__ or "").splitlines()[0], measure)
