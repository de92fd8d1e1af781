"""Whose the time of a device is while several jobs train on it at once: it is divided by the work that each does."""

from __future__ import annotations

from lightning_core.history.job_history import JobHistory
from lightning_core.history.moments import Owned


class OwnTime:
    """Records which part of the time of their device counts as each one's own, as the scheduler counts it."""

    def __init__(self) -> None:
        self._members: dict[int, list[JobHistory]] = {}
        self._group: dict[JobHistory, int] = {}
        self._changed: set[int] = set()

    def note(self, job: JobHistory) -> None:
        """Take note of the newest grant of a job, or of its end."""
        held = job.grants[-1] if job.grants and job.ended is None else None
        group = 0 if held is None else held.beside
        if before := self._group.pop(job, 0):
            self._members[before].remove(job)
            self._changed.add(before)
        if group:
            self._members.setdefault(group, []).append(job)
            self._group[job] = group
            self._changed.add(group)

    def divide(self, now: float) -> list[JobHistory]:
        """Divide the time of the groups that have changed among their jobs; return those."""
        told: list[JobHistory] = []
        for group in sorted(self._changed):
            members = self._members[group]
            held = [job.grants[-1] for job in members]
            share, work = sum(one.share for one in held), sum(one.pace for one in held)
            for job, one in zip(members, held, strict=True):
                others = tuple(other.name for other in members if other is not job)
                job.own(Owned(now, share * one.pace / work, one.pace / work, others))
            told += members
            if not members:
                del self._members[group]
        self._changed.clear()
        return told
