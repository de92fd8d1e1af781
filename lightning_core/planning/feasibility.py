"""Feasibility: do jobs of known work fit a pool in time, and what would make them fit? Pure.

The answer follows what the pool would do with the given work: devices go to the earliest deadline first, a job takes
all of its devices or waits, and a later job uses the gap and is moved aside when the gap closes. On one device no
other schedule meets deadlines that this one misses (Jackson, 1955; with ``not_before``: Horn, 1974). On several devices
another schedule might, but the pool would not follow it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lightning_core.core.durations import format_duration
from lightning_core.core.names import listed

# Relative error up to which sums of seconds count as equal.
EPSILON = 1e-9
# Advice where the work of some jobs is unknown.
UNKNOWN = (
    "to learn more: --try 20s trains each job for a moment; or give a job `work: 40m`, or name runs with --history DIR"
)
# Halvings of the interval in which the equal work of the jobs of unknown work is sought.
HALVINGS = 50


class JobRequest(NamedTuple):
    """A job as far as feasibility goes.

    Attributes:
        name: Name of the job.
        work: Seconds alone on its devices; None if unknown.
        deadline: Seconds from submission.
        size: Number of devices.
        weight: Relative importance when not all deadlines can be met.
        not_before: Earliest start in seconds from submission.
    """

    name: str
    work: float | None
    deadline: float
    size: int = 1
    weight: float = 1.0
    not_before: float = 0.0


class EqualWork(NamedTuple):
    """The outcome if each job of unknown work takes equally long.

    Attributes:
        work: Seconds that each takes, alone on its devices.
        fits: Names of all jobs that fit together then, those of known work included.
        spare: Minimum over all jobs of the seconds between the end of a job and its deadline, as far as they fit.
    """

    work: float
    fits: tuple[str, ...]
    spare: float


@dataclass(frozen=True)
class FeasibilityReport:
    """Which jobs fit, and what would help the others.

    Attributes:
        fits: Names of the jobs that fit together.
        late: Names of the others, each with the minimum deadline at which it would fit beside the fitting jobs (seconds
            from submission; inf if none would do).
        unknown: Names of the jobs of unknown work; the other attributes count them as if they needed nothing.
        spare: Minimum over all jobs of the seconds between the end of a job and its deadline. Negative: the time that
            every deadline lacks. inf without jobs of known work.
        devices: Fewest additional devices with which all jobs would fit; 0 if all do, None if no number would do.
        equal: The largest equal work of the unknown jobs with which all of them fit beside the fitting ones; then the
            outcomes if each takes half and twice as long. Empty without unknown jobs, or if no time is left for them.
    """

    fits: tuple[str, ...]
    late: dict[str, float]
    unknown: tuple[str, ...]
    spare: float
    devices: int | None
    equal: tuple[EqualWork, ...] = ()

    @property
    def more_time(self) -> float:
        """Minimum seconds to add to every deadline so that all jobs fit; inf if nothing would do."""
        return max(0.0, -self.spare)

    def lines(self) -> list[str]:
        """Return the report in words: a line for all jobs, one for each that does not fit, and those of unknown work.

        Example::

            >>> check_feasibility([JobRequest("a", 50.0, 60.0), JobRequest("b", 30.0, 70.0)], devices=1).lines()
            ['1 of 2 fits; 10 more seconds or one more device would do', 'a: a deadline of 80.0s would do']
        """
        known = len(self.fits) + len(self.late)
        if not known:
            first = "the work of no job is known"
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
        return lines + (self._unknown_lines() if self.unknown else [])

    def _unknown_lines(self) -> list[str]:
        """Return what can be said of jobs of unknown work: how long each may take, and what if they take longer."""
        one = len(self.unknown) == 1
        names, each = listed(self.unknown), "it takes" if one else "each takes"
        if not self.equal:
            return [f"{names}: of unknown work; the others leave no time for {'it' if one else 'them'}", UNKNOWN]
        most, half, twice = self.equal
        number = len(self.fits) + len(self.late) + len(self.unknown)
        return [
            f"{names}: of unknown work; {'fits' if one else 'all fit'} if {each} at most {_floor(most.work)}",
            f"if {each} half as long, {_floor(half.work)}: {_floor(half.spare)} to spare",
            f"if {each} twice as long, {_floor(twice.work)}: {len(twice.fits)} of {number} fit"
            + (f": {listed(twice.fits)}" if twice.fits else ""),
            UNKNOWN,
        ]

    def _help(self) -> str:
        ways = []
        if math.isfinite(self.spare):
            ways.append(_more(self.more_time))
        if self.devices:
            ways.append("one more device" if self.devices == 1 else f"{self.devices} more devices")
        return f"{' or '.join(ways)} would do" if ways else "neither more time nor more devices would do"


def check_feasibility(jobs: Iterable[JobRequest], devices: int) -> FeasibilityReport:
    """Check whether the jobs fit the pool, and what would make them fit.

    Jobs are taken by deadline. Whenever one would be late, the admitted job with the most device-seconds for its weight
    is dropped; at the end the dropped jobs that still fit are added back, heaviest first. On one device, with equal
    weights and without ``not_before``, no other choice fits more jobs (Moore and Hodgson, 1968).

    Args:
        jobs: Jobs in the order of submission.
        devices: Devices of the pool.

    Raises:
        ValueError: If ``devices`` is below 1.

    Example::

        >>> jobs = [JobRequest("a", 50.0, 60.0), JobRequest("b", 30.0, 70.0), JobRequest("c", None, 9.0)]
        >>> answer = check_feasibility(jobs, devices=1)
        >>> answer.fits, answer.late, answer.unknown, answer.more_time, answer.devices
        (('b',), {'a': 80.0}, ('c',), 10.0, 1)
    """
    if devices < 1:
        raise ValueError(f"devices must be at least 1, got {devices}")
    jobs = list(jobs)
    known = _by_deadline(job for job in jobs if job.work is not None)
    spare = _spare(known, devices)
    kept = known if spare >= 0 else _kept(known, devices)
    unknown = [job for job in jobs if job.work is None]
    return FeasibilityReport(
        fits=tuple(job.name for job in jobs if job in kept),
        late={job.name: _min_deadline(job, kept, devices) for job in known if job not in kept},
        unknown=tuple(job.name for job in unknown),
        spare=spare,
        devices=_more_devices(known, devices),
        equal=_equal_work(jobs, kept, devices),
    )


def preemptive_completion_times(jobs: Sequence[JobRequest], devices: int) -> list[float]:
    """Return when each job ends if devices are allocated in this order at every moment; inf if it exceeds the pool.

    Args:
        jobs: Jobs of known work, the first to be served first.
        devices: Devices of the pool.

    Example::

        >>> jobs = [JobRequest("a", 4.0, 9.0), JobRequest("b", 5.0, 9.0, size=2), JobRequest("c", 3.0, 9.0)]
        >>> preemptive_completion_times(jobs, devices=2)
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
            if jobs[row].not_before > now:
                later = min(later, jobs[row].not_before)
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
    """Return the minimum spare time of jobs ordered by deadline; rounding errors count as 0."""
    spare = [job.deadline - end for job, end in zip(jobs, preemptive_completion_times(jobs, devices), strict=True)]
    lowest = min(spare, default=math.inf)
    return 0.0 if abs(lowest) <= EPSILON * max((job.deadline for job in jobs), default=0.0) else lowest


