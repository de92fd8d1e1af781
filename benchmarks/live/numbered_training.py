"""A training that records which samples it saw, and the check that resizes left their order alone."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from lightning_core.callbacks import ElasticLoader

SAMPLES, BATCH, WIDTH = 4096, 16, 256


class Numbered(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """Noise whose samples carry their numbers."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(SAMPLES, 32, generator=draw)
        self.wanted = torch.sin(self.inputs.sum(1, keepdim=True)) + 0.1 * torch.randn(SAMPLES, 1, generator=draw)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return number, self.inputs[number], self.wanted[number]


class Data(pl.LightningDataModule):
    """The samples, in an order that does not depend on the number of devices."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    def train_dataloader(self) -> ElasticLoader:
        return ElasticLoader(Numbered(), batch_size=BATCH, seed=self.seed)


class Network(pl.LightningModule):
    """A perceptron that records which samples it saw.

    Args:
        folder: Folder of the records, one file per rank and incarnation.
        pause: Seconds to wait in each batch.
    """

    def __init__(self, folder: str, pause: float = 0.0) -> None:
        super().__init__()
        self.folder, self.pause = Path(folder), pause
        self.net = nn.Sequential(
            nn.Linear(32, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
        )
        self._lines: list[str] = []

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        numbers, inputs, wanted = batch
        loss = nn.functional.mse_loss(self.net(inputs), wanted)
        seen = [self.trainer.current_epoch, self.trainer.global_step, numbers.tolist(), float(loss)]
        self._lines.append(json.dumps(seen))
        time.sleep(self.pause)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def on_train_batch_end(self, *_: Any) -> None:
        if len(self._lines) == 1:
            self._mark()

    def _mark(self) -> None:
        trainer = self.trainer
        line = json.dumps([time.monotonic(), trainer.world_size, trainer.global_rank, trainer.global_step])
        with (self.folder / "incarnations").open("a") as file:
            file.write(line + "\n")

    def write(self) -> None:
        """Write the record of this rank and incarnation."""
        name = f"seen-{time.monotonic_ns()}-{self.trainer.global_rank}"
        (self.folder / name).write_text("\n".join(self._lines))


class Writes(pl.Callback):
    """Makes the network write its record, however the fit ends."""

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        pl_module.write()  # type: ignore[operator]  # it is a Network

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        pl_module.write()  # type: ignore[operator]


def _lines(folder: Path) -> list[tuple[int, int, list[int], float]]:
    return [json.loads(line) for path in folder.glob("seen-*") for line in path.read_text().splitlines()]


def seen_samples(folder: Path) -> dict[tuple[int, int], list[int]]:
    """Return the samples of each epoch and step."""
    seen: dict[tuple[int, int], list[int]] = defaultdict(list)
    for epoch, step, numbers, _ in _lines(folder):
        seen[epoch, step].extend(numbers)
    return seen


def mean_losses(folder: Path) -> list[float]:
    """Return the mean loss of each step."""
    losses: dict[int, list[float]] = defaultdict(list)
    for _, step, _, loss in _lines(folder):
        losses[step].append(loss)
    return [float(np.mean(losses[step])) for step in sorted(losses)]


def check_order(seen: dict[tuple[int, int], list[int]], undisturbed: dict[tuple[int, int], list[int]]) -> int:
    """Compare a training with one that was never resized, and return the number of steps compared.

    The last step is left out: who cancels a training does so in the middle of a step, of whose batches some are done.

    Raises:
        RuntimeError: If a step saw other samples, or an epoch did not see each sample once.
    """
    both = seen.keys() & undisturbed.keys() - {max(seen, default=(0, 0))}
    for step in sorted(both):
        if sorted(seen[step]) != sorted(undisturbed[step]):
            more, fewer = Counter(seen[step]), Counter(undisturbed[step])
            raise RuntimeError(
                f"epoch and step {step} must see the {len(undisturbed[step])} samples that they see without resizes, "
                f"and saw {(more - fewer).total()} beyond them, and {(fewer - more).total()} of them not"
            )
    epochs = defaultdict(list)
    for (epoch, _), numbers in seen.items():
        epochs[epoch].extend(numbers)
    for epoch in sorted(epochs)[:-1]:
        if sorted(epochs[epoch]) != list(range(SAMPLES)):
            raise RuntimeError(f"epoch {epoch} must see every sample once, and did not")
    return len(both)
