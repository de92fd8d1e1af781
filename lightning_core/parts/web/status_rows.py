"""Rows of the list of jobs, as JSON. Times are seconds of scheduler time."""

from __future__ import annotations

import json
import math
from typing import Any

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.durations import is_in_reach
from lightning_core.core.parts import columns_of
from lightning_core.view.group_lines import group_title
from lightning_core.view.job_line import COLUMNS, line
from lightning_core.view.text import clean

# A forecast that moves by less than this part of the time to it is the same on the page, as is one within a second.
RESOLUTION, MIN_SECONDS = 0.01, 1.0
REASON = COLUMNS.index("reason")
# Characters of a reason in the list; the page of a job has all of it.
MAX_REASON = 300


def key_of(job: JobStatus) -> str:
    """Return a key that identifies a job among all of its pool, earlier ones of its name too."""
    return f"{job.name}@{job.submitted_at!r}"


def same_on_page(before: JobStatus, after: JobStatus, now: float) -> bool:
    """Return whether a job looks the same in the list as it did before.

    Args:
        before: Status that the page shows.
        after: Current status.
        now: Scheduler time.
    """
    if before is after:
        return True
    return _visible(before) == _visible(after) and _close(before.finish, after.finish, now)


def _visible(job: JobStatus) -> tuple[object, ...]:
    return (
        job.state, job.verdict, job.share, job.beside, job.devices, job.deadline, job.paused, job.restarts, job.alert,
        job.held_share, job.weight, job.reason, job.grant_reason, job.batches, job.value, job.finished_at, job.target,
        job.kind, job.memory, job.finish is None, job.watched, columns_of(job),
    )  # fmt: skip


def _close(one: tuple[float, ...] | None, other: tuple[float, ...] | None, now: float) -> bool:
    if one is None or other is None:
        return one is other
    return all(
        a == b or abs(a - b) <= max(RESOLUTION * abs(b - now), MIN_SECONDS) for a, b in zip(one, other, strict=True)
    )


def row_of(job: JobStatus, now: float) -> dict[str, Any]:
    """Return a job as values of JSON: no infinity, reasons as text."""
    words = line(now, job)[REASON]
    return {
        "key": key_of(job),
        "name": clean(job.name),
        "owner": clean(job.owner),
        "state": "paused" if job.paused and job.state is not State.ENDED else str(job.state),
        "verdict": None if job.verdict is None else str(job.verdict),
        "reason": words if len(words) <= MAX_REASON else f"{words[:MAX_REASON]}…",
        "target": clean(str(job.target) if job.watched is None else f"{job.target} {job.watched.best:.4g}"),
        "value": "-" if job.value is None else job.target.show(job.value),
        "progress": _progress(job),
        "share": job.share,
        "beside": list(map(clean, job.beside)),
        "held": job.held_share,
        "devices": list(job.devices),
        "kind": clean(job.kind),
        "throughput": job.throughput,
        "batches": job.batches,
        "submitted": job.submitted_at,
        "deadline": _finite(job.deadline),
        "finish": None if job.finish is None else [_in_reach(time, job) for time in job.finish],
        "finished": job.finished_at,
        "paused": job.paused,
        "restarts": job.restarts,
        "alert": None if job.alert is None else clean(str(job.alert)),
        "group": group_title(job),
    }


def text_of(job: JobStatus, now: float) -> str:
    """Return :func:`row_of` as JSON."""
    return json.dumps(row_of(job, now), separators=(",", ":"), allow_nan=False)


def _progress(job: JobStatus) -> float | None:
    """Return how much of its work is done, in [0, 1]; None for a loss or metric, and until the work is known."""
    return None if (work := job.target.work) is None else min(job.batches / work, 1.0)


def _in_reach(time: float, job: JobStatus) -> float | None:
    return time if is_in_reach(time - job.submitted_at, job.deadline - job.submitted_at) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
