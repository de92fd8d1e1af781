"""Forecasts of the scheduler, recomputed by a scheduler that handles its events again."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.history.moments import FinishForecast
from lightning_core.storage.journals.excerpt import open_whole
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.journals.replay import beginning, handle_again

# Number of forecasts of a job, evenly spaced over its training.
FORECASTS = 8
# Limit in seconds for handling the events again, and their estimated cost: per cell, per round, and per job in a round.
MAX_SECONDS = 8.0
CELL, ROUND, JOB = 1e-4, 1e-3, 1e-5
# For a run in a pool, the journal of the pool is handled again, of which only the number of events is known.
MAX_EVENTS = 50_000


def fill_in(journal: Journal, history: History, count: int = FORECASTS, *, always: bool = False) -> bool:
    """Fill in the forecasts made during the training of each job, by handling its events again.

    Args:
        journal: Journal from which the history was read.
        history: History to fill in.
        count: Number of forecasts for each job.
        always: Whether to do so however long it takes; otherwise a long run is left without forecasts.

    Returns:
        Whether they were filled in.
    """
    asked: list[tuple[float, JobHistory]] = []
    for job in history.jobs:
        job.forecasts.clear()
        if job.progress:
            end = history.last if job.ended is None else job.ended
            # Neither at the first report, which says too little, nor at the end, when nothing is left to forecast.
            times = np.linspace(job.progress[0].time, end, count + 2)[1:-1].tolist()
            asked += [(time, job) for time in times]
    asked.sort(key=lambda pair: pair[0])
    if (part := history.part_of) is None:
        if always or seconds_again(history) <= MAX_SECONDS:
            _ask(journal, asked, 0.0)
            return True
        return False
    with suppress(JournalError), open_whole(part) as whole:  # without that journal, the forecasts are lost
        if always or whole.last <= MAX_EVENTS:
            _ask(whole, asked, part.submitted_at)
            return True
    return False


def seconds_again(history: History) -> float:
    """Return about how many seconds the events of a history take to be handled again."""
    cells = sum(len(job.points) for job in history.jobs)
    rounds = history.events - sum(len(job.progress) for job in history.jobs)
    return CELL * cells + rounds * (ROUND + JOB * len(history.jobs))


def _ask(journal: Journal, asked: list[tuple[float, JobHistory]], start: float) -> None:
    """Ask a scheduler that handles the events of a journal again; times count from ``start``."""
    scheduler, number, began, _ = beginning(journal, whole=True)  # forecasts before thinned events are lost
    asked = [(time, job) for time, job in asked if time >= began - start]
    at = 0
    for entry in journal.recent_entries():
        if entry.number <= number:
            continue
        while at < len(asked) and asked[at][0] < entry.now - start:
            time, job = asked[at]
            at += 1
            if scheduler.directive(job.name) is None:
                continue
            now = scheduler.last(job.name)
            if now.submitted_at - start == job.submitted and now.finish is not None:
                like = "" if now.like is None else str(now.like)
                early, likely, late = (finish - start for finish in now.finish)
                job.forecasts.append(FinishForecast(time, early, likely, late, like))
        if at == len(asked):
            return
        handle_again(scheduler, entry)
