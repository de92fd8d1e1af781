"""Kinds of devices: on which kind each job should train, where they differ in how fast they are.

Fast devices are scarce, and jobs gain unequally much by them. So each kind has a price, and a job is placed where what
it takes costs least: an urgent one where it is fast, one with time where it just suffices. Jobs are taken cheapest
first, each on the cheapest kind on which it and all that are placed already end in time; what cannot be in time
anywhere comes last. A kind that would be idle then takes jobs that wait elsewhere, and those that end sooner on it by
more than the move costs.

That a set of jobs ends in time on a kind is tested as if its devices could be divided at will: the work due by each
deadline must not exceed what the devices do until then. Gavel (Narayanan et al., OSDI 2020, section 4.2) solves the
same question by a linear program, in fractions of time on each kind.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray

# Factor on the cost of a kind on which a job is not: what a forecast gets wrong must not move it.
ELSEWHERE = 1.1
# A job is moved to an idle kind if it ends sooner there by this part of its remaining time.
WORTH_MOVING = 0.2
# Rounds in which prices are adapted, and the most that one changes in a round.
ROUNDS, STEP = 4, 2.0
# Of more jobs than this, prices are adapted once: they gain less than a hundredth by more.
MANY = 2000
EPSILON = 1e-9
# Deadlines at which it is tested that work fits: the most urgent jobs have half of them. Of more jobs, the
# others are in groups, each due when its first job is.
DEADLINES = 512


class KindNeeds(NamedTuple):
    """What ``n`` jobs need of ``k`` kinds of devices."""

    work: FloatArray
    """Seconds alone on the devices of each kind, shape ``(n, k)``; inf where a job cannot be or never ends."""
    slack: FloatArray
    """Seconds to the deadline, shape ``(n,)``."""
    size: IntArray
    """Devices that each job takes, shape ``(n,)``."""
    weight: FloatArray
    """Relative importance, shape ``(n,)``."""
    devices: IntArray
    """Devices of each kind, shape ``(k,)``."""
    kind: IntArray
    """Kind on which each job's process is, shape ``(n,)``; -1 for none."""
    move: FloatArray
    """Seconds that a move to another kind costs, shape ``(n,)``."""


class PlacedKinds(NamedTuple):
    """On which kind each job should train."""

    kind: IntArray
    """Kind of each job, shape ``(n,)``; -1 if it can be on none."""
    in_time: BoolArray
    """Whether it should end in time there, beside the others, shape ``(n,)``."""


def place(needs: KindNeeds) -> PlacedKinds:
    """Return on which kind each job should train now: so that many end in time, and no device is idle for it.

    The time is O(n) in vector operations of length :data:`DEADLINES`, for each kind.

    Example::

        >>> work = np.array([[10.0, 40.0], [10.0, 20.0], [10.0, 12.0]])  # on a fast and on a slow device
        >>> alike = np.ones(3, np.int64)
        >>> slack, none = np.array([12.0, 25.0, 25.0]), np.full(3, -1)
        >>> found = place(KindNeeds(work, slack, alike, np.ones(3), np.ones(2, np.int64), none, np.zeros(3)))
        >>> found.kind.tolist(), found.in_time.tolist()
        ([0, 0, 1], [True, True, True])
    """
    work = _work(needs)
    return _use_idle(needs, work, in_time(needs, work))


def in_time(needs: KindNeeds, work: FloatArray | None = None) -> PlacedKinds:
    """Return on which kind each job should train so that many end in time, whatever is idle meanwhile.

    Args:
        needs: Needs of the jobs.
        work: Seconds that each takes on each kind, moves included, shape ``(n, k)``; None to count them.
    """
    work = _work(needs) if work is None else work
    moves = _moves(needs)
    price = prices(work)
    seconds = work * needs.size[:, None]
    # Jobs stay where they are, unless more are in time if some do not.
    best, _ = _placed(needs, work, np.where(moves, np.inf, seconds * price), seconds * price)
    gain = float(needs.weight[best.in_time].sum())
    most = float(needs.weight[(work <= needs.slack[:, None] + EPSILON).any(axis=1)].sum())
    for _ in range(ROUNDS if len(needs.slack) <= MANY else 1):
        if gain > most - EPSILON:
            break
        cost = seconds * np.where(moves, ELSEWHERE, 1.0) * price
        found, load = _placed(needs, work, cost)
        if (kept := float(needs.weight[found.in_time].sum())) > gain + EPSILON:
            best, gain = found, kept
        # A kind whose devices are wanted more than others becomes dearer.
        price = price * np.clip((load + 0.05) / (load.mean() + 0.05), 1 / STEP, STEP) ** 0.5
    return _rest(needs, work, best)


def _moves(needs: KindNeeds) -> BoolArray:
    """Return where a job would move, shape ``(n, k)``."""
    moves: BoolArray = (needs.kind[:, None] >= 0) & (np.arange(needs.work.shape[1]) != needs.kind[:, None])
    return moves


def _work(needs: KindNeeds) -> FloatArray:
    """Return the seconds of each job on each kind, moves included, shape ``(n, k)``; inf where it does not fit."""
    work: FloatArray = needs.work + np.where(_moves(needs), needs.move[:, None], 0.0)
    work[needs.size[:, None] > needs.devices] = np.inf
    return work


