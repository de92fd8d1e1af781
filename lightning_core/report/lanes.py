"""Lanes of the devices: the share of each device that each job held over time.

While several train on a device at once, the share that they have together is divided by the work that each does.

Few boxes are kept as they were. Where there are more than a page can hold, a lane has the mean share of each job over
columns of equal width, of the jobs that held the device longest; the others are taken together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.report.svg import steps

# Jobs of a lane that has too many boxes, and the first number of its columns.
MAX_COLOURED, COLUMNS = 16, 1000
# Index of all jobs that are taken together.
OTHERS = -1

Stretch = tuple[float, float, float, float]
"""Start and end in seconds, lower and upper edge as shares of the device."""
Lane = Mapping[int, list[Stretch]]
"""The stretches of each job, by its index."""


class Span(NamedTuple):
    """The time that lanes show, in seconds."""

    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start

    def at(self, time: float) -> float:
        """Return where a time lies: 0 at the start, 1 at the end, and within them in any case."""
        return (min(max(time, self.start), self.end) - self.start) / self.length

    def part(self, since: float, until: float) -> float:
        """Return which part of the span a stretch takes."""
        return max(self.at(until) - self.at(since), 0.0)

    def of(self, lane: Lane) -> dict[int, list[Stretch]]:
        """Return the part within the span of a lane."""
        found = {
            index: [
                (max(since, self.start), min(until, self.end), low, high)
                for since, until, low, high in stretches
                if since < self.end and until > self.start
            ]
            for index, stretches in lane.items()
        }
        return {index: stretches for index, stretches in found.items() if stretches}


def lanes(history: History) -> list[dict[int, list[Stretch]]]:
    """Return, for each device, the stretches for which each job held it, by the index of the job."""
    changes: list[dict[float, dict[int, float]]] = [defaultdict(dict) for _ in range(history.settings.devices)]
    for index, job in enumerate(history.jobs):
        end = history.last if job.ended is None else job.ended
        levels: dict[int, list[tuple[float, float]]] = defaultdict(list)
        afters = [*(held.time for held in job.grants[1:]), end]
        for held, after in zip(job.grants, afters, strict=False):
            for device in held.devices:
                levels[device] += [*_owned(job, held.time, after), (after, 0.0)]
        for device, found in levels.items():
            for since, until, share in steps(found, end) if device < len(changes) else ():
                if share > 0:
                    changes[device][since][index] = share
                    changes[device][until].setdefault(index, 0.0)
    return [_stacked(found) for found in changes]


def _owned(job: JobHistory, since: float, until: float) -> list[tuple[float, float]]:
    """Return the share that counts as a job's own between two times, each with its start."""
    first = job.owned_at(since)
    start = bisect_right(job.owned, since, key=lambda one: one.time)
    end = bisect_left(job.owned, until, key=lambda one: one.time)
    return [(since, 0.0 if first is None else first.share), *((one.time, one.share) for one in job.owned[start:end])]


def company(job: JobHistory, last: float, gap: float = 0.0) -> list[tuple[float, float]]:
    """Return the stretches of time in which a job trained at the same time as others on its device.

    Args:
        job: The job.
        last: Time of the last event.
        gap: Seconds between two stretches that are told apart.
    """
    found: list[tuple[float, float]] = []
    end = last if job.ended is None else job.ended
    for one, until in zip(job.owned, [*(one.time for one in job.owned), end][1:], strict=True):
        if one.beside and until > one.time:
            if found and one.time <= found[-1][1] + gap:
                found[-1] = found[-1][0], until
            else:
                found.append((one.time, until))
    return found


def overlap(stretches: Iterable[Stretch], times: Sequence[tuple[float, float]]) -> list[Stretch]:
    """Return the parts of stretches that lie within times, which are in order."""
    found: list[Stretch] = []
    for since, until, low, high in stretches:
        first = bisect_right(times, since, key=lambda time: time[1])
        last = bisect_left(times, until, key=lambda time: time[0])
        found += [(max(since, begin), min(until, end), low, high) for begin, end in times[first:last]]
    return found


