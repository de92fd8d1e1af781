"""Measures how long the device has been busy, and keeps the host from running too far ahead of it.

Between ``begin`` and ``end`` no other process has the device, and ``end`` returns when it has done all its work. So the
seconds in between are the busy ones, by the host's clock, on a GPU as on a CPU. A GPU still works after a hook has
returned: there the host is ahead by up to two intervals between marks, which is right again at every ``end``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from lightning_core.agent.user_code.torch_here import TrainingDevice

# Seconds of the device's work between two marks; the host is ahead by one interval to two. It is a tenth of the time
# for which the process has had the device, within these limits. In turns that is the lower one: a quantum of 48 ms
# ends 10 ms late at most. Alone it is soon the upper one: a process that comes then waits for 48 ms at most, as for a
# quantum. A mark is four calls of CUDA. On an H200 the hooks took 137 µs with as many and a kernel for every batch: of
# a batch of 1 ms the marks are at most a fourth of that in turns, and a twenty-fourth alone.
MIN_INTERVAL, MAX_INTERVAL = 0.004, 0.024
INTERVAL_FRACTION = 0.1
# Batches between two marks at most: more would save nothing, and some batches that do nothing tell little of the next.
MAX_BETWEEN = 64


class BusyTimer(Protocol):
    """Counts busy seconds between ``begin`` and ``end``: batches and everything between them, such as saving."""

    on_host: bool
    """Return whether the training thread does the work."""

    def begin(self) -> None:
        """Start counting: the process holds the device."""

    def batch(self) -> float:
        """Note that a batch was submitted to the device; return the busy seconds so far."""

    def end(self) -> None:
        """Stop counting; return when the device has finished all its work."""

    def busy(self) -> float:
        """Return the busy seconds so far."""


class HostTimer:
    """Busy timer for a CPU, where the training thread does the work.

    Args:
        clock: Monotonic clock, in seconds.
    """

    on_host = True

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._busy = 0.0
        self._began: float | None = None

    def begin(self) -> None:
        """Start counting."""
        self._began = self._clock()

    def batch(self) -> float:
        """Return the busy seconds so far."""
        began = self._began
        return self._busy if began is None else self._busy + self._clock() - began

    def end(self) -> None:
        """Stop counting."""
        self._busy, self._began = self.busy(), None

    def busy(self) -> float:
        """Return the busy seconds so far."""
        return HostTimer.batch(self)


class GpuTimer(HostTimer):
    """Busy timer for a CUDA device.

    It marks the device's queue after every few batches, as many as take an interval, and waits there until the device
    has come to the mark before. Counted in batches of the device: the host may submit a second of work, such as replays
    of a CUDA graph, within a millisecond of its own.

    Args:
        device: Device of the training.
        clock: Monotonic clock of the host, in seconds.
        cuda: What has the functions of ``torch.cuda``.
    """

    on_host = False

    def __init__(
        self, device: TrainingDevice, clock: Callable[[], float] = time.perf_counter, cuda: Any = None
    ) -> None:
        import torch

        super().__init__(clock)
        self._cuda: Any = torch.cuda if cuda is None else cuda
        self._device = self._cuda.current_device() if device.index is None else device.index
        # The mark before the last, the last, and one that is used next.
        self._marks = tuple(self._cuda.Event(enable_timing=True) for _ in range(3))
        self._seconds = math.inf  # that the device takes for a batch; unknown
        self._between = self._unmarked = 1  # batches from one mark to the next, and since the last
        self._marked = 0  # batches from the mark before the last to the last; 0 if there is only one since ``begin``

    def begin(self) -> None:
        """Start counting."""
        super().begin()
        self._marked = self._unmarked = 0
        self._between = self._batches_in(MIN_INTERVAL)
        self._marks[1].record(self._cuda.current_stream(self._device))

    def batch(self) -> float:
        """Note a submitted batch; return the busy seconds so far."""
        if self._began is None:
            return self._busy
        self._unmarked += 1
        if self._unmarked >= self._between:
            self._mark()
        return self._busy + self._clock() - self._began

    def end(self) -> None:
        """Wait for the device, whatever stream its work is in, and stop counting."""
        try:
            if self._began is not None:
                self._cuda.synchronize(self._device)
        finally:
            super().end()

    def _mark(self) -> None:
        """Mark the queue, and wait until the device has come to the mark before."""
        before, last, new = self._marks
        new.record(self._cuda.current_stream(self._device))
        last.synchronize()
        if self._marked:
            self._seconds = max(before.elapsed_time(last) / 1e3 / self._marked, 1e-6)
            held = self._clock() - (self._began or 0.0)
            interval = min(max(MIN_INTERVAL, INTERVAL_FRACTION * held), MAX_INTERVAL)
            self._between = min(self._batches_in(interval), 2 * self._between)
        self._marks = last, new, before
        self._marked, self._unmarked = self._unmarked, 0

    def _batches_in(self, seconds: float) -> int:
        return min(max(1, round(seconds / self._seconds)), MAX_BETWEEN)
