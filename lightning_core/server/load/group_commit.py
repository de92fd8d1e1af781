"""Commits events in a thread: one commit for all that were handled while the last one was being written.

Rules

1. Answers to an event, and all data read of the scheduler, leave only after its commit.
2. If a commit fails, no event since the last good one has happened, and every caller that waits for one of them gets an
   error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lightning_core.core.answers import Answer
from lightning_core.core.events import Event
from lightning_core.server.host import EventNotPersistedError, Host

log = logging.getLogger(__name__)

PassOn = Callable[[Sequence[Answer], Event | None], object]
Said = TypeVar("Said")


class _CommitGroup:
    """Events that are committed together."""

    def __init__(self) -> None:
        self.answers: list[tuple[Sequence[Answer], Event | None]] = []
        self.done = asyncio.Event()
        self.refusal: EventNotPersistedError | None = None


class GroupCommit:
    """Commits the decisions of a host.

    Args:
        host: The host, whose event loop this is called in.
        pass_on: Called with the answers to each event, in their order, once they are committed.
    """

    def __init__(self, host: Host, pass_on: PassOn) -> None:
        self._host = host
        self._pass_on = pass_on
        self._next: _CommitGroup | None = None
        self._now: _CommitGroup | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "journal")
        self._lags: list[float] = []

    def add(self, answers: Sequence[Answer], event: Event | None = None) -> None:
        """Commit the newest decision, with all others that are made until the running commit is done."""
        if self._next is None:
            self._next = _CommitGroup()
        self._next.answers.append((answers, event))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def settled(self) -> None:
        """Return once all that was decided so far is committed.

        Raises:
            EventNotPersistedError: If it could not be written; it has not happened.
        """
        group = self._next or self._now
        if group is not None:
            await group.done.wait()
            if group.refusal is not None:
                raise EventNotPersistedError(*group.refusal.args)

    async def read(self, ask: Callable[[], Said]) -> Said:
        """Return a value read of the scheduler, once everything that it depends on is committed."""
        while True:
            value = ask()
            try:
                await self.settled()
            except EventNotPersistedError:  # the scheduler has gone back
                continue
            return value

    def lag(self) -> float:
        """Return the mean seconds by which the event loop was late since the last call: from commits to their news."""
        lags, self._lags = self._lags, []
        return sum(lags) / len(lags) if lags else 0.0

    async def close(self) -> None:
        """Return once nothing is being written any more."""
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._next is not None:
            self._now, self._next = self._next, None
            try:
                done_at = await loop.run_in_executor(self._thread, self._commit)
                self._lags.append(time.monotonic() - done_at)
            except Exception as error:
                self._refuse(error)
            else:
                self._release(self._now)
            self._now = None
            if self._host.is_long:
                try:
                    await loop.run_in_executor(self._thread, self._host.keep_short)
                except Exception:  # the events are committed, and the next ones must be
                    log.exception("the journal was not kept short")
        self._task = None

    def _commit(self) -> float:
        """Commit; return when that was done."""
        self._host.commit()
        return time.monotonic()

    def _release(self, group: _CommitGroup) -> None:
        for answers, event in group.answers:
            try:
                self._pass_on(answers, event)
            except Exception:  # the others must get theirs
                log.exception("an answer was not passed on")
        group.done.set()

    def _refuse(self, error: Exception) -> None:
        try:
            refusal = self._host.undo(error)
        except Exception as worse:  # the journal cannot even be read
            error, refusal = worse, None
        refusal = refusal or EventNotPersistedError(f"{type(error).__name__}: {error}")
        log.error("events have not happened: %s", refusal)
        groups = [group for group in (self._now, self._next) if group is not None]
        self._next = None
        for group in groups:
            group.refusal = refusal
            group.done.set()
