"""DECOR: each job ends at its deadline on as few devices as possible, and the pool serves as many jobs as it can.

Two layers. A job's own controller (:mod:`lightning_core.planning.ramp`) says what it demands from here; where devices
are given whole, it demands the fewest that still end it in time. One arbiter plans these demands side by side
(:mod:`lightning_core.planning.admission`): it admits jobs by Moore and Hodgson's rule, tells the others, and leaves
devices that no job demands unused (:mod:`lightning_core.planning.backfill`).

Whole devices are not dithered around a ramp, because a resize costs time. A job keeps the larger number until the
smaller one suffices, and changes back only when it must. The throughput on an untried number is estimated high, so that
it is tried while an error can be mended. A job does not get fewer devices

- within ``min_dwell`` seconds of the last resize, nor if the smaller number would not last ``min_payback`` times as
  long as the resize costs (measured); for as long as that, no job that is planned with it takes its devices either;
- for a while after a resize that failed (the scheduler says so).

The time between its planned end and its deadline is a reserve for what cannot be foreseen. A job that has come to need
it gets more devices at once.

A job of unknown throughput is tried at once, on devices that no other job holds. The work to a target loss is an
uncertain forecast: the job is planned with a quantile of it, without a ramp.

A plan of n jobs takes O(n) steps per job, and a few times that in a crowded pool: 195 jobs of known throughput on 64
devices take about 15 ms (``benchmarks.clusters.cluster``).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightning_core.core.arrays import BoolArray, kept_by_row
from lightning_core.core.durations import MAX_FORECAST
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.saved_state import Stateful, decode, restored
from lightning_core.planning.admission import admit
from lightning_core.planning.backfill import backfill, end_time
from lightning_core.planning.free_devices import EPSILON
from lightning_core.planning.job_rows import JobRow, PlanRow, job_rows, make_plan
from lightning_core.planning.ramp import ControllerInput, Mode, RampController, RampKind, RampSettings
from lightning_core.planning.reservations import Demand, Reservation, next_change, optimistic_throughputs

# Part of a job's time by which it may end after its planned end where a resize would cost more.
MAX_LATENESS = 0.002
# Untried sizes are estimated high as long as the time left allows for this many tries.
MIN_TRIES = 5.0
# Seconds for which a job of unknown throughput is tried, and the part of its time within which that should happen.
TRIAL, TRIAL_WITHIN = 2.0, 0.2


class Decor(Stateful):
    """As few devices as end each job at its deadline; as many jobs as possible where not all can.

    Args:
        alpha: Part of the time to its deadline in which a job should end, above 0 to 1.
        period: Seconds between two steps of a controller.
        mode: ``"default"``, or ``"paper"``: one PI controller per job as DECOR-NN prints it, also for whole devices.
        gain: Devices per percent of error, in the paper's mode.
        eta: Part of an error that the integral takes in, in the paper's mode.
        ramp: ``"rebased"`` or ``"origin"``, the start of the ramp when a deadline changes; None for that of the mode,
            which is the origin in the paper's.
        level: Quantile of its forecast work by which a job with a target loss is planned.
        min_dwell: Minimum seconds on a number of devices before the job may have fewer.
        min_payback: Minimum ratio of the time that a change to fewer devices lasts to the time that it costs.
        min_saving: Minimum part of a job's device-seconds that fewer devices must save.
        idle: Use of the devices that no job demands: ``"keep"`` leaves them free, ``"spend"`` ends jobs early, so that
            later ones find more room.

    Raises:
        ValueError: If an argument is out of its range.
    """

    chooses_sizes = True
    STATE = ("_controllers", "_not_admitted_before")

    def __init__(
        self,
        alpha: float = 0.95,
        period: float = 1.0,
        mode: Mode = "default",
        gain: float = 1.0,
        eta: float = 0.1,
        ramp: RampKind | None = None,
        level: float = 0.7,
        min_dwell: float = 2.0,
        min_payback: float = 5.0,
        min_saving: float = 0.0,
        idle: Literal["keep", "spend"] = "keep",
    ) -> None:
        self.settings = RampSettings(alpha, period, mode, gain, eta, ramp)
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
        self._controllers: dict[int, RampController] = {}  # by row
        self._not_admitted_before: set[int] = set()  # rows

    def keep(self, stays: BoolArray) -> None:
        self._controllers = kept_by_row(self._controllers, stays)
        self._not_admitted_before = set(kept_by_row(dict.fromkeys(self._not_admitted_before), stays))

    def plan(self, jobs: JobView, now: float) -> Plan:
        rows = job_rows(jobs, self.level)
        self._controllers = {
            job.row: self._controllers.get(job.row) or RampController(self.settings, job.submitted) for job in rows
        }
        demands = [self._demand(job, jobs.devices, jobs.quantum, now) for job in rows]
        hopeless = {row for row, job in enumerate(rows) if job.row in self._not_admitted_before}
        reservations, free = admit(demands, jobs.devices, now, hopeless)
        self._not_admitted_before = {job.row for job, on in zip(rows, reservations, strict=True) if on is None}
        untried = {row for row, job in enumerate(rows) if not job.tried}
        sizes = backfill(demands, reservations, free, untried, grow=self.idle == "spend", min_payback=self.min_payback)
        if self.settings.mode == "paper":
            sizes = self._controlled(rows, demands, reservations, sizes, jobs, now)
        each = zip(rows, demands, reservations, sizes, strict=True)
        plan_rows = [self._plan_row(*one, jobs.quantum, now) for one in each]
        served = (
            (need, on) for need, on in zip(demands, reservations, strict=True) if need is not None and on is not None
        )
        again = min((next_change(need, on, now) for need, on in served), default=math.inf)
        return make_plan(jobs, rows, demands, plan_rows, again)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        super().restore(state)
        self._controllers = {
            row: restored(RampController(self.settings, 0.0), one) for row, one in decode(state["_controllers"]).items()
        }

    # ------------------------------------------------------------------------------------------ demand of a job

    def _demand(self, job: JobRow, devices: int, quantum: float, now: float) -> Demand | None:
        """Return the demand of a job; None if its loss does not fall or it can use no number of devices."""
        end = self._controllers[job.row].end(job.deadline, now)
        sizes, throughputs = self._usable(job, devices, end - now)
        if not sizes or job.left == math.inf:
            return None
        if not job.tried or math.isnan(job.left):  # try it on the fewest devices, or on those that it has
            soon = now + max(TRIAL_WITHIN * (end - now), 1.1 * TRIAL)
            return Demand(TRIAL, soon, sizes, tuple(1 + EPSILON * size for size in sizes), weight=job.weight,
                        held=job.held_devices, may_shrink=False, protected_seconds=TRIAL)  # fmt: skip
        work = self._work(job, now)
        if _shares_device(job, quantum):
            share = self._share(job, work, end, quantum, now)
            share = share if share < 1.0 - EPSILON else 0.0
            if 0 < share <= quantum:  # it may be early, but not on a smaller share
                end = min(end, now + work / job.speedup.throughput(share))
            return Demand(work, end, sizes, throughputs, latest=job.deadline, weight=job.weight, share=share)
        # Both count from when it was given its devices: counted from now, they would never be over.
        since = min(job.trained_since, now)
        lag = max(since + job.resize_seconds - now, 0.0) if job.on_its_way else 0.0
        protected = max(since + self.min_payback * job.resize_seconds - now, 0.0)
        tolerance = 0.5 * (job.deadline - end) + MAX_LATENESS * (job.deadline - job.submitted)
        if self.settings.alpha < 1:  # it has a reserve: none of it is left to be late by once that is used up
            tolerance = min(tolerance, job.deadline - end)
        return Demand(
            work,
            end,
            sizes,
            throughputs,
            latest=job.deadline,
            weight=job.weight,
            held=job.held_devices,
            arrival_delay=lag,
            start_seconds=job.resize_seconds if job.batches else 0.0,
            resize_seconds=job.resize_seconds,
            protected_seconds=protected,
            min_dwell=self.min_dwell,
            max_lateness=min(0.5 * job.resize_seconds, tolerance) if job.held_devices else 0.0,
            shrink_margin=0.25 * job.resize_seconds + 0.005 * max(end - now, 0.0),
            may_postpone=not self._in_reserve(job, end),
            may_shrink=self._may_shrink(job, end, now),
            min_saving=self.min_saving,
        )

    def _may_shrink(self, job: JobRow, end: float, now: float) -> bool:
        """Return whether fewer devices would last, and the job is not using up its reserve."""
        return (
            now - job.trained_since >= self.min_dwell
            and end - now >= self.min_payback * job.resize_seconds
            and not self._in_reserve(job, end)
        )

    def _in_reserve(self, job: JobRow, end: float) -> bool:
        """Return whether the time at which the job should have ended has passed."""
        return self.settings.alpha < 1 and end >= job.deadline

    def _usable(self, job: JobRow, devices: int, left: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return the numbers of devices that the job may have, and its throughput on each of them."""
        if not job.tried:
            sizes = tuple(size for size in job.speedup.sizes if size <= devices)
            return sizes, (1.0,) * len(sizes)
        if job.fixed_size in job.speedup.sizes:
            return (job.fixed_size,), (job.speedup.throughput(job.fixed_size),)
        sizes, throughputs = job.speedup.useful()
        if job.speedup.seconds < math.inf and left >= MIN_TRIES * (2 * job.resize_seconds + self.min_dwell):
            throughputs = optimistic_throughputs(job.speedup, sizes, throughputs)
        there = bisect_right(sizes, devices)
        return sizes[:there], throughputs[:there]

    def _work(self, job: JobRow, now: float) -> float:
        """Return the batches left, less those estimated since the last report or since it was to train again."""
        if not job.exact or not job.reported_at or not job.held_devices:
            return max(job.left, 1.0)
        begun = job.trained_since + job.resize_seconds if job.on_its_way else job.reported_at
        since = max(now - begun, 0.0)
        if job.speedup.seconds < math.inf:
            since = min(since, self.settings.period)
        return max(job.left - job.speedup.throughput(job.held_devices) * since, 1.0)

    def _share(self, job: JobRow, work: float, end: float, quantum: float, now: float) -> float:
        """Return the share of a device that its controller asks for, or that the forecast of a target loss demands."""
        if not job.exact:
            wanted = job.speedup.devices_for(work / max(end - now, 1e-9))
            return min(max(quantum * math.ceil(wanted / quantum - EPSILON), quantum), 1.0) if wanted < 1.0 else 1.0
        state = _state(job, work, quantum, 1.0, quantum, now)
        return self._controllers[job.row].step(state, job.speedup)

    def _controlled(
        self,
        rows: Sequence[JobRow],
        demands: Sequence[Demand | None],
        reservations: Sequence[Reservation | None],
        sizes: Sequence[int],
        jobs: JobView,
        now: float,
    ) -> list[int]:
        """Return the whole devices of each job by its own PI controller, within what the arbiter leaves to it."""
        now_held = (0.0 if on is None else on.devices_at(now) for on in reservations)
        left = math.floor(jobs.devices - sum(map(max, sizes, now_held)) + EPSILON)
        chosen = list(sizes)
        for at in sorted(range(len(rows)), key=lambda at: (rows[at].deadline, at)):
            job, need = rows[at], demands[at]
            known = job.tried and not math.isnan(job.left)
            if need is None or not (chosen[at] and known) or _shares_device(job, jobs.quantum):
                continue
            within = [size for size in need.sizes if size <= chosen[at] + left]
            state = _state(job, need.work, float(within[0]), float(within[-1]), 1.0, now)
            wanted = self._controllers[job.row].step(state, job.speedup)
            size = next(size for size in within if size >= wanted)
            left += chosen[at] - size
            chosen[at] = size
        return chosen

    # --------------------------------------------------------------------------------------------- row of a plan

    def _plan_row(
        self, job: JobRow, need: Demand | None, reservation: Reservation | None, whole: int, quantum: float, now: float
    ) -> PlanRow:
        if need is None:
            return PlanRow(2, 1.0, job.speedup.sizes[0], math.inf, "out_of_reach")
        if reservation is None:
            return self._left_out(job, need, whole, now)
        size, done = reservation.devices_at(now), reservation.end
        controlled = self.settings.mode == "paper" and not _shares_device(job, quantum)
        if whole > size or (whole and controlled):
            size, done = float(whole), end_time(need, whole, now)
        if not size:
            first = reservation.segments[0]
            numbers = first.devices, min(first.begin - now, MAX_FORECAST)
            return PlanRow(1, 0.0, max(int(first.devices), 1), done, "planned_later", numbers)
        if not job.tried or math.isnan(job.left):
            return PlanRow(0, 1.0, int(size), math.nan, "full_speed")
        code, left = "on_ramp", job.deadline - now
        smallest = quantum if _shares_device(job, quantum) else need.sizes[0]
        if controlled:
            pass
        elif not need.may_shrink and size == need.held > need.sizes[0]:
            code, left = "not_resized", need.resize_seconds
        elif size <= smallest and self._controllers[job.row].end(job.deadline, now) - done > self.settings.period:
            code, left = "early", job.deadline - done
        if job.fixed_size:
            code = "back_to_size"
        return PlanRow(0, min(size, 1.0), max(int(size), 1), done, code, (size, min(left, MAX_FORECAST)))

    def _left_out(self, job: JobRow, need: Demand, whole: int, now: float) -> PlanRow:
        """Return the row of a job that is not admitted: spare devices, or what its lateness allows."""
        if math.isnan(job.left) or not job.tried:
            return PlanRow(1, 1.0, need.sizes[0], math.nan, "full_speed")
        best = min(need.sizes, key=lambda size: (end_time(need, size, now), size))
        late = end_time(need, best, now) - job.deadline
        if job.fixed_size:
            return PlanRow(2, float(job.continues_late), best, job.deadline + late, "back_to_size", (float(best), 0.0))
        if late > 0:
            numbers = float(best), min(late, MAX_FORECAST)
            return PlanRow(2, float(job.continues_late), best, job.deadline + late, "beyond_reach", numbers)
        seconds = need.work / need.throughputs[need.sizes.index(best)]
        numbers = min(seconds * best, MAX_FORECAST), 0.0
        if whole:
            return PlanRow(1, 1.0, whole, end_time(need, whole, now), "outbid", numbers)
        return PlanRow(2, float(job.continues_late), best, math.inf, "outbid", numbers)


def _shares_device(job: JobRow, quantum: float) -> bool:
    """Return whether the job may have a share of a device."""
    return quantum < 1.0 and job.speedup.sizes == (1,)


def _state(
    job: JobRow, work: float, min_devices: float, max_devices: float, quantum: float, now: float
) -> ControllerInput:
    total = job.batches + job.left
    return ControllerInput(
        now, total - work, total, job.deadline, min_devices, max_devices, quantum, not job.acknowledged
    )
