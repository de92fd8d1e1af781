"""Where a launched job can be saved so that it goes on as if nothing had been, and how.

Rules

1. Between two batches: all that belongs to the last one is done (the optimiser's step, every hook, what was logged),
   the next has not been fetched. Only there are the loader's position and the random state those of one moment.
   Lightning has no hook there; the data fetcher announces each fetch to the profiler, and that is where this listens.
2. Only if every training loader can say where it is (``state_dict``), no batch is waiting in the fetcher, no gradient
   is being accumulated, and neither validation nor the end of the epoch came after the last batch: what they leave
   behind is not all in Lightning's checkpoint. Otherwise the next batch is tried.
3. Any other loader is saved where an epoch is about to start, before the first hook of that epoch. One that can say
   where it is, but is stopped before its end, would go on from there and not start anew: not saved here, if another
   place can be found within an epoch.
4. The file is written as :class:`~.checkpoint_io.SafeCheckpointIO` does, by the first rank; the others learn whether it
   could be. One that could not is no reason for training to end: it goes on, is tried again after a growing pause, and
   does not leave before it is saved.
5. A job that can be resized goes on with another number of ranks from everything that is saved of it: rule 2 holds if
   every training loader's state is any number of ranks' (``any_ranks``), else rule 3. What Lightning counts in batches
   of a rank is counted anew when it is loaded.
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
from lightning.fabric.utilities.data import sized_len
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher

from lightning_core.core.events import Checkpoint
from lightning_core.view.console_lines import logger

from ..elastic.steps import Share
from . import random_state
from .checkpoint_io import SafeCheckpointIO
from .job_writer import ItsOwn, NotSaved, write

log = logger(__name__)

KEY = "lightning_core"
FILE = "last.ckpt"
# Saving takes at most one part in so many of a job's time.
RARELY = 50
# Seconds until what could not be saved is tried again; twice as many each time, to the most.
AGAIN, LONGEST = 1.0, 60.0


class Saver:
    """Saves one job and brings it back.

    Args:
        folder: of the job's incarnation; the file in it is ``last.ckpt``.
        every: least seconds between two saves for fear of a power cut.
        share: this rank's of every step, if the job can be resized.

    Raises:
        ValueError: if ``every`` is not positive.
    """

    def __init__(self, folder: Path | None, every: float, share: Share | None = None) -> None:
        if not every > 0:
            raise ValueError(f"save_every must be positive, got {every}")
        self.saved: Checkpoint | None = None
        """The newest checkpoint."""
        self._folder = folder
        self._every = every
        self._share = share
        self._next = time.monotonic() + every
        self._misses = 0
        self._io = SafeCheckpointIO()
        self._failures = 0
        self._tried = time.monotonic(), 0
        self._not_before = 0
        self._state: dict[str, Any] | None = None
        self._found: dict[str, Any] | None = None
        self._set_up_before = False
        self._resized_within = False

    # ------------------------------------------------------------------------------------------------ saving

    def due(self) -> bool:
        """Whether it is time to save again."""
        return self._folder is not None and time.monotonic() >= self._next

    def between_batches(self, trainer: pl.Trainer, then: Callable[[], None]) -> None:
        """Saves and goes on with ``then`` once this batch is all done, if the job could go on from there exactly.

        Without ``then`` if it could not be saved.
        """
        if _batch(trainer) < self._not_before:
            return
        if not exact_after(trainer, resizable=self._share is not None):
            self._misses += not trainer.fit_loop._should_accumulate()  # no place yet is not no place
            return
        fetcher: Any = trainer.fit_loop._data_fetcher
        announce = fetcher._start_profiler

        def once() -> None:
            fetcher._start_profiler = announce
            if self._save(trainer, new_epoch=False):
                then()
            announce()

        fetcher._start_profiler = once

    def between_epochs(self, trainer: pl.Trainer, then: Callable[[], None]) -> None:
        """Saves and goes on with ``then``, before the first hook of an epoch; if it can, where that is exact."""
        if _batch(trainer) < self._not_before:
            return
        if (self._misses > 1 or not _cut_short(trainer)) and self._save(trainer, new_epoch=True):
            then()

    def _save(self, trainer: pl.Trainer, *, new_epoch: bool) -> bool:
        """Writes the file, on all ranks together; whether the job may leave."""
        self._misses = 0
        if self._folder is None:
            return True
        began = time.monotonic()
        self._state = {
            "new_epoch": new_epoch,
            "random": _of_all_ranks(trainer, random_state.collect()),
            "accumulated": trainer.accumulate_grad_batches,
            "any_ranks": all(_any_ranks(loader) for loader, _ in _loaders(trainer) if _placed(loader)),
        }
        try:
            self.saved = write(trainer, self._folder / FILE, self._io)
        except NotSaved as error:
            self._put_off(trainer, error)
            return False
        finally:
            self._state = None
        if self._failures and trainer.is_global_zero:
            log.warning("%s could be saved again", self._folder / FILE)
        self._failures = 0
        now = time.monotonic()
        self._next = now + max(self._every, RARELY * (now - began))
        return True

    def _put_off(self, trainer: pl.Trainer, error: NotSaved) -> None:
        """Waits for so many batches: all ranks count the same, but have clocks of their own."""
        now, batch = time.monotonic(), _batch(trainer)
        pause = min(AGAIN * 2.0 ** min(self._failures, 20), LONGEST)
        rate = (batch - self._tried[1]) / max(now - self._tried[0], 1e-6)
        self._not_before = batch + int(trainer.strategy.broadcast(max(1, math.ceil(pause * rate))))
        self._tried = now, batch
        if not self._failures and trainer.is_global_zero:
            log.warning("%s. Training goes on, and it is tried again", error.strerror)
        self._failures += 1

    def add_to(self, checkpoint: dict[str, Any]) -> None:
        """Adds what Lightning leaves out to a checkpoint of ours; a user's own stay as they are."""
        if self._state is not None:
            checkpoint[KEY] = self._state

    # ------------------------------------------------------------------------------------------------ coming back

    def look_after(self, trainer: pl.Trainer) -> None:
        """From now on the Trainer loads the job's own checkpoints as they were saved."""
        theirs = trainer.strategy.checkpoint_io
        if self._folder is not None and not isinstance(theirs, ItsOwn):
            trainer.strategy.checkpoint_io = ItsOwn(self._folder, theirs)

    def take_from(self, checkpoint: dict[str, Any]) -> None:
        """Keeps what :meth:`add_to` added; of a job that was resized, changes what is counted in batches of a rank.

        Raises:
            MisconfigurationException: if it cannot be told how many of them a step was.
        """
        self._found = checkpoint.get(KEY)
        if self._share is None:
            return
        fit, found, now = checkpoint["loops"]["fit_loop"], self._found or {}, self._share.batches
        within = _within_epoch(fit)
        before = found.get("accumulated") or (_accumulated(fit, now) if within else now)
        if before == now:
            return
        for of in "total", "current":
            counts = fit["epoch_loop.batch_progress"][of]
            more = round(counts["processed"] * now / before) - counts["processed"]
            for key in counts:  # a user's own checkpoint may be from within a batch, begun or not yet ended
                counts[key] += more
        self._resized_within = within
        if not within and not found["any_ranks"]:
            fit["state_dict"].pop("combined_loader", None)  # in the new epoch, such a loader begins anew

    def before_loaders(self, trainer: pl.Trainer) -> None:
        """Random state of an epoch that is about to start: making its loader's iterator draws from it."""
        # A model that asks how long the training will be has them made before anything is loaded.
        self._set_up_before = trainer.fit_loop._combined_loader is not None
        if self._share is not None:
            self._share.schedules(trainer)
        if self._found is not None and self._found["new_epoch"]:
            self._restore(trainer, self._found)

    def before_training(self, trainer: pl.Trainer) -> None:
        """Random state of the middle of an epoch; or, for a new one, counters that begin at its first batch.

        Raises:
            MisconfigurationException: if the job was resized where one of its loaders cannot go on.
        """
        found, self._found = self._found, None
        loop = trainer.fit_loop
        if self._share is not None:
            self._share.validations(trainer)
        if self._resized_within and not all(_any_ranks(loader) for loader, _ in _loaders(trainer)):
            raise MisconfigurationException(
                "the checkpoint is from the middle of an epoch on another number of devices, and not every training "
                "loader can go on from there: use ElasticLoader, or a checkpoint from the end of an epoch"
            )
        if self._set_up_before and (found is not None or loop._combined_loader_states_to_load):
            loop._load_combined_loader_states()
            iter(cast(Any, loop._data_fetcher))
        if found is None:
            return
        # Until the epoch ends Lightning would hold that it is restarting, and skip the schedules that go by a metric.
        loop._restarting = False
        if not found["new_epoch"]:
            self._restore(trainer, found)
            return
        # It takes the finished batches of the epoch before for those of the one that starts.
        loop.epoch_loop.restarting = False
        loop.epoch_progress.current.ready = loop.epoch_progress.current.completed + 1

    def before_epoch(self, trainer: pl.Trainer) -> None:
        """Its loaders may be new ones."""
        if self._share is not None:
            self._share.validations(trainer)

    def _restore(self, trainer: pl.Trainer, found: dict[str, Any]) -> None:
        """Each rank goes on with its own random state, a new one with what it draws from that of another."""
        states, rank = found["random"], trainer.global_rank
        if len(states) == trainer.world_size or self._share is not None:
            random_state.restore(states[rank % len(states)])
        if rank >= len(states) and self._share is not None:
            seed = int(torch.randint(2**31, ())) + rank
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)