def _stacked(changes: Mapping[float, Mapping[int, float]]) -> dict[int, list[Stretch]]:
    """Return the stretches of a device, those of one time on top of each other.

    Args:
        changes: Shares of all jobs from each time on, by time.
    """
    found: dict[int, list[Stretch]] = defaultdict(list)
    holding: dict[int, float] = {}
    for since, until in pairwise(sorted(changes)):
        for index, share in changes[since].items():
            if share > 0:
                holding[index] = share
            else:
                holding.pop(index, None)
        base = 0.0
        for index in sorted(holding):
            top = base + holding[index]
            mine = found[index]
            if mine and mine[-1][1:] == (since, base, top):
                mine[-1] = (mine[-1][0], until, base, top)
            else:
                mine.append((since, until, base, top))
            base = top
    return found


def thinned(lane: Lane, end: float, max_boxes: int, start: float = 0.0) -> Lane:
    """Return a lane with at most about ``max_boxes`` stretches: the mean shares over columns of equal width.

    Args:
        lane: Stretches of each job.
        end: Time at which the lane ends.
        max_boxes: Maximum number of stretches, at least 64.
        start: Time at which it begins.
    """
    if count_boxes(lane) <= max_boxes:
        return lane
    held = {index: seconds_held(stretches) for index, stretches in lane.items()}
    longest = sorted(held, key=lambda index: -held[index])
    groups = {index: [index] for index in sorted(longest[:MAX_COLOURED])}
    if len(longest) > MAX_COLOURED:
        groups[OTHERS] = longest[MAX_COLOURED:]
    columns = COLUMNS
    while True:
        edges = np.linspace(start, end, columns + 1)
        base, found = np.zeros(columns), dict[int, list[Stretch]]()
        for index, jobs in groups.items():
            top = base + sum(_mean_shares(lane[job], edges) for job in jobs)
            found[index] = _runs(edges, np.round(base, 2), np.round(top, 2))
            base = top
        if count_boxes(found) <= max_boxes or columns <= 2:
            return found
        columns //= 2


def count_boxes(lane: Lane) -> int:
    """Return the number of stretches of a lane."""
    return sum(map(len, lane.values()))


def seconds_held(stretches: Iterable[Stretch]) -> float:
    """Return the seconds of a device that stretches take."""
    return sum((until - since) * (high - low) for since, until, low, high in stretches)


def _mean_shares(stretches: list[Stretch], edges: FloatArray) -> FloatArray:
    """Return the mean share between every two edges, shape ``(len(edges) - 1,)``."""
    parts = np.array(stretches)
    times = parts[:, :2].ravel()
    taken = np.cumsum((parts[:, 1] - parts[:, 0]) * (parts[:, 3] - parts[:, 2]))
    sums = np.column_stack([np.append(0.0, taken[:-1]), taken]).ravel()
    means: FloatArray = np.diff(np.interp(edges, times, sums)) / np.diff(edges)
    return means


def _runs(edges: FloatArray, base: FloatArray, top: FloatArray) -> list[Stretch]:
    """Return columns as stretches, equal neighbours merged and empty ones left out."""
    starts = np.flatnonzero(np.append(True, (np.diff(base) != 0) | (np.diff(top) != 0)))
    ends = np.append(starts[1:], len(base))
    return [
        (float(edges[start]), float(edges[stop]), float(base[start]), float(top[start]))
        for start, stop in zip(starts.tolist(), ends.tolist(), strict=True)
        if top[start] > base[start]
    ]


def use(history: History) -> float:
    """Return the fraction of all device time that was granted, 0 to 1, from the first submission to the end."""
    granted = 0.0
    for job in history.jobs:
        end = history.last if job.ended is None else job.ended
        levels = [(held.time, held.share * len(held.devices)) for held in job.grants]
        granted += sum((until - since) * devices for since, until, devices in steps(levels, end))
    start = min((job.submitted for job in history.jobs), default=0.0)
    return granted / max((history.wall - start) * history.settings.devices, 1e-9)
