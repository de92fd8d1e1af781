"""The demo's ten trainings, each digit model at two learning rates, and their recorded loss curves.

    python -m examples.digits.trainings            # records them again: about ten minutes on one core
    python -m examples.digits.trainings --again    # ... those of the second evening: about five

The second evening (``examples/again.py``) trains the same models with other learning rates and another seed.

A recording holds the loss cells that a worker reports for the training (``curves/NAME.csv``, columns ``step,loss``);
``curves/index.csv`` holds the seconds per batch. ``lightning-core simulate --curves examples/digits/curves`` plays
them.
"""

from __future__ import annotations

import argparse
import csv
import logging
import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

CURVES = Path(__file__).parent / "curves"
CURVES_AGAIN = Path(__file__).parent / "curves_again"
# Seed of every training, and of those of the second evening. The seed of a demo draws targets, deadlines and the order.
SEED = 1
SEED_AGAIN = 2
# Learning rate on the second evening, as a multiple of that on the first, and how much of its recording is needed.
FASTER = 1.5
SUFFIX = "-2"
SHORTER = 0.6
COLUMNS = ("file", "domain", "task", "method", "rows", "last_step", "sec_per_step")


@dataclass(frozen=True)
class Training:
    """A model, its training, and the length of its recording.

    Args:
        model: Class in ``examples.digits``.
        lr: Learning rate of Adam.
        cell: Minimum batches per loss cell, about a thirtieth of a second.
        batches: Batches to record.
        seed: Seed of weights and order.
    """

    model: str
    lr: float
    cell: int
    batches: int
    seed: int = SEED

    def config(self) -> dict[str, object]:
        """Return the LightningCLI config of the training."""
        return {
            "seed_everything": self.seed,
            "model": {"class_path": f"examples.digits.{self.model}", "init_args": {"lr": self.lr}},
            "data": {"class_path": "examples.digits.Digits"},
            "trainer": {"logger": False},
        }


TRAININGS = {
    f"{name}-{speed}": Training(model, lr, cell, batches)
    for name, model, cell, batches in (
        ("vit", "VisionTransformer", 1, 1500),
        ("lstm", "Lstm", 2, 4000),
        ("cnn", "Cnn", 3, 6000),
        ("resnet", "ResNetNarrow", 2, 3600),
        ("wide", "ResNetWide", 1, 2000),
    )
    for speed, lr in (("quick", 1e-3), ("slow", 3e-4))
}
AGAIN = {
    f"{name}{SUFFIX}": replace(one, lr=FASTER * one.lr, batches=round(SHORTER * one.batches), seed=SEED_AGAIN)
    for name, one in TRAININGS.items()
}


def record(training: Training) -> tuple[list[tuple[int, float]], float]:
    """Train alone on one thread.

    Returns:
        Batches and mean loss of each cell, as a worker reports them, and the median seconds per batch.
    """
    import lightning.pytorch as pl

    import examples.digits as digits
    from lightning_core.agent.reporting.loss_meter import LossMeter

    cells: list[tuple[int, float]] = []
    meter = LossMeter(lambda cell: cells.append((cell.batches, cell.value)), training.cell)
    times: list[float] = []

    class Losses(pl.Callback):
        def on_train_batch_end(
            self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            times.append(time.process_time())  # excludes other processes
            meter.add(outputs["loss"].item(), len(times))

    pl.seed_everything(training.seed, verbose=False)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_steps=training.batches, max_epochs=-1, callbacks=[Losses()], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(getattr(digits, training.model)(lr=training.lr), digits.Digits())
    return cells, statistics.median(b - a for a, b in pairwise(times))


def main(words: Sequence[str] | None = None) -> None:
    """Record all trainings, or the named ones."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.digits.trainings", description="Record the demo's trainings."
    )
    parser.add_argument("--again", action="store_true", help="the trainings of the second evening")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the CSV files")
    parser.add_argument("--only", nargs="+", choices=[*TRAININGS, *AGAIN], metavar="NAME", help="only these")
    arguments = parser.parse_args(words)
    trainings, out = (AGAIN, CURVES_AGAIN) if arguments.again else (TRAININGS, CURVES)
    out = arguments.out or out

    import torch

    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.pytorch")
    out.mkdir(parents=True, exist_ok=True)
    index = out / "index.csv"
    rows = {}
    if index.exists():
        with index.open(newline="") as opened:
            rows = {row["file"]: row for row in csv.DictReader(opened)}
    for name in arguments.only or trainings:
        training = trainings[name]
        cells, seconds = record(training)
        with (out / f"{name}.csv").open("w", newline="") as opened:
            writer = csv.writer(opened, lineterminator="\n")
            writer.writerow(["step", "loss"])
            writer.writerows([batches, f"{loss:.4g}"] for batches, loss in cells)
        rows[f"{name}.csv"] = {
            "file": f"{name}.csv", "domain": "cv", "task": "digits", "rows": str(len(cells)),
            "method": f"{training.model} adam lr={training.lr:g} bs=64", "last_step": str(cells[-1][0]),
            "sec_per_step": "" if arguments.again else f"{seconds:.3g}",  # the same model: as on the first evening
        }  # fmt: skip
        with index.open("w", newline="") as opened:
            table = csv.DictWriter(opened, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(rows[file] for file in sorted(rows))
        print(
            f"{name}: {cells[-1][0]} batches, {cells[0][1]:.3g} to {cells[-1][1]:.3g}, {1e3 * seconds:.3g} ms per batch"
        )


if __name__ == "__main__":
    main()
