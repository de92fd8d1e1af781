"""A stand-in of a CUDA device: a queue of work, events, and memory that the host sees once the device has come to it.

Time passes only when a test says so or the host waits. What CUDA refuses is refused here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


class FakeCuda:
    """One device with one stream, in place of ``torch.cuda``; ``now`` is the host's clock, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.free_at = 0.0
        """When the device has done all that is in its queue."""
        self.calls: list[str] = []
        self.waited = 0.0
        """Seconds for which the host has waited for the device."""
        self._due: list[tuple[float, Callable[[], None]]] = []

    def clock(self) -> float:
        return self.now

    def submit(self, seconds: float, host: float = 0.0, do: Callable[[], None] | None = None) -> None:
        """Submit work that takes so many seconds on the device, and so many of the host."""
        self.now += host
        self.free_at = max(self.free_at, self.now) + seconds
        if do is not None:
            self._due.append((self.free_at, do))

    @property
    def lead(self) -> float:
        """Seconds of work that the device has still to do."""
        return max(self.free_at - self.now, 0.0)

    def wait_until(self, at: float) -> None:
        self.waited += max(at - self.now, 0.0)
        self.now = max(self.now, at)
        self.settle()

    def settle(self) -> None:
        """Do what the device has done by now."""
        while self._due and self._due[0][0] <= self.now:
            self._due.pop(0)[1]()

    # -------------------------------------------------------------------------------------------- as torch.cuda has it

    def Event(self, *, enable_timing: bool = False) -> FakeEvent:
        return FakeEvent(self, enable_timing)

    def current_device(self) -> int:
        return 0

    def current_stream(self, device: Any) -> FakeStream:
        assert device is not None, "the current device need not be that of the training"
        return FakeStream(self)

    def synchronize(self, device: Any) -> None:
        self.calls.append("synchronize")
        self.wait_until(self.free_at)


class FakeStream:
    """The stream of the device."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def synchronize(self) -> None:
        self._cuda.synchronize(None)


class FakeEvent:
    """An event, timed or not."""

    def __init__(self, cuda: FakeCuda, enable_timing: bool) -> None:
        self._cuda, self._timed = cuda, enable_timing
        self._at: float | None = None

    def record(self, stream: FakeStream) -> None:
        self._cuda.calls.append("record")
        self._at = max(self._cuda.free_at, self._cuda.now)

    def query(self) -> bool:
        self._cuda.calls.append("query")
        self._cuda.settle()
        return self._at is None or self._at <= self._cuda.now

    def synchronize(self) -> None:
        self._cuda.calls.append("event synchronize")
        if self._at is not None:
            self._cuda.wait_until(self._at)

    def elapsed_time(self, other: FakeEvent) -> float:
        self._cuda.calls.append("elapsed")
        if not (self._timed and other._timed) or self._at is None or other._at is None:
            raise ValueError("both events must be recorded with timing")
        if max(self._at, other._at) > self._cuda.now:
            raise RuntimeError("CUDA error: device not ready")
        return 1e3 * (other._at - self._at)


class OnGpu(torch.Tensor):
    """A tensor that claims to be on a GPU."""

    is_cuda = True


class Pinned(torch.Tensor):
    """Host memory to which the device copies once it comes to that."""

    gpu: FakeCuda

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> Pinned:
        assert non_blocking
        value, into = source.as_subclass(torch.Tensor).float().clone(), self.as_subclass(torch.Tensor)

        def arrive() -> None:
            into.copy_(value)

        self.gpu.submit(0.0, do=arrive)
        return self


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """The stand-in, in place of the events, streams and pinned memory of torch."""
    fake, empty = FakeCuda(), torch.empty
    monkeypatch.setattr(Pinned, "gpu", fake, raising=False)
    for name in ("Event", "current_stream", "current_device", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))

    def pinned(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        made = empty(*size, **options)
        return made.fill_(float("nan")).as_subclass(Pinned) if pin_memory else made

    monkeypatch.setattr(torch, "empty", pinned)
    return fake
