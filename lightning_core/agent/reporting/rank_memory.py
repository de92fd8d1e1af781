"""The memory of all ranks of one training: each measures its own, and rank 0 reports the most that any of them has.

Each rank trains on a device of its own, and the scheduler counts one need for each of a job's devices: so it is the
rank that needs most which counts. Rank 0 asks the others at an agreement (:mod:`~..control.ranks`). Measuring may take
a while on CPUs, so a thread does it, and what it has found is in the answer to the next question.
"""

from __future__ import annotations

import os
import platform
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from lightning_core.agent.reporting.memory_meter import MAX_PERIOD, MIN_PERIOD, TOLERANCE, MemoryMeter
from lightning_core.core.reported import MemoryUse

# Seconds until rank 0 asks again while a rank has not measured yet.
SOON = 0.5
# Seconds between two looks of the thread at what else it does.
LOOK_PERIOD = 1.0
# Peak of a rank that cannot be measured. That of one that has not measured yet is 0.
UNMEASURABLE = -1


class RankUse(NamedTuple):
    """What one rank tells the others; whole numbers, which fit a tensor."""

    node: int
    """Number made of the name of its node."""
    pid: int
    peak: int
    """Bytes, or 0 or ``UNMEASURABLE``."""
    held: int
    """Bytes."""


class RankMemory:
    """Measures the memory of one rank, and on rank 0 collects that of all.

    Args:
        rank: Number of this rank.
        meter: Meter of this process.
        clock: Monotonic clock, in seconds.
        beside: What the thread that measures also does, about once a second; not called on rank 0.

    Attributes:
        other_ranks: Processes on this node that train other ranks; some scripts have started them themselves.
    """

    def __init__(
        self,
        rank: int,
        meter: MemoryMeter,
        clock: Callable[[], float] = time.monotonic,
        beside: Callable[[], object] = bool,
    ) -> None:
        self.other_ranks: frozenset[int] = frozenset()
        self._first = rank == 0
        self._meter = meter
        self._clock = clock
        self._beside = beside
        self._wanted = False
        self._others: Sequence[RankUse] | None = None
        self._most = 0
        self._period = MIN_PERIOD
        self._due_at = 0.0
        self._asked, self._closed = threading.Event(), False
        if not self._first:
            try:
                threading.Thread(target=self._measure, name="watch of a rank", daemon=True).start()
            except RuntimeError:  # the process has as many as it may
                self._meter = MemoryMeter(None)

    def look(self) -> MemoryUse | None:
        """Return on rank 0 what is to be reported; None until all ranks have measured. To be called often."""
        self._wanted = True
        # Before it is known which processes are ranks, those that it has started itself would count as its own.
        if (others := self._others) is None or (own := self._meter.look()) is None:
            return None
        if any(use.peak == 0 for use in others):
            return None
        return MemoryUse(max(own.peak, *(use.peak for use in others)), max(own.held, *(use.held for use in others)))

    def due(self) -> bool:
        """Return on rank 0 whether the others are to be asked."""
        return self._wanted and self._clock() >= self._due_at

    def own(self) -> RankUse:
        """Return what this rank answers: its last measurement."""
        use = self._meter.last
        peak, held = use or (0 if self._meter.measures else UNMEASURABLE, 0)
        return RankUse(zlib.crc32(platform.node().encode()), os.getpid(), peak, held)

    def take(self, uses: Sequence[RankUse]) -> None:
        """Take the answers of all ranks, in their order; let this one measure anew."""
        self._asked.set()
        if not self._first:
            return
        self.other_ranks = frozenset(use.pid for use in uses[1:] if use.node == uses[0].node)
        self._others = uses[1:]
        most = max(use.peak for use in uses[1:])
        grew, self._most = most > (1 + TOLERANCE) * self._most, most
        if any(use.peak == 0 for use in uses[1:]):
            self._due_at = self._clock() + SOON
            return
        self._period = MIN_PERIOD if grew else min(2 * self._period, MAX_PERIOD)
        self._due_at = self._clock() + self._period

    def close(self) -> None:
        """End the thread that measures."""
        self._closed = True
        self._asked.set()

    def _measure(self) -> None:
        while not self._closed:
            asked = self._asked.wait(LOOK_PERIOD)
            with suppress(Exception):  # a figure or a line is missing, and nothing else
                if asked and not self._closed:
                    self._asked.clear()
                    self._meter.look()
                self._beside()
