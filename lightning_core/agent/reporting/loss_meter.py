"""Averages the loss of every batch into loss cells, and keeps losses that are NaN or infinite out of them.

A cell closes after ``every`` batches, and later in the run when the number of batches has grown by the fraction
``growth``. A long run thus has some hundred cells rather than millions, and the noise of a cell stays small compared
with the scale on which the loss still falls.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning_core.core.events import BadLosses, Cell

if TYPE_CHECKING:
    import torch

# Batches after which the sum of a GPU's losses is read: the host is no further ahead of it than that.
READ_AFTER = 2


class LossMeter:
    """Turns losses into cells.

    Args:
        deliver: Called with each cell.
        every: Minimum batches per cell, at least 1.
        growth: Minimum size of a cell as a fraction of the batches so far, at least 0 and below 1.

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
        self.rejected = 0
        """Losses kept out of the cells because they are NaN or infinite."""
        self.bad: BadLosses | None = None
        """Newest run of losses that are NaN or infinite. Of a GPU's losses, which are not read one by one, the newest
        run of cells."""
        self._deliver = deliver
        self._every = every
        self._growth = growth
        self._number = 0
        self._evaluated_at = -1
        self._edge = every
        self._sum = 0.0
        self._count = 0
        self._device_sum: _DeviceSum | None = None
        self._read_to = 0

    def start_at(self, batches: int, cells: int = 0) -> None:
        """Continue after so many batches and so many cells that were delivered before."""
        self._number, self._read_to = cells, batches
        self._edge = batches + max(self._every, math.ceil(batches * self._growth))

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

    def add_tensor(self, loss: torch.Tensor, scale: float, batches: int) -> None:
        """Add a loss that a GPU may still be computing; never waits for it.

        Args:
            loss: Tensor with one element.
            scale: Factor of the loss.
            batches: Batches that are done, this one included.
        """
        if not loss.is_cuda:
            self.add(loss.item() * scale, batches)
            return
        if self._device_sum is None:
            self._device_sum = _DeviceSum(loss)
        self._device_sum.add(loss, scale)
        if batches >= self._edge:
            self._device_sum.send(batches)
            self._edge = self._next_edge(batches)
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
        return self._edge if self._device_sum is None else self._device_sum.next_arrival(self._edge)

    def flush(self) -> None:
        """Wait for the cells that are still on their way from the GPU, and deliver them."""
        self._receive(None)

    def _receive(self, batches: int | None) -> None:
        if self._device_sum is not None:
            for at, total, count in self._device_sum.arrived(batches):
                # One bad loss spoils its cell: the GPU's losses are not read one by one.
                self._emit(at, total / count)
                if math.isfinite(total):
                    self._note_good()
                else:
                    self._note_bad(self._read_to + 1, 1)
                self._read_to = at

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


class _DeviceSum:
    """Sums losses on a GPU; copies the sum to pinned memory and reads it two batches later.

    Then the copy is done, because the host is at most two batches ahead of the device. It is not read earlier, even if
    it is there: a training that stops by it does so after the same batch each time.
    """

    def __init__(self, like: torch.Tensor) -> None:
        import torch

        self._torch = torch
        self._cuda: Any = torch.cuda
        self._sum = torch.zeros((), device=like.device, dtype=torch.float32)
        self._count = 0
        self._sent: deque[tuple[int, int, torch.Tensor, Any]] = deque()

    def add(self, loss: torch.Tensor, scale: float) -> None:
        self._sum.add_(loss.detach().reshape(()), alpha=scale)
        self._count += 1

    def send(self, batches: int) -> None:
        host = self._torch.empty((), dtype=self._torch.float32, pin_memory=True)
        host.copy_(self._sum, non_blocking=True)
        done: Any = self._cuda.Event()
        done.record()
        self._sent.append((batches, self._count, host, done))
        self._sum.zero_()
        self._count = 0

    def next_arrival(self, edge: int) -> int:
        """Return the batches at which the next cell arrives; ``edge``: at which the cell closes that is summed now."""
        return (self._sent[0][0] if self._sent else edge) + READ_AFTER

    def arrived(self, batches: int | None) -> list[tuple[int, float, int]]:
        """Return batches, sum and count of each cell that has arrived after so many batches; all of them for None."""
        ready = []
        while self._sent and (batches is None or self._sent[0][0] + READ_AFTER <= batches):
            at, count, host, done = self._sent.popleft()
            done.synchronize()
            ready.append((at, float(host), count))
        return ready
