"""Three small models of different architectures, on noise in memory."""

from __future__ import annotations

import time

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import TensorDataset

from lightning_core.callbacks import ElasticLoader

Batch = tuple[torch.Tensor, torch.Tensor]
SIDE, CLASSES = 16, 10


class _Patches(nn.Module):
    """Cuts images into a sequence of patches for a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, stride=4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.embed(images)
        return embedded.flatten(2).transpose(1, 2)


class _Mean(nn.Module):
    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        return sequence.mean(1)


def perceptron(width: int) -> nn.Module:
    """Return a perceptron with two hidden layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * SIDE**2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, CLASSES),
    )  # fmt: skip


def convolutions(width: int) -> nn.Module:
    """Return three convolutions with pooling."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(width, CLASSES),
    )  # fmt: skip


def transformer(width: int) -> nn.Module:
    """Return a transformer encoder over patches."""
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(_Patches(width), encoder, _Mean(), nn.Linear(width, CLASSES))


# Constructor and width of each, so narrow that two devices exchange gradients in little of a batch's time.
MODELS = {"perceptron": (perceptron, 384), "convolutions": (convolutions, 24), "transformer": (transformer, 64)}


class Classifier(pl.LightningModule):
    """One of the models.

    Args:
        kind: Name in :data:`MODELS`.
        wait: Seconds that a batch waits, as if for an accelerator.
    """

    def __init__(self, kind: str, wait: float = 0.0) -> None:
        super().__init__()
        self.wait = wait
        make, width = MODELS[kind]
        self.net = make(width)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        images, labels = batch
        time.sleep(self.wait)
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Images(pl.LightningDataModule):
    """Noise with labels.

    Args:
        batch_size: Samples per batch of one device.
    """

    def __init__(self, batch_size: int = 128) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> ElasticLoader:
        draw = torch.Generator().manual_seed(0)
        images = torch.randn(6400, 3, SIDE, SIDE, generator=draw)
        labels = torch.randint(CLASSES, (6400,), generator=draw)
        return ElasticLoader(TensorDataset(images, labels), batch_size=self.batch_size)
