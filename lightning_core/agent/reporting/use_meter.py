"""Measures for how much of its time a training keeps its device busy, in the thread that reports.

On CPUs it is the CPU time of the process and of those that it has started, such as the workers of its loaders, by the
cores of its device. The time for which its threads wait for a core counts too: a training that would fill its device
does so though others, outside the pool, take a part of its cores. On a GPU it is the part of the time in which a kernel
runs there, as NVML has it, while no other training takes turns on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_core.agent.user_code.torch_here import TrainingDevice, gpu_of
from lightning_core.view.console_lines import logger

log = logger(__name__)

# Seconds between two looks at the processes that this one has started, and at how long its threads have waited: a look
# reads two files for each thread.
LOOK_PERIOD = 1.0

Read = Callable[[float, bool], float | None]
"""Returns the seconds of the device that were used so far, from the busy seconds so far, and whether the device is the
training's alone; None where that is unknown."""


class UseMeter:
    """Measures what one training uses of its device.

    Args:
        read: See :data:`Read`; None if nothing can be measured.
    """

    def __init__(self, read: Read | None) -> None:
        self._read = read

    def look(self, busy: float, *, alone: bool) -> float | None:
        """Return the seconds of its device that the training has used so far; None if they are unknown.

        Args:
            busy: Seconds that it has been busy.
            alone: Whether it has its device to itself.
        """
        if self._read is None:
            return None
        try:
            return self._read(busy, alone)
        except Exception as error:  # a figure is missing, and nothing else
            log.debug("what is used of the device is not reported: %s", error)
            self._read = None
            return None


def use_meter(device: TrainingDevice, cores: Callable[[], int]) -> UseMeter:
    """Return a meter of what this process uses of a device.

    Args:
        device: Device of the training.
        cores: Returns the cores of the device, if it is a CPU.
    """
    if device.type == "cpu":
        return UseMeter(CpuUse(cores))
    if device.type == "cuda":
        with suppress(Exception):  # without NVML nothing is known
            return UseMeter(GpuUse(gpu_of(device)))
    return UseMeter(None)


class CpuUse:
    """Counts the seconds for which this process and its descendants need a core, divided by the cores of the device.

    Args:
        cores: Returns the cores of the device.
        clock: Monotonic clock, in seconds.
        cpu: Returns the CPU seconds of this process and of those that it has waited for.
        children: Returns those of its descendants that are there.
        waits: Returns the seconds for which each of its threads has waited for a core, by its number.
    """

    def __init__(
        self,
        cores: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] | None = None,
        children: Callable[[], float] | None = None,
        waits: Callable[[], dict[int, float]] | None = None,
    ) -> None:
        self._cores, self._clock = cores, clock
        self._cpu, self._children = cpu or _own_seconds, children or _seconds_of_children
        self._waits = waits or _seconds_of_waiting
        self._waited: dict[int, float] | None = None
        self._due_at = -float("inf")
        self._theirs = self._used = 0.0
        self._before: float | None = None

    def __call__(self, busy: float, alone: bool) -> float:
        """Return the seconds of the device that were used since the first call."""
        if self._clock() >= self._due_at:
            self._theirs = self._children()
            self._add_waits()
            self._due_at = self._clock() + LOOK_PERIOD
        total = self._cpu() + self._theirs
        # It may fall for a moment: a child that has ended is counted among the dead at once, or among none.
        before = total if self._before is None else self._before
        if total >= before:
            self._used += (total - before) / self._cores()
            self._before = total
        return self._used

    def _add_waits(self) -> None:
        """Add how long the threads have waited since the look before; one that has ended counts no more."""
        waits, before = self._waits(), self._waited
        if before is not None:
            self._used += sum(max(waits[one] - before.get(one, 0.0), 0.0) for one in waits) / self._cores()
        self._waited = waits


class GpuUse:
    """Adds up the part of the time in which a GPU is busy.

    Args:
        gpu: UUID of the GPU, as NVML has it.
    """

    def __init__(self, gpu: str) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml: Any = pynvml
        self._handle: Any = pynvml.nvmlDeviceGetHandleByUUID(gpu)
        self._used = self._before = 0.0

    def __call__(self, busy: float, alone: bool) -> float | None:
        """Return the seconds in which it was busy; None while others may have kept it so."""
        more, self._before = max(busy - self._before, 0.0), busy
        if not alone:
            return None
        if more:
            self._used += more * self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100.0
        return self._used


def _own_seconds() -> float:
    return sum(os.times()[:4])


def _seconds_of_waiting() -> dict[int, float]:
    """Return the seconds for which each thread of this process has waited for a core, as far as the kernel says."""
    found = dict[int, float]()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError, IndexError):  # it has just ended
            found[int(thread.name)] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found


def _seconds_of_children() -> float:
    """Return the CPU seconds of the descendants of this process, and of those that they have waited for."""
    ticks, found = 0, list(_children_of(os.getpid()))
    for pid in found:
        with suppress(OSError):  # it has just ended
            stat = Path(f"/proc/{pid}/stat").read_text()
            ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
            found += _children_of(pid)
    return ticks / os.sysconf("SC_CLK_TCK")


def _children_of(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                yield from map(int, (thread / "children").read_text().split())
