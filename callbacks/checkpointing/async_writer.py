"""Writes checkpoints while training continues: a copy in host memory, and a thread that writes in order."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning_utilities.core.apply_func import apply_to_collection

from lightning_core.view.console_lines import logger

log = logger(__name__)
T = TypeVar("T")

# Checkpoints in memory at the same time: one that is being written and one that waits.
MAX_PENDING = 2


class AsyncWriter:
    """Writes checkpoints in a thread, in the order in which they were saved."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._room = threading.BoundedSemaphore(MAX_PENDING)
        self._lock = threading.Lock()
        self._newest: dict[Path, Callable[[], object]] = {}
        self._failed: dict[Path, Exception] = {}
        self._last_failed = False

    def save(self, copied: Callable[[], T], write: Callable[[T], object], path: Path) -> None:
        """Copy a checkpoint now and write it later.

        Args:
            copied: Returns the copy.
            write: Writes the copy.
            path: Path of the checkpoint.
        """
        self._room.acquire()  # before the copy, to bound the memory
        try:
            held = copied()
        except BaseException:
            self._room.release()
            raise
        self._thread.submit(self._write_in_turn, lambda: write(held), path)

    def save_newest(self, copied: Callable[[], T], write: Callable[[T], object], path: Path) -> None:
        """Copy a checkpoint now and write it later, in place of one of the same path that still waits; never wait.

        The arguments are those of :meth:`save`.
        """
        held = copied()
        with self._lock:
            waits = path in self._newest
            self._newest[path] = lambda: write(held)
        if not waits:
            self._thread.submit(self._write_newest, path)

    def remove(self, remove: Callable[[], None], path: Path) -> None:
        """Remove a file after everything saved before has been written."""
        self._thread.submit(self._remove, remove, path)

    def wait(self) -> None:
        """Wait until all requests are done."""
        self._thread.submit(int).result()

    def close(self, timeout: float | None = None) -> Exception | None:
        """Wait and end the thread; return the error of a path whose newest checkpoint could not be written, if any.

        Args:
            timeout: Seconds to wait at most; None for any time.
        """
        done = self._thread.submit(int)
        self._thread.shutdown(wait=False)
        try:
            done.result(timeout)
        except TimeoutError:
            return TimeoutError(f"not written within {timeout:.0f} s")
        return next(iter(self._failed.values()), None)

    def _write_in_turn(self, write: Callable[[], object], path: Path) -> None:
        try:
            self._write(write, path)
        finally:
            self._room.release()

    def _write_newest(self, path: Path) -> None:
        with self._lock:
            write = self._newest.pop(path)
        self._write(write, path)

    def _write(self, write: Callable[[], object], path: Path) -> None:
        try:
            write()
            self._last_failed = False
            self._failed.pop(path, None)
        except Exception as error:  # raised by close(), in the training thread
            self._last_failed = True
            if path not in self._failed:  # the disk may be full for as many epochs as there are
                log.warning("%s", getattr(error, "strerror", None) or error)
            self._failed[path] = error

    def _remove(self, remove: Callable[[], None], path: Path) -> None:
        if self._last_failed:
            log.warning("checkpoint %s is kept: the checkpoint that was to replace it could not be saved", path)
            return
        try:
            remove()
        except OSError as error:
            log.warning("checkpoint %s cannot be removed: %s", path, error)


def to_host(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a copy in host memory that training does not change; tensors that share memory still do.

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
                flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                # Not torch's own copy, which uses many threads for bytes and is slow on busy cores.
                host = torch.from_numpy(flat.numpy().copy()) if tensor.device.type == "cpu" else flat.cpu()
                storages[key] = host.untyped_storage()
            copied = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
                storages[key], tensor.storage_offset(), tensor.size(), tensor.stride()
            )
        else:
            copied = copied.to("cpu", copy=True)
        memo[id(tensor)] = copied
        return tensor

    apply_to_collection(checkpoint, torch.Tensor, keep)
    return copy.deepcopy(checkpoint, memo)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is nothing but a view of its storage."""
    simple = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return simple and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def size_of(checkpoint: dict[str, Any]) -> int:
    """Return the bytes of all tensors, counting shared memory once: about the size of the file."""
    storages: dict[Any, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            storages[tensor.device, storage.data_ptr()] = storage.nbytes()
        return tensor

    apply_to_collection(checkpoint, torch.Tensor, count)
    return sum(storages.values())
