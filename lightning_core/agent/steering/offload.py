"""Moves the state of a held training from its GPU to the host's memory, and back.

The memory below the tensors is moved, and not the tensors: the storage of a tensor shrinks to nothing and grows again.
Whatever refers to it still does, be it a tied weight, a view, an optimizer or a graph. No tensor is touched unless
something reads the state while it is away, to save it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lightning_core.view.console_lines import logger

log = logger(__name__)

# Seconds for which a device may be without room for the state, while others may still be leaving it.
MAX_WAIT_FOR_ROOM = 60.0
# Seconds of that which are worth no word: a job that is to leave the device has to hear of that first.
SILENT_WAIT = 3.0


class _Away(NamedTuple):
    """A storage whose bytes are in the host's memory, and the tensors known to lie in it."""

    storage: torch.UntypedStorage
    host: torch.UntypedStorage
    tensors: list[torch.Tensor]


class RoomWait:
    """The wait for room on a device that others may still be leaving.

    Args:
        job: Name of the job, for log messages.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, job: str, clock: Callable[[], float]) -> None:
        self._job = job
        self._clock = clock
        self._warned = False
        self._since: float | None = None

    def is_over(self) -> bool:
        """Note that there is no room now; return whether there has been none for a minute."""
        now = self._clock()
        self._since = now if self._since is None else self._since
        if now - self._since > SILENT_WAIT and not self._warned:
            self._warned = True
            log.warning("%s: waits until its device has room for its state", self._job)
        return now - self._since > MAX_WAIT_FOR_ROOM

    def end(self) -> None:
        """Note that the state is back."""
        self._warned, self._since = False, None


class Offload:
    """The state of one training, which leaves its device while the job is held.

    Args:
        job: Name of the job, for log messages.
        roots: Returns what holds the state: modules, optimizers and other objects, whose tensors are looked for.
        device: Device that the state leaves.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        job: str,
        roots: Callable[[], Iterable[object]],
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._roots = roots
        self._device = device
        self._away: list[_Away] = []
        self._left = 0
        self._on_host = False
        self._warned = False
        self._room = RoomWait(job, clock)

    @property
    def is_out(self) -> bool:
        """Whether the state, or some of it, has left the device."""
        return bool(self._away)

    def check(self) -> None:
        """Check whether the state can leave; this one always tries."""

    def frees(self) -> int:
        """Return the bytes that leave the device when the job is held; may be called from another thread.

        With the state leave what torch keeps for later tensors, which is known once the job has been held. Gradients
        are not counted before: during a backward pass autograd replaces them without Python's lock, and reading one
        would be a race for freed memory.
        """
        away = self._away
        sizes = [one.host.nbytes() for one in away] or [
            storage.nbytes() for storage, _ in self._storages(with_gradients=False)
        ]
        return max(sum(sizes), self._left)

    def move_out(self) -> None:
        """Move the state to the host's memory; what finds no room there stays on the device."""
        if self._away:
            return
        self._synchronize()
        reserved, away = self._reserved(), list[_Away]()
        for storage, tensors in self._storages():
            try:
                host = self._host_memory(storage.nbytes())
            except (RuntimeError, MemoryError) as error:
                if not self._warned:
                    log.warning("%s: held, but not all of its state fits the host's memory: %s", self._job, error)
                self._warned = True
                break
            host.copy_(storage, non_blocking=True)
            away.append(_Away(storage, host, tensors))
        self._synchronize()
        self._away = away
        self._free()
        self._left = reserved - self._reserved()

    def move_back(self) -> bool:
        """Move the state back; return whether the device has room for it.

        Raises:
            torch.cuda.OutOfMemoryError: If it has had none for a minute.
        """
        try:
            for away in self._away:
                away.storage.resize_(away.host.nbytes())
        except torch.cuda.OutOfMemoryError:
            self._free()
            if self._room.is_over():
                raise
            return False
        for away in self._away:
            away.storage.copy_(away.host, non_blocking=True)
        self._synchronize()
        if self._on_host:
            for away in self._away:
                _point(away.tensors, away.storage)
        self._away, self._on_host = [], False
        self._room.end()
        return True

    def settle(self) -> int:
        """Wait for the device, and free what torch keeps there for later; return the bytes that are left."""
        self._synchronize()
        self._free()
        return self._reserved()

    def read_on_host(self) -> None:
        """Make the tensors those of the host's memory, to be read there: to be saved, or after the training."""
        if self._away and not self._on_host:
            self._on_host = True
            for away in self._away:
                _point(away.tensors, away.host)

    def _storages(self, *, with_gradients: bool = True) -> list[tuple[torch.UntypedStorage, list[torch.Tensor]]]:
        """Return each storage of the state on the device, with the tensors found in it."""
        found: dict[int, tuple[torch.UntypedStorage, list[torch.Tensor]]] = {}
        for tensor in _tensors(self._roots(), with_gradients=with_gradients):
            if tensor.device != self._device or not _is_plain(tensor):
                continue
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.resizable():
                found.setdefault(storage.data_ptr(), (storage, []))[1].append(tensor)
        return list(found.values())

    def _host_memory(self, size: int) -> torch.UntypedStorage:
        """Return so many bytes of the host's memory, pinned if possible: copies of those are fast."""
        if self._device.type == "cuda":
            try:
                return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True).untyped_storage()
            except RuntimeError:
                log.debug("%s: no pinned memory for %d bytes", self._job, size)
        return torch.empty(size, dtype=torch.uint8, device="cpu").untyped_storage()

    def _reserved(self) -> int:
        """Return the bytes that torch has reserved on the device."""
        return torch.cuda.memory_reserved(self._device) if self._device.type == "cuda" else 0

    def _free(self) -> None:
        for away in self._away:
            away.storage.resize_(0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _tensors(roots: Iterable[object], *, with_gradients: bool) -> Iterator[torch.Tensor]:
    """Yield the tensors of some objects, of their modules and optimizers, and of containers there."""
    waiting = [value for root in roots for value in (root, getattr(root, "__dict__", {}))]
    seen: dict[int, Any] = {}  # keeps what it has seen, so that no number is used twice
    while waiting:
        thing: Any = waiting.pop()
        if id(thing) in seen:
            continue
        if isinstance(thing, torch.Tensor):
            yield thing
            inner: Iterable[object] = [thing.grad] if with_gradients and thing.is_leaf else []
        elif isinstance(thing, Mapping):
            inner = thing.values()
        elif isinstance(thing, list | tuple | set | deque):
            inner = thing
        elif isinstance(thing, torch.nn.Module | torch.optim.Optimizer):
            inner = vars(thing).values()
        else:
            continue
        seen[id(thing)] = thing
        waiting += inner


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a view of a storage, and no more: others stay where they are."""
    return (
        tensor.layout is torch.strided
        and not is_traceable_wrapper_subclass(tensor)
        and not tensor.is_inference()
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _point(tensors: Iterable[torch.Tensor], storage: torch.UntypedStorage) -> None:
    """Make tensors views of another storage with the same bytes."""
    with torch.inference_mode(False):  # otherwise they become tensors that record no gradients
        for tensor in tensors:
            view = torch.empty(0, dtype=tensor.dtype, device=storage.device)
            tensor.data = view.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
