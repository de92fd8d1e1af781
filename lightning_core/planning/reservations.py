"""A job laid into what is free of a pool from now on: when it has how many devices, at whatever speed-up it has.

It takes the fewest devices that bring it home in time; where fewer are free for a while it does with those. What it
loses whenever their number changes is counted in.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lightning_core.core.speedup import SpeedUp

# A job that is a little late on what it has waits with growing, if it need grow only for such a part of its time.
MAX_GROWTH_FRACTION = 0.25
# How much more than the forecast is hoped for of a number of devices until it was seen for so many seconds.
OPTIMISM, TRIED_AFTER = 1.2, 1.0
EPSILON = 1e-9


class FreeDevices:
    """Devices that are free from now on: a step function of time.

    Args:
        now: scheduler time.
        devices: of the pool.
    """

    __slots__ = ("devices", "times")

    def __init__(self, now: float, devices: float) -> None:
        self.times = [now]
        self.devices = [float(devices)]

    def copy(self) -> FreeDevices:
        """One that can be filled by itself."""
        other = FreeDevices.__new__(FreeDevices)
        other.times, other.devices = self.times.copy(), self.devices.copy()
        return other

    def take(self, begin: float, end: float, devices: float) -> None:
        """Somebody has so many devices from ``begin`` to ``end``."""
        first, last = self._cut(begin), self._cut(end)
        for at in range(first, last):
            self.devices[at] -= devices
        for at in (last, first):  # where nothing changes there is no step
            if at and abs(self.devices[at] - self.devices[at - 1]) < EPSILON:
                del self.times[at], self.devices[at]

    def least(self, end: float) -> float:
        """Devices that are free all the time until then."""
        return self.least_between(self.times[0], end)

    def least_between(self, begin: float, end: float) -> float:
        """Devices that are free all the time from one point in time to another."""
        first = max(bisect_right(self.times, begin) - 1, 0)
        return min(self.devices[first : max(bisect_right(self.times, end - EPSILON), first + 1)])

    def _cut(self, when: float) -> int:
        at = bisect_right(self.times, when) - 1
        if self.times[at] == when:
            return at
        self.times.insert(at + 1, when)
        self.devices.insert(at + 1, self.devices[at])
        return at + 1


class Stretch(NamedTuple):
    """So many devices for a while."""

    begin: float
    end: float
    devices: float


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job needs.

    Args:
        work: batches to do.
        end: when it should be done, scheduler time.
        sizes: numbers of devices that it may have, growing.
        rates: batches a second on each of them, growing too.
        latest: when it must be done, if ``end`` cannot be kept; not before ``end``.
        weight: how many jobs of weight 1 it counts for.
        part: of one device, with which its controller brings it home; 0 if it is to be planned here.
        holds: devices that it has now, 0 if none.
        lag: seconds until it trains there, if it is on its way.
        start: seconds that it loses when it begins, if it has no devices.
        resize: seconds that it loses when their number changes.
        stint: seconds for which nobody who is planned with it takes what it has.
        min_dwell: seconds that it keeps a number of devices before it may have fewer.
        patience: seconds that it may be late by forecast before it gets more devices than it has.
        margin: seconds by which it must be early by forecast before it gets fewer.
        may_shrink: whether it may have fewer devices than it has, if those bring it home.
        min_saving: part of its device-seconds that fewer must save, or it stays on what it has; 0: it does not.
    """

    work: float
    end: float
    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    latest: float = -math.inf
    weight: float = 1.0
    part: float = 0.0
    holds: float = 0.0
    lag: float = 0.0
    start: float = 0.0
    resize: float = 0.0
    stint: float = 0.0
    min_dwell: float = 0.0
    patience: float = 0.0
    margin: float = 0.0
    may_shrink: bool = True
    min_saving: float = 0.0


class Reservation(NamedTuple):
    """A job that is planned.

    Args:
        stretches: one after the other, maybe with gaps.
        done: when it ends, scheduler time.
        area: device-seconds that it takes.
    """

    stretches: tuple[Stretch, ...]
    done: float
    area: float

    def at_once(self, now: float) -> float:
        """Devices that it should have now."""
        begin, _, devices = self.stretches[0]
        return devices if begin <= now else 0.0


def reserve(need: Demand, free: FreeDevices, top: int, latest: float, *, whole: bool = False) -> Reservation | None:
    """The job on its size number ``top``, or what is left of it; None if it would not be done by ``latest``.

    Args:
        need: of the job.
        free: what it is laid into.
        top: which of its sizes.
        latest: scheduler time.
        whole: whether it rather waits until all of it is free.
    """
    sizes, rates, times, devices = need.sizes, need.rates, free.times, free.devices
    most, last = sizes[top] - EPSILON, len(times) - 1
    left, area, before, wait, change = need.work, 0.0, need.holds, need.lag, need.start
    stretches: list[Stretch] = []
    since = math.nan  # when it began on what it has
    for at, begin in enumerate(times):
        if begin >= latest:
            return None
        stop = times[at + 1] if at < last else latest
        if stop > latest:
            stop = latest
        limit = devices[at] + EPSILON
        k = top if limit >= most else -1 if whole else bisect_right(sizes, limit) - 1
        if k < 0:
            if before:
                if since == since:
                    stretches.append(Stretch(since, begin, before))
                since, before, wait, change = math.nan, 0.0, 0.0, need.resize
            continue
        size = sizes[k]
        if size != before:
            if before:
                change = wait + need.resize
            if before < size and before in sizes:
                held, seconds = sizes.index(int(before)), stop - begin
                as_is = (seconds - wait) * rates[held]
                if as_is >= left or as_is >= (seconds - change) * rates[k]:
                    k, size = held, sizes[held]  # a change would not pay for itself
            if size != before:
                if since == since:
                    stretches.append(Stretch(since, begin, before))
                since, before, wait, change = begin, size, change, need.resize
        if since != since:
            since = begin
        rate = rates[k]
        done = begin + wait + left / rate
        if done <= stop + EPSILON:
            stretches.append(Stretch(since, done, size))
            return Reservation(tuple(stretches), done, area + size * (done - begin))
        area += size * (stop - begin)
        trained = stop - begin - wait
        if trained > 0:
            left -= trained * rate
            wait = 0.0
        else:
            wait = -trained
    return None


