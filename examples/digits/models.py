"""The models of LARA's pure bundle (Table 1), cut to 8 x 8 pixels: a ViT, an LSTM, a CNN and two ResNets."""

from __future__ import annotations

from itertools import pairwise

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import functional as F

from examples.digits.data import Batch

CLASSES = 10


class DigitModel(pl.LightningModule):
    """A classifier of digits, trained with Adam on cross-entropy.

    Args:
        lr: learning rate.
    """

    def __init__(self, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.net = self.build()

    def build(self) -> nn.Module:
        """Images ``(n, 1, 8, 8)`` to scores ``(n, 10)``."""
        raise NotImplementedError

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.net(images)
        return scores

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self(images), labels)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        images, labels = batch
        self.log("test_accuracy", (self(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class _Patches(nn.Module):
    """Images to 16 tokens of 2 x 2 pixels with learned places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, 2, stride=2)
        self.place = nn.Parameter(0.02 * torch.randn(1, 16, width))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens: torch.Tensor = self.embed(images)
        return tokens.flatten(2).transpose(1, 2) + self.place


class _Mean(nn.Module):
    """The mean over tokens."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.mean(1)


class VisionTransformer(DigitModel):
    """Two encoder layers over 16 patches."""

    def build(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        return nn.Sequential(_Patches(64), encoder, _Mean(), nn.LayerNorm(64), nn.Linear(64, CLASSES))


class _Rows(nn.Module):
    """Reads the image row by row with a two-layer LSTM; the last state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, width, num_layers=2, batch_first=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(images.squeeze(1))
        last: torch.Tensor = states[:, -1]
        return last


class Lstm(DigitModel):
    """Two LSTM layers and three fully connected ones."""

    def build(self) -> nn.Module:
        return nn.Sequential(
            _Rows(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES)
        )


class Cnn(DigitModel):
    """Three convolutions, two poolings, two fully connected layers."""

    def build(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 64),
            nn.ReLU(),
            nn.Linear(64, CLASSES),
        )


class _Residual(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut = nn.Identity() if inside == outside else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def _resnet(*widths: int) -> nn.Module:
    blocks = [_Residual(a, b, 1 if a == b else 2) for a, b in pairwise(widths)]
    first = nn.Sequential(nn.Conv2d(1, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
    return nn.Sequential(first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES))


class ResNetNarrow(DigitModel):
    """Three residual blocks of up to 48 channels."""

    def build(self) -> nn.Module:
        return _resnet(16, 16, 32, 48)


class ResNetWide(DigitModel):
    """Four residual blocks of up to 64 channels."""

    def build(self) -> nn.Module:
        return _resnet(24, 24, 48, 48, 64)
