"""No more than it was granted, though nobody else may need what is left: of a CPU by the kernel, else by pausing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lightning_core.view.console_lines import logger

if TYPE_CHECKING:
    from lightning_core.node.cpu_quota import Quota

log = logger(__name__)

# A pause lasts so long at most; then it is looked around. And so much that others took is made up for at most, seconds.
LONGEST = 1.0
# It is not worth a pause to be so little ahead, seconds.
SHORTEST = 1e-3


class Limit:
    """One training's.

    The kernel limits the whole process tree, data loaders too, where there is a control group to be had. Elsewhere the
    training thread pauses after a batch for as long as it was ahead of its part; that is said once.

    Args:
        job: its name.
        on_host: whether the CPU does the work.
        clock: in seconds.
    """

    def __init__(self, job: str, on_host: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._on_host = on_host
        self._clock = clock
        self._part: float | None = None
        self._quota: Quota | None = None
        self._paces = not on_host
        self._threads: int | None = None
        self._since = self._used = 0.0
        self._began: float | None = None

    @property
    def by_kernel(self) -> bool:
        """Whether the kernel holds the training to its part: it needs no turns then."""
        return self._part is not None and self._quota is not None

    def set(self, part: float | None, cores: int = 1) -> None:
        """From now on it may use this part of its device; None: all that it can get.

        Torch takes as many threads as it may use cores.

        Args:
            part: above 0 to 1.
            cores: of the device, if that is a CPU.
        """
        if part == self._part:
            return
        if part is not None and self._quota is None and not self._paces:
            self._open()
        if self._quota is not None:
            self._quota.limit(None if part is None else part * cores)
        elif part is not None:
            self._start_over()
        self._part = part
        if self._on_host and (cores > 1 or self._threads is not None):
            self._set_threads(None if part is None else math.ceil(part * cores - 1e-9))

    def _start_over(self) -> None:
        """Counts from now, and what it has used too much stays used."""
        now = self._clock()
        used = self._used + (0.0 if self._began is None else now - self._began)
        self._used = 0.0 if self._part is None else used - self._part * (now - self._since)
        self._since = now
        self._began = None if self._began is None else now

    def _set_threads(self, threads: int | None) -> None:
        """So many, or as many as there were before the first limit."""
        import torch

        if self._threads is None:
            self._threads = torch.get_num_threads()
        torch.set_num_threads(self._threads if threads is None else max(1, threads))

    def begin(self) -> None:
        """The training goes on."""
        if self._began is None:
            self._began = self._clock()

    def end(self) -> None:
        """The training stands still."""
        if self._began is not None:
            self._used += self._clock() - self._began
            self._began = None

    def ahead(self) -> float:
        """Seconds that the training must stand still to have used no more than its part; 0 if it need not."""
        if self._part is None or self._quota is not None:
            return 0.0
        now = self._clock()
        used = self._used + (0.0 if self._began is None else now - self._began)
        ahead = used / self._part - (now - self._since)
        if ahead < -LONGEST:
            self._since = now - used / self._part - LONGEST
        return min(ahead, LONGEST) if ahead > SHORTEST else 0.0

    def close(self) -> None:
        """Takes the limit off."""
        self.set(None)
        if self._quota is not None:
            self._quota.close()
            self._quota = None

    def _open(self) -> None:
        from lightning_core.node.cpu_quota import open_quota

        self._quota = open_quota(tell=lambda why: log.warning("%s: %s; it is paced instead", self._job, why))
        self._paces = self._quota is None
