"""What a training has of a device's memory, as it is reported."""

from __future__ import annotations

from typing import NamedTuple

from lightning_core.core.limits import MAX_MEMORY


class MemoryUse(NamedTuple):
    """Memory of a training on each of its devices, in bytes: of several ranks, that of the one which has most.

    On a GPU that is what its allocator has reserved there; on CPUs its proportional set size (PSS), in which pages that
    several processes share are counted in parts.
    """

    peak: int
    """Most that it has had since it began."""
    held: int
    """What it keeps while it is held: less than its peak if it moves its state to the host's memory."""

    @property
    def is_valid(self) -> bool:
        """Whether it is what a process may have."""
        return 0 < self.peak <= MAX_MEMORY and 0 <= self.held <= self.peak
