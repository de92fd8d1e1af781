"""The status of all jobs as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

from lightning_core.core.answers import JobStatus
from lightning_core.core.codec import status_to_dict
from lightning_core.server.access.people import Person

# Jobs whose status is written in one go; others are served in between.
STATUS_PART = 50


class Json(str):
    """A value that is JSON already."""


class SharedStatus:
    """The status of all jobs as JSON, made once for all simultaneous callers that may see every job.

    Args:
        status: Function that returns the scheduler time and the status of all jobs; the same list while nothing has
            changed.
    """

    def __init__(self, status: Callable[[], Awaitable[tuple[float, list[JobStatus]]]]) -> None:
        self._status = status
        self._making = asyncio.Lock()
        self._next: asyncio.Task[Json] | None = None
        self._jobs: list[JobStatus] | None = None
        self._text = ""

    async def text(self) -> Json:
        """Return the status as of a time after this call."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._make())
        return await asyncio.shield(self._next)

    async def text_for(self, person: Person) -> Json:
        """Return the status of the jobs that a user may see; similar earlier runs and jobs of others are not named."""
        now, jobs = await self._status()
        own = [job for job in jobs if person.sees(job.owner)]
        # Without the names of earlier runs, which may be of others.
        return _whole(now, await _statuses([replace(job, like=None) for job in own]))

    async def _make(self) -> Json:
        async with self._making:
            self._next = None  # later callers may know of later events
            now, jobs = await self._status()
            if jobs is not self._jobs:
                self._text = await _statuses(jobs)
                self._jobs = jobs
            return _whole(now, self._text)


def _whole(now: float, jobs: str) -> Json:
    return Json(f"[{json.dumps(now, allow_nan=False)},{jobs}]")


async def _statuses(jobs: list[JobStatus]) -> str:
    texts = []
    for start in range(0, len(jobs), STATUS_PART):
        part = [status_to_dict(job) for job in jobs[start : start + STATUS_PART]]
        texts.append(json.dumps(part, separators=(",", ":"), allow_nan=False)[1:-1])
        await asyncio.sleep(0)
    return f"[{','.join(texts)}]"
