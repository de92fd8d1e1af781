r"""
SafeCheckpointIO
^^^^^^^^^^^^^^^^

Checkpoints that cannot be lost, for any Trainer.
"""

from __future__ import annotations

import copy
import logging
import pickle
import re
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.fabric.utilities.cloud_io import _load
from lightning.pytorch.plugins.io import CheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from typing_extensions import override

from lightning_core.drivers.generations import Generations, Manifest, Unsound, generations, opened, sweep

log = logging.getLogger(__name__)
T = TypeVar("T")

# Of asynchronous saving: one that is being written, one that waits.
UNDER_WAY = 2
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
        >>> from lightning_core.launch import SafeCheckpointIO
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
        self._later: _Later | None = None
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
        if not self._asynchronous:
            self.write(checkpoint, Path(path))
            return
        if self._later is None:
            self._later = _Later()
        self._later.save(lambda: to_host(checkpoint), lambda held: self.write(held, Path(path)), Path(path))

    def write(self, checkpoint: dict[str, Any], path: Path, batches: int | None = None) -> Manifest:
        """Saves a checkpoint now.

        Args:
            checkpoint: what to save.
            path: of a local file.
            batches: that were done, for the manifest; ``global_step`` unless given.

        Raises:
            OSError: if it cannot be written.
        """
        step = checkpoint.get("global_step")
        step = step if type(step) is int else None
        manifest = self._files.save(
            path,
            lambda file: torch.save(checkpoint, file),
            step=step,
            batches=step if batches is None else batches,
            size=lambda: size_of(checkpoint),
        )
        refused = ", ".join(refused_types(path))
        if refused and refused not in self._warned:
            self._warned.add(refused)
            log.warning("checkpoint %s contains %s and will not be loaded. %s", path, refused, _allow(refused))
        return manifest

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
            except Unsound as finding:
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


class _Later:
    """A thread that writes checkpoints in the order in which they were saved."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._room = threading.BoundedSemaphore(UNDER_WAY)
        self._failed: dict[Path, Exception] = {}
        self._last_failed = False

    def save(self, copied: Callable[[], T], write: Callable[[T], object], path: Path) -> None:
        """Copies now and writes later."""
        self._room.acquire()  # before the copy: no more than these are in memory
        try:
            held = copied()
        except BaseException:
            self._room.release()
            raise
        self._thread.submit(self._write, lambda: write(held), path)

    def remove(self, remove: Callable[[], None], path: Path) -> None:
        """Removes a file once what was saved before is written."""
        self._thread.submit(self._remove, remove, path)

    def wait(self) -> None:
        """Until all is done that was asked for."""
        self._thread.submit(int).result()

    def close(self) -> Exception | None:
        """Waits, and ends the thread; the error of a place whose newest checkpoint could not be written."""
        self._thread.shutdown()
        return next(iter(self._failed.values()), None)

    def _write(self, write: Callable[[], object], path: Path) -> None:
        try:
            write()
            self._last_failed = False
            self._failed.pop(path, None)
        except Exception as error:  # it is raised where the training can be told
            self._last_failed = True
            self._failed[path] = error
            log.warning("%s", error)
        finally:
            self._room.release()

    def _remove(self, remove: Callable[[], None], path: Path) -> None:
        if self._last_failed:
            log.warning("checkpoint %s stays: the one that was to replace it could not be saved", path)
            return
        try:
            remove()
        except OSError as error:
            log.warning("checkpoint %s cannot be removed: %s", path, error)


def refused_types(file: Any) -> list[str]:
    """Types in a checkpoint that are not loaded unless somebody allows them; nothing is run to find them.

    Args:
        file: its path, or the open file.
    """
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except Exception:  # of another format, or damaged in one of many ways: loading it tells which
        return []


def to_host(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """A copy in host memory that training does not change; tensors that share memory still do.

    Example::

        >>> weight = torch.ones(4)
        >>> copied = to_host({"a": weight, "b": weight[1:]})
        >>> _ = weight.zero_()
        >>> copied["b"].sum().item(), copied["a"].data_ptr() + 4 == copied["b"].data_ptr()
        (3.0, True)
    """
    memo: dict[int, Any] = {}
    storages: dict[Any, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        copied = tensor.detach()
        if _is_plain(tensor):
            storage: Any = tensor.untyped_storage()
            key = (tensor.device, storage.data_ptr(), storage.nbytes())
            if key not in storages:
                storages[key] = storage.cpu() if tensor.device.type != "cpu" else storage.clone()
            copied = torch.empty(0, dtype=tensor.dtype).set_(
                storages[key], tensor.storage_offset(), tensor.size(), tensor.stride()
            )
        else:
            copied = copied.to("cpu", copy=True)
        memo[id(tensor)] = copied
        return tensor

    apply_to_collection(checkpoint, torch.Tensor, keep)
    return copy.deepcopy(checkpoint, memo)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view of its storage and nothing else."""
    simple = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return simple and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def size_of(checkpoint: dict[str, Any]) -> int:
    """Bytes of all tensors, those that share memory once: about the size of the file."""
    storages: dict[Any, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            storages[tensor.device, storage.data_ptr()] = storage.nbytes()
        return tensor

    apply_to_collection(checkpoint, torch.Tensor, count)
    return sum(storages.values())


def _load_file(path: Path, map_location: Any, *, need_manifest: bool) -> tuple[dict[str, Any], bool]:
    """The content of a file, and whether it is what its manifest says.

    Raises:
        Unsound: if it is not, or cannot be read.
        CheckpointError: if it has more than tensors and plain data in it.
    """
    with opened(path) as (file, manifest):
        if need_manifest and manifest is None:
            raise Unsound("has no manifest")
        try:
            # Said, not left to the default: TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD turns the default off.
            return _plain(torch.load(file, map_location, weights_only=True)), manifest is not None
        except Exception as error:  # what a damaged file makes torch raise is of many kinds
            file.seek(0)
            if refused := ", ".join(refused_types(file)):
                raise CheckpointError(
                    f"checkpoint {path} is refused: it contains {refused}. {_allow(refused)}"
                ) from None
            if isinstance(error, pickle.UnpicklingError):
                raise Unsound(f"refused: {_torch_says(error)}") from None
            raise Unsound(f"cannot be read: {_torch_says(error)}") from None


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
