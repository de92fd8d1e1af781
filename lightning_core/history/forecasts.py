"""What the scheduler had forecast: its events handled again, and asked on the way."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from lightning_core.core.codec import decode_event
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.history.moments import Forecast
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.storage.excerpt import open_whole
from lightning_core.storage.journal import Journal, JournalError

# Forecasts that are shown of a job, evenly over its training.
MOMENTS = 8
# Of a run in a pool, the pool's journal is handled again; with more events than this it would take minutes.
LONGEST = 200_000


def fill_in(journal: Journal, history: History, moments: int = MOMENTS) -> None:
    """Fills in what the scheduler forecast at some moments of each job's training, by handling its events again.

    Args:
        journal: that the history was read from.
        history: to fill in.
        moments: for each job.
    """
    asked: list[tuple[float, JobHistory]] = []
    for job in history.jobs:
        job.forecasts.clear()
        if job.progress:
            end = history.last if job.ended is None else job.ended
            # Neither at the first word, of which nothing follows, nor at the end, when nothing is left to forecast.
            times = np.linspace(job.progress[0].time, end, moments + 2)[1:-1].tolist()
            asked += [(time, job) for time in times]
    asked.sort(key=lambda pair: pair[0])
    if (part := history.part_of) is None:
        _ask(journal, asked, 0.0)
        return
    with suppress(JournalError), open_whole(part) as whole:  # else nobody knows any more what was forecast
        if whole.last <= LONGEST:
            _ask(whole, asked, part.submitted_at)


def _ask(journal: Journal, asked: list[tuple[float, JobHistory]], start: float) -> None:
    """Asks a scheduler that handles a journal's events again; times count from ``start``."""
    scheduler, at = Scheduler(journal.settings()), 0
    for entry in journal.entries():
        while at < len(asked) and asked[at][0] < entry.now - start:
            time, job = asked[at]
            at += 1
            now = {status.name: status for status in scheduler.status()}.get(job.name)
            if now is not None and now.submitted_at - start == job.submitted and now.finish is not None:
                job.forecasts.append(Forecast(time, *(finish - start for finish in now.finish)))
        if at == len(asked):
            return
        scheduler.handle(decode_event(entry.event), entry.now)
