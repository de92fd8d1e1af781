"""Where a launched job can be saved so that it goes on as if nothing had been, and how.

Rules

1. Between two batches: all that belongs to the last one is done (the optimiser's step, every hook, what was logged), the
   next has not been fetched. Only there are the loader's position and the random state those of one moment. Lightning
   has no hook there; the data fetcher announces each fetch to the profiler, and that is where this listens.
2. Only if every training loader can say where it is (``state_dict``), no batch is waiting in the fetcher, no gradient is
   being accumulated, and neither validation nor the end of the epoch came after the last batch: what they leave behind
   is not all in Lightning's checkpoint. Otherwise the next batch is tried.
3. Any other loader is saved where an epoch is about to start, before the first hook of that epoch.
4. The file is written beside its place and renamed: a power cut leaves the old one or the new one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher

from . import randomness

KEY = "lightning_core"
FILE = "last.ckpt"
# Saving takes at most one part in so many of a job's time.
RARELY = 50


class Saver:
    """Saves one job and brings it back.

    Args:
        folder: of the job; the file in it is ``last.ckpt``.
        every: least seconds between two saves for fear of a power cut.

    Raises:
        ValueError: if ``every`` is not positive.
    """

    def __init__(self, folder: Path | None, every: float) -> None:
        if not every > 0:
            raise ValueError(f"save_every must be positive, got {every}")
        self._folder = folder
        self._every = every
        self._next = time.monotonic() + every
        self._state: dict[str, Any] | None = None
        self._found: dict[str, Any] | None = None

    # ------------------------------------------------------------------------------------------------ saving

    def due(self) -> bool:
        """Whether it is time to save again."""
        return self._folder is not None and time.monotonic() >= self._next

    def between_batches(self, trainer: pl.Trainer, then: Callable[[], None]) -> bool:
        """Saves and goes on with ``then`` once this batch is all done, if the job could go on from there exactly.

        Returns:
            Whether it will.
        """
        if not exact_after(trainer):
            return False
        fetcher: Any = trainer.fit_loop._data_fetcher
        announce = fetcher._start_profiler

        def once() -> None:
            fetcher._start_profiler = announce
            self.save(trainer, new_epoch=False)
            then()
            announce()

        fetcher._start_profiler = once
        return True

    def save(self, trainer: pl.Trainer, *, new_epoch: bool) -> None:
        """Writes the file; on all ranks together."""
        if self._folder is None:
            return
        began = time.monotonic()
        self._state = {"new_epoch": new_epoch, "random": _of_all_ranks(trainer, randomness.collect())}
        beside = self._folder / f"{FILE}.part"
        try:
            trainer.save_checkpoint(beside, weights_only=False)
        finally:
            self._state = None
        if trainer.is_global_zero:
            _settle(beside, self._folder / FILE)
        now = time.monotonic()
        self._next = now + max(self._every, RARELY * (now - began))

    def add_to(self, checkpoint: dict[str, Any]) -> None:
        """Adds what Lightning leaves out to a checkpoint of ours; a user's own stay as they are."""
        if self._state is not None:
            checkpoint[KEY] = self._state

    # ------------------------------------------------------------------------------------------------ coming back

    def take_from(self, checkpoint: dict[str, Any]) -> None:
        """Keeps what :meth:`add_to` added."""
        self._found = checkpoint.get(KEY)

    def before_loaders(self, trainer: pl.Trainer) -> None:
        """Random state of an epoch that is about to start: making its loader's iterator draws from it."""
        if self._found is not None and self._found["new_epoch"]:
            self._restore(trainer, self._found)

    def before_training(self, trainer: pl.Trainer) -> None:
        """Random state of the middle of an epoch; or, for a new one, counters that begin at its first batch."""
        found, self._found = self._found, None
        if found is None:
            return
        if not found["new_epoch"]:
            self._restore(trainer, found)
            return
        # Lightning takes the finished batches of the epoch before for those of the one that starts.
        loop = trainer.fit_loop
        loop.epoch_loop.restarting = False
        loop.epoch_progress.current.ready = loop.epoch_progress.current.completed + 1

    @staticmethod
    def _restore(trainer: pl.Trainer, found: dict[str, Any]) -> None:
        if len(found["random"]) == trainer.world_size:
            randomness.restore(found["random"][trainer.global_rank])


def exact_after(trainer: pl.Trainer) -> bool:
    """Whether a job saved after the batch that is ending goes on exactly (rule 2)."""
    loop = trainer.fit_loop
    epoch, fetcher = loop.epoch_loop, loop._data_fetcher
    if fetcher is None or isinstance(fetcher, _DataLoaderIterDataFetcher) or getattr(fetcher, "batches", None):
        return False
    if trainer.world_size > 1 and getattr(trainer, "_val_check_time_interval", None) is not None:
        return False  # each rank's clock says for itself whether validation is due
    return (
        all(hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict") for loader in _loaders(trainer))
        and not epoch._num_ready_batches_reached()
        and not epoch._should_accumulate()
        and not epoch._should_check_val_fx(fetcher)
    )


def _loaders(trainer: pl.Trainer) -> list[Any]:
    loader = trainer.fit_loop._combined_loader
    return [] if loader is None else loader.flattened


def _of_all_ranks(trainer: pl.Trainer, state: dict[str, Any]) -> list[Any]:
    states: list[Any] = [state]
    if trainer.world_size > 1:
        states = [None] * trainer.world_size
        torch.distributed.all_gather_object(states, state)
    return states


def _settle(beside: Path, place: Path) -> None:
    """Renames a file once all of it is on the disk."""
    _sync(beside)
    os.replace(beside, place)
    _sync(place.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
