"""Devices are dealt to the jobs of several owners: each owner's jobs in their order, as many as are the owner's."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.plans import Plan
from lightning_core.parts.owners.fair_share import EPSILON, max_min
from lightning_core.planning.best_effort import MIN_SHARE


class DeviceSubset(NamedTuple):
    """Some of the pool's devices, which are all that some jobs can be on."""

    devices: int
    jobs: IntArray
    """Rows of these jobs in the round."""


def rooms(
    places: Sequence[DeviceSubset], of: IntArray, weight: FloatArray, size: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Divide the devices of each place among the owners of the jobs that are bound to it.

    Args:
        places: The places.
        of: Owner of each job, shape ``(n,)``.
        weight: Weight of each owner, shape ``(k,)``.
        size: Devices that each job can use, shape ``(n,)``.

    Returns:
        The devices of each place that are each owner's, shape ``(places, k)``, and the devices that the jobs of each
        owner could use beyond them, shape ``(k,)``.
    """
    k = len(weight)
    room, beyond = np.zeros((len(places), k)), np.zeros(k)
    for number, place in enumerate(places):
        demand = np.bincount(of[place.jobs], size[place.jobs], k).astype(np.float64)
        room[number] = max_min(demand, np.zeros(k), weight, place.devices)
        beyond += demand - room[number]
    return room, beyond


class Dealing:
    """One dealing. Lists have one entry per job.

    Args:
        plan: Plans of all owners as one.
        size: Devices of each job, unless the plan says.
        usable: Whether a job can use devices now.
        of: Owner of each job.
        conserving: Whether the policy of each owner leaves nothing unused.
        places: Places to which jobs are bound.
        room: Devices of each place that are each owner's; it is used up.

    Attributes:
        share: Share of its devices that each job has.
        held: Devices that the jobs of each owner have.
    """

    def __init__(
        self,
        plan: Plan,
        size: IntArray,
        usable: BoolArray,
        of: IntArray,
        conserving: BoolArray,
        places: Sequence[DeviceSubset],
        room: FloatArray,
    ) -> None:
        self.size = size if plan.size is None else plan.size
        self.share = [0.0] * len(of)
        self.held = [0.0] * len(conserving)
        self._request: list[float] = plan.share.tolist()
        self._sizes: list[int] = self.size.tolist()
        self._of: list[int] = of.tolist()
        self._conserving = conserving
        self._place = {row: number for number, place in enumerate(places) for row in place.jobs.tolist()}
        self._room = room
        self._queue: list[list[int]] = [[] for _ in conserving]
        may = usable.tolist()
        for row in plan.order.tolist():
            if may[row] and (self._request[row] > 0 or conserving[self._of[row]]):
                self._queue[self._of[row]].append(row)

    def deal(self, allotted: FloatArray) -> None:
        """Give each owner's jobs the devices that are the owner's."""
        for owner, devices in enumerate(allotted.tolist()):
            left, asks, others = devices, list[int](), list[int]()
            for row in self._queue[owner]:
                (asks if self._request[row] > 0 else others).append(row)
            for row in asks:
                if left <= EPSILON:
                    break
                left -= self._give(row, self._request[row], left)
            for row in others:
                if left < 1.0 - EPSILON:
                    break
                if self._sizes[row] <= left + EPSILON:
                    left -= self._give(row, 1.0, left)
            if left > EPSILON and self._conserving[owner]:
                self._scale_up([row for row in asks if 0 < self.share[row] < 1.0], left)
            self._queue[owner] = [row for row in (*asks, *others) if not self.share[row]]

    def lend(self, devices: float, weight: FloatArray, cap: FloatArray, last: BoolArray) -> None:
        """Give what is left to the next jobs of all owners, of those first that hold least for their weight.

        Args:
            devices: Devices of the pool.
            weight: Weight of each owner.
            cap: Maximum number of devices of each.
            last: Whether an owner comes after all others.
        """
        left = devices - sum(self.held)

        def turn(owner: int) -> tuple[bool, float, int]:
            return bool(last[owner]), self.held[owner] / float(weight[owner]), owner

        queues = [iter(queue) for queue in self._queue]
        turns = [turn(owner) for owner, queue in enumerate(self._queue) if queue]
        heapify(turns)
        while turns and left >= MIN_SHARE:
            *_, owner = heappop(turns)
            for row in queues[owner]:
                given = self._give(row, self._request[row] or 1.0, min(left, float(cap[owner]) - self.held[owner]))
                if given:
                    left -= given
                    heappush(turns, turn(owner))
                    break

    def _give(self, row: int, request: float, left: float) -> float:
        """Give a job its share, or a part of it if it is on one device; return the devices that it has got."""
        owner, size, place = self._of[row], self._sizes[row], self._place.get(row)
        wants = request * size
        given = min(wants, left if place is None else min(left, float(self._room[place, owner])))
        if given < wants - EPSILON and (size > 1 or given < MIN_SHARE):
            return 0.0
        self.share[row] = request if given >= wants - EPSILON else given
        self.held[owner] += given
        if place is not None:
            self._room[place, owner] -= given
        return given

    def _scale_up(self, rows: Sequence[int], left: float) -> None:
        """Give jobs that share devices what is left of them, in proportion."""
        total = sum(self.share[row] for row in rows)
        for row in rows:
            if row not in self._place:
                more = min(self.share[row] * left / total, 1.0 - self.share[row])
                self.share[row] += more
                self.held[self._of[row]] += more
