"""Groups of jobs in a line each: many of their jobs have ended, or are paused to make room for others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.parts import group_of, group_words
from lightning_core.view.text import clean

# Two groups of one name that came one after the other have deadlines that are further apart than these seconds.
SAME_DEADLINE = 60.0
# Groups that are shown although all of their jobs have ended, the newest first.
MAX_ENDED = 5


class GroupKey(NamedTuple):
    """Whose group it is, and which."""

    owner: str
    part: str
    """Name of the part that groups its jobs."""
    name: str


class GroupView(NamedTuple):
    """A group as text."""

    owner: str
    """Name of the person to whom its jobs belong; empty if unknown."""
    part: str
    """Name of the part that groups them."""
    name: str
    words: str
    """What the part says of it."""
    is_over: bool
    """Whether all of its jobs have ended."""


def jobs_by_group(jobs: Iterable[JobStatus]) -> dict[GroupKey, list[JobStatus]]:
    """Return the jobs of each group in the order of submission, the group that began last first.

    Jobs of an earlier group of the same name, with another deadline, are excluded.
    """
    found = dict[GroupKey, list[JobStatus]]()
    ends = dict[GroupKey, float]()  # when all that are known had ended
    for job in sorted((job for job in jobs if job.parts), key=lambda job: job.submitted_at):
        if (group := group_of(job.parts)) is None:
            continue
        key = GroupKey(job.owner, *group)
        if ends.get(key, math.inf) <= job.submitted_at and not _is_same(job, found[key][-1]):
            del found[key], ends[key]
        found.setdefault(key, []).append(job)
        ends[key] = max(ends.get(key, -math.inf), math.inf if job.finished_at is None else job.finished_at)
    return dict(sorted(found.items(), key=lambda group: -group[1][0].submitted_at))


def group_title(job: JobStatus) -> str:
    """Return the group of a job as text; empty for none."""
    return "" if (group := group_of(job.parts)) is None else clean(" ".join(group))


def is_listed(job: JobStatus) -> bool:
    """Return whether a job has a line of its own beside that of its group: it has no group, or may train."""
    return not (job.paused or job.state is State.ENDED) or group_of(job.parts) is None


def groups_of(jobs: Iterable[JobStatus]) -> list[GroupView]:
    """Return the groups to which the jobs belong, the one that began last first."""
    return [
        GroupView(clean(key.owner), clean(key.part), clean(key.name), clean(group_words(key.part, jobs)),
                  all(job.state is State.ENDED for job in jobs))
        for key, jobs in jobs_by_group(jobs).items()
    ]  # fmt: skip


def group_lines(jobs: Iterable[JobStatus]) -> list[str]:
    """Return a line for each group in progress and for the newest finished ones."""
    groups = groups_of(jobs)
    left_out = [group for group in groups if group.is_over][MAX_ENDED:]
    several = len({group.owner for group in groups}) > 1

    def of(group: GroupView) -> str:
        return f" of {group.owner or '-'}" if several else ""

    lines = [f"{group.part} {group.name}{of(group)}: {group.words}" for group in groups if group not in left_out]
    return lines + ([f"and {len(left_out)} earlier"] if left_out else [])


def _is_same(job: JobStatus, other: JobStatus) -> bool:
    """Return whether two jobs have one deadline, or none."""
    return job.deadline == other.deadline or abs(job.deadline - other.deadline) <= SAME_DEADLINE
