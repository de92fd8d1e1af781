"""Searches in a line each: their trials are jobs, most of which have ended or make room for others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.view.text import clean

# Two searches of one name that came one after the other have deadlines that are further apart than these seconds.
SAME_DEADLINE = 60.0
# Searches that are shown although all of their trials have ended, the newest first.
MAX_ENDED = 5


def trials_by_search(jobs: Iterable[JobStatus]) -> list[list[JobStatus]]:
    """Return the trials of each search in the order of submission, the search that began last first.

    Trials of an earlier search of the same name, with another deadline, are excluded.
    """
    found = dict[tuple[str, str], list[JobStatus]]()
    ends = dict[tuple[str, str], float]()  # when all that are known had ended
    for job in sorted((job for job in jobs if job.trial_of), key=lambda job: job.submitted_at):
        key = job.owner, job.trial_of
        if ends.get(key, math.inf) <= job.submitted_at and not _is_same(job, found[key][-1]):
            del found[key], ends[key]
        found.setdefault(key, []).append(job)
        ends[key] = max(ends.get(key, -math.inf), math.inf if job.finished_at is None else job.finished_at)
    return sorted(found.values(), key=lambda trials: -trials[0].submitted_at)


def is_listed(job: JobStatus) -> bool:
    """Return whether a job has a line of its own beside that of its search: it is no trial, or one that may train."""
    return not job.trial_of or not (job.paused or job.state is State.ENDED)


class SearchView(NamedTuple):
    """A search as text."""

    owner: str
    """Name of the person to whom its trials belong; empty if unknown."""
    name: str
    words: str
    """States of its trials, and their best value."""
    is_over: bool
    """Whether all of its trials have ended."""


def searches_of(jobs: Iterable[JobStatus]) -> list[SearchView]:
    """Return the searches that have trials among the jobs, the one that began last first."""
    return [
        SearchView(clean(trials[0].owner), clean(trials[0].trial_of), _words(trials),
               all(job.state is State.ENDED for job in trials))
        for trials in trials_by_search(jobs)
    ]  # fmt: skip


def search_lines(jobs: Iterable[JobStatus]) -> list[str]:
    """Return a line for each search in progress and for the newest finished ones."""
    searches = searches_of(jobs)
    left_out = [search for search in searches if search.is_over][MAX_ENDED:]
    several = len({search.owner for search in searches}) > 1

    def of(search: SearchView) -> str:
        return f" of {search.owner or '-'}" if several else ""

    lines = [
        f"search {search.name}{of(search)}: {search.words}"
        for search in searches if search not in left_out
    ]  # fmt: skip
    if more := len(left_out):
        lines.append(f"and {more} earlier search{'es' * (more > 1)}")
    return lines


def _words(trials: Sequence[JobStatus]) -> str:
    does = Counter(map(_does, trials))
    parts = [f"{does[what]} {what}" for what in ("training", "waiting", "paused", "ended", "crashed") if does[what]]
    return f"{len(trials)} trial{'s' * (len(trials) > 1)}: {', '.join(parts)}{_best(trials)}"


def _does(job: JobStatus) -> str:
    if job.state is State.ENDED:
        return "crashed" if job.verdict is Verdict.CRASHED else "ended"
    return "paused" if job.paused else "training" if job.state is State.RUNNING else "waiting"


def _best(trials: Sequence[JobStatus]) -> str:
    """Return the best value with its trial, as text; empty before the first one."""
    metric, lower = _compared(trials[-1])
    values = [(value, job) for job in trials
              if _compared(job) == (metric, lower) and (value := _value(job)) is not None]  # fmt: skip
    if not values:
        return ""
    value, job = (min if lower else max)(values, key=lambda pair: pair[0])
    return f"; best {clean(metric)} {value:.4g}, of {clean(job.name)}"


def _compared(job: JobStatus) -> tuple[str, bool]:
    """Return by which metric a trial is compared, and whether less is better."""
    return job.target.observed, job.target.lower_is_better


def _value(job: JobStatus) -> float | None:
    """Return the best value of a trial's metric; None if there is none."""
    value = job.watched.best if job.watched is not None else job.best if job.target.observes else None
    return None if value is None or not math.isfinite(value) else value


def _is_same(job: JobStatus, other: JobStatus) -> bool:
    """Return whether two trials have one deadline, or none."""
    return job.deadline == other.deadline or abs(job.deadline - other.deadline) <= SAME_DEADLINE
