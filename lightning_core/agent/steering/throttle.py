"""Keeps a training within its share although the device is idle otherwise: a CPU by a kernel quota, else by pausing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lightning_core.agent.user_code.torch_here import torch_here
from lightning_core.view.console_lines import logger

if TYPE_CHECKING:
    from lightning_core.node.cpu_quota import Quota

log = logger(__name__)

# Longest single pause, after which the training looks for news, in seconds.
MAX_PAUSE = 1.0
# Longest lag behind its share that a training may catch up on, in seconds.
MAX_CREDIT = 1.0
# Being ahead by less than this many seconds is not worth a pause.
MIN_PAUSE = 1e-3


class Throttle:
    """Limits one training to its share of a device.

    Where a control group is available, the kernel limits the whole process tree, data loaders included. Elsewhere the
    training thread pauses after a batch for as long as it is ahead of its share; this is logged once.

    Args:
        job: Name of the job, for log messages.
        on_host: Whether the CPU does the work.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, job: str, on_host: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.pauses = False
        """Whether the training thread may have to pause to stay within its share."""
        self.by_kernel = False
        """Whether the kernel enforces the share, so that the training need not lock the device."""
        self._job = job
        self._on_host = on_host
        self._clock = clock
        self._share: float | None = None
        self._quota: Quota | None = None
        self._without_quota = not on_host
        self._threads: int | None = None
        self._since = self._used = 0.0
        self._began: float | None = None

    def set(self, share: float | None, cores: int = 1) -> None:
        """Change the share, and the number of torch threads with it.

        Args:
            share: Share of the device, above 0 to 1; None removes the limit.
            cores: Cores of the device if it is a CPU.
        """
        if share == self._share:
            return
        if share is not None and self._quota is None and not self._without_quota:
            self._open_quota()
        if self._quota is not None:
            self._quota.limit(None if share is None else share * cores)
        elif share is not None:
            self._restart_count()
        self._share = share
        self.by_kernel = share is not None and self._quota is not None
        self.pauses = share is not None and self._quota is None
        if self._on_host and (cores > 1 or self._threads is not None):
            self._set_threads(None if share is None else math.ceil(share * cores - 1e-9))

    def _restart_count(self) -> None:
        """Count from now on, but carry over what was used beyond the share so far."""
        now = self._clock()
        used = self._used + (0.0 if self._began is None else now - self._began)
        self._used = 0.0 if self._share is None else used - self._share * (now - self._since)
        self._since = now
        self._began = None if self._began is None else now

    def _set_threads(self, threads: int | None) -> None:
        """Set the number of torch threads, at most those before the first limit; None restores these."""
        if (torch := torch_here()) is None:
            return
        if self._threads is None:
            self._threads = torch.get_num_threads()
        torch.set_num_threads(self._threads if threads is None else min(max(1, threads), self._threads))

    def begin(self) -> None:
        """Note that the training runs."""
        if self._began is None:
            self._began = self._clock()

    def end(self) -> None:
        """Note that the training stands still."""
        if self._began is not None:
            self._used += self._clock() - self._began
            self._began = None

    def ahead(self) -> float:
        """Return the seconds that the training must pause to stay within its share; 0 if it need not."""
        if self._share is None or self._quota is not None:
            return 0.0
        now = self._clock()
        used = self._used + (0.0 if self._began is None else now - self._began)
        ahead = used / self._share - (now - self._since)
        if ahead < -MAX_CREDIT:
            self._since = now - used / self._share - MAX_CREDIT
        return min(ahead, MAX_PAUSE) if ahead > MIN_PAUSE else 0.0

    def close(self) -> None:
        """Remove the limit."""
        self.set(None)
        if self._quota is not None:
            self._quota.close()
            self._quota = None

    def _open_quota(self) -> None:
        from lightning_core.node.cpu_quota import open_quota

        self._quota = open_quota(
            tell=lambda why: log.warning("%s: %s; the training pauses between batches instead", self._job, why)
        )
        self._without_quota = self._quota is None
