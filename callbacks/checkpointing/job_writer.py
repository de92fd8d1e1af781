"""Writes and loads the checkpoints of a launched job, besides those that its user asks for."""

from __future__ import annotations

import errno
import inspect
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins.io import CheckpointIO, TorchCheckpointIO
from lightning.pytorch.strategies import Strategy
from typing_extensions import override

from lightning_core.agent.user_code.random_state import RandomStateKept
from lightning_core.core.events import Checkpoint
from lightning_core.storage.saved_files import SavedFiles

from .checkpoint_io import CheckpointError, SafeCheckpointIO
from .shards import CheckpointNotSavedError, saves_shards, write_shards

# Whether this version of Lightning tells plugins how to load.
_HAS_WEIGHTS_ONLY = "weights_only" in inspect.signature(CheckpointIO.load_checkpoint).parameters


class _JobWriterIO(CheckpointIO):
    """Saves a checkpoint and keeps the error, if any: raised on one rank alone, it would leave the others waiting.

    Args:
        io: Plugin that saves.
        batches: Batches done, for the manifest.
        value: Value of a metric, for the manifest.
        asynchronous: Whether training continues while the file is written.
    """

    def __init__(
        self, io: SafeCheckpointIO, batches: int, value: float | None = None, asynchronous: bool = False
    ) -> None:
        self.written: Checkpoint | None = None
        self.error: Exception | None = None
        self._io = io
        self._batches = batches
        self._value = value
        self._asynchronous = asynchronous

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        try:
            if self._asynchronous:
                self._io.write_newest_later(
                    checkpoint, Path(path), batches=self._batches, value=self._value, strict=True
                )
                self.written = Checkpoint(self._batches, "")
                return
            manifest = self._io.write(checkpoint, Path(path), self._batches, value=self._value, strict=True)
            self.written = Checkpoint(self._batches, manifest.sha256)
        except CheckpointError as error:
            # A job must not leave relying on a file that it could not resume from.
            self.error = OSError(errno.EINVAL, str(error))
        except Exception as error:
            self.error = error

    @override
    def load_checkpoint(self, path: Any, *more: Any, **options: Any) -> dict[str, Any]:
        return self._io.load_checkpoint(path, *more, **options)

    @override
    def remove_checkpoint(self, path: Any) -> None:
        self._io.remove_checkpoint(path)


class JobCheckpointIO(CheckpointIO):
    """Loads the job's own checkpoints as they were saved, and leaves all others to the user's plugin of the Trainer.

    Without a user's plugin every checkpoint is loaded by :class:`SafeCheckpointIO`. All are loaded with
    ``weights_only=True``, whatever the caller asks for.

    Args:
        folder: Folder of the job's own checkpoints.
        user_io: Plugin of the Trainer.
    """

    def __init__(self, folder: Path, user_io: CheckpointIO) -> None:
        self._folder = folder.resolve()
        self._user_io = user_io
        self._io = SafeCheckpointIO()

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        self._user_io.save_checkpoint(checkpoint, path, storage_options)

    @override
    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = True) -> dict[str, Any]:
        # Lightning's default plugin is replaced too, so that no code in a checkpoint is run.
        if type(self._user_io) is TorchCheckpointIO or Path(path).resolve().parent == self._folder:
            return self._io.load_checkpoint(path, map_location)
        safely = {"weights_only": True} if _HAS_WEIGHTS_ONLY else {}
        return self._user_io.load_checkpoint(path, map_location, **safely)

    @override
    def remove_checkpoint(self, path: Any) -> None:
        self._user_io.remove_checkpoint(path)

    @override
    def teardown(self) -> None:
        self._user_io.teardown()


def load_plain_data_only(strategy: Strategy) -> None:
    """Make a strategy that loads checkpoints without a plugin always do so with ``weights_only=True``."""
    load = strategy.load_checkpoint
    if strategy.restore_checkpoint_after_setup and "weights_only" in inspect.signature(load).parameters:
        as_data: Any = lambda path, *_, **__: load(path, weights_only=True)  # noqa: E731
        vars(strategy)["load_checkpoint"] = as_data


def write(
    trainer: pl.Trainer,
    path: Path,
    io: SafeCheckpointIO | None = None,
    *,
    files: SavedFiles | None = None,
    value: float | None = None,
    asynchronous: bool = False,
) -> Checkpoint:
    """Save a training; called on all ranks together.

    Args:
        trainer: Trainer of the job.
        path: Path of the file or, for a strategy that saves shards, of their listing.
        io: Plugin that saves the file; a new one by default.
        files: Writer of folders of shards; a new one by default.
        value: Value of a metric, for the manifest.
        asynchronous: Whether training continues while the file is written. Its SHA-256 is then not known yet, and
            errors are raised when ``io`` is torn down.

    Raises:
        CheckpointNotSavedError: On all ranks, if a hook for checkpoints raises on one of them, or the file cannot be
            written or could not be loaded again. The previous checkpoint is kept.
        MisconfigurationException: If the strategy writes checkpoints without a plugin.
    """
    strategy, is_new = trainer.strategy, False
    with suppress(OSError):  # of a path that is too long
        is_new = not Path(path).exists()
    ours = _JobWriterIO(io or SafeCheckpointIO(), batches_done(trainer), value, asynchronous)
    with RandomStateKept():  # hooks of the user may draw
        checkpoint = _dump(trainer)
        if saves_shards(strategy):
            return write_shards(trainer, checkpoint, files or SavedFiles(path.parent, path.name), batches_done(trainer))
        user_io = strategy.checkpoint_io
        strategy.checkpoint_io = ours
        try:
            strategy.save_checkpoint(checkpoint, path)
        finally:
            strategy.checkpoint_io = user_io
    error = ours.error
    number = error.errno if isinstance(error, OSError) else None
    message = "" if error is None else getattr(error, "strerror", None) or str(error) or type(error).__name__
    written, number, message = strategy.broadcast((ours.written, number, message))
    if written is not None:
        return written
    if message:
        raise CheckpointNotSavedError(number or errno.EIO, message) from error
    if trainer.is_global_zero and is_new:
        shutil.rmtree(path, ignore_errors=True)
    name = type(strategy).__name__
    raise MisconfigurationException(
        f"{name} writes checkpoints without a plugin, so its files cannot be verified: use another strategy"
    )


def _dump(trainer: pl.Trainer) -> dict[str, Any]:
    """Return Lightning's checkpoint of a training.

    Raises:
        CheckpointNotSavedError: On all ranks, if a hook raises on one: alone, it would leave the others waiting.
    """
    checkpoint, error = {}, None
    try:
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    except Exception as raised:
        error = raised
    if trainer.strategy.reduce_boolean_decision(error is None, all=True):
        return checkpoint
    cause = "on another rank" if error is None else f"{type(error).__name__}: {error}"
    raise CheckpointNotSavedError(errno.EIO, f"a hook for checkpoints has raised: {cause}") from error


def batches_done(trainer: pl.Trainer) -> int:
    """Return the batches since the job began: optimizer steps or, with manual optimization, training steps."""
    if trainer.lightning_module.automatic_optimization:
        return trainer.global_step
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.total
    return int(progress.processed)
