"""Allocates devices: from the shares that a plan asks for to the share that each job holds of which device.

Rules

1. No device is oversold: the shares of it sum to at most 1, and a job on several devices holds them whole.
2. The plan's order decides: the first job takes first, on the device that the others need least.
3. A process stays on devices where its job may be, as long as it can be served there. It is moved (saved, released,
   restored) only if it can be, has not just begun to train there, and a device is free.
4. Shares that do not fit are scaled to fit one device, but for jobs that yield: they have what is free there. What no
   job asks for goes to any job that can use it.
5. The devices of a job are on one machine: on that with the fewest free ones, so that whole machines stay free for
   large jobs. A job that may spread has devices of several machines, of as few as possible, where none has enough.
6. At most ``slots`` launched processes stay resident on a device, and never more than its memory holds; the last in
   the order make room. A job that is there already and needs no more than it has is no worse served there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.core.plans import Plan

# A smaller share is not worth a switch, unless the policy asked for it.
MIN_SHARE = 0.02
TOLERANCE = 1e-9

Devices = tuple[int, ...]


class Caps(NamedTuple):
    """Devices that groups of jobs may have at most."""

    of: Sequence[int]
    """Index of the group of each job."""
    most: Sequence[float]
    """Devices of each group at most; inf for any number."""
    share: Sequence[float]
    """Devices that are each group's now, if its jobs can use more; inf otherwise. Verdicts give it as the reason."""

    def check(self, jobs: int) -> None:
        """Check the caps.

        Args:
            jobs: Number of jobs that they are for.

        Raises:
            ValueError: If a rule is broken; the message names it and the value.
        """
        k = len(self.most)
        if len(self.of) != jobs or not all(0 <= group < k for group in self.of):
            raise ValueError(f"of must have one of {k} groups for each of {jobs} jobs, got {self.of}")
        if len(self.share) != k:
            raise ValueError(f"share must have {k} values, got {self.share}")
        if not all(devices >= 0 for devices in (*self.most, *self.share)):
            raise ValueError(f"devices must not be negative, got {self.most} and {self.share}")


def is_simple(plan: Plan) -> bool:
    """Return whether a plan is for whole devices only, or for shares that fit one device."""
    return bool(np.all((plan.share == 0) | (plan.share == 1)) or plan.share.sum() <= 1.0 + TOLERANCE)


def allocate_one(plan: Plan) -> FloatArray:
    """Return the shares of a simple plan on a pool of one device on which all jobs may stay; shape ``(n,)``.

    The result is that of :class:`Allocator`, in one pass over arrays: each job in order gets of what is left.
    """
    request = plan.share[plan.order]
    ordered = np.minimum(request, np.maximum(1.0 - (np.cumsum(request) - request), 0.0))
    if plan.work_conserving:
        if not ordered.any():
            ordered[0] = 1.0
        ordered /= ordered.sum()
    share = np.empty(len(request))
    share[plan.order] = ordered
    return share


