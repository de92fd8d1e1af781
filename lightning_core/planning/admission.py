"""Which jobs fit into a pool in time, each on how many devices.

Jobs are taken by their ends, and each is laid into what those before it leave (:mod:`.laying`): progressive filling, by
ElasticFlow's minimum satisfactory share. Where a job does not fit, Moore and Hodgson decide: of it and those that are
kept the one that takes the most device-seconds for its weight goes.

A change of devices costs time, so whoever trains is laid first, and stays on what it has as long as that brings it
home. Only where somebody is left out by that all are laid anew by their ends, and the better of the two plans is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lightning_core.planning.reservations import EPSILON, Demand, FreeDevices, Reservation, reserve_fewest

# Of those that might go for a job that does not fit, so many are tried.
MAX_CANDIDATES = 4


def admit(
    needs: Sequence[Demand | None], devices: float, now: float, hopeless: Collection[int] = ()
) -> tuple[list[Reservation | None], FreeDevices]:
    """Who is kept, and how.

    Args:
        needs: of the jobs; None for one that takes no part.
        devices: of the pool.
        now: scheduler time.
        hopeless: rows for whose sake nobody goes: that was tried before, in vain.

    Returns:
        For each job how it is laid, None if it is not kept; and what is left of the pool.
    """
    filling = _Filling(needs, devices, now, hopeless, as_they_are=True)
    if filling.dropped:
        other = _Filling(needs, devices, now, hopeless, as_they_are=False)
        if other.weight > filling.weight + EPSILON:
            filling = other
    return [filling.laid.get(row) for row in range(len(needs))], filling.free


class _Filling:
    """The kept jobs, how each is laid, and what is left."""

    def __init__(
        self,
        needs: Sequence[Demand | None],
        devices: float,
        now: float,
        hopeless: Collection[int],
        *,
        as_they_are: bool,
    ) -> None:
        self._hopeless = hopeless
        self.needs = {row: need for row, need in enumerate(needs) if need is not None}
        self.laid: dict[int, Reservation] = {}
        self.free = FreeDevices(now, devices)
        self.dropped: set[int] = set()
        self._empty = self.free.copy()
        todo = sorted(self.needs, key=lambda row: (self.needs[row].end, row))
        if as_they_are:
            todo = [row for row in todo if not self._stays(row)]
            todo.sort(key=lambda row: not self.needs[row].holds)
        for row in todo:
            self._reserve(row, 1.0, as_they_are)
        for row in todo:
            self._reserve(row, -1.0, as_they_are)
            if not self._add(row):
                self._add_instead(row)

    @property
    def weight(self) -> float:
        """Of all that are kept."""
        return sum(self.needs[row].weight for row in self.laid)

    def _stays(self, row: int) -> bool:
        """Whether it is in time on the devices that it has or fewer; it has them then."""
        need = self.needs[row]
        if not need.holds or need.part:
            return False
        on = reserve_fewest(need, self.free)
        if on is None or on.stretches[0].devices > need.holds:
            return False
        self._put(row, on)
        return True

    def _reserve(self, row: int, times: float, for_its_stint: bool) -> None:
        """What it has is nobody else's before it is there: nobody else can train on that."""
        need, now = self.needs[row], self._empty.times[0]
        seconds = need.stint if for_its_stint else need.lag
        if need.holds and seconds > 0 and not need.part:
            self.free.take(now, now + seconds, times * need.holds)

    def _add(self, row: int) -> bool:
        on = reserve_fewest(self.needs[row], self.free)
        if on is None:
            return False
        self._put(row, on)
        return True

    def _put(self, row: int, on: Reservation, times: float = 1.0) -> None:
        for begin, end, devices in on.stretches:
            self.free.take(begin, end, times * devices)
        if times > 0:
            self.laid[row] = on
        else:
            del self.laid[row]

    def _add_instead(self, row: int) -> None:
        """It comes, and one that takes more for its weight goes, if that makes room for it."""
        if row in self._hopeless or (alone := reserve_fewest(self.needs[row], self._empty)) is None:
            return
        self.dropped.add(row)
        greed = alone.area / self.needs[row].weight
        dear = ((on.area / self.needs[other].weight, other) for other, on in self.laid.items())
        for _, other in sorted((pair for pair in dear if pair[0] > greed), reverse=True)[:MAX_CANDIDATES]:
            on = self.laid[other]
            self._put(other, on, -1.0)
            if self._add(row):
                return
            self._put(other, on)
