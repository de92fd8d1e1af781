"""Loss curves that may cross zero, shown to an estimator as what lies above a floor.

Power laws are of positive losses. A likelihood or a bound of one (NLL, ELBO) has no zero to fall to: of a job whose
target is not above zero the estimator is shown how far the loss lies above a floor. The floor lies below all that was
seen and below the target, as far as the loss was above them when a small part of the run was done. As the run goes on
that distance shrinks, and the floor comes nearer: the curve is then shown anew.

Of a job with a target above zero the estimator is shown every loss above zero as it is. A loss at or below zero has
reached such a target, and counts as that, but there is no power law through it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from lightning_core.core.arrays import LEVELS, FloatArray, IntArray
from lightning_core.core.protocols import Estimator

# The part of the run so far after which its height counts: an untrained network's first losses may be spikes.
EARLY_FRACTION = 1 / 32
# Cells over which that height is taken.
EARLY_CELLS = 3
# A loss must not come nearer to the floor than this part of the distance: noise is taken in proportion to what is left.
MIN_CLEARANCE = 0.25
# Cells that are kept of one curve; of more, every two neighbours of the older half become one.
MAX_CELLS = 512
# Losses beyond are taken as these.
MAX_ABS_LOSS = 1e50


class AboveFloor:
    """An estimator's bank for losses of any sign: rows are the bank's.

    Args:
        make: Makes the bank.

    Example:

        The curve ``2 s^-0.5 - 3.1`` comes down to -3.0 after 400 batches::

            >>> from lightning_core.estimators import Posterior
            >>> curves = AboveFloor(Posterior)
            >>> curves.grow(1)
            >>> curves.aim(0, -3.0)
            >>> for s in range(2, 200, 2):
            ...     curves.observe(0, s, 2.0 * s**-0.5 - 3.1)
            >>> curves.first_passage(np.array([0]), np.array([-3.0]))[0, [1, 10, 18]].round(-1)
            array([360., 410., 450.])
    """

    def __init__(self, make: Callable[[], Estimator]) -> None:
        self.bank = make()
        self._make = make
        self._raised: dict[int, _Raised] = {}
        # Of rows with a floor: a curve that is shown anew has another row of it.
        self._other: Estimator | None = None
        self._used = 0

    def grow(self, rows: int) -> None:
        """Make room for rows ``0 .. rows - 1``."""
        self.bank.grow(rows)

    def aim(self, row: int, threshold: float) -> None:
        """Say what a row's loss must come down to, before its first cell or from now on."""
        raised = self._raised.get(row)
        if raised is not None and threshold != raised.threshold:
            raised.threshold = threshold
            self._follow(raised)
        elif raised is None and threshold <= 0:  # of what it saw without a floor, nothing can be used
            self._raised[row] = _Raised(threshold)

    def observe(self, row: int, position: float, loss: float) -> None:
        """Take in a cell: at ``position`` batches the loss was ``loss``."""
        raised = self._raised.get(row)
        if raised is not None:
            raised.add(position, min(max(loss, -MAX_ABS_LOSS), MAX_ABS_LOSS))
            self._follow(raised)
        elif loss > 0:
            self.bank.observe(np.array([row]), np.array([position]), np.array([loss]))

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        """As :meth:`lightning_core.core.protocols.Estimator.first_passage`, of the thresholds that the rows aim at."""
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

    def _follow(self, raised: _Raised) -> None:
        """Show the newest cell above the floor, or all of them above another one."""
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
        self._show(other, raised, 0)

    def _show(self, other: Estimator, raised: _Raised, first: int) -> None:
        row = np.array([raised.row])
        for position, loss in zip(raised.positions[first:], raised.losses[first:], strict=True):
            other.observe(row, np.array([position]), np.array([loss - raised.floor]))
        raised.shown = len(raised.positions)


class _Raised:
    """A curve above a floor: what was seen of it, and where the floor is."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.positions: list[float] = []
        self.losses: list[float] = []
        self.lowest = np.inf
        self.floor = np.nan
        self.distance = np.nan  # from the floor to the lowest loss, or to the target
        self.row: int | None = None  # of the bank
        self.shown = 0  # cells that this row has taken in

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
        """Whether the floor is too near, or twice as far as it should be."""
        too_near = min(self.lowest, self.threshold) < self.floor + MIN_CLEARANCE * self.distance
        return too_near or self._wanted() < self.distance / 2

    def place(self) -> None:
        self.distance = self._wanted()
        self.floor = min(self.lowest, self.threshold) - self.distance

    def _wanted(self) -> float:
        """How far below all else the floor should be: as far as the loss was above it early in the run."""
        first = bisect_left(self.positions, EARLY_FRACTION * self.positions[-1])
        high = float(np.mean(self.losses[first : first + EARLY_CELLS]))
        low = min(self.lowest, self.threshold)
        return max(high - low, 1e-6 * abs(low)) or 1.0
