"""Real trainings of a few milliseconds."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import numpy as np
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
    """Fits a line; its loss falls from about 1 to 0.

    Args:
        lr: Learning rate.
        pause: Seconds that a batch sleeps.
        bad_after: Batch from which the loss is NaN for three batches.
        raise_at: Batch at which it raises.
        die_at: Batch at which its process dies without an error.
        log: Name under which it logs its loss.
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
            os._exit(9)
        if self.pause:
            time.sleep(self.pause)
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        if self.log_as:
            self.log(self.log_as, loss)
        if 0 < self.bad_after <= self.steps < self.bad_after + 3:
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


# Environment variable of a node, which says how many times as long a batch of a slower line takes there.
SLOWER = "TINY_SLOWER"


class SlowerLine(Line):
    """A line that is slower on some nodes, as on an older device.

    Args:
        pause: Seconds that a batch sleeps on the others.
    """

    def __init__(self, pause: float) -> None:
        super().__init__(pause=pause * float(os.environ.get(SLOWER, "1")))


class HeavyLine(Line):
    """A line whose ranks hold more than they need, but for the first.

    Args:
        more: Bytes of each.
        pause: Seconds that a batch sleeps.
    """

    def __init__(self, more: int, pause: float = 0.0) -> None:
        super().__init__(pause=pause)
        self.more = more

    def on_fit_start(self) -> None:
        self.held = torch.ones(self.more if self.global_rank else 0, dtype=torch.uint8)


class Points(pl.LightningDataModule):
    """Sixteen batches of noisy points on a line."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(128, 1, generator=draw)
        self.points = TensorDataset(x, 2 * x + 1)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.points, batch_size=8)


class ElasticPoints(Points):
    """The same for any number of ranks."""

    def train_dataloader(self) -> Any:
        from lightning_core.callbacks import ElasticLoader

        return ElasticLoader(self.points, 2, seed=5)


class ValidatedPoints(Points):
    """Noisy points with a validation set."""

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.points, batch_size=64)


class Noisy(torch.utils.data.Dataset[tuple[torch.Tensor, ...]]):
    """Points to which each fetch adds noise of three libraries, like an augmentation in the main process."""

    def __init__(self, points: int = 40) -> None:
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randn(points, 4, generator=draw)
        self.y = self.x.sum(1, keepdim=True)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        noise = random.random() + np.random.rand() + torch.rand(4)
        return torch.tensor(index), self.x[index] + 0.1 * noise, self.y[index]


class PlacedLoader:
    """A shuffling loader with a state from which it can continue.

    Args:
        data: Data set.
        batch_size: Points in a batch.
        seed: Seed of the order, which differs each epoch.
        sized: Whether it has a length.
    """

    def __init__(self, data: Noisy, batch_size: int = 4, seed: int = 0, sized: bool = True) -> None:
        self.data, self.batch_size, self.seed, self.sized = data, batch_size, seed, sized
        self.batches = len(data) // batch_size
        self.epoch = -1
        self.place = 0
        self.resumed = False

    def __len__(self) -> int:
        if not self.sized:
            raise TypeError("unknown length")
        return self.batches

    def __iter__(self) -> Iterator[Any]:
        if not self.resumed:
            self.epoch, self.place = self.epoch + 1, 0
        self.resumed = False
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        order = torch.randperm(len(self.data), generator=torch.Generator().manual_seed(self.seed + self.epoch))
        while self.place < self.batches:
            indices = order[self.place * self.batch_size :][: self.batch_size]
            self.place += 1
            yield [torch.stack(column) for column in zip(*(self.data[int(i)] for i in indices), strict=True)]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.place = state["epoch"], state["place"]
        self.resumed = self.place < self.batches


class NoisyPoints(pl.LightningDataModule):
    """Ten batches an epoch, shuffled, with noise; and two batches of validation.

    Args:
        placed: Whether the training loader has a state.
        sized: Whether it has a length.
    """

    def __init__(self, placed: bool = True, sized: bool = True) -> None:
        super().__init__()
        self.placed, self.sized = placed, sized

    def train_dataloader(self) -> Any:
        return (
            PlacedLoader(Noisy(), sized=self.sized) if self.placed else DataLoader(Noisy(), batch_size=4, shuffle=True)
        )

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Noisy(8), batch_size=4)


class Net(pl.LightningModule):
    """Two layers with dropout and batch norm, Adam, and schedules by step, by epoch and by plateau.

    It records its samples, and keeps a moving average of its weights in a hook.

    Args:
        plateau: Whether the rate falls when the validation loss does not, instead of by epoch.
        manual: Whether it runs the optimizer's steps itself.
    """

    def __init__(self, plateau: bool = False, manual: bool = False) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.3),
            torch.nn.Linear(8, 1),
        )  # fmt: skip
        self.plateau = plateau
        self.automatic_optimization = not manual
        self.average: torch.Tensor
        self.register_buffer("average", torch.zeros(8, 4))
        self.pause = 0.0
        self.seen: list[list[int]] = []
        self.epochs_started: list[int] = []
        self.validations = 0

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        time.sleep(self.pause)
        index, x, y = batch
        self.seen.append(index.tolist())
        loss = torch.nn.functional.mse_loss(self.body(x), y)
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def on_train_epoch_start(self) -> None:
        self.epochs_started.append(self.current_epoch)

    def on_train_batch_end(self, *_: Any) -> None:
        first: Any = self.body[0]
        self.average = 0.9 * self.average + 0.1 * first.weight.detach()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        _, x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.body(x), y))

    def on_validation_epoch_end(self) -> None:
        self.validations += 1

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        by_step = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        if self.plateau:
            by_loss = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
            slow: dict[str, Any] = {"scheduler": by_loss, "interval": "epoch", "monitor": "val_loss"}
        else:
            slow = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7), "interval": "epoch"}
        return [optimizer], [{"scheduler": by_step, "interval": "step"}, slow]


class NoArguments(pl.LightningModule):
    """Raises when it is built."""

    def __init__(self) -> None:
        raise RuntimeError("cannot be built")


class Heavy(Line):
    """Has memory of its own, as a large model has.

    Args:
        megabytes: How much.
        pause: Seconds that a batch sleeps.
    """

    def __init__(self, megabytes: int, pause: float = 0.0) -> None:
        super().__init__(pause=pause)
        # Floats of 4 bytes, on the device of the training.
        self.register_buffer("weight", torch.ones(megabytes, 2**18), persistent=False)
