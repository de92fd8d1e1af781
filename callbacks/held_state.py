"""The state of a Trainer that leaves its GPU while the job is held: where it is, and whether it can be moved."""

from __future__ import annotations

from collections.abc import Sequence

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import SingleDeviceStrategy

from lightning_core.agent.steering.offload import Offload
from lightning_core.core.jobs import Job, OnHold
from lightning_core.view.console_lines import inform


def offload_of(trainer: pl.Trainer, pl_module: pl.LightningModule, job: Job) -> Offload | None:
    """Return what moves the state of a job while it is held; None if the state stays where it is."""
    if job.on_hold is OnHold.KEEP or trainer.strategy.root_device.type != "cuda":
        return None
    return Offload(job.name, lambda: state_holders(trainer, pl_module), trainer.strategy.root_device)


def check_offload(trainer: pl.Trainer, job: Job) -> None:
    """Check that the state of a training can be moved, before anything starts.

    Raises:
        MisconfigurationException: If its strategy spreads the state over processes, or keeps buffers of its own.
    """
    if job.on_hold is OnHold.KEEP:
        return
    if trainer.strategy.root_device.type == "cpu":
        inform(f"{job.name}: on_hold={job.on_hold} changes nothing on CPUs")
    elif not isinstance(trainer.strategy, SingleDeviceStrategy):
        raise MisconfigurationException(
            f"on_hold={job.on_hold} needs a training of one process, all of whose state is in its module and "
            f"optimizers, got {type(trainer.strategy).__name__} with {trainer.world_size} processes: use on_hold=keep"
        )


def state_holders(trainer: pl.Trainer, pl_module: pl.LightningModule) -> Sequence[object]:
    """Return the objects that hold the state of a training."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
    return [pl_module, *trainer.optimizers, *schedulers, scaler, *getattr(trainer, "callbacks", [])]
