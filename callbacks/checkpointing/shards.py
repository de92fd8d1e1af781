"""Checkpoints of a model whose parameters are sharded: a folder of many files, written by all ranks at once.

Rules

1. Lightning writes the folder (``torch.distributed.checkpoint``), each rank its own shards, in a new folder beside the
   final place. It is listed and verified like the files of a script (:mod:`lightning_core.storage.saved_files`).
2. All ranks make sure that they see the folder before they write, or none writes: a rank that fails alone would leave
   the others waiting.
3. Hashing is divided among the ranks. The first one writes the listing.
4. Training waits until all is on the disk: Lightning has no asynchronous way to write shards.
"""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch.distributed
from lightning.fabric.utilities.load import _METADATA_FILENAME
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, Strategy

from lightning_core.core.events import Checkpoint
from lightning_core.errors import LightningCoreError
from lightning_core.storage.saved_files import SavedFiles, names_in, seal

from .checkpoint_io import refused_types


class CheckpointNotSavedError(LightningCoreError, OSError):
    """A training could not be saved; raised on all of its ranks."""


def saves_shards(strategy: Strategy) -> bool:
    """Return whether a strategy saves a folder of shards, rather than a file."""
    if isinstance(strategy, ModelParallelStrategy):
        return bool(strategy._save_distributed_checkpoint)
    return isinstance(strategy, FSDPStrategy) and strategy._state_dict_type == "sharded"


def whole_file_argument(strategy: Strategy) -> str:
    """Return the argument with which a strategy that saves shards saves one file instead."""
    of_fsdp = isinstance(strategy, FSDPStrategy)
    return 'state_dict_type="full"' if of_fsdp else "save_distributed_checkpoint=False"


def write_shards(trainer: pl.Trainer, checkpoint: dict[str, Any], files: SavedFiles, batches: int) -> Checkpoint:
    """Save a checkpoint in a folder; called on all ranks together.

    Args:
        trainer: Trainer of the job.
        checkpoint: Content of the checkpoint, as Lightning has dumped it on this rank.
        files: Where it is saved; used on the first rank.
        batches: Batches done.

    Raises:
        CheckpointNotSavedError: On all ranks, if a rank cannot write. The previous checkpoint is kept.
    """
    return _ShardWriter(trainer, files).write(checkpoint, batches)


class _ShardWriter:
    """Writes one checkpoint; each of its steps is done by all ranks, whatever happened on one in the step before."""

    def __init__(self, trainer: pl.Trainer, files: SavedFiles) -> None:
        self._strategy = trainer.strategy
        self._rank, self._ranks = trainer.global_rank, trainer.world_size
        self._files = files
        self._place: Path | None = None

    def write(self, checkpoint: dict[str, Any], batches: int) -> Checkpoint:
        place = self._begin()
        try:
            self._do(lambda: self._look(place))
            self._do(lambda: self._save(checkpoint, place))
            folder = place.parent
            names = self._first(lambda: names_in(folder))
            sealed = self._do(lambda: seal(folder, names[self._rank :: self._ranks]))
            listed = {name: file for of_rank in sealed for name, file in of_rank.items()}
            saved: Checkpoint = self._first(lambda: self._files.complete(place, batches, listed))
            return saved
        except BaseException:
            if self._rank == 0:
                self._files.abandon(place)
            raise

    def _begin(self) -> Path:
        return Path(self._first(lambda: str(self._files.begin())))

    def _look(self, place: Path) -> None:
        """Check that this rank can write into the folder that the first one has made."""
        if not place.parent.is_dir():
            raise OSError(errno.ENOENT, f"{socket.gethostname()} does not see {place.parent}: shards need a folder "
                          "that all ranks see")  # fmt: skip
        place.mkdir(exist_ok=True)

    def _save(self, checkpoint: dict[str, Any], place: Path) -> None:
        self._strategy.save_checkpoint(checkpoint, place)
        if self._rank == 0 and (refused := ", ".join(refused_types(place / _METADATA_FILENAME))):
            raise OSError(errno.EINVAL, f"the checkpoint could not be loaded again: it contains {refused}")

    def _first(self, do: Any) -> Any:
        """Return on all ranks what the first one returns."""
        done, error = None, None
        if self._rank == 0:
            done, error = _attempt(do)
        done, told = self._strategy.broadcast((done, None if error is None else _told(error, 0)))
        if told is not None:
            raise CheckpointNotSavedError(*told) from error
        return done

    def _do(self, do: Any) -> list[Any]:
        """Do something on all ranks; return what each of them returns, in order."""
        done, error = _attempt(do)
        found: list[Any] = [(done, None if error is None else _told(error, self._rank))]
        if self._ranks > 1:
            found, own = [None] * self._ranks, found[0]
            torch.distributed.all_gather_object(found, own)
        for _, told in found:
            if told is not None:
                raise CheckpointNotSavedError(*told) from error
        return [done for done, _ in found]


def _attempt(do: Any) -> tuple[Any, BaseException | None]:
    from torch.distributed.checkpoint.api import CheckpointException  # not on every system

    try:
        return do(), None
    except (Exception, CheckpointException) as error:  # the latter is no Exception
        return None, error


def _told(error: BaseException, rank: int) -> tuple[int, str]:
    """Return the number and the message of an error of a rank, for the other ranks."""
    if failures := getattr(error, "failures", None):  # of a CheckpointException, by rank
        rank, (error, _) = next(iter(failures.items()))
    number = error.errno if isinstance(error, OSError) else None
    message = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return number or errno.EIO, f"shards not saved by rank {rank}: {message}"
