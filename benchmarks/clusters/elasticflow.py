"""ElasticFlow's policy for jobs with deadlines, as a policy of our scheduler.

It knows all that ours knows: the throughputs, the progress of each job, and the cost of a restart. Two things differ
from what its authors published (``ElasticFlow/scheduler/scheduler.py`` of pkusys/ElasticFlow):

- Its admission is better. Theirs collects the events of 60 s and then admits all jobs that arrived in them or none;
  here each job is decided on when it arrives.
- Its filling is worse. Theirs goes back from the deadline to the step from which on a quota suffices, and uses the next
  smaller quota before that step; here one quota holds all the time. The row that is filled backwards does as theirs.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index


class Known(NamedTuple):
    """The present state of a job.

    Args:
        left: Batches left, extrapolated from its last report.
        holds: Devices that it has, 0 if none.
        lag: Seconds until it trains, if it is restarting.
        move: Seconds that it loses by a change of its number of devices.
        sizes: Numbers of devices, without those that are no faster than a smaller one.
        throughputs: Batches per second on each number of devices.
        deadline: Deadline in scheduler time.
    """

    left: float
    holds: int
    lag: float
    move: float
    sizes: tuple[int, ...]
    throughputs: tuple[float, ...]
    deadline: float

    def next_size(self, size: int) -> int:
        """Return the next larger size; 0 if there is none."""
        at = bisect_right(self.sizes, size)
        return self.sizes[at] if at < len(self.sizes) else 0

    def largest(self, free: int) -> int:
        """Return the largest size that fits on the free devices; 0 if none."""
        at = bisect_right(self.sizes, free)
        return self.sizes[at - 1] if at else 0

    def end(self, devices: int, now: float) -> float:
        """Return when it ends if it has this many devices from now on."""
        wait = self.lag if devices == self.holds else self.move
        return now + wait + self.left / self.throughputs[self.sizes.index(devices)]


def known(jobs: JobView, row: int, usable: tuple[tuple[int, ...], tuple[float, ...]], now: float) -> Known:
    """Return the present state of a job, extrapolated to ``now``."""
    speedup, holds, heard = jobs.speedup[row], round(float(jobs.held_devices[row])), float(jobs.reported_at[row])
    begun, move = int(jobs.batches[row]) > 0, float(jobs.resize_seconds[row])
    left, arrives = float(jobs.remaining[row]), heard
    if holds and begun and heard <= jobs.trained_since[row]:  # it is restarting
        arrives = min(float(jobs.trained_since[row]), now) + move
    if holds:
        left = max(left - speedup.throughput(holds) * max(now - arrives, 0.0), 1e-6)
    lag = max(arrives - now, 0.0)
    return Known(left, holds, lag, move if begun else 0.0, *usable, float(jobs.deadline[row]))


def plan_of_sizes(jobs: JobView, sizes: Sequence[int], finish: Sequence[float], again: float) -> Plan:
    """Allocate a number of devices to each job, 0 for none; jobs that keep their number first, growing ones last."""
    size, holds = np.array(sizes), np.round(jobs.held_devices)
    rank = np.where(size == 0, 3, np.where(size == holds, 0, np.where(size < holds, 1, 2)))
    n = len(size)
    return Plan(
        order=np.lexsort((jobs.deadline, rank)),
        share=(size > 0).astype(float),
        finish=np.array(finish),
        codes=np.full(n, index("on_ramp")),
        waiting=np.full(n, index("no_room")),
        numbers=np.zeros((n, 2)),
        work_conserving=False,
        size=np.maximum(size, [min(speed.sizes) for speed in jobs.speedup]),
        replan_at=again,
    )


class Slots:
    """Free devices as a step function of time."""

    def __init__(self, now: float, devices: int) -> None:
        self.times, self.free = [now], [devices]

    def reserve(
        self, job: Known, quota: int, at_first: int = 0, until: float = -math.inf
    ) -> list[tuple[float, float, int]] | None:
        """Return when the job has how many devices, up to a quota or what is free; None if it would be late.

        Args:
            job: Job to reserve for.
            quota: Maximum number of devices.
            at_first: The same of the steps that begin before ``until``.
            until: Time from which on ``quota`` is the maximum.
        """
        sizes, throughputs, times, free = job.sizes, job.throughputs, self.times, self.free
        left, before, lag, reserved = job.left, job.holds, job.lag, list[tuple[float, float, int]]()
        last, deadline = len(times) - 1, job.deadline
        for at, begin in enumerate(times):
            if begin >= deadline:
                break
            stop = deadline if at == last or times[at + 1] > deadline else times[at + 1]
            most = at_first if begin < until else quota
            k = bisect_right(sizes, free[at] if free[at] < most else most) - 1
            if k < 0:
                before = 0
                continue
            size = sizes[k]
            start = begin + (lag if size == before else job.move)
            done = start + left / throughputs[k]
            if done <= stop:
                reserved.append((begin, done, size))
                return reserved
            reserved.append((begin, stop, size))
            if stop > start:
                left -= (stop - start) * throughputs[k]
                lag = 0.0
            else:
                lag = start - stop
            before = size
        return None

    def reserve_min(self, job: Known, now: float, *, backwards: bool = False) -> list[tuple[float, float, int]] | None:
        """Return the reservation of the smallest quota with which it is on time; None if there is none.

        Args:
            job: Job to reserve for.
            now: Scheduler time.
            backwards: Whether to fill backwards from the deadline, as ElasticFlow's code does: the job has the quota
                only from the latest step on from which it does all the work in time, restarts not counted, and the
                next smaller quota before that step.
        """
        smaller = 0
        for quota, throughput in zip(job.sizes, job.throughputs, strict=True):
            if now + job.left / throughput <= job.deadline:
                until = self._suffices_from(job, quota) if backwards and smaller else -math.inf
                if until > now and (way := self.reserve(job, quota, smaller, until)) is not None:
                    return way
                if (way := self.reserve(job, quota)) is not None:
                    return way
            smaller = quota
        return None

    def _suffices_from(self, job: Known, quota: int) -> float:
        """Return the latest step from which on this quota does all the work by the deadline; -inf if none does."""
        left, stop = job.left, job.deadline
        for begin, free in zip(reversed(self.times), reversed(self.free), strict=True):
            if begin < stop:
                if size := job.largest(min(quota, free)):
                    left -= (stop - begin) * job.throughputs[job.sizes.index(size)]
                if left <= 0:
                    return begin
                stop = begin
        return -math.inf

    def claim(self, reserved: Sequence[tuple[float, float, int]]) -> None:
        """Subtract a reservation from the free devices."""
        for begin, end, devices in reserved:
            first, last = self._cut(begin), self._cut(end)
            for at in range(first, last):
                self.free[at] -= devices

    def _cut(self, when: float) -> int:
        at = bisect_left(self.times, when)
        if at == len(self.times) or self.times[at] != when:
            self.times.insert(at, when)
            self.free.insert(at, self.free[at - 1])
        return at


class ElasticFlowLike:
    """ElasticFlow (ASPLOS 2023): admitted jobs keep a guarantee, and idle devices go where they save the most GPU time.

    - A job is admitted on arrival if it and all admitted before it fit by progressive filling in deadline order;
      otherwise it is dropped. An admitted job takes the smallest number of devices with which it is on time, its
      minimum satisfactory share.
    - Idle devices go, one size at a time, to the admitted job whose GPU time falls most per device.
    - Needless restarts, which cost only seconds in the paper, are avoided: restarts are counted in the filling, a job
      keeps more than its share while no other job needs it, and it grows only if it then ends earlier.

    Args:
        backwards: Whether reservations are filled backwards from the deadline, as in ElasticFlow's own code
            (:meth:`Slots.reserve_min`), instead of forwards with one quota.
    """

    chooses_sizes = True

    def __init__(self, backwards: bool = False) -> None:
        self.backwards = backwards
        self._admitted: dict[int, bool] = {}

    def plan(self, jobs: JobView, now: float) -> Plan:
        n, ids = len(jobs), jobs.row.tolist()
        what = [known(jobs, row, speed.useful(), now) for row, speed in enumerate(jobs.speedup)]
        self._admitted = {id_: self._admitted[id_] for id_ in ids if id_ in self._admitted}
        inside = [row for row in range(n) if self._admitted.get(ids[row], False)]
        reserved = self._fill(what, inside, jobs.devices, now)
        for row in range(n):
            if ids[row] not in self._admitted:
                more = self._fill(what, [*inside, row], jobs.devices, now)
                safe = row in more and all(other in more for other in reserved)
                self._admitted[ids[row]] = safe
                if safe:
                    inside, reserved = [*inside, row], more
        sizes = [0] * n
        for row, stretches in reserved.items():
            begin, _, size = stretches[0]
            sizes[row] = size if begin <= now else 0
        free = jobs.devices - sum(sizes)
        for row in sorted(inside, key=lambda row: (row in reserved, what[row].deadline)):
            if row not in reserved:  # its guarantee broke: it takes what it can use
                sizes[row] = what[row].largest(free)
                free -= sizes[row]
            elif sizes[row] < what[row].holds <= sizes[row] + free and what[row].holds in what[row].sizes:
                free -= what[row].holds - sizes[row]
                sizes[row] = what[row].holds
        self._spend(what, inside, sizes, free, now)
        ends = [job.end(size, now) if size else math.nan for job, size in zip(what, sizes, strict=True)]
        changes = (when for way in reserved.values() for begin, end, _ in way for when in (begin, end) if when > now)
        return plan_of_sizes(jobs, sizes, ends, min(changes, default=math.inf))

    def _fill(
        self, what: Sequence[Known], rows: Sequence[int], devices: int, now: float
    ) -> dict[int, list[tuple[float, float, int]]]:
        """Return the reservations of the jobs that can be on time, in deadline order."""
        slots, reserved = Slots(now, devices), {}
        for row in sorted(rows, key=lambda row: (what[row].deadline, row)):
            if (way := slots.reserve_min(what[row], now, backwards=self.backwards)) is not None:
                slots.claim(way)
                reserved[row] = way
        return reserved

    @staticmethod
    def _spend(what: Sequence[Known], rows: Sequence[int], sizes: list[int], free: int, now: float) -> None:
        def gain(row: int) -> tuple[float, int]:
            """Return the GPU time saved per additional device, and the larger size."""
            job, size = what[row], sizes[row]
            more = job.next_size(size)
            if not more or more - size > free:
                return -math.inf, 0
            if not size:
                return math.inf, more
            end, sooner = job.end(size, now), job.end(more, now)
            if sooner >= end:
                return -math.inf, 0
            return (size * (end - now) - more * (sooner - now)) / (more - size), more

        while free and rows:
            best = max(rows, key=lambda row: (gain(row)[0], -what[row].deadline))
            saved, more = gain(best)
            if saved == -math.inf:
                return
            free -= more - sizes[best]
            sizes[best] = more
