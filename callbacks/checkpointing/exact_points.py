"""Points of an epoch at which a training can be saved so that it resumes exactly."""

from __future__ import annotations

import math
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher

from ..reading.lightning_kinds import ACCUMULATION_SCHEDULER, STOCHASTIC_AVERAGING, callbacks_of

# Callbacks that set something when an epoch starts: Lightning does not call them when it resumes within one.
SET_BY_EPOCH = (ACCUMULATION_SCHEDULER, STOCHASTIC_AVERAGING)


def is_exact_after_batch(trainer: pl.Trainer, *, resizable: bool = False) -> bool:
    """Return whether a job saved after the batch that is ending resumes exactly.

    Args:
        trainer: Trainer of the job.
        resizable: Whether it may resume on another number of ranks.
    """
    loop = trainer.fit_loop
    epoch, fetcher = loop.epoch_loop, loop._data_fetcher
    if fetcher is None or isinstance(fetcher, _DataLoaderIterDataFetcher) or getattr(fetcher, "batches", None):
        return False
    if trainer.world_size > 1 and getattr(trainer, "_val_check_time_interval", None) is not None:
        return False  # each rank decides by its own clock whether validation is due
    if any(callbacks_of(trainer, *kind) for kind in SET_BY_EPOCH):
        return False
    return (
        all(is_stateful(loader) and (fits_any_ranks(loader) or not resizable) for loader, _ in train_loaders(trainer))
        and not epoch._num_ready_batches_reached()
        and not epoch._should_accumulate()
        and not epoch._should_check_val_fx(fetcher)
    )


def is_epoch_cut_short(trainer: pl.Trainer) -> bool:
    """Return whether an epoch ends before one of its stateful loaders does."""
    return any(is_stateful(loader) and (sized_len(loader) or 0) > limit for loader, limit in train_loaders(trainer))


def is_stateful(loader: Any) -> bool:
    """Return whether a loader can save and restore its position."""
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def fits_any_ranks(loader: Any) -> bool:
    """Return whether any number of ranks can load the loader's state."""
    return bool(getattr(loader, "any_ranks", False))


def train_loaders(trainer: pl.Trainer) -> list[tuple[Any, float]]:
    """Return the training loaders, each with the maximum number of batches that an epoch takes from it."""
    loader = trainer.fit_loop._combined_loader
    if loader is None:
        return []
    return list(zip(loader.flattened, loader.limits or [math.inf] * len(loader.flattened), strict=True))


def is_within_epoch(fit_loop: dict[str, Any]) -> bool:
    """Return whether a checkpoint is from the middle of an epoch, given the state of its fit loop."""
    epoch = fit_loop["epoch_progress"]["current"]
    return epoch["started"] > epoch["processed"] and not fit_loop["epoch_loop.batch_progress"]["is_last_batch"]
