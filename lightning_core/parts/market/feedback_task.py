"""Feeds the spot policy selector: first the feedback of earlier pools, then that of jobs that have ended.

It is computed in a thread and passed to the scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from lightning_core.core.events import Event, PartEvent
from lightning_core.parts.market.cloud_events import EarlierFeedback, QuotedAhead, QuotedBefore, SelectorFeedback
from lightning_core.parts.market.counterfactual import CounterfactualReplay, ReplayableJob
from lightning_core.parts.market.earlier_feedback import known_before
from lightning_core.parts.market.market_controller import MARKET, MarketController
from lightning_core.server.host import EventNotPersistedError, Host

log = logging.getLogger(__name__)

# Seconds between two attempts to write feedback to a full journal, and seconds for which the first jobs wait for the
# feedback of earlier pools.
RETRY_INTERVAL, BEGIN_TIMEOUT = 1.0, 30.0


class FeedbackTask:
    """Runs beside the scheduler, which never waits for it.

    Args:
        host: The scheduler's host.
        handle: Function that hands an event to the scheduler and returns once it is committed.
        on_done: Function that is called when a computation has ended.
    """

    def __init__(self, host: Host, handle: Callable[[Event], Awaitable[object]], on_done: Callable[[], object]) -> None:
        self._host = host
        self._handle = handle
        self._on_done = on_done
        self._task: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._replay: CounterfactualReplay | None = None
        try:
            self._replay = CounterfactualReplay.of(host.scheduler.settings)
        except (
            OSError,
            ValueError,
        ) as error:  # the market's recording is gone: jobs run, but the selector gets nothing
            log.warning("the selector of spot policies gets no feedback: %s", error)

    def begin(self) -> None:
        """Tell the scheduler what is known before the first job, or later if plans still wait for the recording."""
        if self._replay is None or not self._replay.terms.knows_more:
            return
        market = self._host.scheduler.controllers.get(MARKET)
        awaits_recording = isinstance(market, MarketController) and market.awaits_recording
        if awaits_recording or not self._host.scheduler.names():
            self._beginning = asyncio.get_running_loop().create_task(self._begin())

    async def begun(self) -> None:
        """Return once the selector has the feedback of earlier pools, by which the first jobs get their policies."""
        if self._beginning is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._beginning), BEGIN_TIMEOUT)

    async def _begin(self) -> None:
        try:
            known = await asyncio.to_thread(known_before, self._host.scheduler.settings)
        except Exception:  # the pool works without
            log.exception("the selector of spot policies begins without feedback of earlier pools")
            return
        for event in known:
            await self._deliver(event)

    def start_if_due(self) -> None:
        """Start computing the feedback that is due, unless a computation is running."""
        if self._replay is None or self._task is not None:
            return
        if jobs := self._replay.due(self._host.scheduler, self._host.now()):
            self._task = asyncio.get_running_loop().create_task(self._compute(self._replay, jobs))

    def seconds_to_next(self) -> float | None:
        """Return the seconds until feedback is due; None if none is, or a computation is running."""
        if self._replay is None or self._task is not None:
            return None
        due = self._replay.next(self._host.scheduler)
        return None if due is None else max(due - self._host.now(), 0.0)

    async def _compute(self, replay: CounterfactualReplay, jobs: Sequence[ReplayableJob]) -> None:
        try:
            for job in jobs:
                try:
                    feedback = await asyncio.to_thread(replay.feedback, job)
                except Exception:  # empty feedback, so that the job is not tried again
                    log.exception("cannot compute the selector's feedback from job %s", job.name)
                    feedback = SelectorFeedback(job.name, ())
                await self._deliver(feedback)
        finally:
            self._task = None
            self._on_done()

    async def _deliver(self, event: SelectorFeedback | EarlierFeedback | QuotedBefore | QuotedAhead) -> None:
        while True:
            try:
                await self._handle(PartEvent.of(event))
                return
            except EventNotPersistedError:
                await asyncio.sleep(RETRY_INTERVAL)
