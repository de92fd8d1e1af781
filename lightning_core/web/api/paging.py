"""Jobs in pages: some of them, and where the next ones begin."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from lightning_core.core.answers import JobStatus
from lightning_core.core.limits import shown
from lightning_core.web.status_rows import key_of


def page_of(jobs: Sequence[JobStatus], limit: int | None, after: str | None) -> tuple[Sequence[JobStatus], str | None]:
    """Return a page of jobs, and what the next one comes after; None if there are no more.

    A job that comes meanwhile is on a later page. Where the last job of a page is forgotten before the next one is
    asked for, jobs that were submitted with it are given again rather than left out.

    Args:
        jobs: Jobs in the order of submission.
        limit: Jobs at most; None for all.
        after: What an earlier page has returned for the next one; None for the first page.

    Raises:
        ValueError: If ``after`` is nothing that was returned.
    """
    first = 0 if after is None else _first_after(jobs, after)
    last = len(jobs) if limit is None else min(first + limit, len(jobs))
    return jobs[first:last], key_of(jobs[last - 1]) if first < last < len(jobs) else None


def _first_after(jobs: Sequence[JobStatus], after: str) -> int:
    _, _, time = after.rpartition("@")
    try:
        submitted_at = float(time)
    except ValueError:
        raise ValueError(f"after must be the `next` of an answer, got {shown(after)}") from None
    first = bisect_left(jobs, submitted_at, key=lambda job: job.submitted_at)
    for place in range(first, len(jobs)):
        if jobs[place].submitted_at != submitted_at:
            break
        if key_of(jobs[place]) == after:
            return place + 1
    return first
