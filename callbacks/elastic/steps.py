"""Optimizer steps made of micro-batches: each rank trains its share of them, and the sum is the same on any number."""

from __future__ import annotations

import math
import os

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from typing_extensions import override

# Environment variable through which the launcher tells the ranks of a resizable job how many micro-batches a step has.
MICRO_BATCHES = "LIGHTNING_CORE_MICRO_BATCHES"


def micro_batches_per_step() -> int:
    """Return the micro-batches of a step if this process trains a resizable job, else 0."""
    return int(os.environ.get(MICRO_BATCHES) or 0)


class MicroBatches:
    """This rank's micro-batches of every step; adapts a Trainer that is about to fit to them.

    Some settings of a Trainer count batches of one rank: ``val_check_interval``, ``limit_train_batches`` and the
    ``frequency`` of a learning-rate schedule. The user meant them for the maximum number of devices, on which a step is
    ``accumulate_grad_batches`` batches. They are converted to whole steps, the same on any number of devices.

    Args:
        trainer: Trainer to adapt.
        pl_module: Module that it will fit.
        per_step: Micro-batches of a step, over all ranks.

    Raises:
        MisconfigurationException: If the steps of this training cannot be divided; the message says why.
    """

    def __init__(self, trainer: pl.Trainer, pl_module: pl.LightningModule, per_step: int) -> None:
        for wrong, reason in (
            (not pl_module.automatic_optimization, "the module uses manual optimization"),
            (
                any(isinstance(callback, GradientAccumulationScheduler) for callback in trainer.callbacks),  # type: ignore[attr-defined]
                "GradientAccumulationScheduler changes the size of a step",
            ),
            (
                per_step % trainer.world_size,
                f"the {per_step} micro-batches of a step cannot be divided among {trainer.world_size} ranks",
            ),
        ):
            if wrong:
                raise MisconfigurationException(f"the number of devices of this training cannot change: {reason}")
        self.per_rank = per_step // trainer.world_size
        """Micro-batches of a step on this rank."""
        self._configured = trainer.accumulate_grad_batches
        trainer.accumulate_grad_batches = self.per_rank
        for name in ("limit_train_batches", "val_check_interval"):
            value = getattr(trainer, name)
            if isinstance(value, float) and 0 < value < 1:
                setattr(trainer, name, _EpochFraction(value, self.per_rank))
            elif isinstance(value, int) and value > 0:
                setattr(trainer, name, _Steps(max(1, value // self._configured), self.per_rank))

    def adapt_schedules(self, trainer: pl.Trainer) -> None:
        """Make learning-rate schedules with ``interval="step"`` advance as on the maximum number of devices."""
        for config in trainer.lr_scheduler_configs:
            if config.interval == "step":
                config.frequency = config.frequency // math.gcd(config.frequency, self._configured) * self.per_rank

    def adapt_validation(self, trainer: pl.Trainer) -> None:
        """Validate at the end of an epoch that ends within a step; called once the length of the epoch is known."""
        if isinstance(trainer.val_check_batch, _Steps) and trainer.check_val_every_n_epoch is not None:
            trainer.val_check_batch = min(int(trainer.val_check_batch), trainer.num_training_batches)


class _Steps(int):
    """A number of steps, counted in batches of one rank.

    Args:
        steps: Number of steps.
        per_rank: Micro-batches of a step on one rank.
    """

    def __new__(cls, steps: int, per_rank: int) -> _Steps:
        self = super().__new__(cls, steps * per_rank)
        self._per_rank = per_rank
        return self

    _per_rank: int

    @override
    def __gt__(self, epoch: float) -> bool:
        # Lightning rejects a val_check_interval longer than the epoch, whose last step may have fewer micro-batches.
        return int(self) - self._per_rank >= epoch


class _EpochFraction(float):
    """A fraction of an epoch that comes out as whole steps, counted in batches of one rank.

    Args:
        fraction: Fraction of the epoch, above 0 and below 1.
        per_rank: Micro-batches of a step on one rank.
    """

    def __new__(cls, fraction: float, per_rank: int) -> _EpochFraction:
        self = super().__new__(cls, fraction)
        self._per_rank = per_rank
        return self

    _per_rank: int

    @override
    def __rmul__(self, epoch: float) -> float:
        return min(epoch, max(1, int(epoch // self._per_rank * float(self))) * self._per_rank)


def world_size() -> int:
    """Return the number of ranks of this training."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1


def rank() -> int:
    """Return the number of this rank."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if distributed else 0
