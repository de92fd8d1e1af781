"""Which jobs fit into a pool in time, each on how many devices: planned ahead, at whatever speed-up each has.

Jobs are taken by their ends. Each is laid into what is left of the pool from now on, on the fewest devices that bring
it home in time; where fewer are free for a while it does with those. That is progressive filling (ElasticFlow's minimum
satisfactory share), with the time that changing the number of devices costs counted in. Where a job does not fit, Moore
and Hodgson decide: of it and those before it the one that takes the most device-seconds for its weight goes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lightning_core.speedup import SpeedUp

# Of those that might go for a job that does not fit, so many are tried: each costs a whole plan.
TRIES = 4
EXACT = 1e-9


class Free:
    """Devices that are free from now on: a step function of time.

    Args:
        now: scheduler time.
        devices: of the pool.
    """

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
        return min(devices for begin, devices in zip(self.times, self.devices, strict=True) if begin < end)

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
        sizes: numbers of devices that it may have, growing, each faster than the one before.
        speed: how fast it is on them.
        holds: devices that it has now, 0 if none.
        resize: seconds that it loses when their number changes.
        weight: how many jobs of weight 1 it counts for.
        part: of one device, with which its controller brings it home; 0 if it is to be planned here.
        patience: seconds that it may be late by forecast before it gets more devices than it has.
        may_shrink: whether it may have fewer devices than it has.
    """

    work: float
    end: float
    sizes: tuple[int, ...]
    speed: SpeedUp
    holds: float = 0.0
    resize: float = 0.0
    weight: float = 1.0
    part: float = 0.0
    patience: float = 0.0
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


def useful_sizes(speed: SpeedUp, devices: int) -> tuple[int, ...]:
    """Sizes that fit so many devices, without those that are no faster than a smaller one."""
    sizes: list[int] = []
    best = 0.0
    for size in speed.sizes:
        if size > devices:
            break
        rate = speed.rate(size)
        if rate > best * (1 + EXACT) or not sizes:
            sizes.append(size)
            best = rate
    return tuple(sizes)


def lay(need: Need, free: Free, most: float, patience: float = 0.0) -> Laid | None:
    """The job on ``most`` devices, or what is left of them; None if it would not end in time, or so much later."""
    latest = need.end + patience
    left, area, before, stretches = need.work, 0.0, need.holds, list[Stretch]()
    edges = zip(free.times, [*free.times[1:], math.inf], free.devices, strict=True)
    for begin, edge, devices in edges:
        stop = min(edge, latest)
        if begin >= stop:
            break
        limit = min(most, devices) + EXACT
        size = max((size for size in need.sizes if size <= limit), default=0)
        if not size:
            before = 0.0
            continue
        lost = need.resize if size != before else 0.0
        rate = need.speed.rate(size)
        done = begin + lost + left / rate
        end = min(done, stop)
        left -= max(end - begin - lost, 0.0) * rate
        area += size * (end - begin)
        if stretches and stretches[-1].devices == size and stretches[-1].end == begin:
            stretches[-1] = Stretch(stretches[-1].begin, end, size)
        else:
            stretches.append(Stretch(begin, end, size))
        before = size
        if done <= stop + EXACT:
            return Laid(tuple(stretches), done, area)
    return None


def lay_on_fewest(need: Need, free: Free) -> Laid | None:
    """The job on as few devices as bring it home in time; None if none do."""
    if need.part:
        now = free.times[0]
        if free.least(need.end) >= need.part - EXACT:
            return Laid((Stretch(now, need.end, need.part),), need.end, need.part * (need.end - now))
    for most in need.sizes:
        if most < need.holds and not need.may_shrink:
            continue
        if (laid := lay(need, free, most, need.patience if most == need.holds else 0.0)) is not None:
            return laid
    return None


def fill(needs: Sequence[Need | None], devices: float, now: float) -> list[Laid | None]:
    """Who is kept, and how.

    Args:
        needs: of the jobs; None for one that takes no part.
        devices: of the pool.
        now: scheduler time.

    Returns:
        For each job how it is laid; None if it is not kept.
    """
    laid: list[Laid | None] = [None] * len(needs)
    alone = {row: lay_on_fewest(need, Free(now, devices)) for row, need in enumerate(needs) if need is not None}
    todo = sorted((row for row, on in alone.items() if on is not None), key=lambda row: (needs[row].end, row))  # type: ignore[union-attr]
    kept: list[int] = []
    free = Free(now, devices)

    def greed(row: int) -> float:
        on = laid[row] or alone[row]
        return on.area / needs[row].weight  # type: ignore[union-attr]

    for row in todo:
        on = lay_on_fewest(needs[row], free)  # type: ignore[arg-type]
        if on is not None:
            kept.append(row)
            laid[row] = on
            _take(free, on)
            continue
        dear = sorted((other for other in kept if greed(other) > greed(row)), key=greed, reverse=True)
        for gone in dear[:TRIES]:
            some = [other for other in kept if other != gone] + [row]
            anew = _lay_all(needs, some, devices, now)
            if anew is not None:
                free, again = anew
                laid[gone] = None
                for other, how in zip(some, again, strict=True):
                    laid[other] = how
                kept = some
                break
    return laid


def _lay_all(
    needs: Sequence[Need | None], rows: Sequence[int], devices: float, now: float
) -> tuple[Free, list[Laid]] | None:
    """All of them together; None if one does not fit."""
    free, all_laid = Free(now, devices), []
    for row in rows:
        on = lay_on_fewest(needs[row], free)  # type: ignore[arg-type]
        if on is None:
            return None
        _take(free, on)
        all_laid.append(on)
    return free, all_laid


def _take(free: Free, on: Laid) -> None:
    for begin, end, devices in on.stretches:
        free.take(begin, end, devices)
