"""The base class of targets: the interface that the scheduler, the views and the callbacks use.

A target has its own scale, which users see: a loss falls, an accuracy grows, batches are counted. Forecasts are
made of a number that falls: the loss itself, or the distance of a metric from its best possible value.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, Self

from lightning_core.core.targets.outside import guard

# The loss that training_step returned, as opposed to a metric that was logged under a name.
STEP_LOSS = "loss"
# Larger values are not losses: their sums would be infinite.
MAX_LOSS = 1e300
# Metrics are float32, in which 0.9 is 0.89999998.
FLOAT32_TOLERANCE = 1e-7


class Target(ABC):
    """The condition under which a job counts as met.

    A new kind of target is a frozen dataclass derived from this class, in :data:`lightning_core.core.targets.TARGETS`
    or brought by a package (:class:`~lightning_core.core.parts.Part`). Most kinds observe a number that the training
    logs; a kind that counts batches derives from :class:`CountedTarget`. One from outside the library that raises is
    not met, and its training continues.

    Attributes:
        KEY: The key of :meth:`to_dict` that only this kind has.
        KEYS: All keys by which a bundle can spell it.
        FORMS: Examples of it as one line, for messages.
        MAPPINGS: Spellings with the keys of a bundle, for messages.
    """

    __slots__ = ()

    KEY: ClassVar[str]
    KEYS: ClassVar[tuple[str, ...]]
    FORMS: ClassVar[tuple[str, ...]]
    MAPPINGS: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        if cls.__module__.partition(".")[0] != "lightning_core":
            guard(cls, Target)

    # ------------------------------------------------------------------------------------------------ spelling

    @classmethod
    @abstractmethod
    def from_line(cls, text: str) -> Self | None:
        """Return the target that one line spells, None if the line is of another kind.

        Raises:
            ValueError: If the line is of this kind and a number in it is out of its range.
        """

    @classmethod
    @abstractmethod
    def from_terms(cls, terms: Mapping[str, Any]) -> Self | None:
        """Return the target that the keys of a bundle spell, None if the keys are of another kind.

        Raises:
            ValueError: If the keys are of this kind and a value is out of its range.
        """

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Return the target that :meth:`to_dict` gave. Override it where keys are not the names of arguments."""
        return cls(**value)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the target as plain data, spelt as in a bundle."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the target as one line."""

    # ------------------------------------------------------------------------------------------------ what is observed

    @property
    def observes(self) -> bool:
        """Whether it needs observed values; otherwise batches are counted."""
        return True

    @property
    def work(self) -> int | None:
        """Batches after which the target is met; None if values must be observed, or the number is not known yet."""
        return None

    @property
    def epoch_batches(self) -> int | None:
        """Batches of an epoch, where the target counts epochs and the training has said how many; else None."""
        return None

    def resolved(self, epoch_batches: int) -> Self:
        """Return the target once it is known how many batches an epoch has."""
        return self

    @property
    @abstractmethod
    def quantity(self) -> str:
        """Name of the quantity compared with the goal, in the scale of the goal."""

    @property
    def observed(self) -> str:
        """Name of the number that the training reports: a metric, or ``"loss"`` for the result of ``training_step``."""
        return self.quantity

    @property
    def watches(self) -> bool:
        """Whether the reported metric is informative only: the work is known, and the metric shows its result."""
        return False

    @property
    def lower_is_better(self) -> bool:
        """Whether lower values of the number that the training reports are better."""
        return not (self.observes and self.grows)

    @property
    @abstractmethod
    def goal(self) -> float:
        """Value to reach, in the scale of the values that the training logs; :meth:`show` may show another scale."""

    @property
    @abstractmethod
    def grows(self) -> bool:
        """Whether more is better."""

    @property
    def evaluations(self) -> int:
        """Number of whole evaluations in a row that must reach the goal."""
        return 1

    @property
    def threshold(self) -> float:
        """Value that the falling number must come down to; NaN where nothing is observed."""
        return self.falling(self.goal)

    @property
    def axis(self) -> str:
        """Title of a chart's axis for the quantity compared with the goal."""
        return self.quantity

    def falling(self, value: float) -> float:
        """Return the falling number behind a logged value."""
        return value

    def logged(self, falling: float) -> float:
        """Return the value as logged, of a falling number."""
        return falling

    # ------------------------------------------------------------------------------------------------ judging

    def reached(self, batches: int, values: Sequence[float], evaluated: bool, window: int) -> float | None:
        """Return the value that counts against the goal; None while there is none.

        Args:
            batches: Batches done.
            values: The newest observations as logged, oldest first.
            evaluated: Whether each is a whole evaluation.
            window: Number of observations of a step's loss whose mean counts.

        Returns:
            The newest evaluation, or the mean over the window (over fewer values at the beginning).
        """
        if not values:
            return None
        if evaluated:
            return values[-1]
        recent = list(values)[-window:]
        return sum(recent) / len(recent)

    def is_met(self, batches: int, values: Sequence[float], evaluated: bool, window: int) -> bool:
        """Return whether the target is met: by enough whole evaluations, or by the mean over a whole window.

        Args:
            batches: Batches done.
            values: The newest observations as logged, oldest first.
            evaluated: Whether each is a whole evaluation.
            window: Number of observations of a step's loss whose mean counts.
        """
        if evaluated:
            recent = list(values)[-self.evaluations :]
            return len(recent) == self.evaluations and all(map(self.reaches, recent))
        value = self.reached(batches, values, evaluated, window)
        return value is not None and len(values) >= window and self.reaches(value)

    def reaches(self, value: float) -> bool:
        """Return whether a value is as good as the goal, within the precision of a float32, or better."""
        goal = self.goal
        if math.isclose(value, goal, rel_tol=FLOAT32_TOLERANCE):
            return True
        return value >= goal if self.grows else value <= goal

    def better(self, one: float, other: float) -> float:
        """Return the better of two values."""
        return max(one, other) if self.grows else min(one, other)

    # ------------------------------------------------------------------------------------------------ for users

    def show(self, value: float) -> str:
        """Return a value in the scale of users."""
        return f"{value:.4g}"

    def describe_progress(self, batches: int, value: float | None) -> str:
        """Return how far a job is, and where it has to be."""
        return f"{'-' if value is None else self.show(value)} / {self.show(self.goal)}"