def _equal_work(jobs: Sequence[JobRequest], kept: Sequence[JobRequest], devices: int) -> tuple[EqualWork, ...]:
    """Return the largest equal work of the unknown jobs with which all fit, then the outcomes of half and twice that.

    On several devices less work may fit worse (Graham, 1969): what is found fits, but more might too.
    """
    unknown = [job for job in jobs if job.work is None]

    def with_work(seconds: float) -> list[JobRequest]:
        return _by_deadline([*kept, *(job._replace(work=seconds) for job in unknown)])

    limit = min((job.deadline - job.not_before for job in unknown), default=0.0)
    low, high = 0.0, limit
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _spare(with_work(middle), devices) >= 0 else (low, middle)
    if low <= 1e-6 * limit or not math.isfinite(low):
        return ()
    outcomes = []
    for seconds in (low, low / 2, 2 * low):
        fits = _kept(with_work(seconds), devices)
        names = {job.name for job in fits}
        outcomes.append(EqualWork(seconds, tuple(job.name for job in jobs if job.name in names), _spare(fits, devices)))
    return tuple(outcomes)


def _kept(jobs: Sequence[JobRequest], devices: int) -> list[JobRequest]:
    kept: list[JobRequest] = []
    for job in jobs:
        kept.append(job)
        while kept and _spare(kept, devices) < 0:
            kept.remove(max(kept, key=_cost))
    for job in sorted((job for job in jobs if job not in kept), key=lambda job: (-job.weight, _cost(job))):
        if _spare(_by_deadline([*kept, job]), devices) >= 0:
            kept = _by_deadline([*kept, job])
    return kept


def _cost(job: JobRequest) -> float:
    return (job.work or 0.0) * job.size / job.weight


def _min_deadline(job: JobRequest, kept: Sequence[JobRequest], devices: int) -> float:
    """Return the minimum deadline at which a job fits beside the kept ones; inf if none does.

    A deadline matters only through its rank among the others, so each rank is tried.
    """
    for rank in range(len(kept) + 1):
        order = [*kept[:rank], job, *kept[rank:]]
        before = kept[rank - 1] if rank else None
        deadline = max(
            job.deadline, preemptive_completion_times(order, devices)[rank], before.deadline if before else 0.0
        )
        if before and deadline == before.deadline and (job.work or 0.0) < (before.work or 0.0):
            deadline *= 1 + 2 * EPSILON  # of two jobs due at once the shorter goes first, and this one must not
        later = job._replace(deadline=deadline)
        together = _by_deadline([*kept, later])
        if together[rank] is later and _spare(together, devices) >= 0:
            return deadline
    return math.inf


def _more_devices(jobs: Sequence[JobRequest], devices: int) -> int | None:
    """Return the fewest additional devices; beyond the total demand there is no queue, and more would not help."""
    total = max(devices, sum(job.size for job in jobs))
    if _spare(jobs, total) < 0:
        return None
    return next((more for more in range(total - devices + 1) if _spare(jobs, devices + more) >= 0), None)


def _more(seconds: float) -> str:
    """Return an amount of additional time in words, rounded up because less would not do."""
    seconds = math.ceil(seconds * (1 - EPSILON))
    if seconds < 120:
        return f"{seconds} more second{'' if seconds == 1 else 's'}"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} more minutes" if minutes < 120 else f"{format_duration(_rounded_up(seconds))} more"


def _rounded_up(seconds: float) -> float:
    """Round up to the precision that is shown."""
    step = 1 if seconds < 3600 else 60 if seconds < 86400 else 3600
    return step * math.ceil(seconds * (1 - EPSILON) / step)


def _floor(seconds: float) -> str:
    """Return a duration in words, rounded down to what is shown because more would not do."""
    step = 0.1 if seconds < 99.95 else 1 if seconds < 3600 else 60 if seconds < 86400 else 3600
    return format_duration(step * math.floor(seconds / step + 1e-6))  # the search is not exact
