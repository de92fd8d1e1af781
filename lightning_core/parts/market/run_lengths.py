"""Run lengths of the number of spot nodes: a semi-Markov model, learned from observations.

Recorded markets have in common that a run which has lasted is likely to last: after ``a`` intervals, the probability
that it ends in the next one falls about as ``1 / a``. That is the prior, and it has no scale: it holds for intervals of
minutes and of hours. The runs that were seen correct it, first those of all levels together, then those of each level.
Where the number goes from a level is learned from the changes that were seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray

# Ages, in intervals, from which on another hazard holds.
AGES = (1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 94, 141, 211)
# The prior hazard at an age is LASTS / (age + LASTS).
LASTS = 0.6
# Weight of the prior, in ends of runs at each age; and of all levels together beside one level.
PRIOR, POOLED = 5.0, 5.0
# Weight of the prior of where the number goes, in changes from each level; half of it goes to the neighbours.
SPREAD = 2.0


class RunLengths:
    """The model.

    Args:
        levels: Level of each interval so far, ascending in time, shape ``(T,)``; at least one.
        number: Number of levels.
        ages: Ages from which on another hazard holds, ascending, from 1.
        others: Levels of other markets, to learn from.
    """

    def __init__(
        self, levels: IntArray, number: int, ages: tuple[int, ...] = AGES, others: Sequence[IntArray] = ()
    ) -> None:
        self.number, self.ages = number, np.array(ages)
        self._exposure, self._ended = np.zeros((2, number, len(ages)))
        self._moves = np.zeros((number, number))
        for other in others:
            self._learn(other)
        self.level, self.age = self._learn(levels)

    def _learn(self, levels: IntArray) -> tuple[int, int]:
        """Count the runs of a market; return the level of the last one and its age."""
        ends = np.flatnonzero(np.diff(levels)) + 1
        begins = np.concatenate([[0], ends])
        lengths = np.diff(np.concatenate([begins, [len(levels)]]))
        of = levels[begins]
        upto = np.append(self.ages[1:], np.iinfo(np.int64).max)
        # A run that has ended could have ended at each of its ages; the present one has not yet at its last.
        exposed = lengths - (np.arange(len(lengths)) == len(lengths) - 1)
        spent = np.clip(np.minimum(exposed[:, None], upto - 1) - self.ages + 1, 0, None)
        np.add.at(self._exposure, of, spent.astype(float))
        np.add.at(self._ended, (of[:-1], self._at(lengths[:-1])), 1.0)
        np.add.at(self._moves, (of[:-1], of[1:]), 1.0)
        return int(of[-1]), int(lengths[-1])

    def state(self) -> list[Any]:
        """Return the counts as JSON values."""
        counts = (self._exposure, self._ended, self._moves)
        return [self.level, self.age, self.ages.tolist(), *(count.tolist() for count in counts)]

    @classmethod
    def of(cls, state: Sequence[Any]) -> RunLengths:
        """Return the model of a state that :meth:`state` returned."""
        level, age, ages, *counts = state
        made = cls(np.array([level]), len(counts[0]), tuple(ages))
        made.age = age
        made._exposure, made._ended, made._moves = map(np.array, counts)
        return made

    def _at(self, age: IntArray | int) -> IntArray:
        found: IntArray = np.searchsorted(self.ages, age, side="right") - 1
        return found

    @property
    def row(self) -> int:
        """The present level and its age: the row of the worth in :meth:`expected`."""
        return self.level * len(self.ages) + int(self._at(self.age))

    def hazards(self) -> FloatArray:
        """Return the probability that a run ends after an interval, by level and age, shape ``(levels, ages)``."""
        prior = LASTS / (self.ages + LASTS)
        pooled = (self._ended.sum(0) + PRIOR) / (self._exposure.sum(0) + PRIOR / prior)
        hazards: FloatArray = (self._ended + POOLED) / (self._exposure + POOLED / pooled)
        return hazards

    def goes(self) -> FloatArray:
        """Return the probability of each next level when a run ends, shape ``(levels, levels)``; 0 for the same."""
        level = np.arange(self.number)
        near = (np.abs(level[:, None] - level) == 1).astype(float)
        other = 1.0 - np.eye(self.number)
        often = other * (self._moves.sum(0) + 1.0 / self.number)
        prior = 0.5 * near / near.sum(1, keepdims=True) + 0.5 * often / often.sum(1, keepdims=True)
        weights = self._moves + SPREAD * prior
        goes: FloatArray = weights / weights.sum(1, keepdims=True)
        return goes

    def expected(self, worth: FloatArray) -> FloatArray:
        """Return the expected value before an interval from the value after it.

        A run passes from one age to the next with the probability that makes it stay there for as long as it should on
        average.

        Args:
            worth: Worth by level and age, shape ``(levels * ages, ...)``.

        Returns:
            The same shape.
        """
        ages = len(self.ages)
        after = worth.reshape(self.number, ages, -1)
        ends, passes = self.hazards()[:, :, None], 1.0 / np.diff(self.ages)[:, None]
        elsewhere = np.matmul(self.goes(), after[:, 0])
        before: FloatArray = (1.0 - ends) * after
        before[:, :-1] += (1.0 - ends[:, :-1]) * passes * (after[:, 1:] - after[:, :-1])
        before += ends * elsewhere[:, None]
        return before.reshape(worth.shape)
