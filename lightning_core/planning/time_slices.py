"""Who trains until somebody decides again, since when, and how long that should be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_core.core.arrays import BoolArray, IntArray
from lightning_core.core.plans import JobView


@dataclass(slots=True)
class _Holder:
    batches: int
    """When it was last looked at."""
    heard: float
    """When it was given its turn, or was last seen to progress; scheduler time."""
    moves: bool = False
    """Whether it has been seen to progress."""


class SliceHolders:
    """Who has the devices now. A turn counts from when all who have it have been seen to progress, and all who had the
    devices before have said that they stopped.

    Args:
        stall_timeout: seconds without progress after which a job that has a device loses it: at the beginning of a slice
            of time, and all along a turn without an end. For as long somebody's last word is waited for.

    Raises:
        ValueError: if it is not positive.
    """

    def __init__(self, stall_timeout: float) -> None:
        if not 0 < stall_timeout < np.inf:
            raise ValueError(f"stall_timeout must be positive and finite, got {stall_timeout}")
        self.stall_timeout = stall_timeout
        self.length: float | None = None
        """Seconds of the turn; None if it has no end of its own."""
        self._holders: dict[int, _Holder] = {}  # by place
        self._stopping: dict[int, float] = {}  # who had a device: until when its last word is waited for
        self._since: float | None = None
        self._silent: dict[int, tuple[float, float]] = {}  # who stood still: until when it sits out, and how long

    def listen(self, jobs: JobView, now: float) -> None:
        """Hears who of the holders moves; forgets who has left or stands still."""
        rows = np.flatnonzero(self.holds(jobs))
        places, batches = jobs.row[rows].tolist(), jobs.batches[rows].tolist()
        self._holders = {place: self._holders[place] for place in places}
        for (place, holder), done in zip(list(self._holders.items()), batches, strict=True):
            if done > holder.batches:
                holder.moves, holder.heard = True, now
                self._silent.pop(place, None)
            holder.batches = done  # fewer, if it came back from what it had saved
            if now - holder.heard >= self.stall_timeout and (self.length is None or not holder.moves):
                _, before = self._silent.get(place, (now, self.stall_timeout / 2))
                self._silent[place] = now + 2 * before, 2 * before
                del self._holders[place]
        stopping = set(jobs.row[~jobs.acknowledged].tolist()) & self._stopping.keys()
        self._stopping = {place: until for place in stopping if (until := self._stopping[place]) > now}
        if self._since is None and self._all_move():
            self._since = now

    def last(self, now: float) -> bool:
        """Whether the turn lasts. One without an end is to be given anew each time."""
        if not self._holders or self.length is None:
            return False
        return self._since is None or now - self._since < self.length - 1e-9

    def give(self, jobs: JobView, order: IntArray, now: float, length: float | None) -> IntArray:
        """A turn of ``length`` seconds for the first of ``order`` that fit the pool together, at least for one.

        Returns:
            Their rows. Whoever had the turn before goes on moving.
        """
        fit = max(int(np.searchsorted(np.cumsum(jobs.size[order]), jobs.devices, side="right")), 1)
        rows = order[:fit]
        before, self._holders = self._holders, {}
        for place, batches in zip(jobs.row[rows].tolist(), jobs.batches[rows].tolist(), strict=True):
            self._holders[place] = before.get(place) or _Holder(batches, now)
        gone = before.keys() - self._holders.keys()
        self._stopping |= {place: now + self.stall_timeout for place in gone if before[place].moves}
        self.length = length
        self._since = now if self._all_move() else None
        return rows

    def holds(self, jobs: JobView) -> BoolArray:
        """Who has a turn, shape ``(n,)``."""
        return np.isin(jobs.row, list(self._holders))

    def sits_out(self, jobs: JobView, now: float) -> BoolArray:
        """Who stood still with a device: it is passed over for as long as it was waited for, then twice as long, ..."""
        return np.isin(jobs.row, [place for place, (until, _) in self._silent.items() if until > now])

    def _all_move(self) -> bool:
        return bool(self._holders) and not self._stopping and all(holder.moves for holder in self._holders.values())


class SliceController:
    """How long a slice is: when forecasts err more than before, slices get shorter (LaiRA, "Adaptive Time Slicing").

    A proportional-derivative law in velocity form: from the third error on the length changes by
    -kp (e1 - e2) - kd (e1 - 2 e2 + e3), with e1 the newest. It follows the error; a steady one, however large, leaves
    it alone. A slice is the length rounded down, in units of time, at least 1. Printed is a plus, which would lengthen
    slices when the error rises: that is what negative gains do.

    Args:
        initial_units: units of the first slices.
        max_units: units of the longest slice.
        kp: proportional gain, units for an error of 1.
        kd: derivative gain.

    Raises:
        ValueError: if an argument is out of its range.

    Example::

        >>> law = SliceController(initial_units=5, max_units=50, kp=20.0, kd=5.0)
        >>> lengths = []
        >>> for error in (0.1, 0.1, 0.1, 0.2, 0.0):
        ...     law.learn(error)
        ...     lengths.append(law.units)
        >>> lengths
        [5, 5, 5, 2, 8]
    """

    def __init__(self, initial_units: int, max_units: int, kp: float, kd: float) -> None:
        if not 1 <= initial_units <= max_units:
            raise ValueError(f"initial_units must be at least 1 and at most max_units {max_units}, got {initial_units}")
        for name, gain in (("kp", kp), ("kd", kd)):
            if not np.isfinite(gain):
                raise ValueError(f"{name} must be finite, got {gain}")
        self.max_units = max_units
        self.kp = kp
        self.kd = kd
        self._length = float(initial_units)
        self._errors: tuple[float, ...] = ()

    @property
    def units(self) -> int:
        """Of the next slice."""
        return int(self._length + 1e-9)

    def learn(self, error: float) -> None:
        """Takes in the error of the slice that is over."""
        self._errors = (error, *self._errors[:2])
        if len(self._errors) == 3:
            newest, before, first = self._errors
            change = self.kp * (newest - before) + self.kd * (newest - 2.0 * before + first)
            self._length = min(max(self._length - change, 1.0), float(self.max_units))
