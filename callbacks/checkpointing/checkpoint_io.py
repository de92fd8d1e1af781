r"""
SafeCheckpointIO
^^^^^^^^^^^^^^^^

Checkpoints that cannot be lost, for any Trainer.
"""

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

from lightning_core.storage.generations import CorruptCheckpointError, Generations, Manifest, generations, opened, sweep
from lightning_core.view.console_lines import logger

from .async_writer import Later, size_of, to_host

log = logger(__name__)

_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class CheckpointError(RuntimeError):
    """There is no checkpoint that may be loaded; the message says why, file by file."""


class SafeCheckpointIO(CheckpointIO):
    """Saves checkpoints so that a kill, a full disk or a damaged file never costs the last good one.

    A file is written beside its place, synced and renamed; a manifest ``NAME.json`` with its SHA-256 lies beside it,
    and the checkpoint before it stays as ``NAME.1``. What is loaded is what the manifest says; a file that is damaged
    or missing is replaced by its newest generation that is not, with a warning.

    Args:
        asynchronous: whether training goes on while a checkpoint is written: it waits for the copy to host memory only.
            Every checkpoint is written, in the order of saving: one may wait while another is written, and who saves a
            third waits for the first.
        keep: generations of each file, 2 at least.

    Raises:
        ValueError: if ``keep`` is less than 2.

    .. note::
        Nothing but tensors and plain data is ever loaded (``weights_only=True``), whatever the Trainer was told. Types
        of your own have to be allowed, with :func:`torch.serialization.add_safe_globals`.

    .. note::
        Files are local; what another tool has written loads too, unverified. Strategies that shard a model over many
        files (``DeepSpeedStrategy``, ``FSDPStrategy(state_dict_type="sharded")``) write them past any plugin.

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
        self._later: Later | None = None
        self._warned: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_later": None}  # its thread is this process's

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Saves a checkpoint; with ``asynchronous``, as soon as the disk allows.

        Args:
            checkpoint: what to save; a plain dictionary of tensors and numbers will do.
            path: of a local file.
            storage_options: none are known.

        Raises:
            OSError: if it cannot be written; the message says where, and how much room there is.
            TypeError: if there are ``storage_options``.
            ValueError: if the path is not local.
        """
        if storage_options is not None:
            raise TypeError(f"SafeCheckpointIO knows no storage_options, got {storage_options!r}")
        if _is_remote(path):
            raise ValueError(f"SafeCheckpointIO saves to local files, got {path}")
        if self._asynchronous:
            self.write_later(checkpoint, Path(path))
        else:
            self.write(checkpoint, Path(path))

    def write_later(self, checkpoint: dict[str, Any], path: Path, **options: Any) -> None:
        """Copies a checkpoint now and writes it while training goes on; options as of :meth:`write`."""
        if self._later is None:
            self._later = Later()
        self._later.save(lambda: to_host(checkpoint), lambda held: self.write(held, path, **options), path)

    def write(
        self,
        checkpoint: dict[str, Any],
        path: Path,
        batches: int | None = None,
        *,
        value: float | None = None,
        strict: bool = False,
    ) -> Manifest:
        """Saves a checkpoint now.

        Args:
            checkpoint: what to save.
            path: of a local file.
            batches: that were done, for the manifest; ``global_step`` unless given.
            value: of a metric, for the manifest.
            strict: whether one that would not be loaded takes nobody's place.

        Raises:
            OSError: if it cannot be written.
            CheckpointError: with ``strict``, if it would not be loaded.
        """

        def look(part: Path) -> None:
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
            look=look,
        )

    @override
    def load_checkpoint(
        self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Loads a checkpoint, or its newest generation that is sound.

        Args:
            path: of a file, or a URL.
            map_location: as for :func:`torch.load`.
            weights_only: True, whatever is given.

        Raises:
            FileNotFoundError: if there is none.
            CheckpointError: if none may be loaded: damaged, or with code in it.
        """
        if self._later is not None:
            self._later.wait()
        if _is_remote(path):
            return _plain(_load(path, map_location, weights_only=True))
        place = Path(path).resolve()  # the last checkpoint may be a link to the best one
        sweep(place.parent)
        findings: list[str] = []
        for candidate in generations(place):
            try:
                content, verified = _load_file(candidate, map_location, need_manifest=candidate != place)
            except CorruptCheckpointError as finding:
                findings.append(f"{candidate.name}: {finding}")
                continue
            if findings:
                log.warning("checkpoint %s: %s; loaded %s instead", path, "; ".join(findings), candidate.name)
            elif not verified:
                log.info("checkpoint %s has no manifest: loaded as it is, it cannot be verified", path)
            return content
        if findings == [f"{place.name}: missing"]:
            raise FileNotFoundError(f"checkpoint {path}: missing")
        raise CheckpointError(f"checkpoint {path} cannot be loaded: {'; '.join(findings)}")

    @override
    def remove_checkpoint(self, path: str | Path) -> None:
        """Removes a checkpoint with its manifest and older generations, after those that are still to be written.

        If the last asynchronous save has failed, nothing is removed: it may be the last good one.
        """
        if self._later is None:
            self._remove(Path(path))
        else:
            self._later.remove(lambda: self._remove(Path(path)), Path(path))

    @override
    def teardown(self) -> None:
        """Waits for what is still to be written.

        Raises:
            OSError: if something could not be, nor anything after it at its place.
        """
        later, self._later = self._later, None
        if later is None:
            return
        # An error that ends the training is not hidden behind ours, which has been told.
        if (error := later.close()) is not None and sys.exc_info()[0] is None:
            raise error

    def _remove(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():  # of a strategy that shards
            shutil.rmtree(path)
        else:
            self._files.remove(path)


def refused_types(file: Any) -> list[str]:
    """Types in a checkpoint that are not loaded unless somebody allows them; nothing is run to find them.

    Args:
        file: its path, or the open file.
    """
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except Exception:  # of another format, or damaged in one of many ways: loading it tells which
        return []


def _load_file(path: Path, map_location: Any, *, need_manifest: bool) -> tuple[dict[str, Any], bool]:
    """The content of a file, and whether it is what its manifest says.

    Raises:
        CorruptCheckpointError: if it is not, or cannot be read.
        CheckpointError: if it has more than tensors and plain data in it.
    """
    with opened(path) as (file, manifest):
        if need_manifest and manifest is None:
            raise CorruptCheckpointError("has no manifest")
        try:
            # Said, not left to the default: TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD turns the default off.
            return _plain(torch.load(file, map_location, weights_only=True)), manifest is not None
        except Exception as error:  # what a damaged file makes torch raise is of many kinds
            file.seek(0)
            if refused := ", ".join(refused_types(file)):
                raise CheckpointError(
                    f"checkpoint {path} is refused: it contains {refused}. {_allow(refused)}"
                ) from None
            raise CorruptCheckpointError(f"cannot be read as tensors and plain data: {_torch_says(error)}") from None


def _plain(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise TypeError(f"a checkpoint must be a dictionary, got {type(content).__name__}")
    return content


def _allow(types: str) -> str:
    return (
        "Only tensors and plain data are loaded; if you trust a type, allow it first: "
        f"torch.serialization.add_safe_globals([{types}])"
    )


def _torch_says(error: Exception) -> str:
    """What it is about, without the advice to load whatever is in the file."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if "weights_only" not in line and "torch.load" not in line] or lines[:1]
    return lines[0] if lines else type(error).__name__


def _is_remote(path: str | Path) -> bool:
    return _REMOTE.match(str(path)) is not None
