"""A user's training script, which knows of pools only by its callback.

``python -m tests.script NAME DEADLINE BATCHES [MILLISECONDS]``
"""

from __future__ import annotations

import sys
import time

import lightning.pytorch as pl
import torch

from lightning_core.callbacks import CoreCallback
from lightning_core.core.targets import BatchTarget
from tests.tiny import QUIET, Batch, Line, Points


class Busy(Line):
    """Keeps its core busy for some milliseconds a batch, without sleeping."""

    def __init__(self, milliseconds: float = 4.0) -> None:
        super().__init__()
        self.milliseconds = milliseconds

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        until = time.thread_time() + self.milliseconds / 1e3
        while time.thread_time() < until:
            pass
        return super().training_step(batch, batch_idx)


def main(name: str, deadline: str, batches: str, milliseconds: str = "4") -> None:
    """Trains until the target is met."""
    torch.set_num_threads(1)
    callback = CoreCallback(name, deadline=deadline, target=BatchTarget(int(batches)))
    trainer = pl.Trainer(max_epochs=-1, callbacks=[callback], **QUIET)
    trainer.fit(Busy(float(milliseconds)), datamodule=Points())
    print(f"{name} ended after {trainer.global_step} batches", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
