"""Wakes the scheduler when it asked to be woken, and starts what tasks of parts have to compute when that is due."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from lightning_core.core.events import Event
from lightning_core.core.parts import brought, guarded
from lightning_core.core.supplies import BesideTask
from lightning_core.server.host import Host
from lightning_core.server.load.group_commit import GroupCommit

log = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds between two attempts to wake the scheduler after an error.
RETRY_INTERVAL = 1.0
# Maximum seconds between two looks at the wall clock, if the host has controllers.
MAX_SLEEP = 60.0
RAISED = "a task beside the scheduler raised; the scheduler goes on"


class Wakeups:
    """The timer of a scheduler.

    Args:
        host: The scheduler's host.
        commits: Its commits.
        handle: Function that hands an event to the scheduler and returns once it is committed.
    """

    def __init__(self, host: Host, commits: GroupCommit, handle: Callable[[Event], Awaitable[object]]) -> None:
        self._host = host
        self._commits = commits
        self._changed = asyncio.Event()
        self._wakes_at: float | None = None
        tasks = (brought("tasks", name) for name in host.scheduler.settings.controllers)
        made = (_asked(partial(task[0], host, handle, self._changed.set)) for task in tasks if task is not None)
        self._beside: list[BesideTask] = [task for task in made if task is not None]
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the timer."""
        self._beside = [task for task in self._beside if _asked(partial(_begin, task))]
        self._task = asyncio.get_running_loop().create_task(self._keep_time())

    async def begun(self) -> None:
        """Return once jobs can be submitted: the tasks of parts have begun."""
        for task in self._beside:
            try:
                await task.begun()
            except Exception:  # code from outside may raise anything, and jobs wait
                log.warning(RAISED, exc_info=True)

    def look(self) -> None:
        """Look whether the scheduler wants to be woken at another time; few events change that."""
        if self._host.scheduler.wakeup() != self._wakes_at:
            self._changed.set()

    def close(self) -> None:
        """Stop the timer."""
        if self._task is not None:
            self._task.cancel()

    async def _keep_time(self) -> None:
        while True:
            try:
                if answers := self._host.decide_time():
                    self._commits.add(answers)
                for task in self._beside:
                    _asked(task.start_if_due)
            except Exception:  # a full disk, for example: try again
                log.exception("cannot wake the scheduler")
                await asyncio.sleep(RETRY_INTERVAL)
            self._changed.clear()
            self._wakes_at = self._host.scheduler.wakeup()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left()):
                    await self._changed.wait()

    def _seconds_left(self) -> float | None:
        # The wall clock may be set meanwhile, or the machine suspended.
        look = MAX_SLEEP if self._host.scheduler.settings.controllers else None
        times = (self._host.seconds_to_wakeup(), *(_asked(task.seconds_to_next) for task in self._beside), look)
        return min((seconds for seconds in times if seconds is not None), default=None)


def _begin(task: BesideTask) -> bool:
    task.begin()
    return True


def _asked(call: Callable[[], T]) -> T | None:
    """Return what a task of a part answers; None where it raises."""
    return guarded("a task beside the scheduler", call, lambda words: log.warning("%s: %s", RAISED, words))
