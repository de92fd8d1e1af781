"""Small networks, and the Lightning module that trains any of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import functional as F

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def linear(inputs: int, outputs: int) -> nn.Module:
    """Return one linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs))


def mlp(inputs: int, width: int, outputs: int, dropout: float = 0.0) -> nn.Module:
    """Return a perceptron with two hidden layers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, outputs),
    )


def cnn(side: int, outputs: int, width: int = 12, dropout: float = 0.0) -> nn.Module:
    """Return two convolutions with pooling over a square of one channel, ``(n, side, side)``."""
    return nn.Sequential(
        nn.Unflatten(1, (1, side)),
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(2 * width * (side // 4) ** 2, outputs),
    )


def autoencoder(size: int, width: int, code: int) -> nn.Module:
    """Return an autoencoder of ``size`` numbers with a bottleneck of ``code``."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(size, width),
        nn.ReLU(),
        nn.Linear(width, code),
        nn.Linear(code, width),
        nn.ReLU(),
        nn.Linear(width, size),
        nn.Sigmoid(),
    )


class WordBag(nn.Module):
    """The mean of word vectors, then an MLP: word numbers ``(n, t)`` to scores."""

    def __init__(self, words: int, width: int, outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(words, width, padding_idx=0)
        self.head = mlp(width, width, outputs, dropout)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.embed(numbers))
        return scores


class Recurrent(nn.Module):
    """A GRU or LSTM over a sequence ``(n, t, d)``, or over ``(n, t)`` numbers that are embedded first.

    Args:
        cell: ``nn.GRU`` or ``nn.LSTM``.
        inputs: d, or the size of the vocabulary.
        width: Size of the state.
        outputs: Outputs of the last layer.
        embedded: Whether the inputs are numbers.
        every: Whether each position has outputs, ``(n, outputs, t)``, instead of only the mean state.
    """

    def __init__(
        self,
        cell: type[nn.GRU] | type[nn.LSTM],
        inputs: int,
        width: int,
        outputs: int,
        embedded: bool = False,
        every: bool = False,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(inputs, width) if embedded else nn.Identity()
        self.body = cell(width if embedded else inputs, width, batch_first=True)
        self.head = nn.Linear(width, outputs)
        self.every = every

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        states, _ = self.body(self.embed(sequence))
        scores: torch.Tensor = self.head(states if self.every else states.mean(1))
        return scores.transpose(1, 2) if self.every else scores


class Transformer(nn.Module):
    """A pre-norm encoder with learned positions; arguments and shapes as in ``Recurrent``, causal if ``every``."""

    def __init__(
        self,
        length: int,
        inputs: int,
        width: int,
        outputs: int,
        embedded: bool = False,
        every: bool = False,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(inputs, width) if embedded else nn.Linear(inputs, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, outputs))
        self.every = every
        self.mask: torch.Tensor | None
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length) if every else None)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        states = self.body(self.embed(sequence) + self.position, mask=self.mask, is_causal=self.every)
        scores: torch.Tensor = self.head(states if self.every else states.mean(1))
        return scores.transpose(1, 2) if self.every else scores


class Learner(pl.LightningModule):
    """Trains a network.

    Args:
        net: Network to train.
        loss: Loss of its outputs and the targets.
        optimizer: ``sgd``, ``momentum`` (0.9) or ``adam``.
        lr: Learning rate.
        schedule: ``constant``; ``cosine`` to 0; ``step``: a tenth after a half and after three quarters.
        batches: Total number of batches.
    """

    def __init__(self, net: nn.Module, loss: Loss, optimizer: str, lr: float, schedule: str, batches: int) -> None:
        super().__init__()
        self.net = net
        self.loss = loss
        self.optimizer, self.lr, self.schedule, self.batches = optimizer, lr, schedule, batches

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        return self.loss(self.net(inputs), targets)

    def configure_optimizers(self) -> Any:
        optimizer: torch.optim.Optimizer
        if self.optimizer == "adam":
            optimizer = torch.optim.Adam(self.net.parameters(), lr=self.lr)
        else:
            momentum = {"sgd": 0.0, "momentum": 0.9}[self.optimizer]
            optimizer = torch.optim.SGD(self.net.parameters(), lr=self.lr, momentum=momentum)
        scheduler: torch.optim.lr_scheduler.LRScheduler
        if self.schedule == "constant":
            return optimizer
        if self.schedule == "cosine":
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.batches)
        else:
            drops = [self.batches // 2, self.batches * 3 // 4]
            scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, drops)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class QLearner(Learner):
    """Learns from recorded steps of a game what each action is worth, in ones a step: offline Q-learning.

    The loss is that of temporal differences (Huber) to a copy of the network which is renewed every 200 batches, so it
    climbs while the worth that is learned still grows.
    """

    discount = 0.98
    renewed_every = 200

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.older = copy.deepcopy(self.net).requires_grad_(False)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        seen, done = batch
        action, went_on, after = done[:, :1].long(), done[:, 1], done[:, 2:]
        worth = self.net(seen).gather(1, action).squeeze(1)
        return F.smooth_l1_loss(worth, 1 + self.discount * went_on * self.older(after).amax(1))

    def on_train_batch_end(self, *_: Any) -> None:
        if self.global_step % self.renewed_every == 0:
            self.older.load_state_dict(self.net.state_dict())
