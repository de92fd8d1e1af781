"""Measures the memory that a training has on its device, in the thread that reports.

On a GPU it is what torch's allocator has reserved there, whose peak torch counts. On CPUs the process and its
descendants, such as the workers of its loaders, are looked at now and then: a peak between two looks is missed. Each
rank measures itself (:mod:`.rank_memory`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from typing import Any

from lightning_core.agent.user_code.torch_here import TrainingDevice
from lightning_core.core.reported import MemoryUse
from lightning_core.node.memory import proportional_set_size
from lightning_core.view.console_lines import logger

log = logger(__name__)

# Seconds between two readings: from the first to the second, doubled while the peak does not grow.
MIN_PERIOD, MAX_PERIOD = 2.0, 30.0
# Maximum fraction of a core that readings may cost.
MAX_COST = 0.002
# Change that is worth reporting, as a fraction of the peak.
TOLERANCE = 0.01


class MemoryMeter:
    """Measures the memory of one training.

    Args:
        read: Returns the bytes that the training has on its device; None if nothing can be measured.
        clock: Monotonic clock, in seconds.

    Attributes:
        frees: Returns the bytes that leave the device when the job is held; None if none do.
    """

    def __init__(self, read: Callable[[], int] | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.frees: Callable[[], int] | None = None
        self._read = read
        self._clock = clock
        self._peak = self._freed = 0
        self._use: MemoryUse | None = None
        self._period = MIN_PERIOD
        self._due_at = 0.0

    @property
    def measures(self) -> bool:
        """Whether anything can be measured."""
        return self._read is not None

    @property
    def last(self) -> MemoryUse | None:
        """What the last look returned."""
        return self._use

    def look(self) -> MemoryUse | None:
        """Return what is to be reported; None if nothing is known. To be called often: it measures when that is due."""
        began = self._clock()
        if self._read is None or (self._use is not None and began < self._due_at):
            return self._use
        try:
            self._peak = max(self._peak, self._read())
        except Exception as error:  # a figure is missing, and nothing else
            log.debug("memory is not reported: %s", error)
            self._read = None
            return self._use
        use = MemoryUse(self._peak, self._held())
        known = self._use or MemoryUse(0, 0)
        grew = use.peak > (1 + TOLERANCE) * known.peak
        if use.is_valid and (grew or abs(use.held - known.held) > TOLERANCE * use.peak):
            self._use = use
        now = self._clock()
        self._period = MIN_PERIOD if grew else min(2 * self._period, MAX_PERIOD)
        self._due_at = now + max(self._period, (now - began) / MAX_COST)
        return self._use

    def _held(self) -> int:
        if self.frees is not None:
            try:
                self._freed = self.frees()
            except Exception as error:  # the training changes what is looked through: the last figure stays
                log.debug("what leaves the device on hold is not known anew: %s", error)
        return max(self._peak - self._freed, 0)


def memory_meter(device: TrainingDevice, other_ranks: Callable[[], Collection[int]] = tuple) -> MemoryMeter:
    """Return a meter of this process's memory on a device.

    Args:
        device: Device of the training.
        other_ranks: Returns the processes on this node that train other ranks: they measure themselves.
    """
    if device.type == "cuda":
        return MemoryMeter(_reserved_on(device))
    if device.type != "cpu":
        return MemoryMeter(None)
    return MemoryMeter(lambda: proportional_set_size(os.getpid(), without=other_ranks()))


def _reserved_on(device: TrainingDevice) -> Callable[[], int]:
    """Return what reads the peak since now; torch's own count, which is also the user's, is not set back."""
    import torch

    own: Any = device
    before = torch.cuda.max_memory_reserved(own)

    def read() -> int:
        peak = torch.cuda.max_memory_reserved(own)
        return peak if peak > before else torch.cuda.memory_reserved(own)

    return read