def _batch(trainer: pl.Trainer) -> int:
    """Where the training is, the same on all ranks."""
    return trainer.fit_loop.epoch_loop.total_batch_idx


def exact_after(trainer: pl.Trainer, *, resizable: bool = False) -> bool:
    """Whether a job saved after the batch that is ending goes on exactly (rules 2 and 5)."""
    loop = trainer.fit_loop
    epoch, fetcher = loop.epoch_loop, loop._data_fetcher
    if fetcher is None or isinstance(fetcher, _DataLoaderIterDataFetcher) or getattr(fetcher, "batches", None):
        return False
    if trainer.world_size > 1 and getattr(trainer, "_val_check_time_interval", None) is not None:
        return False  # each rank's clock says for itself whether validation is due
    return (
        all(_placed(loader) and (_any_ranks(loader) or not resizable) for loader, _ in _loaders(trainer))
        and not epoch._num_ready_batches_reached()
        and not epoch._should_accumulate()
        and not epoch._should_check_val_fx(fetcher)
    )


def _placed(loader: Any) -> bool:
    """Whether a loader can say where it is."""
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _any_ranks(loader: Any) -> bool:
    """Whether what a loader says of where it is holds for any number of ranks."""
    return bool(getattr(loader, "any_ranks", False))


def _within_epoch(fit: dict[str, Any]) -> bool:
    """Whether a checkpoint, of which this is the loop's part, is from the middle of an epoch."""
    epoch = fit["epoch_progress"]["current"]
    return epoch["started"] > epoch["processed"] and not fit["epoch_loop.batch_progress"]["is_last_batch"]


