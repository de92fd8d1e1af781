"""A small training that records the time of every batch."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[torch.Tensor, torch.Tensor]


class Regression(pl.LightningModule):
    """A multi-layer perceptron on noise.

    Args:
        width: Width of its hidden layers, which determines the time per batch.
    """

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        inputs, wanted = batch
        return nn.functional.mse_loss(self.net(inputs), wanted)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Noise(pl.LightningDataModule):
    """Random inputs and targets in memory, 500 batches per epoch."""

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        draw = torch.Generator().manual_seed(0)
        data = TensorDataset(torch.randn(16_000, 32, generator=draw), torch.randn(16_000, 1, generator=draw))
        return DataLoader(data, batch_size=32)


class Stamps(pl.Callback):
    """Records when each batch ended, by the monotonic clock, which all processes of a machine share.

    Args:
        path: Path of the ``.npy`` file of shape ``(batches,)``, written when training ends.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._times: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self._times.append(time.monotonic())

    def on_fit_end(self, *_: Any) -> None:
        self._write()

    def on_exception(self, *_: Any) -> None:
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        np.save(self._path, np.array(self._times))
        os.sync()


def read_stamps(path: Path) -> np.ndarray:
    """Return the times that :class:`Stamps` recorded.

    Raises:
        RuntimeError: If the training was killed before it could write them.
    """
    if not path.exists():
        raise RuntimeError(
            f"{path.stem} must record the times of its batches, and ended before it could: run the benchmark again "
            "while the machine is less busy"
        )
    stamps: np.ndarray = np.load(path)
    return stamps


def job(width: int, stamps: Path, deadline: float) -> dict[str, Any]:
    """Return a job that trains until its deadline, as in a bundle file."""
    return {
        "seed_everything": 0,
        "model": {"class_path": "benchmarks.live.workloads.Regression", "init_args": {"width": width}},
        "data": {"class_path": "benchmarks.live.workloads.Noise"},
        "trainer": {
            "logger": False,
            "callbacks": [{"class_path": "benchmarks.live.workloads.Stamps", "init_args": {"path": str(stamps)}}],
        },
        "deadline": f"{deadline:.3f}s",
        "target": {"batches": 10**9},
        "on_miss": "stop",
    }
