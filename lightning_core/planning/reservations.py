"""Reservations: when a job has how many devices of those that are free from now on, with any speed-up.

A job reserves the fewest devices on which it ends in time; where fewer are free for a while it uses those. What it
loses whenever their number changes is included.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lightning_core.core.speedup import SpeedUp
from lightning_core.planning.free_devices import EPSILON, FreeDevices

# A job that is slightly late postpones growing if it needs more devices only for this part of its time.
MAX_GROWTH_FRACTION = 0.25
# Factor on the forecast throughput of a number of devices until it was measured for ``TRIED_AFTER`` seconds.
OPTIMISM, TRIED_AFTER = 1.2, 1.0


class Segment(NamedTuple):
    """A number of devices for a span of time."""

    begin: float
    end: float
    devices: float


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job needs.

    Attributes:
        work: Batches left.
        end: Scheduler time by which it should be done.
        sizes: Numbers of devices that it may have, increasing.
        throughputs: Batches per second on each of them, increasing.
        latest: Scheduler time by which it must be done if ``end`` cannot be kept; not before ``end``.
        weight: Relative importance when not all deadlines can be met.
        share: Share of one device at which its controller ends it in time; 0 if it is to be planned here.
        held: Devices that it has now, 0 if none.
        arrival_delay: Seconds until it trains on them, if it is on its way.
        start_seconds: Seconds lost when it starts, if it has no devices.
        resize_seconds: Seconds lost when their number changes.
        protected_seconds: Seconds for which no job planned with it takes its devices.
        min_dwell: Minimum seconds on a number of devices before it may have fewer.
        max_lateness: Seconds that it may end after ``end`` by forecast before it gets more devices.
        may_postpone: Whether it may keep too few devices for as long as more of them still end it in time.
        shrink_margin: Seconds that it must be early by forecast before it gets fewer.
        may_shrink: Whether it may have fewer devices if it ends in time on those.
        min_saving: Minimum part of its device-seconds that fewer devices must save; 0 for any.
    """

    work: float
    end: float
    sizes: tuple[int, ...]
    throughputs: tuple[float, ...]
    latest: float = -math.inf
    weight: float = 1.0
    share: float = 0.0
    held: float = 0.0
    arrival_delay: float = 0.0
    start_seconds: float = 0.0
    resize_seconds: float = 0.0
    protected_seconds: float = 0.0
    min_dwell: float = 0.0
    max_lateness: float = 0.0
    may_postpone: bool = True
    shrink_margin: float = 0.0
    may_shrink: bool = True
    min_saving: float = 0.0


class Reservation(NamedTuple):
    """The devices of one job over time.

    Attributes:
        segments: Segments in order, possibly with gaps.
        end: Scheduler time at which the job ends.
        device_seconds: Device-seconds that it takes.
    """

    segments: tuple[Segment, ...]
    end: float
    device_seconds: float

    def devices_at(self, now: float) -> float:
        """Return the devices that it has at ``now``."""
        begin, _, devices = self.segments[0]
        return devices if begin <= now else 0.0


def reserve(need: Demand, free: FreeDevices, top: int, latest: float, *, whole: bool = False) -> Reservation | None:
    """Return the reservation of a job at size number ``top`` or what is free of it; None if it ends after ``latest``.

    Args:
        need: Demand of the job.
        free: Devices to reserve from.
        top: Index of the size.
        latest: Scheduler time.
        whole: Whether the job waits until all of its devices are free.
    """
    # One pass over the steps of ``free``: the inner loop of every plan, in which only rare steps call a function.
    sizes, throughputs, times, devices = need.sizes, need.throughputs, free.times, free.devices
    enough, last = sizes[top] - EPSILON, len(times) - 1
    left, area, before, wait, change = need.work, 0.0, need.held, need.arrival_delay, need.start_seconds
    segments: list[Segment] = []
    since = times[0]  # start of the current segment
    for at, begin in enumerate(times):
        if begin >= latest:
            return None
        stop = times[at + 1] if at < last else latest
        stop = latest if stop > latest else stop
        limit = devices[at] + EPSILON
        k = top if limit >= enough else -1 if whole else bisect_right(sizes, limit) - 1
        if k < 0:
            if before:
                _close_segment(segments, since, begin, before)
                before, wait, change = 0.0, 0.0, need.resize_seconds
            continue
        if sizes[k] != before:
            if before:
                change = wait + need.resize_seconds
                k = _size_worth_changing_to(need, k, stop - begin, wait, change, left, before)
            if sizes[k] != before:
                _close_segment(segments, since, begin, before)
                since, before, wait, change = begin, sizes[k], change, need.resize_seconds
        size, throughput = sizes[k], throughputs[k]
        done = begin + wait + left / throughput
        if done <= stop + EPSILON:
            segments.append(Segment(since, done, size))
            return Reservation(tuple(segments), done, area + size * (done - begin))
        area += size * (stop - begin)
        trained = stop - begin - wait
        if trained > 0:
            left -= trained * throughput
            wait = 0.0
        else:
            wait = -trained
    return None


def _close_segment(segments: list[Segment], since: float, end: float, devices: float) -> None:
    if devices and since < end:
        segments.append(Segment(since, end, devices))


