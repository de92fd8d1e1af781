"""A search in words: the states of its trials, and their best value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from lightning_core.core.answers import JobStatus, State, Verdict


def describe(trials: Sequence[JobStatus]) -> str:
    """Return the states of the trials of a search, and the best value with its trial.

    Args:
        trials: Trials in the order of submission.
    """
    does = Counter(map(_does, trials))
    parts = [f"{does[what]} {what}" for what in ("training", "waiting", "paused", "ended", "crashed") if does[what]]
    return f"{len(trials)} trial{'s' * (len(trials) > 1)}: {', '.join(parts)}{_best(trials)}"


def _does(job: JobStatus) -> str:
    if job.state is State.ENDED:
        return "crashed" if job.verdict is Verdict.CRASHED else "ended"
    return "paused" if job.paused else "training" if job.state is State.RUNNING else "waiting"


def _best(trials: Sequence[JobStatus]) -> str:
    """Return the best value with its trial; empty before the first one."""
    metric, lower = _compared(trials[-1])
    values = [(value, job) for job in trials
              if _compared(job) == (metric, lower) and (value := _value(job)) is not None]  # fmt: skip
    if not values:
        return ""
    value, job = (min if lower else max)(values, key=lambda pair: pair[0])
    return f"; best {metric} {value:.4g}, of {job.name}"


def _compared(job: JobStatus) -> tuple[str, bool]:
    """Return the metric by which a trial is compared, and whether lower is better."""
    return job.target.observed, job.target.lower_is_better


def _value(job: JobStatus) -> float | None:
    """Return the best value of a trial's metric; None if there is none."""
    value = job.watched.best if job.watched is not None else job.best if job.target.observes else None
    return None if value is None or not math.isfinite(value) else value
