"""Calls that wait for news: the next directive of a job, or a change of the placements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from lightning_core.core.answers import Alert, Answer, Directive, Placement, VerdictChanged
from lightning_core.core.events import Event, WorkerExited, WorkersLost
from lightning_core.server.host import Host


class LongPolling:
    """Callers that wait until the scheduler has an answer for them.

    Args:
        host: Function that returns the scheduler's host.
    """

    def __init__(self, host: Callable[[], Host]) -> None:
        self._host = host
        self._directives: dict[str, asyncio.Event] = {}
        self._placements = asyncio.Event()

    def notify(self, answers: Sequence[Answer], event: Event | None = None) -> None:
        """Wake those who wait for one of the answers; ``event`` is what caused them."""
        changes = [answer for answer in answers if not isinstance(answer, VerdictChanged | Alert)]
        if changes or isinstance(event, WorkerExited | WorkersLost):
            self._placements.set()
        for answer in changes:
            if (waiting := self._directives.get(answer.job)) is not None:
                waiting.set()

    async def directive(self, job: str, version: int, timeout: float) -> Directive | None:
        """Return the directive of a job once it is newer than ``version``; None after ``timeout`` seconds.

        Raises:
            RuntimeError: If the job is unknown; a script may join again.
        """
        host = self._host()
        if host.scheduler.directive(job) is None:
            raise RuntimeError(f"no job {job!r}")
        changed = self._directives.setdefault(job, asyncio.Event())
        directive = host.newer(job, version)
        if directive is None:
            changed.clear()
            try:
                async with asyncio.timeout(timeout):
                    await changed.wait()
            except TimeoutError:
                return None
            directive = host.newer(job, version)
        return directive

    async def placements(self, known: Sequence[Placement] | None, timeout: float) -> list[Placement]:
        """Return the placements as soon as they differ from ``known``, or after ``timeout`` seconds."""
        host = self._host()
        until = host.now() + timeout
        while (now := host.scheduler.placements()) == known and (left := until - host.now()) > 0:
            self._placements.clear()
            try:
                async with asyncio.timeout(left):
                    await self._placements.wait()
            except TimeoutError:
                break
        return now