def _size_worth_changing_to(
    need: Demand, k: int, seconds: float, wait: float, change: float, left: float, before: float
) -> int:
    """Return the index of the size to train on for a step: ``k``, or the present size if growing does not pay off."""
    if not before < need.sizes[k] or before not in need.sizes:
        return k
    held = need.sizes.index(int(before))
    as_is = (seconds - wait) * need.throughputs[held]
    return k if left > as_is < (seconds - change) * need.throughputs[k] else held


def reserve_fewest(need: Demand, free: FreeDevices) -> Reservation | None:
    """Return the reservation on the fewest devices that suffice, if need be by the latest end; None if none do."""
    if need.share:
        now = free.times[0]
        if free.min_until(need.end) >= need.share - EPSILON:
            return Reservation((Segment(now, need.end, need.share),), need.end, need.share * (need.end - now))
    laid = _reserve_fewest(need, free)
    if laid is None and need.latest > need.end:
        # What is left until then is for what cannot be foreseen: nothing of it is planned away.
        laid = _reserve_fewest(replace(need, end=need.latest, max_lateness=0.0, may_postpone=False), free)
    return laid


def _reserve_fewest(need: Demand, free: FreeDevices) -> Reservation | None:
    end, held, sizes = need.end, None, range(len(need.sizes))
    changed = end
    if need.held in need.sizes:
        at = need.sizes.index(int(need.held))
        held = _reserve_current(need, free, at)
        if held is not None:
            if need.arrival_delay or not need.may_shrink or len(held.segments) > 1:
                return held
            sizes, changed = range(at), end - need.shrink_margin
    now = free.times[0]
    low, high = 0, len(sizes) - 1
    while low <= high and now + need.work / need.throughputs[low] > changed + EPSILON:
        low += 1
    if low > high:
        return held
    best = reserve(need, free, high, changed)
    if best is None:
        return held  # at the maximum it has all there is
    top = high
    while low < high:  # bisect for the fewest devices that suffice
        middle = (low + high) // 2
        laid = reserve(need, free, middle, changed)
        if laid is None:
            low = middle + 1
        else:
            best, top, high = laid, middle, middle
    if len(best.segments) > 1 and not need.held:
        # Starting on fewer devices only to be resized again may not pay off.
        whole = reserve(need, free, top, changed, whole=True)
        best = whole if whole is not None and whole.device_seconds < best.device_seconds else best
    if held is not None and need.min_saving and best.device_seconds >= held.device_seconds * (1 - need.min_saving):
        return held
    return best


def _reserve_current(need: Demand, free: FreeDevices, at: int) -> Reservation | None:
    """Return the reservation on the current devices; or, if those are slightly too few, on more in the end."""
    now, end, size = free.times[0], need.end, need.sizes[at]
    latest = end + need.max_lateness
    if now + need.arrival_delay + need.work / need.throughputs[at] <= latest + EPSILON:
        laid = reserve(need, free, at, latest)
        return laid if laid is not None and laid.segments[0] == (now, laid.end, size) else None
    if not need.may_postpone:
        return None
    for more, rate in zip(need.sizes[at + 1 :], need.throughputs[at + 1 :], strict=True):
        # Stay on the current devices for as long as the rest can be done in time on more.
        seconds = (rate * (end - now - need.resize_seconds) - need.work - need.arrival_delay * need.throughputs[at]) / (
            rate - need.throughputs[at]
        )
        change = now + seconds
        # Growing now would commit it to more devices for the minimum dwell time, which may be too long.
        threshold = max(MAX_GROWTH_FRACTION * (end - now), need.resize_seconds + need.min_dwell)
        if end - change > threshold or change <= now + need.arrival_delay:
            continue
        if free.min_between(now, change) >= size - EPSILON and free.min_between(change, end) >= more - EPSILON:
            area = size * seconds + more * (end - change)
            return Reservation((Segment(now, change, size), Segment(change, end, more)), end, area)
    return None


def startup_delay(need: Demand, size: int) -> float:
    """Return the seconds until a job trains if it has ``size`` devices from now on."""
    if size == need.held:
        return need.arrival_delay
    return need.arrival_delay + need.resize_seconds if need.held else need.start_seconds


def next_change(need: Demand, laid: Reservation, now: float) -> float:
    """Return when a job may want another number of devices, if nothing new is learned; inf if never."""
    first = laid.segments[0]
    if first.begin > now:
        return first.begin
    if len(laid.segments) > 1:
        return first.end
    size = int(first.devices)
    if size <= need.sizes[0]:  # or on a share of one
        return math.inf
    # By then enough is done on the current devices that fewer suffice.
    at = need.sizes.index(size)
    more, fewer = need.throughputs[at], need.throughputs[at - 1]
    late = (
        now
        + need.resize_seconds
        + (need.work + more * startup_delay(need, size)) / fewer
        - (need.end - need.shrink_margin)
    )
    return now + late / (more / fewer - 1.0) if late > 0 else math.inf


def optimistic_throughputs(speed: SpeedUp, sizes: Sequence[int], throughputs: Sequence[float]) -> tuple[float, ...]:
    """Return the throughputs, raised for untried numbers of devices: they are tried while an error can be mended."""
    more = [
        rate if speed.seen(size) >= TRIED_AFTER else OPTIMISM * rate
        for size, rate in zip(sizes, throughputs, strict=True)
    ]
    for at in range(len(more) - 2, -1, -1):  # but below that of more devices
        more[at] = min(more[at], max(throughputs[at], 0.98 * more[at + 1]))
    return tuple(more)
