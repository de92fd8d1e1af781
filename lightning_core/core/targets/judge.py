"""The judge of a target: one rule in the process that trains, which stops by it, and in the scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from lightning_core.core.limits import MAX_COUNT
from lightning_core.core.targets.base import Target, is_loss


class Met(NamedTuple):
    """The value that met a target."""

    batches: int
    """Batches done."""
    value: float
    """Value that counted, as logged: a whole evaluation, or the mean over the window."""


def newest(target: Target, window: int, values: Iterable[float] = ()) -> deque[float]:
    """Return the newest of the values of a training, as many as its target is judged by.

    Args:
        target: Target of the job.
        window: Number of observations of a step's loss whose mean counts.
        values: Values as logged, oldest first.
    """
    return deque(values, max(window, target.evaluations))


class TargetJudge:
    """Judges whether a target is met by the observations of one training, in their order.

    The answer depends on them alone: not on when they were made, or on which reports carry them.

    Args:
        target: Target of the job. One that observes nothing is never met here: its batches are counted.
        window: Number of observations of a step's loss whose mean counts.

    Example::

        >>> from lightning_core.core.targets import LossTarget
        >>> judge = TargetJudge(LossTarget("loss", 0.5), window=2)
        >>> [judge.see(batches, value, evaluated=False) for batches, value in ((10, 0.7), (20, 0.4), (30, 0.5))]
        [False, False, True]
        >>> judge.met
        Met(batches=30, value=0.45)
    """

    def __init__(self, target: Target, window: int) -> None:
        self.met: Met | None = None
        """The value that met the target; None if it is not met."""
        self._target, self._observes = target, target.observes
        self._window = window
        self._recent = newest(target, window)
        self._at = -1

    def aim(self, target: Target) -> None:
        """Replace the target; the values so far count for it too."""
        self._target, self._observes = target, target.observes
        self._recent = newest(target, self._window, self._recent)

    def rest(self) -> None:
        """Judge nothing that comes."""
        self._at = MAX_COUNT

    def see(self, batches: int, value: float, *, evaluated: bool) -> bool:
        """Take an observation; return whether the target is met by it, which is so once.

        Args:
            batches: Batches done; an observation that is not later than the one before counts for nothing.
            value: Value as logged.
            evaluated: Whether it is a whole evaluation.
        """
        if batches <= self._at or not is_loss(value):
            return False
        self._at = batches
        self._recent.append(value)
        target, recent = self._target, self._recent
        if self.met is not None or not self._observes or not target.is_met(batches, recent, evaluated, self._window):
            return False
        reached = target.reached(batches, recent, evaluated, self._window)
        assert reached is not None  # there is an observation
        self.met = Met(batches, reached)
        return True
