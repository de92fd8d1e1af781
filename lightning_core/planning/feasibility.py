"""Feasibility: do jobs of known work fit a pool in time, and what would make them fit? Pure.

The answer follows what the pool would do with the given work: devices go to the earliest deadline first, a job takes
all of its devices or waits, and a later job uses the gap and is moved aside when the gap closes. On one device no
other schedule meets deadlines that this one misses (Jackson, 1955; with ``not_before``: Horn, 1974). On several devices
another schedule might, but the pool would not follow it.

Where devices are of several kinds, each job is placed on one of them as the pool would place it
(:mod:`lightning_core.planning.kinds`), and each kind is a pool of its own. What would do then does, and less might too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lightning_core.core.durations import format_duration
from lightning_core.core.names import listed
from lightning_core.planning.kinds import KindNeeds, in_time

# Relative error up to which sums of seconds count as equal.
EPSILON = 1e-9
# Advice where the work of some jobs is unknown.
UNKNOWN = (
    "to learn more: --try 20s trains each job for a moment; or give a job `work: 40m`, or name runs with --history DIR"
)
# Halvings of the interval in which the equal work of the jobs of unknown work is sought.
HALVINGS = 50

Devices = int | Mapping[str, int]
"""Number of devices, or that of each kind."""
NO_PACES: Mapping[str, float] = {}
# Of more jobs than this, none is moved to another kind to make room: it would take too long.
MAX_SWAPPED = 20


class JobRequest(NamedTuple):
    """A job as far as feasibility goes.

    Attributes:
        name: Name of the job.
        work: Seconds alone on its devices, of the fastest kind that it may be on; None if unknown.
        deadline: Seconds from submission.
        size: Number of devices.
        weight: Relative importance when not all deadlines can be met.
        not_before: Earliest start in seconds from submission.
        paces: How fast it is on each kind of devices that differ, as a fraction of the fastest that it may be on.
        kinds: Kinds that it may be on; empty for any.
    """

    name: str
    work: float | None
    deadline: float
    size: int = 1
    weight: float = 1.0
    not_before: float = 0.0
    paces: Mapping[str, float] = NO_PACES
    kinds: tuple[str, ...] = ()

    def may_be_on(self, kind: str) -> bool:
        """Return whether it may be on a kind of devices."""
        return not self.kinds or kind in self.kinds

    def on(self, kind: str) -> JobRequest:
        """Return the job with the work that it has on a kind of devices."""
        return self._replace(work=None if self.work is None else self.work / self.paces[kind])


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
        more: Fewest additional devices of each kind with which all jobs would fit, without the kinds of which no number
            would do; of a pool of several kinds.
        on: Kind of devices on which each fitting job is.
        late_on: Kind on which each other job would be with its deadline in ``late``.
        excluded: Kind on which a job that does not fit would, if its ``kinds`` did not exclude it.
    """

    fits: tuple[str, ...]
    late: dict[str, float]
    unknown: tuple[str, ...]
    spare: float
    devices: int | None
    equal: tuple[EqualWork, ...] = ()
    more: Mapping[str, int] = field(default_factory=dict)
    on: Mapping[str, str] = field(default_factory=dict)
    late_on: Mapping[str, str] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)

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
        for kind in dict.fromkeys(self.on.values()):
            lines.append(f"on {kind}: {listed([name for name, its in self.on.items() if its == kind])}")
        for name, deadline in self.late.items():
            if math.isfinite(deadline):
                on = f" on {self.late_on[name]}" if name in self.late_on else ""
                words = f"a deadline of {format_duration(_rounded_up(deadline))} would do{on}"
            else:
                words = "needs more devices than there are" + (" of one kind" if self.late_on else "")
            if name in self.excluded:
                words += f"; in time on {self.excluded[name]}, which its kinds exclude"
            lines.append(f"{name}: {words}")
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
        ways += [f"{'one' if number == 1 else number} more {kind}" for kind, number in self.more.items()]
        if not ways:
            return "neither more time nor more devices would do"
        return f"{' or '.join([', '.join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)} would do"


