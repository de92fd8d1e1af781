"""DECOR: each job ends at its deadline on as few devices as possible, and the pool goes to the most that can.

Two layers. What a job needs from here says its own controller (:mod:`.ramp`), or, where devices are given whole, the
fewest that still bring it home. One arbiter for the pool lays these needs beside each other (:mod:`.filling`): jobs are
kept by Moore and Hodgson's rule, the others are told, and what nobody needs stays unspent.

Whole devices are not dithered around a ramp: a change of their number costs time. A job has the larger number until the
smaller one suffices, and changes back only when it must. A change is refused

- within ``least_stint`` seconds of the last one, and if fewer devices would not last ``worth`` times as long as the
  change costs (measured); not if the job would be late without it;
- for a while after one that failed (the scheduler says so);
- where the devices are not free.

A target by loss is forecast work with its doubt: the job is planned with a quantile of it, without a ramp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lightning_core.durations import FARTHEST
from lightning_core.policies.filling import EXACT, Laid, Need, fill, useful_sizes
from lightning_core.policies.ramp import Controller, Mode, RampKind, Rule, State
from lightning_core.policies.spending import ends as ends_on
from lightning_core.policies.spending import spend
from lightning_core.reasons import index
from lightning_core.speedup import SpeedUp
from lightning_core.types import LEVELS, JobView, Plan

# Part of a job's time that it may end late, where a change of devices would cost more.
BEARABLE = 0.002
# How much more than the forecast is hoped for of a number of devices until it was seen for so many seconds.
HOPE, TRIED = 1.1, 1.0


@dataclass(slots=True)
class _Wish:
    """What a row of the plan becomes."""

    rank: int = 2  # 0: served now, 1: planned for later, 2: gets what is left
    duty: float = 0.0
    size: int = 1
    finish: float = math.inf
    code: str = "outbid"
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
        least_stint: seconds that a job trains on a number of devices before it may have fewer.
        worth: a change to fewer devices must last so many times as long as it costs.

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
        least_stint: float = 2.0,
        worth: float = 5.0,
        stays: float = 0.0,
        idle: Literal["keep", "spend"] = "keep",
    ) -> None:
        self.rule = Rule(alpha, period, mode, gain, eta, ramp)
        if not 0 < level < 1:
            raise ValueError(f"level must be above 0 and below 1, got {level}")
        for name, value in (("least_stint", least_stint), ("worth", worth)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {value}")
        self.level = level
        self.least_stint = least_stint
        self.worth = worth
        self.stays = stays
        self.idle = idle
        self._controllers: dict[int, Controller] = {}  # by place

    def plan(self, jobs: JobView, now: float) -> Plan:
        n = len(jobs)
        places = jobs.place.tolist()
        self._controllers = {
            place: self._controllers.get(place) or Controller(self.rule, float(jobs.submitted[row]))
            for row, place in enumerate(places)
        }
        needs = [self._need(jobs, row, now) for row in range(n)]
        laid, free = fill(needs, jobs.devices, now)
        sizes = spend(needs, laid, free, grow=self.idle == "spend", worth=self.worth)
        wishes = [self._wish(jobs, row, needs[row], laid[row], sizes[row], now) for row in range(n)]
        ends = [need.end if need is not None else float(jobs.deadline[row]) for row, need in enumerate(needs)]
        changes = [self._changes(jobs, row, wishes[row]) for row in range(n)]
        order = sorted(range(n), key=lambda row: (wishes[row].rank, changes[row], ends[row], row))
        capped = [wish.duty < 1.0 and wish.rank == 0 for wish in wishes]
        codes = np.array([index(wish.code) for wish in wishes])
        waits = np.where(np.array([wish.rank == 0 for wish in wishes]), index("no_room"), codes)
        return Plan(
            order=np.array(order),
            duty=np.array([wish.duty for wish in wishes]),
            finish=np.array([wish.finish for wish in wishes]),
            codes=codes,
            waiting=waits,
            numbers=np.array([wish.numbers for wish in wishes]),
            fill=False,
            size=np.array([wish.size for wish in wishes], np.int64),
            capped=np.array(capped),
        )

    @staticmethod
    def _changes(jobs: JobView, row: int, wish: _Wish) -> int:
        """Who keeps its devices is dealt them first, and who gets more last: so nobody is moved for others' sake."""
        if jobs.quantum < 1.0:
            return 0
        wanted, holds = wish.duty * wish.size, jobs.holds[row]
        return 0 if wanted == holds else 1 if wanted < holds else 2

    # ------------------------------------------------------------------------------------------------ one job

    def _need(self, jobs: JobView, row: int, now: float) -> Need | None:
        """What a job needs from here; None if nothing is known of it yet, or no devices bring it home."""
        speed = jobs.speedup[row]
        work = self._work(jobs, row, now)
        if not (speed.known and math.isfinite(work)):
            return None
        deadline = float(jobs.deadline[row])
        end = self._controllers[int(jobs.place[row])].end(deadline, now)
        sizes, rates = useful_sizes(speed, jobs.devices)
        rates = tuple(self._hoped(speed, sizes, rates))
        if jobs.fixed[row] and jobs.fixed[row] in speed.sizes:
            sizes = (int(jobs.fixed[row]),)
            rates = (speed.rate(sizes[0]),)
        if not sizes:
            return None
        need = Need(work, end, sizes, rates, latest=deadline, weight=float(jobs.weight[row]))
        if self._in_parts(jobs, row):
            part = self._part(jobs, row, work, end, now)
            return replace(need, part=part if part < 1.0 - EXACT else 0.0)  # parts change at no cost
        holds, resize = float(jobs.holds[row]), float(jobs.resize[row])
        trained = int(jobs.batches[row]) > 0
        need = replace(
            need,
            holds=holds,
            lag=self._lag(jobs, row, now),
            start=resize if trained else 0.0,
            resize=resize,
            stint=self.worth * resize,
            stays=self.stays,
            margin=0.25 * resize + 0.005 * max(end - now, 0.0) if holds else 0.0,
            may_shrink=now - float(jobs.stint[row]) >= self.least_stint and end - now >= self.worth * resize,
        )
        return replace(need, patience=self._patience(need, deadline, float(jobs.submitted[row]), now))

    @staticmethod
    def _lag(jobs: JobView, row: int, now: float) -> float:
        """Seconds until it trains where it was sent, as far as is known."""
        if not Decor._on_its_way(jobs, row):
            return 0.0
        began = min(float(jobs.stint[row]), now)  # inf while it has not left where it was
        return max(began + float(jobs.resize[row]) - now, 0.0)

    @staticmethod
    def _on_its_way(jobs: JobView, row: int) -> bool:
        """Whether it was sent to other devices and has not been heard of since."""
        return bool(jobs.holds[row] and jobs.batches[row] and jobs.heard[row] <= jobs.stint[row])

    @staticmethod
    def _hoped(speed: SpeedUp, sizes: Sequence[int], rates: Sequence[float]) -> list[float]:
        """Of a number of devices that was not seen yet rather too much is hoped: an error can then be mended."""
        hoped = [rate if speed.seen(size) >= TRIED else HOPE * rate for size, rate in zip(sizes, rates, strict=True)]
        for at in range(len(hoped) - 2, -1, -1):
            hoped[at] = min(hoped[at], max(rates[at], 0.98 * hoped[at + 1]))
        return hoped

    def _patience(self, need: Need, deadline: float, began: float, now: float) -> float:
        """Seconds that a job may be late by forecast before it gets more devices: a change should be worth its cost,
        as long as there is time for it.
        """
        more = [size for size in need.sizes if size > need.holds]
        if not need.holds or not more:
            return 0.0
        if need.holds not in need.sizes:
            return 0.0
        at = need.sizes.index(int(need.holds))
        slower, faster = need.rates[at], need.rates[at + 1]
        urgent = now + need.resize + need.work / faster + 2.0 * self.rule.period > need.end
        bearable = min(0.5 * need.resize, 0.5 * (deadline - need.end) + BEARABLE * (deadline - began))
        return bearable if urgent else max(bearable, self.least_stint * (faster / slower - 1.0) - 2.0 * need.resize)

    def _work(self, jobs: JobView, row: int, now: float) -> float:
        """Batches left: what was done since it was last heard of is reckoned with."""
        if jobs.exact[row]:
            held, since = float(jobs.holds[row]), 0.0
            training = jobs.heard[row] > 0 and not self._on_its_way(jobs, row)
            if held and training and jobs.speedup[row].known:
                since = min(max(now - float(jobs.heard[row]), 0.0), self.rule.period)
            done = jobs.speedup[row].rate(held) * since
            return max(float(jobs.remaining[row]) - done, 1.0)
        quantile = jobs.quantiles[row, int(np.searchsorted(LEVELS, self.level))]
        return float(quantile * jobs.throughput[row])

    def _in_parts(self, jobs: JobView, row: int) -> bool:
        """Whether it may have a part of a device."""
        return jobs.quantum < 1.0 and jobs.speedup[row].sizes == (1,)

    def _part(self, jobs: JobView, row: int, work: float, end: float, now: float) -> float:
        """The part of a device that its controller wants; of a target by loss, the part that its forecast needs."""
        speed, quantum = jobs.speedup[row], jobs.quantum
        if not jobs.exact[row]:
            wanted = speed.devices_for(work / max(end - now, 1e-9))
            return min(max(quantum * math.ceil(wanted / quantum - EXACT), quantum), 1.0) if wanted < 1.0 else 1.0
        return self._controllers[int(jobs.place[row])].step(self._state(jobs, row, now, quantum), speed)

    def _state(self, jobs: JobView, row: int, now: float, quantum: float) -> State:
        done = float(jobs.batches[row])
        total = done + float(jobs.remaining[row])
        least = quantum if quantum < 1.0 else float(jobs.speedup[row].sizes[0])
        most = 1.0 if quantum < 1.0 else float(jobs.speedup[row].best(jobs.devices) or 1)
        heard, pending = float(jobs.heard[row]), not jobs.obeys[row]
        return State(now, done, heard, total, float(jobs.deadline[row]), least, most, quantum, pending)

    # ------------------------------------------------------------------------------------------------ its answer

    def _wish(self, jobs: JobView, row: int, need: Need | None, laid: Laid | None, whole: int, now: float) -> _Wish:
        speed = jobs.speedup[row]
        most = int(jobs.fixed[row]) or speed.best(jobs.devices) or speed.sizes[0]
        if not speed.known or (need is None and not math.isfinite(self._work(jobs, row, now)) and not jobs.exact[row]):
            # Nothing has been seen of it, or no forecast can be made yet.
            full = most if not speed.known else speed.sizes[0]
            return _Wish(0, 1.0, full, math.nan, "full_speed")
        if need is not None and laid is None and whole:  # it is behind, and has what nobody else needs
            return _Wish(1, 1.0, whole, ends_on(need, whole, now), "on_ramp", (whole, 0.0))
        if need is None or laid is None:
            return self._leftover(jobs, row, need, most, now)
        size, code = laid.at_once(now), "on_ramp"
        if whole > size:
            laid, size = Laid((), ends_on(need, whole, now), 0.0), float(whole)
        if not size:
            first = min(laid.stretches[0].devices, 1.0)
            numbers = first, min(laid.stretches[0].begin - now, FARTHEST)
            whole = max(int(laid.stretches[0].devices), 1)
            return _Wish(1, 0.0, whole, laid.done, "planned_later", numbers)
        left = float(jobs.deadline[row]) - now
        if self.rule.mode == "paper" and not self._in_parts(jobs, row):
            wanted = self._controllers[int(jobs.place[row])].step(self._state(jobs, row, now, 1.0), speed)
            size = min((n for n in speed.sizes if n >= wanted), default=most)
        elif not need.may_shrink and size == need.holds > need.sizes[0]:
            code, left = "not_resized", need.resize
        if jobs.fixed[row]:
            code = "back_to_size"
        return _Wish(0, min(size, 1.0), max(int(size), 1), laid.done, code, (size, min(left, FARTHEST)))

    def _leftover(self, jobs: JobView, row: int, need: Need | None, most: int, now: float) -> _Wish:
        """What becomes of a job that is not kept: it gets what nobody needs, if it goes on after its deadline."""
        speed, work = jobs.speedup[row], self._work(jobs, row, now)
        seconds = work / speed.rate(most)
        late = now + seconds - float(jobs.deadline[row])
        if jobs.fixed[row]:
            code, numbers = "back_to_size", (float(most), 0.0)
        elif late > 0:
            code, numbers = "beyond_reach", (float(most), min(late, FARTHEST))
        else:
            code, numbers = "outbid", (min(seconds * most, FARTHEST), 0.0)
        return _Wish(2, float(jobs.goes_on[row]), most, now + seconds if late > 0 else math.inf, code, numbers)
