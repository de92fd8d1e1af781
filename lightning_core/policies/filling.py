"""Which jobs fit into a pool in time, each on how many devices: planned ahead, at whatever speed-up each has.

Jobs are taken by their ends. Each is laid into what is left of the pool from now on, on the devices that take the least
device-seconds of all that bring it home in time; where fewer are free for a while it does with those. That is
progressive filling (ElasticFlow's minimum satisfactory share), with the time that changing the number of devices costs
counted in. Where a job does not fit, Moore and Hodgson decide: of it and those before it the one that takes the most
device-seconds for its weight goes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lightning_core.speedup import SpeedUp

# Of those that might go for a job that does not fit, so many are tried, and so many in all: each costs half a plan.
TRIES, TRIES_IN_ALL = 4, 32
# A job stays on the devices that it has if another number would take so much less of them at best.
STAYS = 0.1
EXACT = 1e-9


class Free:
    """Devices that are free from now on: a step function of time.

    Args:
        now: scheduler time.
        devices: of the pool.
    """

    __slots__ = ("devices", "times")

    def __init__(self, now: float, devices: float) -> None:
        self.times = [now]
        self.devices = [float(devices)]

    def copy(self) -> Free:
        """One that can be filled by itself."""
        other = Free.__new__(Free)
        other.times, other.devices = self.times.copy(), self.devices.copy()
        return other

    def take(self, begin: float, end: float, devices: float) -> None:
        """Somebody has so many devices from ``begin`` to ``end``."""
        first, last = self._cut(begin), self._cut(end)
        for at in range(first, last):
            self.devices[at] -= devices

    def least(self, end: float) -> float:
        """Devices that are free all the time until then."""
        return min(self.devices[: max(bisect_right(self.times, end - EXACT), 1)])

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
class Need:
    """What a job needs.

    Args:
        work: batches to do.
        end: when it should be done, scheduler time.
        sizes: numbers of devices that it may have, growing.
        rates: batches a second on each of them, growing too.
        latest: when it must be done, if ``end`` cannot be kept; not before ``end``.
        holds: devices that it has now, 0 if none.
        lag: seconds until it trains there, if it is on its way.
        start: seconds that it loses when it begins, if it has no devices.
        resize: seconds that it loses when their number changes.
        stint: seconds for which it should keep what it has, if nobody goes for it.
        weight: how many jobs of weight 1 it counts for.
        part: of one device, with which its controller brings it home; 0 if it is to be planned here.
        patience: seconds that it may be late by forecast before it gets more devices than it has.
        margin: seconds by which it must be early by forecast on other devices than it has.
        may_shrink: whether it may have fewer devices than it has, if it is not late on more.
    """

    work: float
    end: float
    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    latest: float = -math.inf
    holds: float = 0.0
    lag: float = 0.0
    start: float = 0.0
    resize: float = 0.0
    stint: float = 0.0
    weight: float = 1.0
    part: float = 0.0
    patience: float = 0.0
    margin: float = 0.0
    may_shrink: bool = True


class Laid(NamedTuple):
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


def useful_sizes(speed: SpeedUp, devices: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Sizes that fit so many devices, without those that are no faster than a smaller one, and their rates."""
    sizes: list[int] = []
    rates: list[float] = []
    for size in speed.sizes:
        if size > devices:
            break
        rate = speed.rate(size)
        if not sizes or rate > rates[-1] * (1 + EXACT):
            sizes.append(size)
            rates.append(rate)
    return tuple(sizes), tuple(rates)


def lay(need: Need, free: Free, top: int, latest: float, *, whole: bool = False) -> Laid | None:
    """The job on its size number ``top``, or what is left of it (``whole``: it waits until all of it is free); None if
    it would not be done by ``latest``.
    """
    sizes, rates, times, devices = need.sizes, need.rates, free.times, free.devices
    most = sizes[top] - EXACT
    left, area, before, wait, resize = need.work, 0.0, need.holds, need.lag, need.resize
    change = need.start
    stretches: list[Stretch] = []
    last = len(times) - 1
    for at, begin in enumerate(times):
        if begin >= latest:
            return None
        stop = min(times[at + 1], latest) if at < last else latest
        limit = devices[at] + EXACT
        k = top if limit >= most else -1 if whole else bisect_right(sizes, limit) - 1
        if k < 0:
            if before:
                before, wait, change = 0.0, 0.0, resize
            continue
        size = sizes[k]
        if size != before:
            if before:
                change = wait + resize
            if before and before < size and _as_good(need, before, wait, change, k, left, stop - begin):
                k = sizes.index(int(before))
                size = sizes[k]
            else:
                wait = change
            change = resize
        rate = rates[k]
        done = begin + wait + left / rate
        end = done if done <= stop + EXACT else stop
        area += size * (end - begin)
        if stretches and before == size:
            stretches[-1] = Stretch(stretches[-1].begin, end, size)
        else:
            stretches.append(Stretch(begin, end, size))
        if done <= stop + EXACT:
            return Laid(tuple(stretches), done, area)
        trained = stop - begin - wait
        if trained > 0:
            left -= trained * rate
            wait = 0.0
        else:
            wait = -trained
        before = size
    return None


def _as_good(need: Need, before: float, wait: float, change: float, k: int, left: float, seconds: float) -> bool:
    """Whether a job gets as far for a while on what it has as on more, for a change costs time."""
    if before not in need.sizes:
        return False
    as_is = (seconds - wait) * need.rates[need.sizes.index(int(before))]
    return as_is >= left or as_is >= (seconds - change) * need.rates[k]