def _accumulated(fit: dict[str, Any], now: int) -> int:
    """How many batches of a rank were a step, in a checkpoint that does not say.

    Raises:
        MisconfigurationException: if it cannot be told.
    """
    batches = fit["epoch_loop.batch_progress"]["current"]["processed"]
    steps = fit["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["current"]["completed"]
    if batches // now == steps:
        return now
    if steps and batches % steps == 0:
        return int(batches // steps)
    raise MisconfigurationException(
        "the checkpoint is from the middle of a step of the optimiser, on another number of devices: "
        f"{batches} batches and {steps} steps"
    )


def _cut_short(trainer: pl.Trainer) -> bool:
    """Whether an epoch ends before one of its loaders does that can say where it is."""
    return any(_placed(loader) and (sized_len(loader) or 0) > limit for loader, limit in _loaders(trainer))


def _loaders(trainer: pl.Trainer) -> list[tuple[Any, float]]:
    """The training loaders, and of how many batches an epoch takes at most from each."""
    loader = trainer.fit_loop._combined_loader
    if loader is None:
        return []
    return list(zip(loader.flattened, loader.limits or [math.inf] * len(loader.flattened), strict=True))


def _of_all_ranks(trainer: pl.Trainer, state: dict[str, Any]) -> list[Any]:
    states: list[Any] = [state]
    if trainer.world_size > 1:
        states = [None] * trainer.world_size
        torch.distributed.all_gather_object(states, state)
    return states
