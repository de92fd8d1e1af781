"""What others published for jobs with deadlines on a cluster, written anew as policies of our scheduler.

Each is given all that ours knows: the rates, how far each job is, and what a restart costs.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.planning.sequencing import completion_times


class Known(NamedTuple):
    """A job as it is now.

    Args:
        left: batches, reckoned from its last report.
        holds: devices, 0 if none.
        lag: seconds until it trains where it is, if it is restarting there.
        move: seconds that it loses on another number of devices.
        sizes: numbers of devices, without those that are no faster than a smaller one.
        rates: batches a second on each.
        deadline: scheduler time.
    """

    left: float
    holds: int
    lag: float
    move: float
    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    deadline: float

    def next_size(self, size: int) -> int:
        """The next larger one; 0 if there is none."""
        at = bisect_right(self.sizes, size)
        return self.sizes[at] if at < len(self.sizes) else 0

    def most(self, free: int) -> int:
        """The largest that so many devices are enough for; 0 if none."""
        at = bisect_right(self.sizes, free)
        return self.sizes[at - 1] if at else 0

    def end(self, devices: int, now: float) -> float:
        """If it has so many from now on."""
        wait = self.lag if devices == self.holds else self.move
        return now + wait + self.left / self.rates[self.sizes.index(devices)]


def known(jobs: JobView, row: int, usable: tuple[tuple[int, ...], tuple[float, ...]], now: float) -> Known:
    speed, holds, heard = jobs.speedup[row], round(float(jobs.held_devices[row])), float(jobs.reported_at[row])
    begun, move = int(jobs.batches[row]) > 0, float(jobs.resize_seconds[row])
    left, lag = float(jobs.remaining[row]), 0.0
    if holds and begun and heard <= jobs.trained_since[row]:
        lag = max(min(float(jobs.trained_since[row]), now) + move - now, 0.0)
    elif holds:
        left = max(left - speed.throughput(holds) * (now - heard), 1e-6)
    return Known(left, holds, lag, move if begun else 0.0, *usable, float(jobs.deadline[row]))


def plan_of_sizes(jobs: JobView, sizes: Sequence[int], finish: Sequence[float]) -> Plan:
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
    )


class Slots:
    """Devices that are free from now on: a step function of time."""

    def __init__(self, now: float, devices: int) -> None:
        self.times, self.free = [now], [devices]

    def lay(self, job: Known, quota: int) -> list[tuple[float, float, int]] | None:
        """The job on ``quota`` devices, or as many as are free: who has what from when to when; None if it is late."""
        sizes, rates, times, free = job.sizes, job.rates, self.times, self.free
        left, before, lag, laid = job.left, job.holds, job.lag, list[tuple[float, float, int]]()
        last, deadline = len(times) - 1, job.deadline
        for at, begin in enumerate(times):
            if begin >= deadline:
                break
            stop = deadline if at == last or times[at + 1] > deadline else times[at + 1]
            k = bisect_right(sizes, free[at] if free[at] < quota else quota) - 1
            if k < 0:
                before = 0
                continue
            size = sizes[k]
            start = begin + (lag if size == before else job.move)
            done = start + left / rates[k]
            if done <= stop:
                laid.append((begin, done, size))
                return laid
            laid.append((begin, stop, size))
            if stop > start:
                left -= (stop - start) * rates[k]
                lag = 0.0
            else:
                lag = start - stop
            before = size
        return None

    def lay_on_least(self, job: Known, now: float) -> list[tuple[float, float, int]] | None:
        """The least quota with which it is in time; None if there is none."""
        for quota, rate in zip(job.sizes, job.rates, strict=True):
            if now + job.left / rate <= job.deadline and (way := self.lay(job, quota)) is not None:
                return way
        return None

    def take(self, laid: Sequence[tuple[float, float, int]]) -> None:
        for begin, end, devices in laid:
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
    """ElasticFlow (ASPLOS 2023): who is admitted keeps a guarantee, what is left goes where it saves the most GPU time.

    - A job is admitted when it arrives, if it and all admitted before it fit by progressive filling in the order of
      their deadlines; else it is dropped. Of one that fits it takes the least number of devices that brings it home,
      its minimum satisfactory share.
    - Devices that are left go one size up at a time to the admitted job whose GPU time falls most for each of them.
    - Against needless restarts, which the paper's own costs of seconds hide: restarts are counted in the filling, a job
      keeps more than its share as long as no other job needs it, and it grows only if it then ends earlier.
    """

    chooses_sizes = True

    def __init__(self) -> None:
        self._admitted: dict[int, bool] = {}

    def plan(self, jobs: JobView, now: float) -> Plan:
        n, places = len(jobs), jobs.row.tolist()
        what = [known(jobs, row, speed.useful(), now) for row, speed in enumerate(jobs.speedup)]
        self._admitted = {place: self._admitted[place] for place in places if place in self._admitted}
        inside = [row for row in range(n) if self._admitted.get(places[row], False)]
        laid = self._fill(what, inside, jobs.devices, now)
        for row in range(n):
            if places[row] not in self._admitted:
                more = self._fill(what, [*inside, row], jobs.devices, now)
                safe = row in more and all(other in more for other in laid)
                self._admitted[places[row]] = safe
                if safe:
                    inside, laid = [*inside, row], more
        sizes = [0] * n
        for row, stretches in laid.items():
            begin, _, size = stretches[0]
            sizes[row] = size if begin <= now else 0
        free = jobs.devices - sum(sizes)
        for row in sorted(inside, key=lambda row: (row in laid, what[row].deadline)):
            if row not in laid:  # its guarantee broke: it has the best there is
                sizes[row] = what[row].most(free)
                free -= sizes[row]
            elif sizes[row] < what[row].holds <= sizes[row] + free and what[row].holds in what[row].sizes:
                free -= what[row].holds - sizes[row]
                sizes[row] = what[row].holds
        self._spend(what, inside, sizes, free, now)
        ends = [job.end(size, now) if size else math.nan for job, size in zip(what, sizes, strict=True)]
        return plan_of_sizes(jobs, sizes, ends)

    @staticmethod
    def _fill(
        what: Sequence[Known], rows: Sequence[int], devices: int, now: float
    ) -> dict[int, list[tuple[float, float, int]]]:
        """Of those that can be satisfied, in the order of their deadlines, who has what when."""
        slots, laid = Slots(now, devices), {}
        for row in sorted(rows, key=lambda row: (what[row].deadline, row)):
            if (way := slots.lay_on_least(what[row], now)) is not None:
                slots.take(way)
                laid[row] = way
        return laid

    @staticmethod
    def _spend(what: Sequence[Known], rows: Sequence[int], sizes: list[int], free: int, now: float) -> None:
        def gain(row: int) -> tuple[float, int]:
            """GPU time saved for each more device, and how many it would have."""
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
            most, more = gain(best)
            if most == -math.inf:
                return
            free -= more - sizes[best]
            sizes[best] = more


class Gavel:
    """Gavel (OSDI 2020) with deadlines: a linear program says which part of the time each job should run.

    With x the part, g the devices that its user asked for, w the seconds of work left and d those to the deadline:
    x >= w / d for each job, sum g x <= devices, and the sum of x is made as large as it can be. Time is given in
    rounds: the jobs whose part most exceeds what they have had, as many as fit. A job that runs on keeps its devices.
    In a round, a job that arrives begins if devices are idle.

    Args:
        relaxed: what is done where not all deadlines can be kept. As its authors' code does, all are left out of that
            program (False), or they are missed by as little as can be in all (True).
        length: seconds of a round.
    """

    def __init__(self, relaxed: bool = False, length: float = 360.0) -> None:
        self.relaxed = relaxed
        self.length = length
        self._until = -math.inf
        self._chosen: list[int] = []
        self._had: dict[int, tuple[int, int]] = {}  # rounds in which it ran, and those since it came

    def plan(self, jobs: JobView, now: float) -> Plan:
        n, places = len(jobs), jobs.row.tolist()
        if now >= self._until - 1e-6:
            self._until = now + self.length
            parts = self._linear_program(jobs.work, jobs.deadline - now, jobs.size, jobs.devices)
            had = {place: self._had.get(place, (0, 0)) for place in places}
            due = [parts[row] * (had[place][1] + 1) / (had[place][0] + 0.01) for row, place in enumerate(places)]
            runs = np.isin(jobs.row, self._chosen)
            order = sorted(range(n), key=lambda row: (-round(due[row], 6), not runs[row], row))
            self._chosen = self._fitting(jobs, order)
            self._had = {p: (ran + (p in self._chosen), rounds + 1) for p, (ran, rounds) in had.items()}
        first = [places.index(place) for place in self._chosen if place in places]
        rest = [row for row in range(n) if row not in first]
        self._chosen = self._fitting(jobs, [*first, *rest])
        chosen = np.isin(jobs.row, self._chosen)
        order_now = np.lexsort((~chosen,))
        finish = np.where(chosen, completion_times(jobs.work, jobs.size, order_now, jobs.devices, now), np.nan)
        return Plan(
            order=order_now,
            share=chosen.astype(float),
            finish=finish,
            codes=np.full(n, index("first_in_line")),
            waiting=np.full(n, index("no_room")),
            numbers=np.zeros((n, 2)),
            work_conserving=False,
        )

    @staticmethod
    def _fitting(jobs: JobView, order: Sequence[int]) -> list[int]:
        free, chosen = jobs.devices, []
        for row in order:
            if jobs.size[row] <= free:
                free -= int(jobs.size[row])
                chosen.append(int(jobs.row[row]))
        return chosen

    def _linear_program(self, work: FloatArray, left: FloatArray, size: IntArray, devices: int) -> FloatArray:
        need = work / np.maximum(left, 1.0)
        in_reach = need <= 1.0
        least = np.where(in_reach, need, 0.0)
        best = linprog(
            -np.ones(len(work)), size[None, :], [devices], bounds=np.column_stack([least, np.ones(len(work))])
        )
        if best.status == 0:
            return np.asarray(best.x)
        least = self._nearest(least, size, devices) if self.relaxed else np.zeros(len(work))
        best = linprog(
            -np.ones(len(work)), size[None, :], [devices], bounds=np.column_stack([least, np.ones(len(work))])
        )
        return np.asarray(best.x) if best.status == 0 else least

    @staticmethod
    def _nearest(least: FloatArray, size: IntArray, devices: int) -> FloatArray:
        """Parts that fall short of these by as little as can be in all."""
        n = len(least)
        short = linprog(-np.ones(n), size[None, :], [devices], bounds=np.column_stack([np.zeros(n), least]))
        return np.asarray(short.x) * (1 - 1e-9)
