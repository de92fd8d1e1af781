"""Admission: which jobs a pool can end in time, and on how many devices each.

Jobs are taken by their end times, and each reserves devices from what the earlier ones leave
(:mod:`.reservations`): progressive admission, by ElasticFlow's minimum satisfactory share. Where a job does not fit,
Moore and Hodgson's rule decides: of the job and those already admitted, the one with the most device-seconds for its
weight is dropped.

A change of devices costs time, so jobs that train are planned first and keep their devices as long as those suffice.
Only if that leaves a job out are all jobs planned anew by their end times, and the better of the two plans is used.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lightning_core.planning.free_devices import EPSILON, FreeDevices
from lightning_core.planning.reservations import Demand, Reservation, reserve_fewest

# Maximum number of admitted jobs that are tried as the one to drop for a job that does not fit.
MAX_CANDIDATES = 4


def admit(
    demands: Sequence[Demand | None], devices: float, now: float, hopeless: Collection[int] = ()
) -> tuple[list[Reservation | None], FreeDevices]:
    """Admit the jobs that can end in time and reserve their devices.

    Args:
        demands: Demand of each job; None for a job that takes no part.
        devices: Devices of the pool.
        now: Scheduler time.
        hopeless: Rows that no other job is dropped for, because that was tried before in vain.

    Returns:
        The reservation of each job, None if it is not admitted, and the devices that are left free.
    """
    admission = _Admission(demands, devices, now, hopeless, keep_current=True)
    if admission.dropped:
        other = _Admission(demands, devices, now, hopeless, keep_current=False)
        if other.weight > admission.weight + EPSILON:
            admission = other
    return [admission.reservations.get(row) for row in range(len(demands))], admission.free


class _Admission:
    """The admitted jobs, their reservations and the free devices."""

    def __init__(
        self,
        demands: Sequence[Demand | None],
        devices: float,
        now: float,
        hopeless: Collection[int],
        *,
        keep_current: bool,
    ) -> None:
        self._hopeless = hopeless
        self.demands = {row: need for row, need in enumerate(demands) if need is not None}
        self.reservations: dict[int, Reservation] = {}
        self.free = FreeDevices(now, devices)
        self.dropped: set[int] = set()
        self._empty = self.free.copy()
        todo = sorted(self.demands, key=lambda row: (self.demands[row].end, row))
        if keep_current:
            todo = [row for row in todo if not self._keep_devices(row)]
            todo.sort(key=lambda row: not self.demands[row].held)
        for row in todo:
            self._block(row, 1.0, keep_current)
        for row in todo:
            self._block(row, -1.0, keep_current)
            if not self._add(row):
                self._swap_in(row)

    @property
    def weight(self) -> float:
        """Total weight of the admitted jobs."""
        return sum(self.demands[row].weight for row in self.reservations)

    def _keep_devices(self, row: int) -> bool:
        """Reserve its current devices, or fewer, if it is in time on them; return whether it is."""
        need = self.demands[row]
        if not need.held or need.share:
            return False
        on = reserve_fewest(need, self.free)
        if on is None or on.segments[0].devices > need.held:
            return False
        self._put(row, on)
        return True

    def _block(self, row: int, times: float, whole_protection: bool) -> None:
        """Block (``times`` 1) or unblock (-1) the devices that a job holds, while no other job can train on them."""
        need, now = self.demands[row], self._empty.times[0]
        seconds = need.protected_seconds if whole_protection else need.arrival_delay
        if need.held and seconds > 0 and not need.share:
            self.free.take(now, now + seconds, times * need.held)

    def _add(self, row: int) -> bool:
        on = reserve_fewest(self.demands[row], self.free)
        if on is None:
            return False
        self._put(row, on)
        return True

    def _put(self, row: int, on: Reservation, times: float = 1.0) -> None:
        for begin, end, devices in on.segments:
            self.free.take(begin, end, times * devices)
        if times > 0:
            self.reservations[row] = on
        else:
            del self.reservations[row]

    def _swap_in(self, row: int) -> None:
        """Admit the job in place of one with more device-seconds for its weight, if that makes room."""
        if row in self._hopeless or (alone := reserve_fewest(self.demands[row], self._empty)) is None:
            return
        self.dropped.add(row)
        cost = alone.device_seconds / self.demands[row].weight
        costs = ((on.device_seconds / self.demands[other].weight, other) for other, on in self.reservations.items())
        for _, other in sorted((pair for pair in costs if pair[0] > cost), reverse=True)[:MAX_CANDIDATES]:
            on = self.reservations[other]
            self._put(other, on, -1.0)
            if self._add(row):
                return
            self._put(other, on)
