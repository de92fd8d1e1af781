"""Checkpoints for any Trainer that survive kills, full disks and damaged files."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.cloud_io import _load
from lightning.pytorch.plugins.io import CheckpointIO
from typing_extensions import override

from lightning_core.errors import LightningCoreError
from lightning_core.storage.atomic_files import remove_unfinished
from lightning_core.storage.generations import Generations, generation_paths
from lightning_core.storage.manifests import CorruptCheckpointError, Manifest, check_archive, is_archive, open_verified
from lightning_core.view.console_lines import logger

from .async_writer import AsyncWriter, size_of, to_host

log = logger(__name__)

_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class CheckpointError(LightningCoreError, RuntimeError):
    """No checkpoint can be loaded, or the one to save could not be; the message gives the reason for each file."""


class SafeCheckpointIO(CheckpointIO):
    """Saves checkpoints so that a kill, a full disk or a damaged file never costs the last good one.

    A file is written under a temporary name, synced and renamed. A manifest ``NAME.json`` beside it holds its SHA-256,
    and the previous checkpoint is kept as ``NAME.1``. Loading verifies the SHA-256; a damaged or missing file is
    replaced by its newest valid generation, with a warning.

    Args:
        asynchronous: Whether training continues while a checkpoint is written; it then waits only for a copy in host
            memory. All checkpoints are written, in the order in which they were saved. Saving a third one waits until
            the first is written.
        keep: Generations of each file to keep, at least 2.

    Raises:
        ValueError: If ``keep`` is less than 2.

    .. note::
        Only tensors and plain data are loaded (``weights_only=True``), whatever the Trainer is told. Allow your own
        types with :func:`torch.serialization.add_safe_globals`.

    .. note::
        Files are local. A file written by another tool is loaded too, but cannot be verified. Strategies that shard a
        model over many files (``ModelParallelStrategy``, ``FSDPStrategy(state_dict_type="sharded")``,
        ``DeepSpeedStrategy``) write them without any plugin; a launched job lists and verifies those of the first two.

    Example::

        >>> import tempfile
        >>> from lightning_core.callbacks import SafeCheckpointIO
        >>> io, path = SafeCheckpointIO(), tempfile.mkdtemp() + "/last.ckpt"
        >>> io.save_checkpoint({"global_step": 7}, path)
        >>> io.save_checkpoint({"global_step": 8}, path)
        >>> io.load_checkpoint(path), io.load_checkpoint(path + ".1")
        ({'global_step': 8}, {'global_step': 7})

    In a Trainer::

        Trainer(plugins=[SafeCheckpointIO(asynchronous=True)])
    """

    def __init__(self, asynchronous: bool = False, keep: int = 2) -> None:
        self._files = Generations(keep)
        self._asynchronous = asynchronous
        self._writer: AsyncWriter | None = None
        self._warned: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writer": None}  # the thread belongs to this process

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Save a checkpoint; with ``asynchronous``, as soon as the disk allows.

        Args:
            checkpoint: Dictionary of tensors and plain data.
            path: Path of a local file.
            storage_options: Not supported, must be None.

        Raises:
            OSError: If the file cannot be written; the message names the path and the free space.
            TypeError: If there are ``storage_options``.
            ValueError: If the path is not local.
        """
        if storage_options is not None:
            raise TypeError(f"SafeCheckpointIO supports no storage_options, got {storage_options!r}")
        if _is_remote(path):
            raise ValueError(f"SafeCheckpointIO saves to local files, got {path}")
        if self._asynchronous:
            self.write_later(checkpoint, Path(path))
        else:
            self.write(checkpoint, Path(path))

    def write_later(self, checkpoint: dict[str, Any], path: Path) -> None:
        """Copy a checkpoint now and write it while training continues; wait while two others wait for that."""
        self._writer = self._writer or AsyncWriter()
        self._writer.save(lambda: to_host(checkpoint), lambda held: self.write(held, path), path)

    def write_newest_later(self, checkpoint: dict[str, Any], path: Path, **options: Any) -> None:
        """Copy a checkpoint now and write it later, in place of an older one that still waits; never wait.

        Options are those of :meth:`write`.
        """
        self._writer = self._writer or AsyncWriter()
        self._writer.save_newest(lambda: to_host(checkpoint), lambda held: self.write(held, path, **options), path)

    def write(
        self,
        checkpoint: dict[str, Any],
        path: Path,
        batches: int | None = None,
        *,
        value: float | None = None,
        strict: bool = False,
    ) -> Manifest:
        """Save a checkpoint now.

        Args:
            checkpoint: Dictionary of tensors and plain data.
            path: Path of a local file.
            batches: Batches done, for the manifest; ``global_step`` by default.
            value: Value of a metric, for the manifest.
            strict: Whether to keep the previous checkpoint if the new one could not be loaded again.

        Returns:
            Manifest of the file.

        Raises:
            OSError: If the file cannot be written.
            CheckpointError: With ``strict``, if the checkpoint could not be loaded again.
        """

        def inspect(part: Path) -> None:
            refused = ", ".join(refused_types(part))
            if refused and strict:
                raise CheckpointError(f"{path} could not be loaded again: it contains {refused}")
            if refused and refused not in self._warned:
                self._warned.add(refused)
                log.warning("checkpoint %s contains %s and will not be loaded. %s", path, refused, _allow(refused))

        step = checkpoint.get("global_step")
        step = step if type(step) is int else None
        return self._files.save(
            path,
            lambda file: torch.save(checkpoint, file),
            step=step,
            batches=step if batches is None else batches,
            value=value,
            size=lambda: size_of(checkpoint),
            inspect=inspect,
        )

    @override
    def load_checkpoint(
        self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Load a checkpoint, or its newest valid generation.

        Args:
            path: Path of a file, or a URL.
            map_location: As for :func:`torch.load`.
            weights_only: Ignored: always True.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            CheckpointError: If all generations are damaged, or contain types that are not allowed.
        """
        if self._writer is not None:
            self._writer.wait()
        if _is_remote(path):
            return _plain(_load(path, map_location, weights_only=True))
        place = Path(path).resolve()  # last.ckpt may link to the best checkpoint
        remove_unfinished(place.parent)
        findings: list[str] = []
        for candidate in generation_paths(place):
            try:
                content, verified = _load_file(candidate, map_location, need_manifest=candidate != place)
            except CorruptCheckpointError as finding:
                findings.append(f"{candidate.name}: {finding}")
                continue
            if findings:
                log.warning("checkpoint %s: %s; loaded %s instead", path, "; ".join(findings), candidate.name)
            elif not verified:
                log.info("checkpoint %s has no manifest: loaded without verification", path)
            return content
        if findings == [f"{place.name}: missing"]:
            raise FileNotFoundError(f"checkpoint {path}: missing")
        raise CheckpointError(f"checkpoint {path} cannot be loaded: {'; '.join(findings)}")

    @override
    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint, its manifest and older generations, after pending checkpoints have been written.

        Nothing is removed after a failed asynchronous save, because the file may be the last good one.
        """
        if self._writer is None:
            self._remove(Path(path))
        else:
            self._writer.remove(lambda: self._remove(Path(path)), Path(path))

    @override
    def teardown(self) -> None:
        """Wait for pending checkpoints.

        Raises:
            OSError: If the newest checkpoint of a path could not be written.
        """
        # Do not hide an error that ends the training; this one has been logged.
        if (error := self.close()) is not None and sys.exc_info()[0] is None:
            raise error

    def close(self, timeout: float | None = None) -> Exception | None:
        """Wait for pending checkpoints; return why the newest of a path was not written, None if all were.

        Args:
            timeout: Seconds to wait at most; None for any time.
        """
        writer, self._writer = self._writer, None
        return None if writer is None else writer.close(timeout)

    def _remove(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():  # written by a sharding strategy
            shutil.rmtree(path)
        else:
            self._files.remove(path)


def refused_types(file: Any) -> list[str]:
    """Return the types in a checkpoint that are not allowed to be loaded; no code of the file is run.

    Args:
        file: Path or open file.
    """
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except Exception:  # another format, or damaged: loading it gives the reason
        return []


def _load_file(path: Path, map_location: Any, *, need_manifest: bool) -> tuple[dict[str, Any], bool]:
    """Return the content of a file, and whether a manifest has verified it.

    Raises:
        CorruptCheckpointError: If the file does not match its manifest, or cannot be read.
        CheckpointError: If it contains more than tensors and plain data.
    """
    with open_verified(path) as (file, manifest):
        if need_manifest and manifest is None:
            raise CorruptCheckpointError("has no manifest")
        if is_archive(file):
            check_archive(file)
        try:
            # Explicit, because TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD changes the default.
            return _plain(torch.load(file, map_location, weights_only=True)), manifest is not None
        except Exception as error:  # torch raises many kinds of errors for damaged files
            file.seek(0)
            if refused := ", ".join(refused_types(file)):
                raise CheckpointError(
                    f"checkpoint {path} is refused: it contains {refused}. {_allow(refused)}"
                ) from None
            raise CorruptCheckpointError(f"cannot be read as tensors and plain data: {_torch_message(error)}") from None


def _plain(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise TypeError(f"a checkpoint must be a dictionary, got {type(content).__name__}")
    return content


def _allow(types: str) -> str:
    return (
        "Only tensors and plain data are loaded; if you trust a type, allow it first: "
        f"torch.serialization.add_safe_globals([{types}])"
    )


def _torch_message(error: Exception) -> str:
    """Return torch's message without its advice to load the file unsafely."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if "weights_only" not in line and "torch.load" not in line] or lines[:1]
    return lines[0] if lines else type(error).__name__


def _is_remote(path: str | Path) -> bool:
    return _REMOTE.match(str(path)) is not None
