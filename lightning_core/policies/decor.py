"""DECOR: each job ends at its deadline on as few devices as possible, and the pool goes to the most that can.

Two layers. What a job needs from here says its own controller (:mod:`.ramp`), or, where devices are given whole, the
fewest that still bring it home. One arbiter for the pool lays these needs beside each other (:mod:`.filling`): jobs are
kept by Moore and Hodgson's rule, the others are told, and what nobody needs stays unspent (:mod:`.spending`).

Whole devices are not dithered around a ramp: a change of their number costs time. A job has the larger number until the
smaller one suffices, and changes back only when it must. Of a number that it has not tried yet it hopes for rather too
much, so that it is tried while an error can be mended. It does not get fewer

- within ``min_dwell`` seconds of the last change, nor if fewer would not last ``min_payback`` times as long as the change
  costs (measured);
- for a while after a change that failed (the scheduler says so).

A job that has shown nothing is tried at once, on what the others do not hold. A target by loss is forecast work with
its doubt: the job is planned with a quantile of it, without a ramp.

A plan of n jobs takes O(n) steps for each of them, in a crowded pool a few times that: 195 jobs with known speeds on 64
devices about 15 ms (``benchmarks.cluster``).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lightning_core.core.durations import FARTHEST
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.planning.admission import admit
from lightning_core.planning.backfill import backfill, end_time
from lightning_core.planning.job_rows import JobRow, job_rows
from lightning_core.planning.ramp import ControllerInput, Mode, RampController, RampKind, RampSettings
from lightning_core.planning.reservations import EPSILON, Demand, Reservation, next_change, optimistic_throughputs

# Part of a job's time that it may end late, where a change of devices would cost more.
MAX_LATENESS = 0.002
# It is hoped as long as there is so many times the time that a try takes.
MIN_TRIES = 5.0
# Seconds for which a job is tried of which nothing is known, and the part of its time in which that should be done.
TRIAL, TRIAL_WITHIN = 2.0, 0.2


@dataclass(slots=True)
class _PlanRow:
    """What a row of the plan becomes."""

    rank: int  # 0: served now, 1: planned for later, or behind, 2: gets what is left
    share: float
    size: int
    finish: float
    code: str
    numbers: tuple[float, float] = (0.0, 0.0)


class Decor:
    """As few devices as end each job at its deadline; the most jobs where not all can.

    Args:
        alpha: part of the time to its deadline in which a job should end, above 0 to 1.
        period: seconds between two steps of a controller.
        mode: ``"default"``, or ``"paper"``: one PI controller a job as DECOR-NN prints it, also for whole devices.
        gain: of the paper's mode: devices for each point of error.
        eta: of the paper's mode: part of an error that the integral takes in.
        ramp: ``"rebased"`` or ``"origin"``: where the ramp begins when a deadline is changed.
        level: quantile of forecast work that a job with a target loss is planned with.
        min_dwell: seconds that a job trains on a number of devices before it may have fewer.
        min_payback: a change to fewer devices must last so many times as long as it costs.
        min_saving: part of a job's device-seconds that fewer devices must save, or it keeps what it has.
        idle: what nobody needs is kept unspent (``"keep"``), or makes jobs end before their time (``"spend"``), so that
            later ones find more room.

    Raises:
        ValueError: if an argument is out of its range.
    """

    chooses_sizes = True

    def __init__(
        self,
        alpha: float = 0.95,
        period: float = 1.0,
        mode: Mode = "default",
        gain: float = 1.0,
        eta: float = 0.1,
        ramp: RampKind = "rebased",
        level: float = 0.7,
        min_dwell: float = 2.0,
        min_payback: float = 5.0,
        min_saving: float = 0.0,
        idle: Literal["keep", "spend"] = "keep",
    ) -> None:
        self.rule = RampSettings(alpha, period, mode, gain, eta, ramp)
        if not 0 < level < 1:
            raise ValueError(f"level must be above 0 and below 1, got {level}")
        for name, value in (("min_dwell", min_dwell), ("min_payback", min_payback)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {value}")
        if not 0 <= min_saving < 1:
            raise ValueError(f"min_saving must be at least 0 and below 1, got {min_saving}")
        if idle not in ("keep", "spend"):
            raise ValueError(f"idle must be keep or spend, got {idle!r}")
        self.level = level
        self.min_dwell = min_dwell
        self.min_payback = min_payback
        self.min_saving = min_saving
        self.idle = idle
        self._controllers: dict[int, RampController] = {}  # by place
        self._left_out_before: set[int] = set()  # places

    def plan(self, jobs: JobView, now: float) -> Plan:
        rows = job_rows(jobs, self.level)
        self._controllers = {
            job.row: self._controllers.get(job.row) or RampController(self.rule, job.submitted) for job in rows
        }
        needs = [self._need(job, jobs.devices, jobs.quantum, now) for job in rows]
        hopeless = {row for row, job in enumerate(rows) if job.row in self._left_out_before}
        laid, free = admit(needs, jobs.devices, now, hopeless)
        self._left_out_before = {job.row for job, on in zip(rows, laid, strict=True) if on is None}
        untried = {row for row, job in enumerate(rows) if not job.tried}
        sizes = backfill(needs, laid, free, untried, grow=self.idle == "spend", min_payback=self.min_payback)
        each = zip(rows, needs, laid, sizes, strict=True)
        wishes = [self._plan_row(*one, jobs.quantum, now) for one in each]
        served = ((need, on) for need, on in zip(needs, laid, strict=True) if need is not None and on is not None)
        again = min((next_change(need, on, now) for need, on in served), default=math.inf)
        return self._plan(jobs, rows, needs, wishes, again)

    @staticmethod
    def _plan(
        jobs: JobView, rows: Sequence[JobRow], needs: Sequence[Demand | None], wishes: Sequence[_PlanRow], again: float
    ) -> Plan:
        def turn(row: int) -> tuple[int, int, float, int]:
            """Who keeps its devices is dealt them first, and who gets more last: so nobody moves for others' sake."""
            job, need, wish = rows[row], needs[row], wishes[row]
            more = wish.share * wish.size - job.held_devices
            end = job.deadline if need is None else need.end
            return wish.rank, 0 if jobs.quantum < 1.0 or not more else 1 if more < 0 else 2, end, row

        served = np.array([wish.rank == 0 for wish in wishes])
        codes = np.array([index(wish.code) for wish in wishes])
        share = np.array([wish.share for wish in wishes])
        return Plan(
            order=np.array(sorted(range(len(rows)), key=turn)),
            share=share,
            finish=np.array([wish.finish for wish in wishes]),
            codes=codes,
            waiting=np.where(served, index("no_room"), codes),
            numbers=np.array([wish.numbers for wish in wishes]),
            work_conserving=False,
            size=np.array([wish.size for wish in wishes], np.int64),
            capped=(share < 1.0) & served,
            replan_at=again,
        )

    # ------------------------------------------------------------------------------------------------ one job

    def _need(self, job: JobRow, devices: int, quantum: float, now: float) -> Demand | None:
        """What a job needs from here; None if its loss does not come down, or no number of devices is there for it."""
        end = self._controllers[job.row].end(job.deadline, now)
        sizes, rates = self._usable(job, devices, end - now)
        if not sizes or job.left == math.inf:
            return None
        if not job.tried or math.isnan(job.left):  # on the fewest devices, or on those that it has
            soon = now + max(TRIAL_WITHIN * (end - now), 1.1 * TRIAL)
            return Demand(TRIAL, soon, sizes, tuple(1 + EPSILON * size for size in sizes), weight=job.weight,
                        holds=job.held_devices, may_shrink=False, stint=TRIAL)  # fmt: skip
        work = self._work(job, now)
        if _in_parts(job, quantum):
            part = self._part(job, work, end, quantum, now)
            part = part if part < 1.0 - EPSILON else 0.0
            if 0 < part <= quantum:  # it may be early, but not on less
                end = min(end, now + work / job.speed.rate(part))
            return Demand(work, end, sizes, rates, latest=job.deadline, weight=job.weight, part=part)
        lag = (
            max(min(job.trained_since, now) + job.resize_seconds - now, 0.0) if job.on_its_way else 0.0
        )  # inf: it has not left yet
        reserve = 0.5 * (job.deadline - end) + MAX_LATENESS * (job.deadline - job.submitted)
        return Demand(
            work,
            end,
            sizes,
            rates,
            latest=job.deadline,
            weight=job.weight,
            holds=job.held_devices,
            lag=lag,
            start=job.resize_seconds if job.batches else 0.0,
            resize=job.resize_seconds,
            stint=self.min_payback * job.resize_seconds,
            min_dwell=self.min_dwell,
            patience=min(0.5 * job.resize_seconds, reserve) if job.held_devices else 0.0,
            margin=0.25 * job.resize_seconds + 0.005 * max(end - now, 0.0),
            may_shrink=self._may_shrink(job, end, now),
            min_saving=self.min_saving,
        )

    def _may_shrink(self, job: JobRow, end: float, now: float) -> bool:
        """Not if it would not last, nor while the job uses up what is kept for bad luck."""
        in_reserve = self.rule.alpha < 1 and end >= job.deadline
        return (
            now - job.trained_since >= self.min_dwell
            and end - now >= self.min_payback * job.resize_seconds
            and not in_reserve
        )

    def _usable(self, job: JobRow, devices: int, left: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Numbers of devices that the job may have, and how fast it should be on them, with so many seconds left."""
        if not job.tried:
            sizes = tuple(size for size in job.speed.sizes if size <= devices)
            return sizes, (1.0,) * len(sizes)
        if job.fixed_size in job.speed.sizes:
            return (job.fixed_size,), (job.speed.rate(job.fixed_size),)
        sizes, rates = job.speed.useful()
        if job.speed.seconds < math.inf and left >= MIN_TRIES * (2 * job.resize_seconds + self.min_dwell):
            rates = optimistic_throughputs(job.speed, sizes, rates)
        there = bisect_right(sizes, devices)
        return sizes[:there], rates[:there]

    def _work(self, job: JobRow, now: float) -> float:
        """Batches left: what was done since it was last heard of is reckoned with."""
        if not job.exact or not job.reported_at or not job.held_devices or job.on_its_way:
            return max(job.left, 1.0)
        since = max(now - job.reported_at, 0.0)
        if job.speed.seconds < math.inf:
            since = min(since, self.rule.period)
        return max(job.left - job.speed.rate(job.held_devices) * since, 1.0)

    def _part(self, job: JobRow, work: float, end: float, quantum: float, now: float) -> float:
        """The part of a device that its controller wants; of a target by loss, the part that its forecast needs."""
        if not job.exact:
            wanted = job.speed.devices_for(work / max(end - now, 1e-9))
            return min(max(quantum * math.ceil(wanted / quantum - EPSILON), quantum), 1.0) if wanted < 1.0 else 1.0
        state = _state(job, work, quantum, 1.0, quantum, now)
        return self._controllers[job.row].step(state, job.speed)

    # ------------------------------------------------------------------------------------------------ its answer

    def _plan_row(
        self, job: JobRow, need: Demand | None, laid: Reservation | None, whole: int, quantum: float, now: float
    ) -> _PlanRow:
        if need is None:
            return _PlanRow(2, 1.0, job.speed.sizes[0], math.inf, "out_of_reach")
        if laid is None:
            return self._left_out(job, need, whole, now)
        size, done = laid.at_once(now), laid.done
        if whole > size:
            size, done = float(whole), end_time(need, whole, now)
        if not size:
            first = laid.stretches[0]
            numbers = first.devices, min(first.begin - now, FARTHEST)
            return _PlanRow(1, 0.0, max(int(first.devices), 1), done, "planned_later", numbers)
        if not job.tried or math.isnan(job.left):
            return _PlanRow(0, 1.0, int(size), math.nan, "full_speed")
        code, left = "on_ramp", job.deadline - now
        least = quantum if _in_parts(job, quantum) else need.sizes[0]
        if self.rule.mode == "paper" and not _in_parts(job, quantum):
            most = float(need.sizes[-1])
            wanted = self._controllers[job.row].step(
                _state(job, need.work, float(need.sizes[0]), most, 1.0, now), job.speed
            )
            size = float(min((n for n in need.sizes if n >= wanted), default=most))
        elif not need.may_shrink and size == need.holds > need.sizes[0]:
            code, left = "not_resized", need.resize
        elif size <= least and self._controllers[job.row].end(job.deadline, now) - done > self.rule.period:
            code, left = "early", job.deadline - done
        if job.fixed_size:
            code = "back_to_size"
        return _PlanRow(0, min(size, 1.0), max(int(size), 1), done, code, (size, min(left, FARTHEST)))

    def _left_out(self, job: JobRow, need: Demand, whole: int, now: float) -> _PlanRow:
        """What becomes of a job that is not kept: it gets what nobody needs, if it can make it or goes on when late."""
        if math.isnan(job.left) or not job.tried:
            return _PlanRow(1, 1.0, need.sizes[0], math.nan, "full_speed")
        best = min(need.sizes, key=lambda size: (end_time(need, size, now), size))
        late = end_time(need, best, now) - job.deadline
        if job.fixed_size:
            return _PlanRow(2, float(job.continues_late), best, job.deadline + late, "back_to_size", (float(best), 0.0))
        if late > 0:
            numbers = float(best), min(late, FARTHEST)
            return _PlanRow(2, float(job.continues_late), best, job.deadline + late, "beyond_reach", numbers)
        seconds = need.work / need.rates[need.sizes.index(best)]
        numbers = min(seconds * best, FARTHEST), 0.0
        if whole:
            return _PlanRow(1, 1.0, whole, end_time(need, whole, now), "outbid", numbers)
        return _PlanRow(2, float(job.continues_late), best, math.inf, "outbid", numbers)


def _in_parts(job: JobRow, quantum: float) -> bool:
    """Whether it may have a part of a device."""
    return quantum < 1.0 and job.speed.sizes == (1,)


def _state(job: JobRow, work: float, least: float, most: float, quantum: float, now: float) -> ControllerInput:
    total = job.batches + job.left
    return ControllerInput(now, total - work, total, job.deadline, least, most, quantum, not job.acknowledged)
