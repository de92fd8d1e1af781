"""The network of ``examples/search.py`` on the digits, each batch of which waits as if for an accelerator."""

from __future__ import annotations

import time
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from examples.search import EPOCHS, Perceptron, loaders

# Seconds that a batch waits. An epoch has 38, so a whole trial takes some 30 s wherever it trains.
PAUSE = 0.026


class WaitingPerceptron(Perceptron):
    """The network; its loss is the example's."""

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        time.sleep(PAUSE)
        return super().training_step(batch, index)


class Digits(pl.LightningDataModule):
    """The digits for training, and those held out."""

    def train_dataloader(self) -> DataLoader[Any]:
        return loaders()[0]

    def val_dataloader(self) -> DataLoader[Any]:
        return loaders()[1]


# Options of the Trainer, the same for all.
TRAINER: dict[str, Any] = {
    "accelerator": "cpu", "max_epochs": EPOCHS, "logger": False, "enable_checkpointing": False,
    "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip
