"""Trains jobs under other tools on one device, as their users would: Slurm's requeue, and ASHA in Ray Tune.

Each training has a process of its own, which imports PyTorch and Lightning. Trainings of hours do not feel that, and
those of seconds do, so it takes none of their time: the clock stands still while the process of a Slurm job imports,
and starts in Ray Tune when all have. What a tool itself takes to start a training counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.results import ROOT
from examples.slurm.local_slurm import Slurm
from examples.unmanaged import EndedTraining, Unmanaged, UnmanagedJob, train

JOBS, BEGAN, IMPORTS = "jobs.json", "began", "imports"
# Seconds after the last deadline at which a tool counts as hung.
PATIENCE = 120.0
# Reported of a trial that had no loss.
MAX_GAP = 1e9
# The recipe of examples/slurm/array.sbatch, for a device and allocations of a minute.
SLURM_ARRAY = """#!/bin/bash
#SBATCH --array=0-{last}
#SBATCH --nodelist=one
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --time=1
#SBATCH --requeue
#SBATCH --signal=B:USR1@10
#SBATCH --open-mode=append
#SBATCH --output=%a.log
mkdir -p "$SLURM_ARRAY_TASK_ID" && cd "$SLURM_ARRAY_TASK_ID" || exit 1
{python} -m benchmarks.trained.by_other_tools .. "$SLURM_ARRAY_TASK_ID" &
training=$!
trap 'kill -USR1 "$training"' USR1
wait "$training"
while kill -0 "$training" 2>/dev/null; do wait "$training"; done
"""


def under_slurm(jobs: Sequence[UnmanagedJob], slurm: Slurm, folder: Path) -> Unmanaged:
    """Submit jobs as an array, each of which is requeued after a minute and resumes from its checkpoint.

    Args:
        jobs: The jobs, in the order of submission.
        slurm: Slurm with a node ``one`` of one CPU.
        folder: An empty folder.

    Raises:
        TimeoutError: If the array is not over in time.
    """
    (folder / JOBS).write_text(json.dumps([asdict(job) for job in jobs]))
    (folder / "array.sbatch").write_text(SLURM_ARRAY.format(last=len(jobs) - 1, python=sys.executable))
    (folder / BEGAN).write_text(repr(time.time()))
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    number = slurm.ask("sbatch", "--parsable", "array.sbatch", folder=folder, **variables)
    until = time.monotonic() + max(job.deadline for job in jobs) + PATIENCE + 15.0 * len(jobs)
    while not slurm.is_over(number):
        if time.monotonic() > until:
            raise TimeoutError(f"Slurm job {number} is not over; its logs are in {folder}")
        time.sleep(0.5)
    return Unmanaged([_ended(folder, number, job) for number, job in enumerate(jobs)])


def under_tune(jobs: Sequence[UnmanagedJob], folder: Path) -> Unmanaged:
    """Train jobs as trials of Ray Tune, all at once on one core; ASHA stops those that are behind others.

    It compares losses as multiples of the targets, as each job has a loss of its own, from the fifth epoch on.

    Args:
        jobs: The jobs, in the order of submission.
        folder: An empty folder.
    """
    (folder / JOBS).write_text(json.dumps([asdict(job) for job in jobs]))
    line = [sys.executable, "-m", "benchmarks.trained.by_other_tools", str(folder)]
    # Ray keeps its token at home.
    env = os.environ | {"HOME": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run(line, env=env, cwd=folder, check=True, stdout=sys.stderr)
    return Unmanaged([_ended(folder, number, job) for number, job in enumerate(jobs)])


def _ended(folder: Path, number: int, job: UnmanagedJob) -> EndedTraining:
    """Return the end of a job; of one that its tool has stopped, the time that it held the device."""
    at = folder / str(number)
    busy = sum(float(one.read_text()) for one in at.glob("busy-*"))
    if (at / "end.json").exists():
        end = json.loads((at / "end.json").read_text())
        return EndedTraining(end["finished_at"], end["best"], busy)
    return EndedTraining(None, float("inf"), busy)


# ------------------------------------------------------------------------------- in the process of a training


def train_one(folder: Path, number: int, zero: float, **trainer: Any) -> EndedTraining:
    """Train a job, write how it ended and how long it held the device, and return its end.

    Args:
        folder: Folder of the tool's run.
        number: Number of the job.
        zero: Time at which the clock of all jobs was at 0.
        trainer: Arguments of the Trainer.
    """
    at = folder / str(number)
    at.mkdir(exist_ok=True)
    file = at / f"busy-{len(list(at.glob('busy-*')))}"
    begun = time.process_time()

    def note() -> None:
        while not over.wait(0.2):
            file.write_text(str(time.process_time() - begun))

    file.write_text("0")
    over = threading.Event()
    threading.Thread(target=note, daemon=True).start()
    job = UnmanagedJob(**json.loads((folder / JOBS).read_text())[number])
    end = train(job, lambda: time.time() - zero, accelerator="cpu", default_root_dir=str(at), **trainer)
    over.set()
    (at / "end.json").write_text(json.dumps(asdict(end)))
    return end


def import_all() -> None:
    """Import what trainings need, and use one thread."""
    import lightning.pytorch  # noqa: F401
    import torch

    import examples.digits  # noqa: F401

    torch.set_num_threads(1)


def slurm_job(folder: Path, number: int) -> None:
    """Train a job in its allocation, from where it was when the last one ended."""
    began = time.time()
    import_all()
    with (folder / IMPORTS).open("a") as opened:
        opened.write(f"{time.time() - began}\n")
    paused = sum(map(float, (folder / IMPORTS).read_text().split()))
    train_one(folder, number, float((folder / BEGAN).read_text()) + paused)


def trial(config: dict[str, Any]) -> None:
    """Train a trial of Ray Tune, and report its loss after each epoch, as a multiple of its target."""
    import_all()
    import lightning.pytorch as pl
    from ray import tune

    folder, number = Path(config["folder"]), config["number"]
    jobs = json.loads((folder / JOBS).read_text())
    target = jobs[number]["target"]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    class Reports(pl.Callback):
        def __init__(self) -> None:
            self.losses: list[float] = []

        def on_train_batch_end(
            self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            self.losses.append(outputs["loss"].item())

        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            tune.report({"gap": fmean(self.losses) / target})
            self.losses.clear()

    (folder / f"ready-{number}").touch()
    while len(ready := list(folder.glob("ready-*"))) < len(jobs):
        time.sleep(0.05)
    end = train_one(folder, number, max(one.stat().st_mtime for one in ready), callbacks=[Reports()])
    tune.report({"gap": min(end.best / target, MAX_GAP)})


def tune_all(folder: Path) -> None:
    """Train all jobs of a folder in Ray Tune."""
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    jobs = json.loads((folder / JOBS).read_text())
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1 / len(jobs)}),
        param_space={"number": tune.grid_search(list(range(len(jobs)))), "folder": str(folder)},
        tune_config=tune.TuneConfig(
            scheduler=ASHAScheduler(metric="gap", mode="min", max_t=10_000, grace_period=5, reduction_factor=3)
        ),
        run_config=tune.RunConfig(storage_path=str(folder / "tune"), verbose=0),
    )
    tuner.fit()
    ray.shutdown()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        tune_all(Path(sys.argv[1]))
    else:
        slurm_job(Path(sys.argv[1]).resolve(), int(sys.argv[2]))
