"""Description of a Trainer's job for its scheduler: devices, class of the module, batch size and hyper-parameters."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl

from lightning_core.agent.options import Options
from lightning_core.agent.reporting.joining import Connect, Join, SchedulerConnection, class_path
from lightning_core.agent.user_code.guarded import Guarded
from lightning_core.agent.user_code.torch_here import device_name
from lightning_core.core.jobs import Capability
from lightning_core.core.limits import MAX_COUNT
from lightning_core.core.reported import HyperParameters, hyper_parameters


def connection_of(
    options: Options, trainer: pl.Trainer, pl_module: pl.LightningModule, guarded: Guarded, host: Callable[[], str]
) -> Connect:
    """Return what connects a fit to its scheduler.

    Args:
        options: Options of the job.
        trainer: Trainer that fits.
        pl_module: Module that is fitted.
        guarded: Door to what belongs to the user.
        host: Returns the job of this process within whose grant this one trains; empty once there is none.
    """
    if options.client is not None:
        given = SchedulerConnection(options.client, options.incarnation)
        return lambda: given
    size = trainer.world_size
    can = frozenset({Capability.HOLD}) if size > 1 else frozenset({Capability.HOLD, Capability.TIME_SLICE})
    job = replace(
        options.job, can=can, min_devices=size, max_devices=size, model=class_path(type(pl_module)),
        batch_size=guarded("its batch size", lambda: batch_size_of(trainer, pl_module), None),
    )  # fmt: skip
    return Join(job, options.pool, device_name(trainer.strategy.root_device), options.on_refused, options.history, host)


def batch_size_of(trainer: pl.Trainer, pl_module: pl.LightningModule) -> int | None:
    """Return the batch size of a training, by the names that Lightning knows it under; None if it has none of them.

    Properties are not asked: they are code of the user, which may raise or remember that it was asked.
    """
    data = getattr(trainer, "datamodule", None)
    owners: tuple[Any, ...] = (trainer.train_dataloader, data, _hparams_of(data), pl_module, _hparams_of(pl_module))
    for owner in owners:
        is_mapping = isinstance(owner, dict)
        size = owner.get("batch_size") if is_mapping else inspect.getattr_static(owner, "batch_size", None)
        if type(size) is int and 1 <= size <= MAX_COUNT:
            return size
    return None


def hyper_parameters_of(trainer: pl.Trainer) -> HyperParameters | None:
    """Return what model and data were told to save as hyper-parameters; None for nothing."""
    data, module = getattr(trainer, "datamodule", None), trainer.lightning_module
    return hyper_parameters({**_hparams_of(data), **_hparams_of(module)}) or None


def _hparams_of(owner: Any) -> dict[str, Any]:
    """Return the hyper-parameters that a module or its data was told to save, without resolving any."""
    found = getattr(owner, "__dict__", {}).get("_hparams")
    if not isinstance(found, dict | None) and (omegaconf := sys.modules.get("omegaconf")) is not None:
        found = omegaconf.OmegaConf.to_container(found, resolve=False)
    return found if isinstance(found, dict) else {}
