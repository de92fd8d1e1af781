"""A search space over small networks that learn the digits, and the training of one trial of it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

# Epochs of a whole trial: 3^4, as Hyperband's brackets like it.
EPOCHS = 81
# Half of the images are held out: losses of a small held-out set hardly tell two good trials apart.
HELD_OUT = 899
Parameters = Mapping[str, float | int | str]


def draw(rng: np.random.Generator) -> dict[str, float | int | str]:
    """Return the hyper-parameters of one trial, drawn at random from the space."""
    return {
        "optimizer": str(rng.choice(["sgd", "adam"])),
        "lr": float(np.exp(rng.uniform(np.log(1e-4), np.log(0.3)))),
        "schedule": str(rng.choice(["constant", "cosine"])),
        "batch_size": int(2 ** rng.integers(4, 8)),
        "width": round(float(np.exp(rng.uniform(np.log(8), np.log(256))))),
        "depth": int(rng.integers(1, 4)),
        "dropout": float(rng.uniform(0.0, 0.6)),
        "weight_decay": float(np.exp(rng.uniform(np.log(1e-6), np.log(1e-1)))),
    }


class Trial(pl.LightningModule):
    """A perceptron with the hyper-parameters of one trial."""

    def __init__(
        self,
        optimizer: str,
        lr: float,
        schedule: str,
        batch_size: int,
        width: int,
        depth: int,
        dropout: float,
        weight_decay: float,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        sizes = [64, *[width] * depth]
        hidden: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            hidden += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout)]
        self.network = nn.Sequential(*hidden, nn.Linear(width, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        scores = self.network(batch[0])
        self.log("val_loss", F.cross_entropy(scores, batch[1]))
        self.log("val_error", (scores.argmax(dim=1) != batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        chosen = self.hparams
        if chosen["optimizer"] == "adam":
            optimizer: torch.optim.Optimizer = torch.optim.AdamW(
                self.parameters(), chosen["lr"], weight_decay=chosen["weight_decay"]
            )
        else:
            optimizer = torch.optim.SGD(
                self.parameters(), chosen["lr"], momentum=0.9, weight_decay=chosen["weight_decay"]
            )
        if chosen["schedule"] == "constant":
            return optimizer
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


def loaders(batch_size: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return the loaders of training and validation; the split is the same in all trials."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32).flatten(1)
    labels = torch.tensor(digits.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held_out, train = order[:HELD_OUT], order[HELD_OUT:]
    return (
        DataLoader(TensorDataset(images[train], labels[train]), batch_size, shuffle=True, drop_last=True),
        DataLoader(TensorDataset(images[held_out], labels[held_out]), HELD_OUT),
    )


class EachEpoch(pl.Callback):
    """Collects what is measured after each epoch, and the seconds since the one before (monotonic clock)."""

    def __init__(self) -> None:
        self.losses = list[float]()
        self.errors = list[float]()
        self.seconds = list[float]()
        self._last = time.perf_counter()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._last = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        now = time.perf_counter()
        self.losses.append(float(trainer.callback_metrics["val_loss"]))
        self.errors.append(float(trainer.callback_metrics["val_error"]))
        self.seconds.append(now - self._last)
        self._last = now


def train(parameters: Parameters, seed: int, epochs: int = EPOCHS) -> EachEpoch:
    """Train one trial, and return what was measured after each epoch."""
    pl.seed_everything(seed, verbose=False)
    kept = EachEpoch()
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=epochs, callbacks=[kept], logger=False, num_sanity_val_steps=0,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Trial(**parameters), *loaders(int(parameters["batch_size"])))  # type: ignore[arg-type]
    return kept