def check_feasibility(jobs: Iterable[JobRequest], devices: Devices) -> FeasibilityReport:
    """Check whether the jobs fit the pool, and what would make them fit.

    Jobs are taken by deadline. Whenever one would be late, the admitted job with the most device-seconds for its weight
    is dropped; at the end the dropped jobs that still fit are added back, heaviest first. On one device, with equal
    weights and without ``not_before``, no other choice fits more jobs (Moore and Hodgson, 1968).

    Args:
        jobs: Jobs in the order of submission.
        devices: Devices of the pool; of each kind if they differ.

    Raises:
        ValueError: If ``devices`` is below 1.

    Example::

        >>> jobs = [JobRequest("a", 50.0, 60.0), JobRequest("b", 30.0, 70.0), JobRequest("c", None, 9.0)]
        >>> answer = check_feasibility(jobs, devices=1)
        >>> answer.fits, answer.late, answer.unknown, answer.more_time, answer.devices
        (('b',), {'a': 80.0}, ('c',), 10.0, 1)
        >>> jobs = [JobRequest(name, 50.0, 60.0, paces={"a100": 1.0, "t4": 0.25}) for name in "ab"]
        >>> for line in check_feasibility(jobs, {"a100": 1, "t4": 1}).lines():
        ...     print(line)
        1 of 2 fits; 40 more seconds or one more a100 would do
        on a100: b
        a: a deadline of 1m40s would do on a100
    """
    jobs = list(jobs)
    if isinstance(devices, Mapping):
        return _check_kinds(jobs, devices)
    if devices < 1:
        raise ValueError(f"devices must be at least 1, got {devices}")
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


def _equal_work(jobs: Sequence[JobRequest], kept: Sequence[JobRequest], devices: Devices) -> tuple[EqualWork, ...]:
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
        low, high = (middle, high) if _fit(with_work(middle), devices) else (low, middle)
    if low <= 1e-6 * limit or not math.isfinite(low):
        return ()
    outcomes = []
    for seconds in (low, low / 2, 2 * low):
        if isinstance(devices, Mapping):
            fits, _, spare = _placed(with_work(seconds), devices)
            names = set(fits)
        else:
            kept_then = _kept(with_work(seconds), devices)
            names, spare = {job.name for job in kept_then}, _spare(kept_then, devices)
        outcomes.append(EqualWork(seconds, tuple(job.name for job in jobs if job.name in names), spare))
    return tuple(outcomes)


def _fit(jobs: Sequence[JobRequest], devices: Devices) -> bool:
    """Return whether all jobs fit."""
    return len(_placed(jobs, devices).on) == len(jobs) if isinstance(devices, Mapping) else _spare(jobs, devices) >= 0


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


# ------------------------------------------------------------------------------------------------ several kinds


class _Placed(NamedTuple):
    """Jobs that fit together on several kinds of devices."""

    on: dict[str, str]
    """Kind of each, by name."""
    at: dict[str, list[JobRequest]]
    """Those on each kind, by deadline, as they are there."""
    spare: float
    """Minimum spare time."""


def _placed(jobs: Sequence[JobRequest], devices: Mapping[str, int]) -> _Placed:
    """Place jobs on kinds as the pool would, then those that do not fit there where they do."""
    kinds = tuple(devices)
    at: dict[str, list[JobRequest]] = {kind: [] for kind in kinds}
    if jobs:
        for job, kind in zip(jobs, in_time(_needs(jobs, devices)).kind.tolist(), strict=True):
            if kind >= 0:
                at[kinds[kind]].append(job.on(kinds[kind]))
    at = {kind: _kept(_by_deadline(its), devices[kind]) for kind, its in at.items()}
    fits = {job.name for its in at.values() for job in its}
    left = sorted((job for job in jobs if job.name not in fits), key=lambda job: (-job.weight, _cost(job)))
    for job in left:
        _add(job, at, devices) or (len(jobs) <= MAX_SWAPPED and _swap(job, jobs, at, devices))
    on = {job.name: kind for kind, its in at.items() for job in its}
    spare = min(_spare(its, devices[kind]) for kind, its in at.items())
    return _Placed({job.name: on[job.name] for job in jobs if job.name in on}, at, spare)


def _needs(jobs: Sequence[JobRequest], devices: Mapping[str, int]) -> KindNeeds:
    n = len(jobs)
    work = [[job.on(kind).work if job.may_be_on(kind) else math.inf for kind in devices] for job in jobs]
    return KindNeeds(
        work=np.array(work, np.float64),
        slack=np.array([job.deadline for job in jobs], np.float64),
        size=np.array([job.size for job in jobs], np.int64),
        weight=np.array([job.weight for job in jobs], np.float64),
        devices=np.array([*devices.values()], np.int64),
        kind=np.full(n, -1),
        move=np.zeros(n),
    )


