"""Trainings of a few milliseconds, real all the same."""

from __future__ import annotations

import math
import time
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

Batch = list[torch.Tensor]
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}


class Line(pl.LightningModule):
    """Fits a line; its loss falls from about 1 to nothing.

    Args:
        lr: learning rate.
        pause: seconds that a batch sleeps.
        bad_after: batch from which the loss is NaN for three batches.
        raise_at: batch at which it raises.
        die_at: batch at which its process dies without a word.
        log: name under which it logs its loss.
    """

    def __init__(
        self,
        lr: float = 0.05,
        pause: float = 0.0,
        bad_after: int = -1,
        raise_at: int = -1,
        die_at: int = -1,
        log: str = "",
    ) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.lr, self.pause, self.bad_after, self.raise_at, self.die_at, self.log_as = (
            lr, pause, bad_after, raise_at, die_at, log,
        )  # fmt: skip
        self.steps = 0

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        self.steps += 1
        if self.steps == self.raise_at:
            raise ValueError("this job was made to fail")
        if self.steps == self.die_at:
            import os

            os._exit(9)
        if self.pause:
            time.sleep(self.pause)
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        if self.log_as:
            self.log(self.log_as, loss)
        if self.bad_after <= self.steps < self.bad_after + 3:
            return loss * math.nan
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if self.pause:
            time.sleep(self.pause)
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(x), y))

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter in self.parameters():  # a NaN loss must not spoil what follows
            if parameter.grad is not None:
                parameter.grad.nan_to_num_()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Points(pl.LightningDataModule):
    """Sixteen batches of noisy points on a line."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(128, 1, generator=draw)
        self.points = TensorDataset(x, 2 * x + 1)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.points, batch_size=8)


class ValidatedPoints(Points):
    """... with a validation set."""

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.points, batch_size=64)


class NoArguments(pl.LightningModule):
    """Raises when it is built."""

    def __init__(self) -> None:
        raise RuntimeError("cannot be built")