def reserve_fewest(need: Demand, free: FreeDevices) -> Reservation | None:
    """The job on as few devices as bring it home in time, or else by its latest end; None if none do."""
    if need.part:
        now = free.times[0]
        if free.least(need.end) >= need.part - EPSILON:
            return Reservation((Stretch(now, need.end, need.part),), need.end, need.part * (need.end - now))
    laid = _reserve_fewest(need, free, need.end)
    if laid is None and need.latest > need.end:
        laid = _reserve_fewest(need, free, need.latest)
    return laid


def _reserve_fewest(need: Demand, free: FreeDevices, end: float) -> Reservation | None:
    held, sizes, changed = None, range(len(need.sizes)), end
    if need.holds in need.sizes:
        at = need.sizes.index(int(need.holds))
        held = _reserve_current(need, free, at, end)
        if held is not None:
            if need.lag or not need.may_shrink or len(held.stretches) > 1:
                return held
            sizes, changed = range(at), end - need.margin
    now = free.times[0]
    low, high = 0, len(sizes) - 1
    while low <= high and now + need.work / need.rates[low] > changed + EPSILON:
        low += 1
    if low > high:
        return held
    best = reserve(need, free, high, changed)
    if best is None:
        return held  # on the most it has all that there is
    top = high
    while low < high:  # where more bring it home, and fewer do not, the fewest that do are between them
        middle = (low + high) // 2
        laid = reserve(need, free, middle, changed)
        if laid is None:
            low = middle + 1
        else:
            best, top, high = laid, middle, middle
    if len(best.stretches) > 1 and not need.holds:
        # It need not begin on less than it should have, only to be changed again.
        whole = reserve(need, free, top, changed, whole=True)
        best = whole if whole is not None and whole.area < best.area else best
    if held is not None and need.min_saving and best.area >= held.area * (1 - need.min_saving):
        return held
    return best


def _reserve_current(need: Demand, free: FreeDevices, at: int, end: float) -> Reservation | None:
    """The job on what it has all the time; or, if that is a little too few, on more in the end."""
    now, size = free.times[0], need.sizes[at]
    latest = end + need.patience
    if now + need.lag + need.work / need.rates[at] <= latest + EPSILON:
        laid = reserve(need, free, at, latest)
        return laid if laid is not None and laid.stretches[0] == (now, laid.done, size) else None
    for more, rate in zip(need.sizes[at + 1 :], need.rates[at + 1 :], strict=True):
        # So long on what it has, that the rest is done in time on more.
        seconds = (rate * (end - now - need.resize) - need.work - need.lag * need.rates[at]) / (rate - need.rates[at])
        change = now + seconds
        # If it grew now it would have more for a stint, which may be too long.
        little = max(MAX_GROWTH_FRACTION * (end - now), need.resize + need.min_dwell)
        if end - change > little or change <= now + need.lag:
            continue
        if free.least_between(now, change) >= size - EPSILON and free.least_between(change, end) >= more - EPSILON:
            area = size * seconds + more * (end - change)
            return Reservation((Stretch(now, change, size), Stretch(change, end, more)), end, area)
    return None


def startup_delay(need: Demand, size: int) -> float:
    """Seconds until a job trains that has so many devices from now on."""
    if size == need.holds:
        return need.lag
    return need.lag + need.resize if need.holds else need.start


def next_change(need: Demand, laid: Reservation, now: float) -> float:
    """When the job may want another number of devices than now, if nothing is learned; inf if it does not."""
    first = laid.stretches[0]
    if first.begin > now:
        return first.begin
    if len(laid.stretches) > 1:
        return first.end
    size = int(first.devices)
    if size <= need.sizes[0]:  # or on a part of one
        return math.inf
    # By then so much is done on what it has that fewer bring it home.
    at = need.sizes.index(size)
    more, fewer = need.rates[at], need.rates[at - 1]
    late = now + need.resize + (need.work + more * startup_delay(need, size)) / fewer - (need.end - need.margin)
    return now + late / (more / fewer - 1.0) if late > 0 else math.inf


def optimistic_throughputs(speed: SpeedUp, sizes: Sequence[int], rates: Sequence[float]) -> tuple[float, ...]:
    """Of a number of devices that was not tried yet rather too much is hoped: an error can then be mended."""
    more = [
        rate if speed.seen(size) >= TRIED_AFTER else OPTIMISM * rate for size, rate in zip(sizes, rates, strict=True)
    ]
    for at in range(len(more) - 2, -1, -1):  # but not as much as of more devices
        more[at] = min(more[at], max(rates[at], 0.98 * more[at + 1]))
    return tuple(more)
