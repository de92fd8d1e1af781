"""Loss curves that may cross zero, presented to an estimator as their distance from a floor.

Power laws are positive. A likelihood or its bound (NLL, ELBO) has no zero to fall to: if the target of a job is not
above zero, the estimator sees how far the loss lies above a floor. The floor lies below all losses seen and below the
target, by as much as the loss was above them when a small part of the run was done. As the run goes on that distance
shrinks and the floor rises: the curve is then presented anew.

For a target above zero the estimator sees every loss above zero as it is. A loss at or below zero has reached such a
target and counts as that, but no power law passes through it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lightning_core.core.arrays import LEVELS, BoolArray, FloatArray, IntArray, kept_by_row, renumbered
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.protocols import Estimator, KeepsRows, KnowsSchedule, UsesHistory
from lightning_core.core.saved_state import Stateful, decode, restored

# Part of the run so far after which its height is measured: the first losses of an untrained network may be spikes.
EARLY_FRACTION = 1 / 32
# Cells over which that height is averaged.
EARLY_CELLS = 3
# Minimum distance of a loss from the floor, as a part of the floor's distance: noise scales with the rest.
MIN_CLEARANCE = 0.25
# Maximum number of cells kept of a curve; beyond it, pairs of neighbours in the older half are merged.
MAX_CELLS = 512
# Larger losses are clipped to this.
MAX_ABS_LOSS = 1e50


class AboveFloor(Stateful):
    """A bank of an estimator for losses of any sign, with the rows of that bank.

    Args:
        make: Function that creates the bank.

    Example:
        The curve ``2 s^-0.5 - 3.1`` comes down to -3.0 after 400 batches::

            >>> from lightning_core.estimators import Posterior
            >>> curves = AboveFloor(Posterior)
            >>> curves.grow(1)
            >>> curves.aim(0, -3.0)
            >>> for s in range(2, 200, 2):
            ...     curves.observe(0, s, 2.0 * s**-0.5 - 3.1)
            >>> curves.first_passage(np.array([0]), np.array([-3.0]))[0, [1, 10, 18]].round(-1)
            array([290., 360., 790.])
    """

    STATE = ("bank", "_raised", "_other", "_used", "_schedules")

    def __init__(self, make: Callable[[], Estimator]) -> None:
        self.bank = make()
        self._make = make
        # Asked once: it takes longer than what the bank does in a round for a hundred rows.
        self._with_history = self.bank if isinstance(self.bank, UsesHistory) else None
        self._raised: dict[int, _Raised] = {}
        # The bank of curves with a floor: a curve presented anew gets a new row of it.
        self._other: Estimator | None = None
        self._used = 0
        self._schedules: dict[int, tuple[FloatArray, FloatArray]] = {}

    def grow(self, rows: int) -> None:
        """Make room for rows ``0 .. rows - 1``."""
        self.bank.grow(rows)

    def keep(self, stays: BoolArray) -> None:
        """Drop rows, if the bank can (:class:`~lightning_core.core.protocols.KeepsRows`)."""
        assert isinstance(self.bank, KeepsRows)
        self.bank.keep(stays)
        self._raised = kept_by_row(self._raised, stays)
        self._schedules = kept_by_row(self._schedules, stays)
        if isinstance(self._other, KeepsRows):
            shown = np.zeros(self._used, np.bool_)
            shown[[one.row for one in self._raised.values() if one.row is not None]] = True
            self._other.keep(shown)
            for one in self._raised.values():
                one.row = None if one.row is None else int(renumbered(one.row, shown))
            self._used = int(np.count_nonzero(shown))

    def aim(self, row: int, threshold: float) -> None:
        """Set the threshold that the loss of a row must reach, before its first cell or from now on."""
        raised = self._raised.get(row)
        if raised is not None and threshold != raised.threshold:
            raised.threshold = threshold
            self._follow(row, raised)
        elif raised is None and threshold <= 0:  # nothing seen without a floor can be used
            self._raised[row] = _Raised(threshold)

    def history(self, row: int, curves: Sequence[EarlierRun]) -> None:
        """Take the curves of earlier runs before the first cell; a curve with a floor does without them.

        How far the losses of another run lie above the floor is not known before the floor is.
        """
        if self._with_history is not None and row not in self._raised:
            give_history(self._with_history, row, curves)

    def ready(self, rows: IntArray) -> BoolArray:
        """Return whether the estimator says that each forecast is good enough, shape ``(n,)``."""
        ready = np.zeros(len(rows), np.bool_)
        if self._with_history is not None and len(plain := self._plain(rows)):
            ready[plain] = self._with_history.ready(rows[plain])
        return ready

    def history_share(self, rows: IntArray) -> FloatArray:
        """Return which part of each forecast rests on earlier runs, in [0, 1], shape ``(n,)``."""
        share = np.zeros(len(rows))
        if self._with_history is not None and len(plain := self._plain(rows)):
            share[plain] = np.nan_to_num(self._with_history.history_share(rows[plain]))
        return share

    def schedule(self, row: int, position: FloatArray, rate: FloatArray) -> None:
        """Take the learning rates of a row, if the bank can (:class:`~lightning_core.core.protocols.KnowsSchedule`)."""
        if not isinstance(self.bank, KnowsSchedule):
            return
        self._schedules[row] = position, rate  # the curve may be presented anew
        raised = self._raised.get(row)
        if raised is None:
            self.bank.schedule(row, position, rate)
        elif raised.row is not None and isinstance(self._other, KnowsSchedule):
            self._other.schedule(raised.row, position, rate)

    def schedule_of(self, row: int) -> tuple[FloatArray, FloatArray] | None:
        """Return the learning rates of a row; None if they are constant or unknown, or the bank has no use for them."""
        return self._schedules.get(row)

    def observe(self, row: int, position: float, loss: float) -> None:
        """Take in a cell: the loss at ``position`` batches."""
        raised = self._raised.get(row)
        if raised is not None:
            raised.add(position, min(max(loss, -MAX_ABS_LOSS), MAX_ABS_LOSS))
            self._follow(row, raised)
        elif loss > 0:
            self.bank.observe(np.array([row]), np.array([position]), np.array([loss]))

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        """Return the forecast of :meth:`~lightning_core.core.protocols.Estimator.first_passage` for these rows."""
        if not self._raised:
            return self.bank.first_passage(rows, threshold)
        raised = [self._raised.get(row) for row in rows.tolist()]
        plain = np.array([one is None for one in raised], np.bool_)
        seen = [(k, one) for k, one in enumerate(raised) if one is not None and one.row is not None]
        found = np.full((len(rows), len(LEVELS)), np.nan)
        if plain.any():
            found[plain] = self.bank.first_passage(rows[plain], threshold[plain])
        if seen and self._other is not None:
            inner = np.array([one.row for _, one in seen])
            goal = np.array([one.threshold - one.floor for _, one in seen])
            found[[k for k, _ in seen]] = self._other.first_passage(inner, goal)
        return found

    def _plain(self, rows: IntArray) -> IntArray:
        """Return the places of the rows that have no floor."""
        if not self._raised:
            return np.arange(len(rows))
        return np.array([k for k, row in enumerate(rows.tolist()) if row not in self._raised], np.int64)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        self._other = None if state["_other"] is None else self._make()
        super().restore(state)
        self._raised = {row: restored(_Raised(0.0), one) for row, one in decode(state["_raised"]).items()}

    def _follow(self, row: int, raised: _Raised) -> None:
        """Present the newest cell above the floor, or all cells above a new floor."""
        if not raised.positions:
            return
        other = self._other = self._other or self._make()
        if raised.row is not None and not raised.is_misplaced():
            if raised.shown < len(raised.positions):
                self._show(other, raised, raised.shown)
            return
        raised.place()
        raised.row, self._used = self._used, self._used + 1
        other.grow(self._used)
        if row in self._schedules and isinstance(other, KnowsSchedule):
            other.schedule(raised.row, *self._schedules[row])
        self._show(other, raised, 0)

    def _show(self, other: Estimator, raised: _Raised, first: int) -> None:
        row = np.array([raised.row])
        for position, loss in zip(raised.positions[first:], raised.losses[first:], strict=True):
            other.observe(row, np.array([position]), np.array([loss - raised.floor]))
        raised.shown = len(raised.positions)


def give_history(bank: UsesHistory, row: int, curves: Sequence[EarlierRun]) -> None:
    """Give the curves of earlier runs to a bank: their positive losses, of those that have two or more."""
    given = []
    for curve in curves:
        points = [(s, loss) for s, loss in zip(curve.batches, curve.losses, strict=True) if loss > 0]
        if len(points) > 1:
            batches, losses = zip(*points, strict=True)
            given.append(curve._replace(batches=batches, losses=losses))
    if given:
        bank.history(row, given)


class _Raised(Stateful):
    """A curve above a floor: its cells and its floor."""

    STATE = ("threshold", "positions", "losses", "lowest", "floor", "distance", "row", "shown")

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.positions: list[float] = []
        self.losses: list[float] = []
        self.lowest = np.inf
        self.floor = np.nan
        self.distance = np.nan  # from the floor to the lowest loss, or to the target
        self.row: int | None = None  # row of the bank
        self.shown = 0  # cells that this row has seen

    def add(self, position: float, loss: float) -> None:
        self.positions.append(position)
        self.losses.append(loss)
        self.lowest = min(self.lowest, loss)
        if len(self.positions) > MAX_CELLS:
            half = MAX_CELLS // 2
            pairs = np.array(self.losses[:half]).reshape(-1, 2).mean(axis=1)
            self.losses[:half] = pairs.tolist()
            self.positions[:half] = self.positions[1:half:2]
            self.shown -= half - half // 2

    def is_misplaced(self) -> bool:
        """Return whether the floor is too near, or twice as far as it should be."""
        too_near = min(self.lowest, self.threshold) < self.floor + MIN_CLEARANCE * self.distance
        return too_near or self._distance() < self.distance / 2

    def place(self) -> None:
        self.distance = self._distance()
        self.floor = min(self.lowest, self.threshold) - self.distance

    def _distance(self) -> float:
        """Return how far below the lowest value the floor should be: as far as the early losses were above it."""
        first = bisect_left(self.positions, EARLY_FRACTION * self.positions[-1])
        high = float(np.mean(self.losses[first : first + EARLY_CELLS]))
        low = min(self.lowest, self.threshold)
        return max(high - low, 1e-6 * abs(low)) or 1.0
