"""What becomes of the devices that are left over once the jobs that are kept have what they need.

Jobs that are behind come first: those that were not kept, for nobody knows what tomorrow brings. Only where it is asked
for does the rest go to jobs that would be in time without it, so that later ones find more room: nobody who holds more
than it needs gives it up for nothing, whoever is planned for later begins, and the others grow where that costs the
fewest device-seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from lightning_core.planning.reservations import EPSILON, Demand, FreeDevices, Reservation, startup_delay

# A job grows where each more device-second that it takes saves at least so much of its own.
MAX_WASTE = 1.0


def backfill(
    needs: Sequence[Demand | None],
    laid: Sequence[Reservation | None],
    free: FreeDevices,
    untried: Collection[int],
    *,
    grow: bool,
    min_payback: float,
) -> list[int]:
    """Whole devices of each job from now on.

    Args:
        needs: of the jobs; None for one that has none.
        laid: how each is planned; None for one that is not kept.
        free: what that leaves.
        untried: rows of jobs of which nothing is known: they get what is left first.
        grow: whether jobs that are in time get more than they need.
        min_payback: a change must bring so many times as much time as it costs.
    """
    now = free.times[0]
    there = {row: need for row, need in enumerate(needs) if need is not None}
    sizes = [0 if on is None else int(on.at_once(now) + EPSILON) for on in laid]
    left = math.floor(free.devices[0] + EPSILON)

    def give(row: int, devices: int) -> None:
        nonlocal left
        left -= devices - sizes[row]
        sizes[row] = devices

    for row in untried:
        if sizes[row]:
            give(row, max(size for size in there[row].sizes if size <= sizes[row] + left))
    behind = [row for row in there if laid[row] is None]
    for row in sorted(behind, key=lambda row: (there[row].end, row)):
        give(row, _catching_up(there[row], left, now))
    if not grow:
        return sizes
    kept = [row for row, need in there.items() if laid[row] is not None and not need.part]
    for row in kept:
        holds = int(there[row].holds)
        if sizes[row] < holds <= sizes[row] + left and holds in there[row].sizes:
            give(row, holds)
    while left and kept:
        gains = ((*_gain(there[row], sizes[row], left, min_payback, now), row) for row in kept)
        saved, devices, row = max(gains)
        if saved == -math.inf:
            break
        give(row, devices)
    return sizes


def end_time(need: Demand, size: int, now: float) -> float:
    """When a job ends if it has so many devices from now on."""
    return now + startup_delay(need, size) + need.work / need.rates[need.sizes.index(size)]


def _catching_up(need: Demand, left: int, now: float) -> int:
    """The fewest devices on which a job would be in time, or all that it can get of them; 0 if none bring it home."""
    latest = max(need.end, need.latest)
    if need.holds in need.sizes and need.holds <= left and end_time(need, int(need.holds), now) <= latest:
        return int(need.holds)
    in_time = [size for size in need.sizes if end_time(need, size, now) <= latest]
    if not in_time:
        return 0
    if need.holds in need.sizes and in_time[0] > left and need.holds <= left:
        return int(need.holds)
    return max((size for size in need.sizes if size <= min(in_time[0], left)), default=0)


def _gain(need: Demand, size: int, left: int, min_payback: float, now: float) -> tuple[float, int]:
    """Device-seconds saved by each more device, and how many it would then have."""
    if not size:
        first = need.sizes[0]
        return (math.inf, first) if first <= left else (-math.inf, 0)
    done = end_time(need, size, now)
    best = -math.inf, 0
    for more in need.sizes:
        if size < more <= size + left:
            sooner = end_time(need, more, now)
            cost = need.resize if more != need.holds else 0.0
            if done - sooner <= min_payback * cost:
                continue
            saved = (size * (done - now) - more * (sooner - now)) / (more - size)
            if saved > best[0] and saved > -MAX_WASTE * (done - sooner):
                best = saved, more
    return best
