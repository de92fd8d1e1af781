"""Backfill: the devices that are left over once the admitted jobs have what they need.

Jobs that were not admitted come first: the forecast may be wrong. Only with ``grow`` does the rest go to jobs that
would be in time without it, so that later jobs find more room: a job that holds more than it needs keeps it, a job
planned for later starts, and the others grow where that costs the fewest device-seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from lightning_core.planning.free_devices import EPSILON, FreeDevices
from lightning_core.planning.reservations import Demand, Reservation, startup_delay

# Maximum device-seconds that growing may waste per second by which the job ends sooner.
MAX_WASTE = 1.0


def backfill(
    demands: Sequence[Demand | None],
    reservations: Sequence[Reservation | None],
    free: FreeDevices,
    untried: Collection[int],
    *,
    grow: bool,
    min_payback: float,
) -> list[int]:
    """Return the whole devices of each job from now on.

    Args:
        demands: Demand of each job; None for a job without one.
        reservations: Reservation of each job; None if it is not admitted.
        free: Devices that the reservations leave free.
        untried: Rows of jobs of unknown throughput, which get devices first.
        grow: Whether jobs that are in time get more than they need.
        min_payback: Minimum ratio of the time that a change saves to the time that it costs.
    """
    now = free.times[0]
    present = {row: need for row, need in enumerate(demands) if need is not None}
    sizes = [0 if on is None else int(on.devices_at(now) + EPSILON) for on in reservations]
    left = math.floor(free.devices[0] + EPSILON)

    def give(row: int, devices: int) -> None:
        nonlocal left
        left -= devices - sizes[row]
        sizes[row] = devices

    for row in untried:
        if sizes[row]:
            give(row, max(size for size in present[row].sizes if size <= sizes[row] + left))
    behind = [row for row in present if reservations[row] is None]
    for row in sorted(behind, key=lambda row: (present[row].end, row)):
        give(row, _catch_up_size(present[row], left, now))
    if not grow:
        return sizes
    kept = [row for row, need in present.items() if reservations[row] is not None and not need.share]
    for row in kept:
        holds = int(present[row].held)
        if sizes[row] < holds <= sizes[row] + left and holds in present[row].sizes:
            give(row, holds)
    while left and kept:
        gains = ((*_gain(present[row], sizes[row], left, min_payback, now), row) for row in kept)
        saved, devices, row = max(gains)
        if saved == -math.inf:
            break
        give(row, devices)
    return sizes


def end_time(need: Demand, size: int, now: float) -> float:
    """Return when a job ends if it has ``size`` devices from now on."""
    return now + startup_delay(need, size) + need.work / need.throughputs[need.sizes.index(size)]


def _catch_up_size(need: Demand, left: int, now: float) -> int:
    """Return the fewest devices on which a job is in time, or as many of them as are left; 0 if none suffice."""
    latest = max(need.end, need.latest)
    if need.held in need.sizes and need.held <= left and end_time(need, int(need.held), now) <= latest:
        return int(need.held)
    in_time = [size for size in need.sizes if end_time(need, size, now) <= latest]
    if not in_time:
        return 0
    if need.held in need.sizes and in_time[0] > left and need.held <= left:
        return int(need.held)
    return max((size for size in need.sizes if size <= min(in_time[0], left)), default=0)


def _gain(need: Demand, size: int, left: int, min_payback: float, now: float) -> tuple[float, int]:
    """Return the device-seconds saved per additional device and the new size."""
    if not size:
        first = need.sizes[0]
        return (math.inf, first) if first <= left else (-math.inf, 0)
    done = end_time(need, size, now)
    best = -math.inf, 0
    for more in need.sizes:
        if size < more <= size + left:
            sooner = end_time(need, more, now)
            cost = need.resize_seconds if more != need.held else 0.0
            if done - sooner <= min_payback * cost:
                continue
            saved = (size * (done - now) - more * (sooner - now)) / (more - size)
            if saved > best[0] and saved > -MAX_WASTE * (done - sooner):
                best = saved, more
    return best
