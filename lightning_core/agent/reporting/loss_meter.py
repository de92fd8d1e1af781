"""Averages the loss of every batch into loss cells, and keeps losses that are NaN or infinite out of them.

A cell closes after ``every`` batches, and later in the run when the number of batches has grown by the fraction
``growth``. A long run thus has some hundred cells rather than millions, and the noise of a cell stays small compared
with the scale on which the loss still falls.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_core.core.events import BadLosses, Cell

if TYPE_CHECKING:
    import torch

# Batches after which the losses of a GPU's cell are read at the earliest, and always where a training may stop by them.
# The wait idles no device: two batches more are in its queue.
READ_AFTER = 2
# Losses that are kept on a GPU at most before they are sent to the host.
MAX_KEPT = 256


class LossMeter:
    """Turns losses into cells.

    Args:
        deliver: Called with each cell.
        every: Minimum batches per cell, at least 1.
        growth: Minimum size of a cell as a fraction of the batches so far, at least 0 and below 1.

    Attributes:
        exact: Whether a cell of a GPU is delivered after the same batch in every run, for which the host may have to
            wait for the device; if not, it is delivered once it is there.

    Raises:
        ValueError: If a number is out of range.

    Example::

        >>> cells = []
        >>> meter = LossMeter(cells.append, every=2, growth=0.0)
        >>> for batch, loss in enumerate([3.0, 1.0, float("nan"), 0.5], start=1):
        ...     meter.add(loss, batch)
        >>> cells, meter.rejected
        ([Cell(number=1, batches=2, value=2.0), Cell(number=2, batches=4, value=0.5)], 1)
    """

    def __init__(
        self,
        deliver: Callable[[Cell], None],
        every: int = 10,
        growth: float = 0.01,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1 batch, got {every}")
        if not 0 <= growth < 1:
            raise ValueError(f"growth must be at least 0 and below 1, got {growth}")
        self.exact = True
        self.rejected = 0
        """Losses kept out of the cells because they are NaN or infinite."""
        self.bad: BadLosses | None = None
        """Newest run of losses that are NaN or infinite."""
        self._deliver = deliver
        self._every = every
        self._growth = growth
        self._number = 0
        self._evaluated_at = -1
        self._edge = every
        self._sum = 0.0
        self._count = 0
        self._on_device: _OnDevice | None = None
        self._send_at = every

    def start_at(self, batches: int, cells: int = 0) -> None:
        """Continue after so many batches and so many cells that were delivered before."""
        self._number = cells
        self._edge = self._send_at = batches + max(self._every, math.ceil(batches * self._growth))

    def add(self, loss: float, batches: int) -> None:
        """Add a loss.

        Args:
            loss: Loss of the batch.
            batches: Batches that are done, this one included.
        """
        if math.isfinite(loss):
            self._sum += loss
            self._count += 1
            if self.bad is not None:
                self._note_good()
        else:
            self.rejected += 1
            self._note_bad(batches, 0)
        if batches >= self._edge:
            self._close(batches, self._sum, self._count)
            self._sum, self._count = 0.0, 0

    def add_tensor(self, loss: torch.Tensor, scale: float, batches: int, *, private: bool = False) -> None:
        """Add a loss that a GPU may still be computing.

        Args:
            loss: Tensor with one element.
            scale: Factor of the loss.
            batches: Batches that are done, this one included.
            private: Whether the tensor is a plain one of one element, in memory of its own, that no CUDA graph writes.
        """
        if not loss.is_cuda:
            self.add(loss.item() * scale, batches)
            return
        losses = self._on_device
        if losses is None:
            losses = self._on_device = _OnDevice(loss.device)
        kept = losses.keep(loss, scale, batches, private=private)
        if batches >= self._send_at:
            self._send_at = self._next_edge(batches)
            losses.send()
        elif kept >= MAX_KEPT:
            losses.send()
        self._receive(batches)

    def add_evaluation(self, value: torch.Tensor | float, batches: int) -> None:
        """Add the value of a whole evaluation as a cell of its own; only the first after each batch counts.

        Of a GPU, it waits for the value: the training may end by it.
        """
        if batches == self._evaluated_at:
            return
        self._edge = self._evaluated_at = batches
        self.add(float(value), batches)

    @property
    def next_cell(self) -> int:
        """Batches after which the next cell is delivered, if each batch has a loss."""
        if self._on_device is None:
            return self._edge
        return READ_AFTER + next((last for last in self._on_device.on_their_way() if last >= self._edge), self._edge)

    def flush(self) -> None:
        """Wait for the cells that are still on their way from the GPU, and deliver them."""
        self._receive(None)

    def _receive(self, batches: int | None) -> None:
        """Add the losses that have arrived from the GPU after so many batches; for None wait for all that were sent."""
        losses = self._on_device
        while losses is not None and losses.is_due(batches, wait=self.exact):
            for loss, at in losses.read():
                self.add(loss, at)

    def _close(self, batches: int, total: float, count: int) -> None:
        self._edge = self._next_edge(batches)
        if count:
            self._emit(batches, total / count)
        elif self.bad is not None:
            self._note_bad(batches, 1)

    def _note_bad(self, first: int, cells: int) -> None:
        before = self.bad
        self.bad = (
            BadLosses(first, cells) if before is None or before.over else before._replace(cells=before.cells + cells)
        )

    def _note_good(self) -> None:
        if self.bad is not None and not self.bad.over:
            self.bad = self.bad._replace(over=True)

    def _next_edge(self, batches: int) -> int:
        return batches + max(self._every, int(batches * self._growth))

    def _emit(self, batches: int, value: float) -> None:
        if math.isfinite(value):
            self._number += 1
            self._deliver(Cell(self._number, batches, value))
        else:
            self.rejected += 1


class _Kept(NamedTuple):
    """A loss on the device.

    Attributes:
        loss: The loss, without dimensions.
        version: Number of changes that the loss had when it was kept; None if it is a copy of ours.
        scale: Its factor.
        batches: Batches that were done.
    """

    loss: torch.Tensor
    version: int | None
    scale: float
    batches: int


class _OnDevice:
    """Losses of a GPU: kept there until a cell closes, and then copied to the host together.

    A loss that others may write to before that is copied at once, which takes one small kernel: a replay of a
    CUDA graph overwrites its outputs without a trace, and a view keeps the memory of a whole batch. A tensor that its
    giver calls private is kept as it is, for a fifth of the host's time. If a user changes one of those in place after
    all, its version says so: this loss is left out, and all that follow are copied.

    Args:
        device: Device of the losses.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        self._trusts = True
        # Once they are sent, later losses may take their place: the device does one after the other.
        self._slots = torch.zeros(MAX_KEPT, dtype=torch.float32, device=device).unbind()
        self._kept: list[_Kept] = []
        self._sent: deque[tuple[_Copy, list[tuple[float, int]]]] = deque()
        self._spare: list[_Copy] = []

    def keep(self, loss: torch.Tensor, scale: float, batches: int, *, private: bool) -> int:
        """Keep a loss; return how many are kept."""
        if private and self._trusts and loss.device == self._device:
            self._kept.append(_Kept(loss, loss._version, scale, batches))
        else:
            if loss.requires_grad:
                loss = loss.detach()
            own = self._slots[len(self._kept)]
            own.copy_(loss.reshape(()) if loss.dim() else loss, non_blocking=True)
            self._kept.append(_Kept(own, None, scale, batches))
        return len(self._kept)

    def send(self) -> None:
        """Begin to copy what is kept to the host."""
        sent = [kept for kept in self._kept if kept.version is None or kept.version == kept.loss._version]
        self._trusts = self._trusts and len(sent) == len(self._kept)
        self._kept = []
        copy = self._spare.pop() if self._spare else _Copy(self._device)
        copy.begin([kept.loss.reshape(()) if kept.loss.dim() else kept.loss for kept in sent])
        self._sent.append((copy, [(kept.scale, kept.batches) for kept in sent]))

    def on_their_way(self) -> Iterator[int]:
        """Return the batches after the last loss of each copy that has not been read."""
        return (sent[-1][1] for _, sent in self._sent)

    def is_due(self, batches: int | None, *, wait: bool) -> bool:
        """Return whether the first copy is to be read.

        Args:
            batches: Batches that are done; None to read all copies.
            wait: Whether to read a copy that is not done yet.
        """
        if not self._sent:
            return False
        copy, sent = self._sent[0]
        return batches is None or (sent[-1][1] + READ_AFTER <= batches and (wait or copy.is_done()))

    def read(self) -> Iterator[tuple[float, int]]:
        """Return the losses of the first copy with their batches, once they are there."""
        copy, sent = self._sent.popleft()
        losses = copy.read()
        self._spare.append(copy)
        return ((loss * scale, batches) for loss, (scale, batches) in zip(losses, sent, strict=True))


class _Copy:
    """Copy of losses in pinned memory, which is used again and again.

    Args:
        device: Device of the losses.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._torch = torch
        self._cuda: Any = torch.cuda
        self._device = device
        self._memory = torch.empty(MAX_KEPT, dtype=torch.float32, device="cpu", pin_memory=True)
        self._losses = self._memory[:0]
        self._done: Any = self._cuda.Event()

    def begin(self, losses: list[torch.Tensor]) -> None:
        self._losses = self._memory[: len(losses)]
        self._losses.copy_(self._torch.stack(losses), non_blocking=True)
        # Of the losses' device, which need not be the current one.
        self._done.record(self._cuda.current_stream(self._device))

    def is_done(self) -> bool:
        return bool(self._done.query())

    def read(self) -> list[float]:
        self._done.synchronize()
        return self._losses.tolist()
