"""Searches in a line each: their trials are jobs, most of which are over or make room for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from lightning_core.core.answers import JobStatus, State
from lightning_core.view.text import clean

# The trials of a search have one deadline, within these seconds: an earlier search of its name had another one.
SAME_DEADLINE = 60.0
# Searches that are shown, the newest first.
MAX_SEARCHES = 5


def trials_by_search(jobs: Sequence[JobStatus]) -> list[list[JobStatus]]:
    """Return the trials of each search, the newest search first.

    Args:
        jobs: Jobs in any order.
    """
    found = dict[tuple[str, str], list[JobStatus]]()
    for job in sorted(jobs, key=lambda job: -job.submitted_at):
        if not job.trial_of:
            continue
        trials = found.setdefault((job.owner, job.trial_of), [job])
        if trials[0] is not job and abs(job.deadline - trials[0].deadline) <= SAME_DEADLINE:
            trials.append(job)
    return list(found.values())


def is_listed(job: JobStatus) -> bool:
    """Return whether a job has a line of its own beside that of its search: it is no trial, or one that may train."""
    return not job.trial_of or not (job.paused or job.state is State.ENDED)


def search_lines(jobs: Sequence[JobStatus]) -> list[str]:
    """Return a line for each of the newest searches: what its trials do, and the best that they had.

    Args:
        jobs: Jobs in any order.
    """
    searches = trials_by_search(jobs)
    lines = [_line(trials) for trials in searches[:MAX_SEARCHES]]
    if (more := len(searches) - MAX_SEARCHES) > 0:
        lines.append(f"and {more} earlier search{'es' * (more > 1)}")
    return lines


def _line(trials: Sequence[JobStatus]) -> str:
    does = Counter(map(_does, trials))
    words = ", ".join(f"{does[what]} {what}" for what in ("training", "waiting", "paused", "ended") if does[what])
    number = f"{len(trials)} trial{'s' * (len(trials) > 1)}"
    return f"search {clean(trials[0].trial_of)}: {number}: {words}{_best(trials)}"


def _does(job: JobStatus) -> str:
    if job.state is State.ENDED:
        return "ended"
    return "paused" if job.paused else "training" if job.state is State.RUNNING else "waiting"


def _best(trials: Iterable[JobStatus]) -> str:
    """Return the best value of the trials and whose it is, in words; empty before the first one."""
    values = [(value, job) for job in trials if (value := best_of(job)) is not None]
    if not values:
        return ""
    choose = min if values[0][1].target.lower_is_better else max
    value, job = choose(values, key=lambda pair: pair[0])
    return f"; best {clean(job.target.observed)} {value:.4g}, of {clean(job.name)}"


def best_of(job: JobStatus) -> float | None:
    """Return the best value that a trial had of what it is compared by."""
    if job.watched is not None:
        return job.watched.best
    return job.best if job.target.observes else None
