"""How a launched job's checkpoints are written and read, beside those that its user asks for."""

from __future__ import annotations

import errno
import inspect
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins.io import CheckpointIO, TorchCheckpointIO
from typing_extensions import override

from lightning_core.core.events import Checkpoint

from .checkpoint_io import CheckpointError, SafeCheckpointIO

# Of this Lightning: whether plugins are told how to load.
_CAN_SAY = "weights_only" in inspect.signature(CheckpointIO.load_checkpoint).parameters


class NotSaved(OSError):
    """A training could not be saved; all its ranks know."""


class _OfOneRank(CheckpointIO):
    """Saves, and keeps what went wrong to itself: raised in one rank only, it would leave the others waiting.

    Args:
        io: that saves.
        batches: that were done.
        value: of a metric, for the manifest.
        later: whether training goes on while it is written.
    """

    def __init__(self, io: SafeCheckpointIO, batches: int, value: float | None = None, later: bool = False) -> None:
        self.saved: Checkpoint | None = None
        self.error: Exception | None = None
        self._io = io
        self._batches = batches
        self._value = value
        self._later = later

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        try:
            if self._later:
                self._io.write_later(checkpoint, Path(path), batches=self._batches, value=self._value, strict=True)
                self.saved = Checkpoint(self._batches, "")
                return
            manifest = self._io.write(checkpoint, Path(path), self._batches, value=self._value, strict=True)
            self.saved = Checkpoint(self._batches, manifest.sha256)
        except CheckpointError as error:
            # It must not leave on the strength of a file from which it could not come back.
            self.error = OSError(errno.EINVAL, str(error))
        except Exception as error:
            self.error = error

    @override
    def load_checkpoint(self, path: Any, *more: Any, **options: Any) -> dict[str, Any]:
        return self._io.load_checkpoint(path, *more, **options)

    @override
    def remove_checkpoint(self, path: Any) -> None:
        self._io.remove_checkpoint(path)


class ItsOwn(CheckpointIO):
    """Loads a launched job's own checkpoints as they were saved; all others are left to the Trainer's plugin.

    Args:
        folder: of its own.
        theirs: the Trainer's plugin.
    """

    def __init__(self, folder: Path, theirs: CheckpointIO) -> None:
        self._folder = folder.resolve()
        self._theirs = theirs
        self._io = SafeCheckpointIO()

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        self._theirs.save_checkpoint(checkpoint, path, storage_options)

    @override
    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = True) -> dict[str, Any]:
        # What Lightning loads by itself is loaded as ours are: nothing in it is run.
        if type(self._theirs) is TorchCheckpointIO or Path(path).resolve().parent == self._folder:
            return self._io.load_checkpoint(path, map_location)
        safely = {"weights_only": True} if _CAN_SAY else {}
        return self._theirs.load_checkpoint(path, map_location, **safely)

    @override
    def remove_checkpoint(self, path: Any) -> None:
        self._theirs.remove_checkpoint(path)

    @override
    def teardown(self) -> None:
        self._theirs.teardown()


def write(
    trainer: pl.Trainer,
    place: Path,
    io: SafeCheckpointIO | None = None,
    *,
    value: float | None = None,
    later: bool = False,
) -> Checkpoint:
    """Saves a training; on all ranks together.

    Args:
        trainer: that trains.
        place: of the file.
        io: that saves it; a new one unless given.
        value: of a metric, for the manifest.
        later: whether training goes on while the file is written. The SHA-256 is not known then, and what goes wrong
            with the writing is told when ``io`` is torn down.

    Raises:
        NotSaved: on all ranks, if the file cannot be written, or could not be loaded again. What was saved before
            stands.
        MisconfigurationException: if the strategy writes its checkpoints by itself.
    """
    strategy = trainer.strategy
    theirs = strategy.checkpoint_io
    ours = _OfOneRank(io or SafeCheckpointIO(), batches_done(trainer), value, later)
    strategy.checkpoint_io = ours
    try:
        trainer.save_checkpoint(place, weights_only=False)
    finally:
        strategy.checkpoint_io = theirs
    error = ours.error
    number = error.errno if isinstance(error, OSError) else None
    words = "" if error is None else getattr(error, "strerror", None) or str(error)
    saved, number, words = strategy.broadcast((ours.saved, number, words))
    if saved is not None:
        return saved
    if number is not None:
        raise NotSaved(number, words) from error
    if words:
        raise error or RuntimeError(words)
    name = type(strategy).__name__
    raise MisconfigurationException(f"{name} writes its checkpoints by itself; a launched job cannot be saved with it")


def batches_done(trainer: pl.Trainer) -> int:
    """Batches since the run began: steps of the optimiser, or calls of ``training_step`` that does those itself."""
    if trainer.lightning_module.automatic_optimization:
        return trainer.global_step
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.total
    return int(progress.processed)