def lay_on_least(need: Need, free: Free) -> Laid | None:
    """The job on as few device-seconds as bring it home in time, or to its latest end; None if none do."""
    if need.part:
        now = free.times[0]
        if free.least(need.end) >= need.part - EXACT:
            return Laid((Stretch(now, need.end, need.part),), need.end, need.part * (need.end - now))
    laid = _lay_on_least(need, free, need.end, need.end - need.margin)
    if laid is None and (need.margin or need.latest > need.end):
        latest = max(need.end, need.latest)
        laid = _lay_on_least(need, free, latest, latest)
    return laid


def _lay_on_least(need: Need, free: Free, end: float, changed: float) -> Laid | None:
    now, best, sizes = free.times[0], None, range(len(need.sizes))
    if need.holds in need.sizes:
        at = need.sizes.index(int(need.holds))
        best = lay(need, free, at, end + need.patience)
        if best is not None and best.stretches[0][0] <= now and best.stretches[0].devices == need.holds:
            if need.lag or not need.may_shrink:
                return best
            best = best._replace(area=best.area * (1 - STAYS))
            sizes = range(at)
        else:
            best = None
    for k in sizes:
        seconds = need.work / need.rates[k]
        if now + seconds > changed + EXACT or (best is not None and need.sizes[k] * seconds >= best.area):
            continue
        laid = lay(need, free, k, changed)
        if laid is not None and (best is None or laid.area < best.area):
            best = laid
        if laid is not None and len(laid.stretches) > 1 and not need.holds:
            laid = lay(need, free, k, changed, whole=True)
            if laid is not None and (best is None or laid.area < best.area):
                best = laid
    return best


def fill(needs: Sequence[Need | None], devices: float, now: float) -> tuple[list[Laid | None], Free]:
    """Who is kept, and how.

    Args:
        needs: of the jobs; None for one that takes no part.
        devices: of the pool.
        now: scheduler time.

    Returns:
        For each job how it is laid, None if it is not kept; and what is left of the pool.
    """
    filling = _Filling(needs, devices, now, running_first=True)
    if filling.dropped:
        other = _Filling(needs, devices, now, running_first=False)
        if other.weight > filling.weight + EXACT:
            filling = other
    laid: list[Laid | None] = [None] * len(needs)
    for row, on in zip(filling.rows, filling.laid, strict=True):
        laid[row] = on
    return laid, filling.free


class _Filling:
    """The kept jobs by their ends, how each is laid, and what was free before it was."""

    def __init__(self, needs: Sequence[Need | None], devices: float, now: float, *, running_first: bool) -> None:
        self.needs = {row: need for row, need in enumerate(needs) if need is not None}
        self.rows: list[int] = []
        self.laid: list[Laid] = []
        self.before: list[Free] = []
        self.free = Free(now, devices)
        self.dropped = False
        self._tries = TRIES_IN_ALL
        self._empty = self.free.copy()
        by_end = sorted(self.needs, key=lambda row: (self.needs[row].end, row))
        if running_first:
            by_end = [row for row in by_end if not self._stay(row)]
            by_end.sort(key=lambda row: not self.needs[row].holds)
        for row in by_end:
            self._reserve(row, 1.0, running_first)
        for row in by_end:
            self._reserve(row, -1.0, running_first)
            self._add_or_instead(row)

    def _stay(self, row: int) -> bool:
        """Whether it is in time on the devices that it has, and keeps them."""
        need = self.needs[row]
        if not need.holds or need.part:
            return False
        on = lay_on_least(need, self.free)
        if on is None or on.stretches[0].devices > need.holds:
            return False
        self._put(row, on)
        return True

    def _reserve(self, row: int, times: float, for_a_stint: bool) -> None:
        """What it has nobody else gets until it is there, or for as long as a change should last."""
        now, need = self._empty.times[0], self.needs[row]
        seconds = need.stint if for_a_stint else need.lag
        if need.holds and seconds > 0:
            self.free.take(now, now + seconds, times * need.holds)

    def _add_or_instead(self, row: int) -> None:
        if self._add(row):
            return
        alone = lay_on_least(self.needs[row], self._empty)
        if alone is None:
            return
        self.dropped = True
        if not self._tries:
            return
        greed = alone.area / self.needs[row].weight
        dear = sorted(((self._greed(at), at) for at in range(len(self.rows))), reverse=True)
        for much, at in dear[: min(TRIES, self._tries)]:
            if much <= greed:
                break
            self._tries -= 1
            if self._instead(at, row):
                break

    @property
    def weight(self) -> float:
        """Of all that are kept."""
        return sum(self.needs[row].weight for row in self.rows)

    def _greed(self, at: int) -> float:
        return self.laid[at].area / self.needs[self.rows[at]].weight

    def _add(self, row: int) -> bool:
        on = lay_on_least(self.needs[row], self.free)
        if on is None:
            return False
        self._put(row, on)
        return True

    def _put(self, row: int, on: Laid) -> None:
        self.before.append(self.free)
        self.rows.append(row)
        self.laid.append(on)
        self.free = self.free.copy()
        for begin, end, devices in on.stretches:
            self.free.take(begin, end, devices)

    def _instead(self, at: int, row: int) -> bool:
        """That one goes and this one comes, if all the others still fit."""
        rows, laid, before, free = self.rows, self.laid, self.before, self.free
        self.rows, self.laid, self.before, self.free = rows[:at], laid[:at], before[:at], before[at]
        if all(self._add(other) for other in [*rows[at + 1 :], row]):
            return True
        self.rows, self.laid, self.before, self.free = rows, laid, before, free
        return False