class CountedTarget(Target):
    """A target that counts batches; nothing needs to be observed."""

    __slots__ = ()

    @property
    def observes(self) -> bool:
        return False

    @property
    def quantity(self) -> str:
        return "batches"

    @property
    def grows(self) -> bool:
        return True

    @property
    def threshold(self) -> float:
        return math.nan

    def reached(self, batches: int, values: Sequence[float], evaluated: bool, window: int) -> float | None:
        """Return the batches done."""
        return float(batches)

    def is_met(self, batches: int, values: Sequence[float], evaluated: bool, window: int) -> bool:
        """Return whether all batches are done."""
        return self.work is not None and batches >= self.work


def is_loss(value: float) -> bool:
    """Return whether a value can be averaged: not NaN, not infinite and not close to it.

    Example::

        >>> [is_loss(value) for value in (-3.2, 0.0, float("nan"), float("inf"), 1e308)]
        [True, True, False, False, False]
    """
    return -MAX_LOSS < value < MAX_LOSS


def is_number(value: object) -> bool:
    """Return whether a value is a real number; a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def line_number(text: str, where: str) -> float:
    """Read a number in a target's line.

    Raises:
        ValueError: If it is none.
    """
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"target must be a number {where}, got {text!r}") from None


def line_int(text: str, where: str) -> int:
    """Read an integer in a target's line.

    Raises:
        ValueError: If it is none.
    """
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError(f"target must be a whole number {where}, got {text!r}")
    return int(text)


def is_whole(value: object, maximum: float = math.inf) -> bool:
    """Return whether a value is a whole number of at least 1; a bool is not."""
    return isinstance(value, Integral) and not isinstance(value, bool) and 1 <= int(value) <= maximum