def _add(job: JobRequest, at: dict[str, list[JobRequest]], devices: Mapping[str, int]) -> bool:
    """Add a job on the fastest kind where it fits beside the others; return whether there is one."""
    for kind in sorted(filter(job.may_be_on, devices), key=lambda kind: -job.paces[kind]):
        together = _by_deadline([*at[kind], job.on(kind)])
        if _spare(together, devices[kind]) >= 0:
            at[kind] = together
            return True
    return False


def _swap(
    job: JobRequest, jobs: Sequence[JobRequest], at: dict[str, list[JobRequest]], devices: Mapping[str, int]
) -> bool:
    """Add a job in place of another, which fits on another kind; return whether there is one."""
    for kind in filter(job.may_be_on, devices):
        for other in at[kind]:
            moved = next(one for one in jobs if one.name == other.name)
            elsewhere = tuple(one for one in devices if one != kind and moved.may_be_on(one))
            together = _by_deadline([*(one for one in at[kind] if one is not other), job.on(kind)])
            rest = at | {kind: together}
            if (
                elsewhere
                and _spare(together, devices[kind]) >= 0
                and _add(moved._replace(kinds=elsewhere), rest, devices)
            ):
                at.update(rest)
                return True
    return False


def _check_kinds(jobs: Sequence[JobRequest], devices: Mapping[str, int]) -> FeasibilityReport:
    """Check whether the jobs fit a pool of several kinds; see :func:`check_feasibility`."""
    if not devices or min(devices.values()) < 1:
        raise ValueError(f"devices must be at least 1 of each kind, got {dict(devices)}")
    known = [job for job in jobs if job.work is not None]
    placed = _placed(known, devices)
    late = _by_deadline(job for job in known if job.name not in placed.on)
    deadlines = {
        job.name: min((_min_deadline(job.on(kind), placed.at[kind], devices[kind]), kind)
                      for kind in filter(job.may_be_on, devices))
        for job in late
    }  # fmt: skip
    return FeasibilityReport(
        fits=tuple(placed.on),
        late={name: deadline for name, (deadline, _) in deadlines.items()},
        unknown=tuple(job.name for job in jobs if job.work is None),
        spare=-_lacking(known, devices) if late else placed.spare,
        devices=None if late else 0,
        equal=_equal_work(jobs, [job for job in known if job.name in placed.on], devices),
        more={kind: more for kind in devices if (more := _more_of(kind, known, devices))} if late else {},
        on=placed.on,
        late_on={name: kind for name, (_, kind) in deadlines.items()},
        excluded={job.name: kind for job in late if (kind := _excluded(job, placed, devices))},
    )


def _excluded(job: JobRequest, placed: _Placed, devices: Mapping[str, int]) -> str:
    """Return the kind on which a job would fit that may not be there; empty if there is none."""
    at = dict(placed.at)
    return next((kind for kind in devices if not job.may_be_on(kind)
                 and _add(job._replace(kinds=(kind,)), at, devices)), "")  # fmt: skip


def _lacking(jobs: Sequence[JobRequest], devices: Mapping[str, int]) -> float:
    """Return seconds that would do if every deadline were later by them, as few as are found; inf if none would."""
    low, high = 0.0, 2.0 * sum(job.work or 0.0 for job in jobs) + max(job.not_before for job in jobs)
    if len((placed := _placed(_later(jobs, high), devices)).on) < len(jobs):
        return math.inf
    high -= placed.spare
    while high - low > 1e-4 * high:
        placed = _placed(_later(jobs, middle := (low + high) / 2), devices)
        if len(placed.on) == len(jobs):
            high = middle - placed.spare
        else:
            low = middle
    return high


def _later(jobs: Sequence[JobRequest], seconds: float) -> list[JobRequest]:
    return [job._replace(deadline=job.deadline + seconds) for job in jobs]


def _more_of(kind: str, jobs: Sequence[JobRequest], devices: Mapping[str, int]) -> int | None:
    """Return the fewest additional devices of a kind with which all jobs fit; None if no number would do."""
    total = sum(job.size for job in jobs if job.may_be_on(kind))
    enough = (more for more in range(1, total + 1) if _fit(jobs, {**devices, kind: devices[kind] + more}))
    return next(enough, None) if total and _fit(jobs, {**devices, kind: devices[kind] + total}) else None


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
