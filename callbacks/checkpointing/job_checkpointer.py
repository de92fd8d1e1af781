"""Saves a launched job so that it resumes as if it had never stopped.

Rules

1. Save between two batches: everything about the last batch is done (the optimizer step, all hooks, logging), and the
   next one has not been fetched. Only there do the loader's position and the random state belong together. Lightning
   has no hook at this point, but its data fetcher announces each fetch to the profiler, which is intercepted.
2. Save there only if each training loader can save its position (``state_dict``), no batch waits in the fetcher, no
   gradient is being accumulated, and neither validation nor the end of the epoch followed the last batch: what they
   leave behind is not all in Lightning's checkpoint. Otherwise try again after the next batch.
3. With other loaders, save when an epoch is about to start, before its first hook. A stateful loader that was stopped
   before its end would continue there instead of starting over; then rule 3 applies only if there is no exact point
   within an epoch.
4. The first rank writes the file with :class:`~.checkpoint_io.SafeCheckpointIO`; the others learn whether it succeeded.
   Shards are written by all ranks (:mod:`.shards`). After a failure training continues, saving is tried again after a
   growing pause, and the job does not leave before it is saved.
5. A resizable job can resume on another number of ranks from each of its checkpoints: rule 2 applies if any number of
   ranks can load the state of each training loader (``any_ranks``), else rule 3. What Lightning counts in batches of
   one rank is converted when the checkpoint is loaded.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_core.agent.user_code import random_state
from lightning_core.core.events import Checkpoint
from lightning_core.storage.job_specs import MIN_TRAINING_PER_SAVE
from lightning_core.storage.saved_files import SavedFiles
from lightning_core.view.console_lines import logger

from ..elastic.steps import MicroBatches
from .checkpoint_io import SafeCheckpointIO
from .exact_points import (
    fits_any_ranks,
    is_epoch_cut_short,
    is_exact_after_batch,
    is_stateful,
    is_within_epoch,
    train_loaders,
)
from .job_writer import JobCheckpointIO, load_plain_data_only, write
from .shards import CheckpointNotSavedError

log = logger(__name__)

# Name of the file.
FILE = "last.ckpt"
# Seconds until a failed save is tried again: doubled after each failure, from the first to the second.
MIN_RETRY_DELAY, MAX_RETRY_DELAY = 1.0, 60.0


class JobCheckpointer:
    """Saves one job and resumes it.

    Args:
        folder: Folder of the job's incarnation, for the file ``last.ckpt``; None to save nothing.
        every: Minimum seconds between two periodic checkpoints.
        micro_batches: This rank's micro-batches of a step, if the job can be resized.

    Raises:
        ValueError: If ``every`` is not positive.
    """

    def __init__(self, folder: Path | None, every: float, micro_batches: MicroBatches | None = None) -> None:
        if not every > 0:
            raise ValueError(f"save_every must be positive, got {every}")
        self.last_checkpoint: Checkpoint | None = None
        """The newest checkpoint."""
        self._folder = folder
        self._every = every
        self._micro_batches = micro_batches
        self._next = time.monotonic() + every
        self._misses = 0
        self._io = SafeCheckpointIO()
        self._files = None if folder is None else SavedFiles(folder, FILE)
        self._failures = 0
        self._tried = time.monotonic(), 0
        self._not_before = 0
        self._state: dict[str, Any] | None = None
        self._found: dict[str, Any] | None = None
        self._set_up_before = False
        self._resized_within = False

    # ------------------------------------------------------------------------------------------------ saving

    def due(self) -> bool:
        """Return whether it is time for a periodic checkpoint."""
        return self._folder is not None and time.monotonic() >= self._next

    @property
    def fails(self) -> bool:
        """Whether the last attempt to save has failed."""
        return self._failures > 0

    def between_batches(self, trainer: pl.Trainer, then: Callable[[], None]) -> None:
        """Once this batch is complete, save and call ``then``, if the job can resume there exactly.

        ``then`` is not called if the job could not be saved.
        """
        if _batch(trainer) < self._not_before:
            return

        def save() -> None:
            if self._save(trainer, new_epoch=False):
                then()

        if not self.where_exact(trainer, save):
            self._misses += not trainer.fit_loop._should_accumulate()  # within a step, the next batches may be exact

    def where_exact(self, trainer: pl.Trainer, do: Callable[[], None]) -> bool:
        """Call ``do`` once this batch is complete, if a job saved there resumes exactly; return whether it does.

        ``do`` may call this again: it is at that point already.
        """
        if not is_exact_after_batch(trainer, resizable=self._micro_batches is not None):
            return False
        fetcher: Any = trainer.fit_loop._data_fetcher
        announce = fetcher._start_profiler

        def once() -> None:
            fetcher._start_profiler = announce
            do()
            fetcher._start_profiler()

        fetcher._start_profiler = once
        return True

    def between_epochs(self, trainer: pl.Trainer, then: Callable[[], None]) -> None:
        """Before the first hook of an epoch, save and call ``then``, if the job should be saved there (rule 3)."""
        if _batch(trainer) < self._not_before:
            return
        if (self._misses > 1 or not is_epoch_cut_short(trainer)) and self._save(trainer, new_epoch=True):
            then()

    def _save(self, trainer: pl.Trainer, *, new_epoch: bool) -> bool:
        """Write the file on all ranks together; return whether the job may leave."""
        self._misses = 0
        if self._folder is None:
            return True
        began = time.monotonic()
        self._state = {
            "new_epoch": new_epoch,
            "random": _gather(trainer, random_state.collect()),
            "accumulated": trainer.accumulate_grad_batches,
            "any_ranks": all(fits_any_ranks(loader) for loader, _ in train_loaders(trainer) if is_stateful(loader)),
        }
        try:
            self.last_checkpoint = write(trainer, self._folder / FILE, self._io, files=self._files)
        except CheckpointNotSavedError as error:
            self._postpone(trainer, error)
            return False
        finally:
            self._state = None
        if self._failures and trainer.is_global_zero:
            log.warning("%s could be saved again", self._folder / FILE)
        self._failures = 0
        now = time.monotonic()
        self._next = now + max(self._every, MIN_TRAINING_PER_SAVE * (now - began))
        return True

    def _postpone(self, trainer: pl.Trainer, error: CheckpointNotSavedError) -> None:
        """Postpone the next attempt by a number of batches, which all ranks count alike, unlike seconds."""
        now, batch = time.monotonic(), _batch(trainer)
        delay = min(MIN_RETRY_DELAY * 2.0 ** min(self._failures, 20), MAX_RETRY_DELAY)
        throughput = (batch - self._tried[1]) / max(now - self._tried[0], 1e-6)
        self._not_before = batch + int(trainer.strategy.broadcast(max(1, math.ceil(delay * throughput))))
        self._tried = now, batch
        if not self._failures and trainer.is_global_zero:
            log.warning("%s. Training continues, and saving is tried again", error.strerror)
        self._failures += 1

    def state_dict(self) -> dict[str, Any]:
        """Return what Lightning leaves out of the job's own checkpoint; empty for the user's checkpoints."""
        return {} if self._state is None else self._state

    def adapt(self, checkpoint: dict[str, Any]) -> None:
        """Adapt Lightning's part of the job's own checkpoint; the user's checkpoints stay as they are."""
        if self._state is not None and self._state["new_epoch"]:
            # Lightning alone would take the batches of the previous epoch for those of the one that starts.
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
            progress |= {"current": dict.fromkeys(progress["current"], 0), "is_last_batch": False}

    # ------------------------------------------------------------------------------------------------ resuming

    def install(self, trainer: pl.Trainer) -> None:
        """Make the Trainer load the job's own checkpoints as they were saved."""
        user_io = trainer.strategy.checkpoint_io
        if self._folder is not None and not isinstance(user_io, JobCheckpointIO):
            trainer.strategy.checkpoint_io = JobCheckpointIO(self._folder, user_io)
            load_plain_data_only(trainer.strategy)

    def take_from(self, trainer: pl.Trainer, checkpoint: dict[str, Any], state: dict[str, Any] | None) -> None:
        """Keep the state of the checkpoint; for a resized job, convert what is counted in batches of one rank.

        Args:
            trainer: Trainer of the job.
            checkpoint: Lightning's checkpoint.
            state: What :meth:`state_dict` returned when it was saved; None if it is not the job's own.

        Raises:
            MisconfigurationException: If the number of batches in a step cannot be determined.
        """
        self._found = state
        if trainer.strategy.restore_checkpoint_after_setup:
            self._restore_new_epoch(trainer)  # the last hook before the loaders' iterators are created
        if self._micro_batches is None:
            return
        fit_loop, found, now = checkpoint["loops"]["fit_loop"], self._found or {}, self._micro_batches.per_rank
        within = is_within_epoch(fit_loop)
        before = found.get("accumulated") or (_accumulated(fit_loop, now) if within else now)
        if before == now:
            return
        for counter in "total", "current":
            counts = fit_loop["epoch_loop.batch_progress"][counter]
            more = round(counts["processed"] * now / before) - counts["processed"]
            for key in counts:  # a user's own checkpoint may be from within a batch, where they differ
                counts[key] += more
        self._resized_within = within
        if not within and not found["any_ranks"]:
            fit_loop["state_dict"].pop("combined_loader", None)  # such a loader starts over in the new epoch

    def before_loaders(self, trainer: pl.Trainer) -> None:
        """Restore the random state of a new epoch: creating its loaders' iterators draws from it."""
        # A module that asks for the estimated number of steps has the loaders created before anything is loaded.
        self._set_up_before = trainer.fit_loop._combined_loader is not None
        if self._micro_batches is not None:
            self._micro_batches.adapt_schedules(trainer)
        self._restore_new_epoch(trainer)

    def before_training(self, trainer: pl.Trainer) -> None:
        """Restore the random state of the middle of an epoch, or the counters at the start of one.

        Raises:
            MisconfigurationException: If the job was resized where one of its loaders cannot resume.
        """
        found, self._found = self._found, None
        loop = trainer.fit_loop
        if self._micro_batches is not None:
            self._micro_batches.adapt_validation(trainer)
        if self._resized_within and not all(fits_any_ranks(loader) for loader, _ in train_loaders(trainer)):
            raise MisconfigurationException(
                "the checkpoint is from the middle of an epoch on another number of devices, and not every training "
                "loader can resume there: use ElasticLoader, or a checkpoint from the end of an epoch"
            )
        if self._set_up_before and (found is not None or loop._combined_loader_states_to_load):
            loop._load_combined_loader_states()
            iter(cast(Any, loop._data_fetcher))
        if found is None:
            return
        # Otherwise Lightning takes itself to be restarting until the epoch ends, and skips schedules that follow a
        # metric.
        loop._restarting = False
        if not found["new_epoch"]:
            self._restore_random(trainer, found)
            return
        # Otherwise Lightning takes the batches of the previous epoch for those of the one that starts.
        loop.epoch_loop.restarting = False
        loop.epoch_progress.current.ready = loop.epoch_progress.current.completed + 1

    def before_epoch(self, trainer: pl.Trainer) -> None:
        """Adapt validation to the loaders of an epoch, which may be new."""
        if self._micro_batches is not None:
            self._micro_batches.adapt_validation(trainer)

    def _restore_new_epoch(self, trainer: pl.Trainer) -> None:
        if self._found is not None and self._found["new_epoch"]:
            self._restore_random(trainer, self._found)

    def _restore_random(self, trainer: pl.Trainer, found: dict[str, Any]) -> None:
        """Restore the random state of each rank; derive that of a new rank from another one's."""
        states, rank = found["random"], trainer.global_rank
        if len(states) == trainer.world_size or self._micro_batches is not None:
            random_state.restore(states[rank % len(states)])
        if rank >= len(states) and self._micro_batches is not None:
            seed = int(torch.randint(2**31, (), device="cpu")) + rank
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)


def _batch(trainer: pl.Trainer) -> int:
    """Return the batches that are done, the same number on all ranks."""
    return trainer.fit_loop.epoch_loop.total_batch_idx


def _accumulated(fit_loop: dict[str, Any], now: int) -> int:
    """Return the batches of one rank per step, for a checkpoint that does not store them.

    Args:
        fit_loop: State of the fit loop in the checkpoint.
        now: Batches of this rank per step.

    Raises:
        MisconfigurationException: If the number cannot be determined.
    """
    batches = fit_loop["epoch_loop.batch_progress"]["current"]["processed"]
    steps = fit_loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["current"]["completed"]
    if batches // now == steps:
        return now
    if steps and batches % steps == 0:
        return int(batches // steps)
    raise MisconfigurationException(
        "the checkpoint is from the middle of an optimizer step on another number of devices: "
        f"{batches} batches and {steps} steps"
    )


def _gather(trainer: pl.Trainer, state: dict[str, Any]) -> list[Any]:
    """Return the states of all ranks."""
    states: list[Any] = [state]
    if trainer.world_size > 1:
        states = [None] * trainer.world_size
        torch.distributed.all_gather_object(states, state)
    return states