class Allocator:
    """One allocation, on a pool of any number of devices. All lists have one entry per job.

    Args:
        devices: Number of devices of the pool.
        slots: Launched processes that may be resident on one device; None for any number.
        home: Devices on which each job's process may live so far; empty if there are none.
        stays: Whether a process cannot leave its devices now.
        size: Number of devices that each job takes.
        launched: Whether a process counts against the slots.
        unavailable: Devices that no launched process can be on.
        resizes: Whether a job may keep the devices it has where its size is not available; empty if none may.
        within: Devices that each job may be on at all; empty if all may be on all.
        smaller: Numbers of devices that each job may get instead where its size is not available; empty if none may.
        memory: Part of a device's memory that each job takes while it trains; empty if all fit.
        held: Part that it takes while it holds no share of a device that it is on; empty for the same.
        caps: Devices that the groups of the jobs may have; no job has more of what others leave.
        machines: Index of the machine of each device; empty if all are on one.
        spreads: Whether the devices of each job may be on several machines; empty if all are on one.
        gathers: Whether each job that has devices on several is better moved to as many on one; likewise.
        grows: Larger numbers of devices that each job may have if no other job needs them; empty if none may.
    """

    def __init__(
        self,
        devices: int,
        slots: int | None,
        home: Sequence[Devices],
        stays: Sequence[bool],
        size: Sequence[int],
        launched: Sequence[bool],
        unavailable: frozenset[int] = frozenset(),
        resizes: Sequence[bool] = (),
        within: Sequence[Devices] = (),
        smaller: Sequence[Sequence[int]] = (),
        memory: Sequence[float] = (),
        held: Sequence[float] = (),
        caps: Caps | None = None,
        machines: Sequence[int] = (),
        spreads: Sequence[bool] = (),
        gathers: Sequence[bool] = (),
        grows: Sequence[Sequence[int]] = (),
    ) -> None:
        n = len(home)
        self._machines, self._spreads, self._gathers, self._grows = machines, spreads, gathers, grows
        self._within, self._smaller, self._caps = within, smaller, caps
        self._resizes = resizes
        self._slots = [0 if device in unavailable else n if slots is None else slots for device in range(devices)]
        self._home = list(home)
        self._stays = stays
        self._size = size
        self._launched = launched
        self._all = range(devices)
        self._free = [1.0] * devices
        self._most: float | None = 1.0
        self._share = [0.0] * n
        self._rank = [n] * n
        self._served: list[list[int]] = [[] for _ in self._all]
        self._memory, self._held = memory, held or memory
        self.lacks_memory = [False] * n
        """Whether each job that asked for a share got none for want of memory."""
        # Processes on each device; the launched ones take its slots.
        self._resident: list[dict[int, None]] = [{} for _ in self._all]
        for row, at in enumerate(home):
            if launched[row] or memory:
                for device in at:
                    self._resident[device][row] = None

    def allocate(self, plan: Plan, excluded: frozenset[int] = frozenset()) -> tuple[FloatArray, list[Devices]]:
        """Return the share of each job, shape ``(n,)``, and its devices, a list of ``n``.

        Args:
            plan: Plan for all jobs.
            excluded: Jobs that hold nothing now, but keep their devices unless others need them.
        """
        order = [row for row in plan.order.tolist() if row not in excluded]
        # A job that was told to have several devices has them whole, whatever share of one its plan is for.
        self._request = [1.0 if size > 1 and share else share
                         for share, size in zip(plan.share.tolist(), self._size, strict=True)]  # fmt: skip
        self._yields = [False] * len(self._request) if plan.yields is None else plan.yields.tolist()
        # Jobs that live on each device, the first in the order last.
        self._queue: list[list[int]] = [[] for _ in self._all]
        for rank, row in reversed(list(enumerate(order))):
            self._rank[row] = rank
            for device in self._home[row]:
                self._queue[device].append(row)
        for row in order:
            request = self._request[row]
            if 0 < request < 1.0 or (request and self._most_free() >= MIN_SHARE and self._has_free(row)):
                self._serve(row, request)
        if self._memory:
            self.lacks_memory = [self._request[row] > 0 and self._lacks_memory(row) for row in range(len(self._home))]
        if plan.work_conserving:
            self._serve_what_is_left(order)
        for row in order if self._grows else ():
            self._grow(row)
        self._prelaunch(order)
        return np.array(self._share), self._home

    def _serve(self, row: int, request: float, *, whole: bool = False) -> None:
        """Give a job its share of one device, or less if that is all there is; of several devices all or none."""
        if self._size[row] > 1:
            self._serve_gang(row)
            return
        if self._stay(row, request):
            return
        home, free = self._home[row], self._free
        allowed = home if home and self._stays[row] else self._allowed(row)
        if enough := [d for d in allowed if free[d] >= request - TOLERANCE and self._has_room(d, row)]:
            beside = self._free_beside()
            best = min(enough, key=lambda d: (d not in home, free[d], self._demand(d), beside(d), d))
            self._take(row, (best,), request)
            return
        reachable = self._with_room(row, allowed)
        if request < 1.0 and not self._yields[row]:
            self._join(row, reachable, request)
        elif reachable and not whole:
            freest = max(reachable, key=lambda d: (free[d], d in home, -d))
            if free[freest] >= MIN_SHARE:
                self._take(row, (freest,), free[freest])

    def _has_free(self, row: int) -> bool:
        """Return whether a device that a job is on, or may be on, has something to give."""
        return not self._within or any(self._free[at] >= MIN_SHARE for at in (*self._home[row], *self._within[row]))

    def _stay(self, row: int, request: float) -> bool:
        """Serve a job on the only device that it is on, if that has room: what the general rule comes to, sooner."""
        home = self._home[row]
        if self._size[row] > 1 or len(home) != 1:
            return False
        if self._free[home[0]] < request - TOLERANCE or not self._may_stay(row, home[0]):
            return False
        if not self._has_room(home[0], row):
            return False
        self._take(row, home, request)
        return True

    def _most_free(self) -> float:
        """Return how much is free on the emptiest device; it is looked up anew only after that device was taken."""
        if self._most is None:
            self._most = max(self._free)
        return self._most

    def _serve_gang(self, row: int) -> None:
        """Give a job all of its devices whole, a smaller number that it accepts, those it has, or none."""
        n, home = self._size[row], self._home[row]
        has_room = all(self._has_room(device, row) for device in home)
        can_stay = bool(home) and self._all_free(home) and has_room
        gathers = bool(self._gathers) and self._gathers[row] and not self._stays[row]
        if can_stay and len(home) == n and not gathers:
            self._take(row, home, 1.0)
            return
        must_keep = home if self._stays[row] else ()
        free = [device for device in self._with_room(row, self._allowed(row)) if self._all_free((device,))]
        if can_stay and len(home) == n:
            self._take(row, self._on_one_machine(row, free, n) or home, 1.0)
            return
        can_have = len(must_keep) < n and all(device in free for device in must_keep)
        if can_have and (chosen := self._best_of(row, free, n, must_keep)):
            self._take(row, chosen, 1.0)
            return
        smaller = [m for m in self._smaller[row] if m > len(home) or not can_stay] if self._smaller else []
        for m in sorted(smaller, reverse=True):
            if chosen := self._best_of(row, free, m):
                self._take(row, chosen, 1.0)
                return
        if can_stay and self._resizes and self._resizes[row]:
            self._take(row, home, 1.0)

    def _all_free(self, devices: Devices) -> bool:
        return all(self._free[device] >= 1.0 - TOLERANCE for device in devices)

    def _best_of(self, row: int, free: Sequence[int], n: int, must_keep: Devices = ()) -> Devices:
        """Return the ``n`` of some devices that the job is on already or that others need least; none if it can't be.

        They are on one machine if one has as many, and on as few as possible if the job may spread.

        Args:
            row: Row of the job.
            free: The devices.
            n: Number of devices.
            must_keep: Those that must be among them.
        """
        if len(free) < n:
            return ()
        if not self._machines:
            return self._least_needed(row, free, n)
        found = self._on_one_machine(row, free, n, must_keep)
        if found or not self._spreads[row]:
            return found
        kept, some = {self._machines[device] for device in must_keep}, list[int]()
        by_machine = self._by_machine(free)
        for machine in sorted(by_machine, key=lambda m: (m not in kept, -len(by_machine[m]), m)):
            if len(some) < n:
                some += by_machine[machine]
        return self._least_needed(row, some, n)

    def _on_one_machine(self, row: int, free: Sequence[int], n: int, must_keep: Devices = ()) -> Devices:
        """Return ``n`` of some devices that are on one machine; none if no machine has as many."""
        home = set(self._home[row])
        able = [some for some in self._by_machine(free).values() if len(some) >= n and set(must_keep) <= set(some)]
        choices = [(self._least_needed(row, some, n), len(some)) for some in able]

        def cost(choice: tuple[Devices, int]) -> tuple[int, int, int, Devices]:
            devices, there = choice
            return -len(home.intersection(devices)), max(map(self._demand, devices)), there, devices

        return min(choices, key=cost)[0] if choices else ()

    def _least_needed(self, row: int, some: Sequence[int], n: int) -> Devices:
        """Return the ``n`` of some devices that the job is on already or that others need least."""
        home = self._home[row]
        return tuple(sorted(sorted(some, key=lambda d: (d not in home, self._demand(d), d))[:n]))

    def _by_machine(self, devices: Sequence[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for device in devices:
            found.setdefault(self._machines[device], []).append(device)
        return found

    def _free_beside(self) -> Callable[[int], int]:
        """Return a function of a device: how many whole devices of its machine are free. A small job takes few."""
        if not self._machines:
            return lambda _: 0
        free = Counter(machine for machine, part in zip(self._machines, self._free, strict=True)
                       if part >= 1.0 - TOLERANCE)  # fmt: skip
        return lambda device: free[self._machines[device]]

    def _join(self, row: int, reachable: Sequence[int], request: float) -> None:
        """Add a job to those that share a device, all in proportion to their requests; whole devices are not shared."""
        requests = {device: [self._request[r] for r in self._served[device]] for device in reachable}
        shared = {device: sum(many) for device, many in requests.items() if max(many, default=0.0) < 1.0}
        if not shared:
            return
        device = min(shared, key=lambda d: (shared[d], d not in self._home[row], d))
        total = shared[device] + request
        if request / total < MIN_SHARE:
            return
        for r in self._served[device]:
            self._share[r] = self._request[r] / total
        self._free[device], self._most = request / total, None
        self._take(row, (device,), request / total)

    def _take(self, row: int, devices: Devices, share: float) -> None:
        if devices != self._home[row]:
            self._leave(row)
            self._make_room(row, devices)
            self._move_in(row, devices)
        elif self._memory:
            self._make_room(row, devices)
        for device in devices:
            if self._free[device] == self._most:
                self._most = None
            self._free[device] = max(0.0, self._free[device] - share)
            self._served[device].append(row)
        self._share[row] = share

    def _move_in(self, row: int, devices: Devices) -> None:
        self._home[row] = devices
        if self._launched[row] or self._memory:
            for device in devices:
                self._resident[device][row] = None

    def _leave(self, row: int) -> None:
        for device in self._home[row]:
            self._resident[device].pop(row, None)
        self._home[row] = ()

    def _demand(self, device: int) -> int:
        """Return how urgently jobs that live on a device still need it: minus the rank of the first of them."""
        queue = self._queue[device]
        while queue and (self._share[queue[-1]] or device not in self._home[queue[-1]]):
            queue.pop()
        return -self._rank[queue[-1]] if queue else -len(self._home)

    def _with_room(self, row: int, devices: Sequence[int]) -> Sequence[int]:
        """Return the devices that have, or can make, room for a job."""
        return [device for device in devices if self._has_room(device, row)]

    def _allowed(self, row: int) -> Sequence[int]:
        return self._within[row] if self._within else self._all

    def _may_stay(self, row: int, device: int) -> bool:
        return self._stays[row] or device in self._allowed(row)

    def _has_room(self, device: int, row: int) -> bool:
        return self._to_leave(device, row) is not None

    def _make_room(self, row: int, devices: Devices) -> None:
        for device in devices:
            for other in self._to_leave(device, row) or ():
                self._leave(other)

    def _lacks_memory(self, row: int) -> bool:
        """Return whether a job has no share though as many devices as it needs have one to give."""
        least = MIN_SHARE if self._size[row] == 1 else 1.0 - TOLERANCE
        free = [device for device in self._allowed(row) if self._free[device] >= least]
        return not self._share[row] and bool(self._best_of(row, free, self._size[row]))

    def _to_leave(self, device: int, newcomer: int) -> list[int] | None:
        """Return the jobs that must leave a device so that a job can train there; None if that does not help.

        They are the last in the order, hold nothing and can leave.
        """
        resident = self._resident[device]
        is_new = newcomer not in resident
        crowded = is_new and self._launched[newcomer] and self._full(device)
        over = self._memory_over(device, newcomer) if self._memory else 0.0
        if not crowded and over <= TOLERANCE:
            return []
        rank, leaving = self._rank, list[int]()
        share, stays, first = self._share, self._stays, rank[newcomer]
        able = [row for row in resident if rank[row] > first and not share[row] and not stays[row]]
        while able and (crowded or over > TOLERANCE):
            last = max(able, key=rank.__getitem__)
            able.remove(last)
            leaving.append(last)
            crowded = False
            over -= self._held[last] if self._memory else 0.0
        takes_more = is_new or (bool(self._memory) and self._memory[newcomer] > self._held[newcomer])
        return None if crowded or (over > TOLERANCE and takes_more and self._launched[newcomer]) else leaving

    def _memory_over(self, device: int, newcomer: int) -> float:
        """Return the part of a device's memory by which those on it have too little if a job trains there too."""
        others = (self._memory[r] if self._share[r] else self._held[r] for r in self._resident[device] if r != newcomer)
        return sum(others) + self._memory[newcomer] - 1.0

    def _full(self, device: int) -> bool:
        resident = self._resident[device]
        launched = sum(map(self._launched.__getitem__, resident)) if self._memory else len(resident)
        return launched >= self._slots[device]

    def _serve_what_is_left(self, order: Sequence[int]) -> None:
        """Give what no job has asked for to jobs without a share, whole devices, and to those that share a device."""
        free = [inf] if self._caps is None else self._free_of_groups(self._caps)
        of = [0] * len(self._home) if self._caps is None else self._caps.of
        for row in order:
            if self._most_free() < 1.0 - TOLERANCE:
                break
            if not self._share[row] and self._size[row] <= free[of[row]] + TOLERANCE:
                self._serve(row, 1.0, whole=True)
                free[of[row]] -= self._share[row] * len(self._home[row])
        self._scale_up(free, of)

    def _grow(self, row: int) -> None:
        """Give a job that has fewer devices than it may have more of those that are left."""
        home = self._home[row]
        if self._share[row] < 1.0 or self._stays[row]:
            return
        free = [d for d in self._allowed(row) if d in home or (self._all_free((d,)) and self._has_room(d, row))]
        most = inf
        if self._caps is not None:
            most = self._free_of_groups(self._caps)[self._caps.of[row]] + len(home) + TOLERANCE
        for n in sorted(self._grows[row], reverse=True):
            if len(home) < n <= most and (chosen := self._best_of(row, free, n)):
                for device in home:
                    self._free[device] = 1.0
                    self._served[device].remove(row)
                self._most = None
                self._take(row, chosen, 1.0)
                return

    def _free_of_groups(self, caps: Caps) -> list[float]:
        """Return how many more devices each group may have."""
        free = list(caps.most)
        for row, group in enumerate(caps.of):
            free[group] -= self._share[row] * len(self._home[row])
        return free

    def _scale_up(self, free_of: list[float], of: Sequence[int]) -> None:
        """Distribute what is left of a device among the jobs that share it, in proportion, as far as they may have it.

        Args:
            free_of: How many more devices each group may have.
            of: Owner of each job.
        """
        for device, free in enumerate(self._free):
            if free > TOLERANCE and self._served[device]:
                total = sum(self._share[row] for row in self._served[device])
                for row in self._served[device]:
                    most, before = self._share[row] + max(free_of[of[row]], 0.0), self._share[row]
                    self._share[row] = min(before / total, most)
                    free_of[of[row]] -= self._share[row] - before
                self._free[device] = 0.0

    def _prelaunch(self, order: Sequence[int]) -> None:
        """Fill empty slots ahead of time: the next jobs start up while others train."""
        for row in order:
            if self._home[row] or not self._launched[row]:
                continue
            room = [device for device in self._all if not self._full(device)]
            if not room:
                return
            room = [device for device in room if device in self._allowed(row) and self._to_leave(device, row) == []]
            room = sorted(room, key=lambda d: (len(self._resident[d]), d))
            if self._size[row] == 1 and room:
                self._move_in(row, (room[0],))
            elif self._machines:
                self._move_in(row, self._best_of(row, room, self._size[row]))
            elif len(room) >= self._size[row]:
                self._move_in(row, tuple(sorted(room[: self._size[row]])))
