"""Measures how long the device has been busy, and when it is free for the next process.

On a CPU the training thread does the work, and wall-clock times in the hooks are enough. A GPU still works after a hook
has returned: there CUDA events are used, and the host may run at most two batches ahead of the device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

MAX_BATCHES_AHEAD = 2


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
        """Return the busy seconds of all quanta that have ended."""


class HostTimer:
    """Busy timer for a CPU, where the training thread does the work."""

    on_host = True

    def __init__(self) -> None:
        self._busy = 0.0
        self._began = 0.0

    def begin(self) -> None:
        """Start counting."""
        self._began = time.perf_counter()

    def batch(self) -> float:
        """Return the busy seconds so far."""
        return self._busy + time.perf_counter() - self._began

    def end(self) -> None:
        """Stop counting."""
        self._busy += time.perf_counter() - self._began

    def busy(self) -> float:
        """Return the busy seconds of all quanta that have ended."""
        return self._busy


class GpuTimer:
    """Busy timer for a CUDA device."""

    on_host = False

    def __init__(self) -> None:
        import torch

        cuda: Any = torch.cuda
        self._event: Callable[[], Any] = lambda: cuda.Event(enable_timing=True)
        self._busy = 0.0
        self._begin: Any = None
        self._last: Any = None
        self._pending: deque[Any] = deque()

    def begin(self) -> None:
        """Start counting."""
        self._begin = self._event()
        self._begin.record()
        self._last = None

    def batch(self) -> float:
        """Note a submitted batch; return the busy seconds so far."""
        event = self._event()
        event.record()
        self._pending.append(event)
        if len(self._pending) > MAX_BATCHES_AHEAD:
            self._pop_finished().synchronize()
        while self._pending and self._pending[0].query():
            self._pop_finished()
        return self._busy + self._elapsed()

    def end(self) -> None:
        """Wait for the device and stop counting."""
        self._pending.clear()
        self._last = self._event()
        self._last.record()
        self._last.synchronize()
        self._busy += self._elapsed()
        self._begin = self._last = None

    def busy(self) -> float:
        """Return the busy seconds of all quanta that have ended."""
        return self._busy

    def _pop_finished(self) -> Any:
        self._last = self._pending.popleft()
        return self._last

    def _elapsed(self) -> float:
        if self._begin is None or self._last is None:
            return 0.0
        return float(self._begin.elapsed_time(self._last)) / 1e3
