"""Time slices: which jobs hold the devices until the next decision, since when, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray, among, kept, kept_by_row
from lightning_core.core.plans import JobView
from lightning_core.core.saved_state import Stateful, decode, restored


class _Holder(Stateful):
    STATE = ("batches", "heard", "moves")

    def __init__(self, batches: int = 0, heard: float = 0.0) -> None:
        self.batches = batches
        """Batches at the last look."""
        self.heard = heard
        """Scheduler time at which it became a holder or was last seen to progress."""
        self.moves = False
        """Whether it has progressed."""


class SliceHolders(Stateful):
    """The jobs that hold the devices now.

    A slice starts once all of its holders have progressed and all previous holders have reported that they stopped.

    Args:
        stall_timeout: Seconds without progress after which a holder loses its devices: at the start of a slice, and
            throughout a turn without an end. Also the maximum wait for a previous holder to stop.

    Raises:
        ValueError: If ``stall_timeout`` is not positive and finite.
    """

    STATE = ("length", "_holders", "_stopping", "_since", "_silent")

    def __init__(self, stall_timeout: float) -> None:
        if not 0 < stall_timeout < np.inf:
            raise ValueError(f"stall_timeout must be positive and finite, got {stall_timeout}")
        self.stall_timeout = stall_timeout
        self.length: float | None = None
        """Seconds of the slice; None if it has no end of its own."""
        self._holders: dict[int, _Holder] = {}  # by row
        self._stopping: dict[int, float] = {}  # previous holders: until when the slice waits for them to stop
        self._since: float | None = None
        self._silent: dict[int, tuple[float, float]] = {}  # stalled jobs: until when they sit out, and for how long

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        super().restore(state)
        self._holders = {row: restored(_Holder(), one) for row, one in decode(state["_holders"]).items()}

    def keep(self, stays: BoolArray) -> None:
        self._holders, self._stopping = kept_by_row(self._holders, stays), kept_by_row(self._stopping, stays)
        self._silent = kept_by_row(self._silent, stays)

    def observe(self, jobs: JobView, now: float) -> None:
        """Take in the progress of the holders; drop those that have left or stalled."""
        rows = np.flatnonzero(self.holds(jobs))
        held_rows, batches = jobs.row[rows].tolist(), jobs.batches[rows].tolist()
        self._holders = {row: self._holders[row] for row in held_rows}
        for (row, holder), done in zip(list(self._holders.items()), batches, strict=True):
            if done > holder.batches:
                holder.moves, holder.heard = True, now
                self._silent.pop(row, None)
            holder.batches = done  # fewer, if it resumed from a checkpoint
            if now - holder.heard >= self.stall_timeout and (self.length is None or not holder.moves):
                _, before = self._silent.get(row, (now, self.stall_timeout / 2))
                self._silent[row] = now + 2 * before, 2 * before
                del self._holders[row]
        stopping = set(jobs.row[~jobs.acknowledged].tolist()) & self._stopping.keys()
        self._stopping = {row: until for row in stopping if (until := self._stopping[row]) > now}
        if self._since is None and self._all_move():
            self._since = now

    def goes_on(self, now: float) -> bool:
        """Return whether the slice goes on. A slice without an end is granted anew each time."""
        if not self._holders or self.length is None:
            return False
        return self._since is None or now - self._since < self.length - 1e-9

    def start(self, jobs: JobView, order: IntArray, now: float, length: float | None) -> IntArray:
        """Start a slice of ``length`` seconds for the first jobs of ``order`` that fit the pool together, at least one.

        Returns:
            Their rows. A job that held the devices before keeps its progress.
        """
        fit = max(int(np.searchsorted(np.cumsum(jobs.size[order]), jobs.devices, side="right")), 1)
        rows = order[:fit]
        before, self._holders = self._holders, {}
        for row, batches in zip(jobs.row[rows].tolist(), jobs.batches[rows].tolist(), strict=True):
            self._holders[row] = before.get(row) or _Holder(batches, now)
        replaced = before.keys() - self._holders.keys()
        self._stopping |= {row: now + self.stall_timeout for row in replaced if before[row].moves}
        self.length = length
        self._since = now if self._all_move() else None
        return rows

    def holds(self, jobs: JobView) -> BoolArray:
        """Return which jobs hold devices, shape ``(n,)``."""
        return among(jobs.row, self._holders)

    def sits_out(self, jobs: JobView, now: float) -> BoolArray:
        """Return which jobs are passed over after a stall: for twice as long after each one."""
        return among(jobs.row, [row for row, (until, _) in self._silent.items() if until > now])

    def _all_move(self) -> bool:
        return bool(self._holders) and not self._stopping and all(holder.moves for holder in self._holders.values())


class SliceController(Stateful):
    """Controller of the slice length: when forecast errors grow, slices get shorter (LaiRA, "Adaptive Time Slicing").

    A proportional-derivative law in velocity form: from the third error on, the length changes by
    -kp (e1 - e2) - kd (e1 - 2 e2 + e3), with e1 the newest. It follows changes of the error; a steady error, however
    large, leaves the length as it is. A slice is the length rounded down, in units of time, at least 1. Printed is
    a plus, which would lengthen slices when the error rises; negative gains do that.

    Args:
        initial_units: Length of the first slices in units.
        max_units: Maximum length in units.
        kp: Proportional gain, units for an error of 1.
        kd: Derivative gain.

    Raises:
        ValueError: If an argument is out of its range.

    Example::

        >>> law = SliceController(initial_units=5, max_units=50, kp=20.0, kd=5.0)
        >>> lengths = []
        >>> for error in (0.1, 0.1, 0.1, 0.2, 0.0):
        ...     law.update(error)
        ...     lengths.append(law.units)
        >>> lengths
        [5, 5, 5, 2, 8]
    """

    STATE = ("_length", "_errors")

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
        """Length of the next slice in units."""
        return int(self._length + 1e-9)

    def update(self, error: float) -> None:
        """Take in the error of the slice that has ended."""
        self._errors = (error, *self._errors[:2])
        if len(self._errors) == 3:
            newest, before, first = self._errors
            change = self.kp * (newest - before) + self.kd * (newest - 2.0 * before + first)
            self._length = min(max(self._length - change, 1.0), float(self.max_units))


class Ranking(Stateful):
    """The last decision about each job, by row; the order holds until the next decision.

    A new job comes before all others because it is explored next.
    """

    STATE = ("rank", "ratio", "out", "none")

    def __init__(self) -> None:
        self.rank, self.ratio, self.out = np.zeros(0), np.zeros(0), np.zeros(0, np.bool_)
        self.none = False

    def grow(self, rows: int) -> None:
        extra = rows - len(self.rank)
        if extra > 0:
            self.rank = np.concatenate([self.rank, np.full(extra, -1.0)])
            self.ratio = np.concatenate([self.ratio, np.full(extra, np.nan)])
            self.out = np.concatenate([self.out, np.zeros(extra, np.bool_)])

    def keep(self, stays: BoolArray) -> None:
        self.rank, self.ratio, self.out = kept(self.rank, stays), kept(self.ratio, stays), kept(self.out, stays)

    def decide(self, rows: IntArray, ratio: FloatArray, feasible: BoolArray, none: bool) -> None:
        self.rank[rows] = np.arange(len(rows))
        self.ratio[rows], self.out[rows] = ratio, ~feasible
        self.none = none
