"""How long a turn has kept the device busy, and when the device is really free for the next process.

On a CPU the training thread is the device: hook times tell. A GPU works on after the hook has returned, so there CUDA
events tell, and the host may run ahead of the device by two batches at most.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

RUN_AHEAD = 2


class Pace(Protocol):
    """Counts busy seconds from ``begin`` to ``end``: batches, and all that lies between them, saving too."""

    on_host: bool
    """Whether the training thread does the work."""

    def begin(self) -> None:
        """A turn begins."""

    def batch(self) -> float:
        """A batch has been handed to the device; busy seconds so far."""

    def end(self) -> None:
        """The turn ends: returns when the device has done all that it was handed."""

    def busy(self) -> float:
        """Busy seconds of the turns that have ended."""


class HostPace:
    """The training thread does the work."""

    on_host = True

    def __init__(self) -> None:
        self._busy = 0.0
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.perf_counter()

    def batch(self) -> float:
        return self._busy + time.perf_counter() - self._began

    def end(self) -> None:
        self._busy += time.perf_counter() - self._began

    def busy(self) -> float:
        return self._busy


class GpuPace:
    """A CUDA device does the work."""

    on_host = False

    def __init__(self) -> None:
        import torch

        cuda: Any = torch.cuda
        self._event: Callable[[], Any] = lambda: cuda.Event(enable_timing=True)
        self._busy = 0.0
        self._begin: Any = None
        self._last: Any = None
        self._flying: deque[Any] = deque()

    def begin(self) -> None:
        self._begin = self._event()
        self._begin.record()
        self._last = None

    def batch(self) -> float:
        event = self._event()
        event.record()
        self._flying.append(event)
        if len(self._flying) > RUN_AHEAD:
            self._landed().synchronize()
        while self._flying and self._flying[0].query():
            self._landed()
        return self._busy + self._elapsed()

    def end(self) -> None:
        self._flying.clear()
        self._last = self._event()
        self._last.record()
        self._last.synchronize()
        self._busy += self._elapsed()
        self._begin = self._last = None

    def busy(self) -> float:
        return self._busy

    def _landed(self) -> Any:
        self._last = self._flying.popleft()
        return self._last

    def _elapsed(self) -> float:
        if self._begin is None or self._last is None:
            return 0.0
        return float(self._begin.elapsed_time(self._last)) / 1e3
