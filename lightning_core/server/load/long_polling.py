"""Calls that wait for news: the next directive of a job, other placements, or what a controller wants."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from lightning_core.controllers import PublishedLevel
from lightning_core.core.answers import Alert, Answer, Directive, Placement, VerdictChanged
from lightning_core.core.control import Note, PartAnswer
from lightning_core.core.events import Event, WorkerExited, WorkersLost
from lightning_core.server.host import Host
from lightning_core.server.load.group_commit import GroupCommit


class LongPolling:
    """Callers that wait until the scheduler has an answer for them.

    Args:
        host: The scheduler's host.
        commits: Its commits, before which no answer leaves.
    """

    def __init__(self, host: Host, commits: GroupCommit) -> None:
        self._host = host
        self._commits = commits
        self._directives: dict[str, asyncio.Event] = {}
        self._placements, self._levels = asyncio.Event(), asyncio.Event()

    def notify(self, answers: Sequence[Answer], event: Event | None = None) -> None:
        """Wake the callers that wait for one of the answers to ``event``."""
        changes = [answer for answer in answers if not isinstance(answer, VerdictChanged | Alert | Note | PartAnswer)]
        if any(isinstance(answer, PartAnswer) for answer in answers):
            self._levels.set()
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
        if self._host.scheduler.directive(job) is None:
            raise RuntimeError(f"no job {job!r}")
        changed, until = self._directives.setdefault(job, asyncio.Event()), self._host.now() + timeout
        while True:
            directive = await self._commits.read(lambda: self._host.newer(job, version))
            if directive is not None or (left := until - self._host.now()) <= 0:
                return directive
            if self._host.newer(job, version) is None:  # nor one that is still to be committed
                await _happens(changed, left)

    async def placements(self, known: Sequence[Placement] | None, timeout: float) -> list[Placement]:
        """Return the placements as soon as they differ from ``known``, or after ``timeout`` seconds."""
        until = self._host.now() + timeout
        while True:
            now = await self._commits.read(lambda: self._host.scheduler.placements())
            if now != known or (left := until - self._host.now()) <= 0:
                return now
            if self._host.scheduler.placements() == known:
                await _happens(self._placements, left)

    async def published(self, by: str, version: int, timeout: float) -> tuple[float, PublishedLevel | None]:
        """Return the scheduler time and what a controller publishes, once it has another version than ``version``.

        Or after ``timeout`` seconds: the answer says in any case that the pool is there.
        """
        until = self._host.now() + timeout
        while True:
            level = await self._commits.read(lambda: self._host.scheduler.published(by))
            if level is None or level.version != version or (left := until - self._host.now()) <= 0:
                return self._host.now(), level
            if (now := self._host.scheduler.published(by)) is not None and now.version == version:
                await _happens(self._levels, left)


async def _happens(event: asyncio.Event, timeout: float) -> None:
    """Return when an event happens, or after ``timeout`` seconds."""
    event.clear()
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await event.wait()
