"""Record the loss curves of the bundle that `lightning-core init` writes, each job trained alone on one core.

Writes ``lightning_core/template/curves/*.csv`` and prints the ``throughput`` of each job, in batches per second of
processor time.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from lightning_core.cli.init import TEMPLATE

# Model, its arguments and its batches: what the core can do until the last deadline, or far beyond the target.
JOBS: dict[str, tuple[str, dict[str, int], int]] = {
    "linear": ("Linear", {}, 12000),
    "large": ("Cnn", {"channels": 32}, 4000),
    "cnn": ("Cnn", {"channels": 8}, 4000),
    "mlp": ("Mlp", {"width": 64}, 3000),
    "batches": ("Mlp", {}, 2500),
}
ROWS = 200


class Losses(Callback):
    """Collects the loss of each batch."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any) -> None:
        self.values.append(float(outputs["loss"]))


def record(name: str) -> float:
    """Train one job and write its recording.

    Returns:
        Batches per second of processor time.
    """
    import training  # type: ignore[import-not-found]  # the user's module next to the bundle

    kind, arguments, batches = JOBS[name]
    pl.seed_everything(1, verbose=False)
    losses = Losses()
    trainer = pl.Trainer(
        max_steps=batches, callbacks=[losses], accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_model_summary=False, enable_progress_bar=False,
    )  # fmt: skip
    model, data = getattr(training, kind)(**arguments), training.Shapes()
    began = time.thread_time()
    trainer.fit(model, datamodule=data)
    busy = time.thread_time() - began
    cell = batches // ROWS
    with (TEMPLATE / "curves" / f"{name}.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["step", "loss"])
        for end in range(cell, batches + 1, cell):
            rows.writerow([end, f"{sum(losses.values[end - cell : end]) / cell:.4f}"])
    return batches / busy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording.record_template", description=__doc__)
    parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(TEMPLATE))
    for name in JOBS:
        print(f"{name}: throughput: {record(name):.0f}", flush=True)
