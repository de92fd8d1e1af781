"""Deals devices out: from what a policy wants to who holds which part of which device.

Rules

1. No device is oversold: the duties on it sum to 1 at most, and a job of several devices holds them whole.
2. The policy's order decides: whoever comes first takes, on the device that the others miss least.
3. A process lives where its job may be, and stays as long as it can be served there. It is moved (saved, released,
   restored) only if it can be, has not just begun to train there, and a device stands free.
4. Parts that do not fit share a device in proportion. What nobody wants goes to whoever can use it.
5. At most ``slots`` launched processes stay warm on a device; the last in the order makes room.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.core.plans import Plan

# A part smaller than this is not worth a switch, where it is not what the policy asked for.
LEAST = 0.02
EXACT = 1e-9

Devices = tuple[int, ...]


def is_simple(plan: Plan) -> bool:
    """Whether a plan is for whole devices only, or for parts that fit one device."""
    return bool(np.all((plan.share == 0) | (plan.share == 1)) or plan.share.sum() <= 1.0 + EXACT)


def deal_one(plan: Plan) -> FloatArray:
    """Duties of a simple plan on a pool of one device on which all jobs may stay, shape ``(n,)``.

    The same as :class:`Dealer` answers there, in one pass over arrays: in order, each what is left.
    """
    wish = plan.share[plan.order]
    part = np.minimum(wish, np.maximum(1.0 - (np.cumsum(wish) - wish), 0.0))
    if plan.fill:
        if not part.any():
            part[0] = 1.0
        part /= part.sum()
    share = np.empty(len(wish))
    share[plan.order] = part
    return share


class Dealer:
    """One round of dealing, on a pool of any number of devices.

    Args:
        devices: of the pool.
        slots: launched processes that may be warm on one device; None for as many as there are jobs.
        home: where each job's process may live so far; empty if nowhere. A list of ``n``.
        stays: whether the process cannot leave its home now, a list of ``n``.
        size: devices that each job takes, a list of ``n``.
        launched: whether the process counts against the slots, a list of ``n``.
        gone: devices that no launched process can be on.
        resizes: whether each may go on with as many devices as it has, where there are not as many as it should have; a
            list of ``n``, empty if none may.
        within: devices that each may be on at all; a list of ``n``, empty if all may be on all.
        smaller: on how many each may train instead, any devices, where there are not as many as it should have; a list
            of ``n``, empty if none may.
    """

    def __init__(
        self,
        devices: int,
        slots: int | None,
        home: Sequence[Devices],
        stays: Sequence[bool],
        size: Sequence[int],
        launched: Sequence[bool],
        gone: frozenset[int] = frozenset(),
        resizes: Sequence[bool] = (),
        within: Sequence[Devices] = (),
        smaller: Sequence[Sequence[int]] = (),
    ) -> None:
        n = len(home)
        self._within, self._smaller = within, smaller
        self._resizes = resizes
        self._slots = [0 if device in gone else n if slots is None else slots for device in range(devices)]
        self._home = list(home)
        self._stays = stays
        self._size = size
        self._launched = launched
        self._all = range(devices)
        self._free = [1.0] * devices
        self._share = [0.0] * n
        self._rank = [n] * n
        self._served: list[list[int]] = [[] for _ in self._all]
        # Launched processes on each device: those that take up its slots.
        self._warm: list[dict[int, None]] = [{} for _ in self._all]
        for row, at in enumerate(home):
            if launched[row]:
                for device in at:
                    self._warm[device][row] = None

    def deal(self, plan: Plan, apart: frozenset[int] = frozenset()) -> tuple[FloatArray, list[Devices]]:
        """Duties, shape ``(n,)``, and where each job may live, a list of ``n``.

        Args:
            plan: over all rows.
            apart: rows that hold nothing now (a person has paused them), but keep their home if nobody needs it.
        """
        order = [row for row in plan.order.tolist() if row not in apart]
        self._wish: list[float] = plan.share.tolist()
        # Who lives on each device, the first to be served last.
        self._line: list[list[int]] = [[] for _ in self._all]
        for rank, row in reversed(list(enumerate(order))):
            self._rank[row] = rank
            for device in self._home[row]:
                self._line[device].append(row)
        for row in order:
            wish = self._wish[row]
            if wish > 0 and (wish < 1.0 or max(self._free) >= LEAST):
                self._serve(row, wish)
        if plan.fill:
            for row in order:
                if max(self._free) < 1.0 - EXACT:
                    break
                if not self._share[row]:
                    self._serve(row, 1.0, whole=True)
            self._scale()
        self._build_ahead(order)
        return np.array(self._share), self._home

    def _serve(self, row: int, wish: float, *, whole: bool = False) -> None:
        if self._size[row] > 1:
            self._serve_gang(row)
            return
        home, free = self._home[row], self._free
        reachable = home if home and self._stays[row] else self._within_reach(row)
        if enough := [device for device in reachable if free[device] >= wish - EXACT]:
            self._take(row, (min(enough, key=lambda d: (d not in home, free[d], self._missed(d), d)),), wish)
        elif wish < 1.0:
            self._join(row, reachable, wish)
        elif reachable and not whole:
            roomiest = max(reachable, key=lambda d: (free[d], d in home, -d))
            if free[roomiest] >= LEAST:
                self._take(row, (roomiest,), free[roomiest])

    def _serve_gang(self, row: int) -> None:
        """Several devices, all of them whole, or none; or those that it has, if their number may change."""
        n, home = self._size[row], self._home[row]
        if len(home) == n and all(self._free[device] >= 1.0 - EXACT for device in home):
            self._take(row, home, 1.0)
            return
        stays = home if self._stays[row] else ()
        whole = [device for device in self._within_reach(row) if self._free[device] >= 1.0 - EXACT]
        if len(stays) < n <= len(whole) and all(device in whole for device in stays):
            chosen = sorted(whole, key=lambda d: (d not in home, self._missed(d), d))[:n]
            self._take(row, tuple(sorted(chosen)), 1.0)
            return
        most = max((m for m in self._smaller[row] if m <= len(whole)), default=0) if self._smaller else 0
        stays_whole = bool(home) and all(self._free[d] >= 1.0 - EXACT for d in home)
        if most > len(home) or (most and not stays_whole):
            chosen = sorted(whole, key=lambda d: (d not in home, self._missed(d), d))[:most]
            self._take(row, tuple(sorted(chosen)), 1.0)
        elif stays_whole and self._resizes and self._resizes[row]:
            self._take(row, home, 1.0)

    def _join(self, row: int, reachable: Sequence[int], wish: float) -> None:
        """Joins those who have parts of a device, all in proportion to their wishes; whole owners share with nobody."""
        wishes = {device: [self._wish[r] for r in self._served[device]] for device in reachable}
        parted = {device: sum(many) for device, many in wishes.items() if max(many, default=0.0) < 1.0}
        if not parted:
            return
        device = min(parted, key=lambda d: (parted[d], d not in self._home[row], d))
        total = parted[device] + wish
        if wish / total < LEAST:
            return
        for r in self._served[device]:
            self._share[r] = self._wish[r] / total
        self._free[device] = wish / total
        self._take(row, (device,), wish / total)

    def _take(self, row: int, devices: Devices, part: float) -> None:
        if devices != self._home[row]:
            self._leave(row)
            for device in devices:
                if self._launched[row] and self._full(device):
                    self._leave(self._last(device, row))
            self._move_in(row, devices)
        for device in devices:
            self._free[device] = max(0.0, self._free[device] - part)
            self._served[device].append(row)
        self._share[row] = part

    def _move_in(self, row: int, devices: Devices) -> None:
        self._home[row] = devices
        if self._launched[row]:
            for device in devices:
                self._warm[device][row] = None

    def _leave(self, row: int) -> None:
        for device in self._home[row]:
            self._warm[device].pop(row, None)
        self._home[row] = ()

    def _missed(self, device: int) -> int:
        """How much a device is missed by those that live there and are not served yet: by the first of them."""
        line = self._line[device]
        while line and (self._share[line[-1]] or device not in self._home[line[-1]]):
            line.pop()
        return -self._rank[line[-1]] if line else -len(self._home)

    def _within_reach(self, row: int) -> Sequence[int]:
        allowed = self._allowed(row)
        if not self._launched[row]:
            return allowed
        home = self._home[row]
        return [d for d in allowed if d in home or not self._full(d) or self._last(d, row) >= 0]

    def _allowed(self, row: int) -> Sequence[int]:
        return self._within[row] if self._within else self._all

    def _full(self, device: int) -> bool:
        return len(self._warm[device]) >= self._slots[device]

    def _last(self, device: int, newcomer: int) -> int:
        """Who makes room: of those that hold nothing and can leave the last in the order; -1 if nobody."""
        able = [row for row in self._warm[device] if not self._share[row] and not self._stays[row]]
        last = max(able, key=lambda row: self._rank[row], default=-1)
        return last if last >= 0 and self._rank[last] > self._rank[newcomer] else -1

    def _scale(self) -> None:
        """What is left of a device goes to those who have parts of it, in proportion."""
        for device, free in enumerate(self._free):
            if free > EXACT and self._served[device]:
                total = sum(self._share[row] for row in self._served[device])
                for row in self._served[device]:
                    self._share[row] /= total
                self._free[device] = 0.0

    def _build_ahead(self, order: Sequence[int]) -> None:
        """Empty slots are filled ahead of time: whoever is next builds while others train."""
        for row in order:
            if self._home[row] or not self._launched[row]:
                continue
            room = [device for device in self._all if not self._full(device)]
            if not room:
                return
            room = [device for device in room if device in self._allowed(row)]
            if len(room) >= self._size[row]:
                chosen = sorted(room, key=lambda d: (len(self._warm[d]), d))[: self._size[row]]
                self._move_in(row, tuple(sorted(chosen)))
