"""Steps of micro-batches: each rank's share of a step, the same sums on every number of devices."""

from __future__ import annotations

import math
import os

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from typing_extensions import override

# What the launcher tells the ranks of a job that can be resized: of how many slots a step is.
SLOTS = "LIGHTNING_CORE_SLOTS"


def slots() -> int:
    """Of how many slots a step is, if the job that this process trains can be resized; else 0."""
    return int(os.environ.get(SLOTS) or 0)


class Share:
    """This rank's share of every step, in a Trainer that is about to fit.

    What a Trainer counts in batches of a rank (``val_check_interval``, ``limit_train_batches``, the ``frequency`` of a
    schedule) its user has meant for the largest number of devices, where a step is ``accumulate_grad_batches`` of them.
    Here it becomes whole steps, the same on every number of devices.

    Args:
        trainer: whose numbers are changed.
        pl_module: that it will fit.
        of: slots of a step.

    Raises:
        MisconfigurationException: if this training cannot be shared so; the message says why.
    """

    def __init__(self, trainer: pl.Trainer, pl_module: pl.LightningModule, of: int) -> None:
        for wrong, words in (
            (not pl_module.automatic_optimization, "it does the steps of its optimiser itself"),
            (
                any(isinstance(callback, GradientAccumulationScheduler) for callback in trainer.callbacks),  # type: ignore[attr-defined]
                "GradientAccumulationScheduler changes the size of its steps",
            ),
            (of % trainer.world_size, f"the {of} micro-batches of a step are not to be shared by {trainer.world_size}"),
        ):
            if wrong:
                raise MisconfigurationException(f"the number of devices of this training cannot change: {words}")
        self.batches = of // trainer.world_size
        """Of a step, on this rank."""
        self._meant = trainer.accumulate_grad_batches
        trainer.accumulate_grad_batches = self.batches
        for name in ("limit_train_batches", "val_check_interval"):
            value = getattr(trainer, name)
            if isinstance(value, float) and 0 < value < 1:
                setattr(trainer, name, _Part(value, self.batches))
            elif isinstance(value, int) and value > 0:
                setattr(trainer, name, _Steps(max(1, value // self._meant), self.batches))

    def schedules(self, trainer: pl.Trainer) -> None:
        """Schedules by step take their steps where they would on the largest number of devices."""
        for config in trainer.lr_scheduler_configs:
            if config.interval == "step":
                config.frequency = config.frequency // math.gcd(config.frequency, self._meant) * self.batches

    def validations(self, trainer: pl.Trainer) -> None:
        """Once it is known how long an epoch is: one that ends within a step ends with a validation."""
        if isinstance(trainer.val_check_batch, _Steps) and trainer.check_val_every_n_epoch is not None:
            trainer.val_check_batch = min(int(trainer.val_check_batch), trainer.num_training_batches)


class _Steps(int):
    """So many steps, in batches of a rank.

    Args:
        steps: how many.
        batches: of a step, on a rank.
    """

    def __new__(cls, steps: int, batches: int) -> _Steps:
        self = super().__new__(cls, steps * batches)
        self._batches = batches
        return self

    _batches: int

    @override
    def __gt__(self, epoch: float) -> bool:
        # Lightning validates after no more batches than an epoch has, whose last step may be short of some.
        return int(self) - self._batches >= epoch


class _Part(float):
    """A part of an epoch, in batches of a rank: so much of its steps.

    Args:
        part: of the epoch.
        batches: of a step, on a rank.
    """

    def __new__(cls, part: float, batches: int) -> _Part:
        self = super().__new__(cls, part)
        self._batches = batches
        return self

    _batches: int

    @override
    def __rmul__(self, epoch: float) -> float:
        return min(epoch, max(1, int(epoch // self._batches * float(self))) * self._batches)


def _ranks() -> int:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if there else 1


def _rank() -> int:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if there else 0
