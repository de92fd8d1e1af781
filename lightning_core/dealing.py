"""Deals devices out: from what a policy wants to who holds which part of which device.

Rules

1. No device is oversold: the duties on it sum to 1 at most, and a job of several devices holds them whole.
2. The policy's order decides: whoever comes first takes, on the device that the others miss least.
3. A process stays where it lives as long as it can be served there. It is moved (saved, released, restored) only if it
   can be, has stayed for a while, and a device stands free.
4. Parts that do not fit share a device in proportion. What nobody wants goes to whoever can use it.
5. At most ``slots`` launched processes stay warm on a device; the last in the order makes room.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_core.types import FloatArray, Plan

# A part smaller than this is not worth a switch.
LEAST = 0.02
EXACT = 1e-9

Devices = tuple[int, ...]


def deal_one(plan: Plan) -> FloatArray:
    """Duties on a pool of one device on which all jobs may stay, shape ``(n,)``: in order, each what is left.

    The same as :class:`Dealer` answers there, in one pass over arrays.
    """
    wish = plan.duty[plan.order]
    part = np.minimum(wish, np.maximum(1.0 - (np.cumsum(wish) - wish), 0.0))
    if (total := float(wish[wish < 1.0].sum())) > 1.0 and wish.max() < 1.0:
        part = wish / total
    part[(part < LEAST) & (part < wish)] = 0.0
    if plan.fill:
        if not part.any():
            part[0] = 1.0
        part /= max(float(part.sum()), EXACT)
    duty = np.empty(len(wish))
    duty[plan.order] = part
    return duty


class Dealer:
    """One round of dealing, on a pool of any number of devices.

    Args:
        devices: of the pool.
        slots: launched processes that may be warm on one device; None for as many as there are jobs.
        home: where each job's process may live so far; empty if nowhere. A list of ``n``.
        stays: whether the process cannot leave its home now, a list of ``n``.
        size: devices that each job takes, a list of ``n``.
        launched: whether the process counts against the slots, a list of ``n``.
    """

    def __init__(
        self,
        devices: int,
        slots: int | None,
        home: Sequence[Devices],
        stays: Sequence[bool],
        size: Sequence[int],
        launched: Sequence[bool],
    ) -> None:
        self._slots = slots
        self._home = list(home)
        self._stays = stays
        self._size = size
        self._launched = launched
        self._free = [1.0] * devices
        self._duty = [0.0] * len(home)
        self._residents: list[list[int]] = [[] for _ in range(devices)]
        for row, at in enumerate(home):
            for device in at:
                self._residents[device].append(row)
        self._rank = [len(home)] * len(home)

    def deal(self, plan: Plan, apart: frozenset[int] = frozenset()) -> tuple[FloatArray, list[Devices]]:
        """Duties, shape ``(n,)``, and where each job may live, a list of ``n``.

        Args:
            plan: over all rows.
            apart: rows that hold nothing now (a person has paused them), but keep their home if nobody needs it.
        """
        order = [row for row in plan.order.tolist() if row not in apart]
        for rank, row in enumerate(order):
            self._rank[row] = rank
        self._wish: list[float] = plan.duty.tolist()
        for row in order:
            wish = self._wish[row]
            if wish > 0 and (wish < 1.0 or max(self._free) >= LEAST):
                self._serve(row, wish)
        if plan.fill:
            for row in order:
                if max(self._free) < 1.0 - EXACT:
                    break
                if not self._duty[row]:
                    self._serve(row, 1.0, whole=True)
            self._scale()
        self._warm(order)
        return np.array(self._duty), self._home

    def _serve(self, row: int, wish: float, *, whole: bool = False) -> None:
        if self._size[row] > 1:
            self._serve_gang(row)
            return
        home = self._home[row]
        reachable = list(home) if home and self._stays[row] else self._within_reach(row)
        enough = [device for device in reachable if self._free[device] >= wish - EXACT]
        if enough:
            best = min(enough, key=lambda d: (d not in home, self._free[d], self._missed(d), d))
            self._take(row, (best,), wish)
        elif reachable and not whole:
            roomiest = max(reachable, key=lambda d: (self._free[d], d in home, -d))
            if wish < 1.0:
                self._share(row, roomiest, wish)
            elif self._free[roomiest] >= LEAST:
                self._take(row, (roomiest,), self._free[roomiest])

    def _serve_gang(self, row: int) -> None:
        """Several devices, all of them whole, or none."""
        n, home = self._size[row], self._home[row]
        whole = [device for device, free in enumerate(self._free) if free >= 1.0 - EXACT]
        if home and all(device in whole for device in home):
            self._take(row, home, 1.0)
        elif not (home and self._stays[row]):
            open_ = [device for device in self._within_reach(row) if device in whole]
            if len(open_) >= n:
                chosen = sorted(open_, key=lambda d: (d not in home, self._missed(d), d))[:n]
                self._take(row, tuple(sorted(chosen)), 1.0)

    def _share(self, row: int, device: int, wish: float) -> None:
        """Joins those who have parts of a device, all in proportion to their wishes; whole owners share with nobody."""
        sharing = [r for r in self._residents[device] if self._duty[r]]
        total = sum(self._wish[r] for r in sharing) + wish
        if any(self._wish[r] >= 1.0 - EXACT for r in sharing) or wish / total < LEAST:
            return
        for r in sharing:
            self._duty[r] = self._wish[r] / total
        self._free[device] = wish / total
        self._take(row, (device,), wish / total)

    def _take(self, row: int, devices: Devices, part: float) -> None:
        if devices != self._home[row]:
            self._leave(row)
            for device in devices:
                if self._launched[row] and self._full(device):
                    self._leave(self._last(device, row))
                self._residents[device].append(row)
            self._home[row] = devices
        for device in devices:
            self._free[device] = max(0.0, self._free[device] - part)
        self._duty[row] = part

    def _leave(self, row: int) -> None:
        for device in self._home[row]:
            self._residents[device].remove(row)
        self._home[row] = ()

    def _missed(self, device: int) -> int:
        """How much a device is missed by those that live there and are not served yet: by the first of them."""
        return -min((self._rank[row] for row in self._residents[device] if not self._duty[row]), default=1 << 30)

    def _within_reach(self, row: int) -> list[int]:
        home = self._home[row]
        return [
            device
            for device in range(len(self._free))
            if device in home or not self._launched[row] or not self._full(device) or self._last(device, row) >= 0
        ]

    def _full(self, device: int) -> bool:
        if self._slots is None:
            return False
        return sum(self._launched[row] for row in self._residents[device]) >= self._slots

    def _last(self, device: int, newcomer: int) -> int:
        """Who makes room: of those that hold nothing and can leave the last in the order; -1 if nobody."""
        able = [r for r in self._residents[device] if self._launched[r] and not self._duty[r] and not self._stays[r]]
        last = max(able, key=lambda r: self._rank[r], default=-1)
        return last if last >= 0 and self._rank[last] > self._rank[newcomer] else -1

    def _scale(self) -> None:
        """What is left of a device goes to those who have parts of it, in proportion."""
        for device, free in enumerate(self._free):
            sharing = [row for row in self._residents[device] if self._duty[row]]
            if sharing and free > EXACT:
                for row in sharing:
                    self._duty[row] /= 1.0 - free
                self._free[device] = 0.0

    def _warm(self, order: Sequence[int]) -> None:
        """Empty slots are filled ahead of time: whoever is next builds while others train."""
        for row in order:
            open_ = [device for device in range(len(self._free)) if not self._full(device)]
            if not open_:
                return
            if not self._home[row] and self._launched[row] and len(open_) >= self._size[row]:
                chosen = sorted(open_, key=lambda d: (len(self._residents[d]), d))[: self._size[row]]
                self._home[row] = tuple(sorted(chosen))
                for device in chosen:
                    self._residents[device].append(row)
