"""Will these jobs fit, and what would make them fit? Pure: known work, deadlines and devices in, an answer out.

What is asked is what the pool would do with the work given: the devices are dealt to the earliest deadline first, a job
takes all of its devices or waits, whoever comes later uses the gap, and is moved aside when it is needed no more. On
one device no other way meets deadlines that this one does not (Jackson, 1955; with ``begin``: Horn, 1974); on several
another might, but the pool would not go it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lightning_core.core.durations import format_duration

# Sums of seconds are exact to this part.
EPSILON = 1e-9
# What to do about work that nobody knows.
UNKNOWN = "say `work: 40m` in the bundle, or name a folder of earlier runs with --history DIR"


class JobRequest(NamedTuple):
    """A job as far as planning goes.

    Attributes:
        name: of the job.
        work: seconds alone on its devices; None if nobody knows.
        deadline: seconds from submission.
        size: devices that it takes.
        weight: how many jobs of weight 1 it counts for.
        begin: seconds from submission before which it does not start.
    """

    name: str
    work: float | None
    deadline: float
    size: int = 1
    weight: float = 1.0
    begin: float = 0.0


@dataclass(frozen=True)
class FeasibilityReport:
    """Who makes it, and what would help the others.

    Attributes:
        fits: names of those that make it together.
        late: those that do not, each with the least deadline that would do for it beside those that make it (seconds
            from submission; inf if none would).
        unknown: those of unknown work: counted as if they needed nothing.
        spare: seconds between the end of a job and its deadline, the least over all; negative by how much more time
            every deadline needs for all jobs to fit; inf without jobs of known work.
        devices: more of them with which all would fit, the fewest; 0 if all do, None if no number would.
    """

    fits: tuple[str, ...]
    late: dict[str, float]
    unknown: tuple[str, ...]
    spare: float
    devices: int | None

    @property
    def more_time(self) -> float:
        """Seconds more for every deadline that would make all fit, the least; inf if none would."""
        return max(0.0, -self.spare)

    def lines(self) -> list[str]:
        """In words: one line for all, then one for each job that has a difficulty.

        Example::

            >>> fit([JobRequest("a", 50.0, 60.0), JobRequest("b", 30.0, 70.0)], devices=1).lines()
            ['1 of 2 fits; 10 more seconds or one more device would do', 'a: a deadline of 80.0s would do']
        """
        known = len(self.fits) + len(self.late)
        if not known:
            first = "nothing can be said: no work is known"
        elif not self.late:
            first = f"{'all ' if known > 1 else ''}{known} fit{'' if known > 1 else 's'}, "
            first += f"{format_duration(math.floor(self.spare))} to spare"
        else:
            first = f"{len(self.fits)} of {known} fit{'s' if len(self.fits) == 1 else ''}; {self._help()}"
        lines = [first]
        for name, deadline in self.late.items():
            if math.isfinite(deadline):
                lines.append(f"{name}: a deadline of {format_duration(_rounded_up(deadline))} would do")
            else:
                lines.append(f"{name}: needs more devices than there are")
        return lines + [f"{name}: its work is unknown and not counted; {UNKNOWN}" for name in self.unknown]

    def _help(self) -> str:
        ways = []
        if math.isfinite(self.spare):
            ways.append(_more(self.more_time))
        if self.devices:
            ways.append("one more device" if self.devices == 1 else f"{self.devices} more devices")
        return f"{' or '.join(ways)} would do" if ways else "neither more time nor more devices would do"


def fit(jobs: Iterable[JobRequest], devices: int) -> FeasibilityReport:
    """Whether the jobs fit on the pool, and what would make them fit.

    Those that make it are chosen by deadline: whenever one of them would be late, the one with the most work for its
    weight goes (seconds times devices); at the end whoever still fits comes back, heaviest first. On one device, with
    equal weights and without ``begin``, no choice has more jobs (Moore and Hodgson, 1968).

    Args:
        jobs: in the order of submission.
        devices: of the pool.

    Raises:
        ValueError: if there is no device.

    Example::

        >>> answer = fit([JobRequest("a", 50.0, 60.0), JobRequest("b", 30.0, 70.0), JobRequest("c", None, 9.0)], devices=1)
        >>> answer.fits, answer.late, answer.unknown, answer.more_time, answer.devices
        (('b',), {'a': 80.0}, ('c',), 10.0, 1)
    """
    if devices < 1:
        raise ValueError(f"devices must be at least 1, got {devices}")
    jobs = list(jobs)
    known = _by_deadline(job for job in jobs if job.work is not None)
    spare = _spare(known, devices)
    kept = known if spare >= 0 else _kept(known, devices)
    return FeasibilityReport(
        fits=tuple(job.name for job in jobs if job in kept),
        late={job.name: _least_deadline(job, kept, devices) for job in known if job not in kept},
        unknown=tuple(job.name for job in jobs if job.work is None),
        spare=spare,
        devices=_more_devices(known, devices),
    )


def ends(jobs: Sequence[JobRequest], devices: int) -> list[float]:
    """When each job ends if the devices are dealt in this order at every moment; inf if it is larger than the pool.

    Args:
        jobs: of known work, the first to be served first.
        devices: of the pool.

    Example::

        >>> ends([JobRequest("a", 4.0, 9.0), JobRequest("b", 5.0, 9.0, size=2), JobRequest("c", 3.0, 9.0)], devices=2)
        [4.0, 9.0, 3.0]
    """
    left = [job.work or 0.0 for job in jobs]
    end = [math.inf] * len(jobs)
    waiting = [row for row, job in enumerate(jobs) if job.size <= devices]
    now = 0.0
    while waiting:
        free, serving = devices, []
        later = math.inf
        for row in waiting:
            if jobs[row].begin > now:
                later = min(later, jobs[row].begin)
            elif jobs[row].size <= free:
                free -= jobs[row].size
                serving.append(row)
        until = min(later, min((now + left[row] for row in serving), default=math.inf))
        for row in serving:
            if now + left[row] <= until:
                end[row] = until
                waiting.remove(row)
            else:
                left[row] -= until - now
        now = until
    return end


def _by_deadline(jobs: Iterable[JobRequest]) -> list[JobRequest]:
    return sorted(jobs, key=lambda job: (job.deadline, job.work))


def _spare(jobs: Sequence[JobRequest], devices: int) -> float:
    """The least spare time over jobs in the order of their deadlines; what rounding makes of nothing is nothing."""
    spare = [job.deadline - end for job, end in zip(jobs, ends(jobs, devices), strict=True)]
    least = min(spare, default=math.inf)
    return 0.0 if abs(least) <= EPSILON * max((job.deadline for job in jobs), default=0.0) else least


def _kept(jobs: Sequence[JobRequest], devices: int) -> list[JobRequest]:
    kept: list[JobRequest] = []
    for job in jobs:
        kept.append(job)
        while kept and _spare(kept, devices) < 0:
            kept.remove(max(kept, key=_greed))
    for job in sorted((job for job in jobs if job not in kept), key=lambda job: (-job.weight, _greed(job))):
        if _spare(_by_deadline([*kept, job]), devices) >= 0:
            kept = _by_deadline([*kept, job])
    return kept


def _greed(job: JobRequest) -> float:
    return (job.work or 0.0) * job.size / job.weight


def _least_deadline(job: JobRequest, kept: Sequence[JobRequest], devices: int) -> float:
    """Of a job beside the kept ones. The deadline matters by its place among theirs alone, so each place is tried."""
    for place in range(len(kept) + 1):
        order = [*kept[:place], job, *kept[place:]]
        before = kept[place - 1] if place else None
        deadline = max(job.deadline, ends(order, devices)[place], before.deadline if before else 0.0)
        if before and deadline == before.deadline and (job.work or 0.0) < (before.work or 0.0):
            deadline *= 1 + 2 * EPSILON  # of two that are due at once the shorter goes first, and this one must not
        later = job._replace(deadline=deadline)
        together = _by_deadline([*kept, later])
        if together[place] is later and _spare(together, devices) >= 0:
            return deadline
    return math.inf


def _more_devices(jobs: Sequence[JobRequest], devices: int) -> int | None:
    """The fewest; with a device for everybody's wish there is no queue, so that more would not help."""
    most = max(devices, sum(job.size for job in jobs))
    if _spare(jobs, most) < 0:
        return None
    return next((more for more in range(most - devices + 1) if _spare(jobs, devices + more) >= 0), None)


def _more(seconds: float) -> str:
    """So much more time, rounded up: less would not do."""
    seconds = math.ceil(seconds * (1 - EPSILON))
    if seconds < 120:
        return f"{seconds} more second{'' if seconds == 1 else 's'}"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} more minutes" if minutes < 120 else f"{format_duration(_rounded_up(seconds))} more"


def _rounded_up(seconds: float) -> float:
    """To what is shown of it."""
    step = 1 if seconds < 3600 else 60 if seconds < 86400 else 3600
    return step * math.ceil(seconds * (1 - EPSILON) / step)