def prices(work: FloatArray) -> FloatArray:
    """Return what a device-second of each kind is worth: how fast jobs are there, a geometric mean, shape ``(k,)``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.log(np.min(work, axis=1, keepdims=True) / work)
    pace[~np.isfinite(pace)] = np.nan
    known = ~np.isnan(pace)
    total = np.where(known, pace, 0.0).sum(axis=0)
    price: FloatArray = np.exp(total / np.maximum(known.sum(axis=0), 1))
    return price


def _placed(needs: KindNeeds, work: FloatArray, *costs: FloatArray) -> tuple[PlacedKinds, FloatArray]:
    """Place jobs cheapest first, each on the cheapest kind where all end in time; return also how full each kind is.

    Args:
        needs: Needs of the jobs.
        work: Seconds that each job takes on each kind, moves included, shape ``(n, k)``.
        costs: What that costs; inf where it is not to be, shape ``(n, k)``. Those that are in time nowhere are placed
            by the next costs, behind the others.
    """
    n, k = work.shape
    by_deadline = np.argsort(needs.slack, kind="stable")
    rank, group = np.empty(n, np.int64), _groups(n)
    rank[by_deadline] = np.arange(n)
    first = np.searchsorted(group, np.arange(group[-1] + 1))
    room = needs.devices[:, None] * needs.slack[by_deadline[first]]  # device-seconds until each deadline that are free
    takes, place_of = (work * needs.size[:, None]).tolist(), group[rank].tolist()
    kind, in_time = np.full(n, -1), np.zeros(n, np.bool_)
    wanted = np.zeros(k)
    for number, cost in enumerate(costs):
        cost = np.where(work <= needs.slack[:, None] + EPSILON, cost, np.inf)
        cheapest = cost.min(axis=1)
        left = np.flatnonzero(~in_time & np.isfinite(cheapest))
        options, many = np.argsort(cost, axis=1, kind="stable").tolist(), np.isfinite(cost).sum(axis=1).tolist()
        for row in left[np.lexsort((rank[left], cheapest[left] / needs.weight[left]))].tolist():
            at, seconds = place_of[row], takes[row]
            if not number:
                wanted[options[row][0]] += seconds[options[row][0]]
            for one in options[row][: many[row]]:
                if (until := room[one, at:]).min() >= seconds[one] - EPSILON:
                    until -= seconds[one]
                    kind[row], in_time[row] = one, True
                    break
    horizon = max(float(np.max(needs.slack)), EPSILON)
    return PlacedKinds(kind, in_time), wanted / np.maximum(needs.devices * horizon, EPSILON)


def _groups(n: int) -> IntArray:
    """Return the deadline at which each of ``n`` jobs by deadline is tested, from 0 on; shape ``(n,)``."""
    place = np.arange(n)
    if n <= DEADLINES:
        return place
    exact = DEADLINES // 2
    later: IntArray = exact + (place - exact) * (DEADLINES - exact) // (n - exact)
    return np.where(place < exact, place, later)


def _rest(needs: KindNeeds, work: FloatArray, found: PlacedKinds) -> PlacedKinds:
    """Leave each job that is in time nowhere where it is, or place it where it takes least."""
    left = ~found.in_time
    fastest = np.where(np.isfinite(work).any(axis=1), np.argmin(work, axis=1), -1)
    stays = (needs.kind >= 0) & np.isfinite(np.take_along_axis(work, np.maximum(needs.kind, 0)[:, None], 1)[:, 0])
    return found._replace(kind=np.where(left, np.where(stays, needs.kind, fastest), found.kind))


def _use_idle(needs: KindNeeds, work: FloatArray, found: PlacedKinds) -> PlacedKinds:
    """Move jobs to devices that would be idle: first those that would wait, then those that end much sooner there."""
    kind = found.kind.copy()
    order = np.lexsort((needs.slack, ~found.in_time))
    free, runs = needs.devices.copy(), np.zeros(len(kind), np.bool_)
    for row in order.tolist():
        if kind[row] >= 0 and needs.size[row] <= free[kind[row]]:
            free[kind[row]] -= needs.size[row]
            runs[row] = True
    for row in order[~runs[order]].tolist():
        if not free.any():
            break
        options = np.flatnonzero(np.isfinite(work[row]) & (free >= needs.size[row]))
        if len(options):
            kind[row] = options[np.argmin(work[row, options])]
            free[kind[row]] -= needs.size[row]
    for row in order[runs[order]].tolist():
        if not free.any():
            break
        now = work[row, kind[row]]
        options = np.flatnonzero(free >= needs.size[row])
        if len(options) and work[row, one := options[np.argmin(work[row, options])]] < (1.0 - WORTH_MOVING) * now:
            free[kind[row]] += needs.size[row]
            free[one] -= needs.size[row]
            kind[row] = one
    return found._replace(kind=kind)


def in_order(needs: KindNeeds, order: IntArray) -> IntArray:
    """Return the kinds of jobs that take, one after another, the kind on which they end first, shape ``(n,)``.

    Args:
        needs: Needs of the jobs.
        order: Their rows, the first to be served first.
    """
    n, k = needs.work.shape
    free = [[0.0] * int(devices) for devices in needs.devices]
    kind = np.full(n, -1)
    for row in order.tolist():
        size, ends = int(needs.size[row]), np.full(k, np.inf)
        for one in range(k):
            if size <= len(free[one]):
                cost = needs.move[row] if 0 <= needs.kind[row] != one else 0.0
                ends[one] = free[one][size - 1] + needs.work[row, one] + cost
        if np.isfinite(ends).any():
            best = int(np.argmin(ends))
            kind[row] = best
            free[best] = sorted([*free[best][size:], *[float(ends[best])] * size])
    return kind
