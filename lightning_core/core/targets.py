"""When a job counts as met: the kinds of targets, and the one reader of targets written in a line.

A target has a sense of its own: a loss falls, an accuracy grows, batches are counted. What people are shown is always
in that sense. What is forecast is a number that falls: the loss itself, or how far a metric is from the best it can be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

# The loss that training_step returned, as opposed to a metric that was logged under a name.
STEP_LOSS = "loss"
# Losses beyond are no losses: their sums would be infinite.
MOST = 1e300
# Metrics are float32: there 0.9 is 0.89999998.
FLOAT32 = 1e-7
# More whole evaluations in a row than that nobody waits for.
MOST_EVALUATIONS = 1000

_LINE = re.compile(
    r"\s*(?:(?P<batches>\S+)\s+batch(?:es)?"
    r"|(?P<metric>[^\s<>=]+)\s*(?P<way><=|>=)\s*(?P<value>\S+)"
    r"(?:\s+of\s+(?P<best>\S+))?(?:\s+for\s+(?P<times>\S+)\s+evaluations?)?)\s*"
)
FORMS = "'train_loss<=0.35', 'val_acc>=0.9' or '2000 batches'"


@dataclass(frozen=True, slots=True)
class LossTarget:
    """A loss of at most so much, or a metric of at least so much.

    Args:
        metric: Name under which it is logged, or ``"loss"`` for what ``training_step`` returns.
        at_most: Threshold of a loss (the papers' epsilon); zero or below of a loss that can be negative (NLL, ELBO).
        at_least: Threshold of a metric that should grow; instead of ``at_most``.
        best: Best value that such a metric can have: 1 for an accuracy, 100 for one in per cent.
        for_evaluations: Number of whole evaluations in a row that must reach the threshold. More than 1 is for a metric
            that is logged at the end of a validation or an epoch. A loss of every batch is averaged over a window.

    Raises:
        ValueError: If there is not exactly one threshold, a number is out of its range, or the metric has no name.

    Example::

        >>> str(LossTarget("train_loss", 0.35)), str(LossTarget("val_acc", at_least=0.92, for_evaluations=2))
        ('train_loss <= 0.35', 'val_acc >= 0.92 for 2 evaluations')
        >>> LossTarget(0.35, "train_loss")
        Traceback (most recent call last):
        ...
        ValueError: target metric must be a name, got 0.35; did you mean LossTarget('train_loss', 0.35)?
    """

    metric: str
    at_most: float | None = None
    at_least: float | None = None
    best: float = 1.0
    for_evaluations: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str):
            turned = isinstance(self.at_most, str) and _is_number(self.metric)
            hint = f"; did you mean LossTarget({self.at_most!r}, {self.metric!r})?" if turned else ""
            raise ValueError(f"target metric must be a name, got {self.metric!r}{hint}")
        if not self.metric:
            raise ValueError("target metric must have a name, got ''")
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError(f"target needs either at_most or at_least, got {self.at_most} and {self.at_least}")
        for name in ("at_most", "at_least", "best"):
            value = getattr(self, name)
            if value is None:
                continue
            if not _is_number(value):
                raise ValueError(f"target {name} must be a number, got {value!r}")
            object.__setattr__(self, name, float(value))
        if self.at_most is not None and not is_loss(self.at_most):
            raise ValueError(f"target loss must be finite, got {self.at_most:g}")
        if self.at_least is not None and not -math.inf < self.at_least < self.best < math.inf:
            raise ValueError(
                f"target at_least must be below the best there can be, {self.best:g}, got {self.at_least:g}; "
                f"a metric in per cent is '{self.metric} >= {self.at_least:g} of 100' (best: 100)"
            )
        self._check_evaluations()

    def _check_evaluations(self) -> None:
        times = self.for_evaluations
        if not isinstance(times, Integral) or isinstance(times, bool) or not 1 <= times <= MOST_EVALUATIONS:
            raise ValueError(
                f"target for_evaluations must be a whole number from 1 to {MOST_EVALUATIONS}, got {times!r}"
            )
        object.__setattr__(self, "for_evaluations", int(times))
        if times > 1 and self.metric == STEP_LOSS:
            raise ValueError(
                "target for_evaluations is for a metric that is logged at the end of a validation or an epoch, got "
                f"{times} of '{STEP_LOSS}', the loss of every batch: remove it, or name another metric"
            )

    @property
    def grows(self) -> bool:
        """Whether more is better."""
        return self.at_least is not None

    @property
    def goal(self) -> float:
        """The threshold, as logged."""
        if self.at_least is not None:
            return self.at_least
        assert self.at_most is not None  # the constructor saw to it
        return self.at_most

    @property
    def threshold(self) -> float:
        """The value that the falling number must come down to."""
        return self.best - self.goal if self.grows else self.goal

    def falling(self, value: float) -> float:
        """The falling number behind a value as logged."""
        return self.best - value if self.grows else value

    def logged(self, falling: float) -> float:
        """The value as logged, of a falling number."""
        return self.best - falling if self.grows else falling

    def reached(self, values: Sequence[float], evaluated: bool, window: int) -> float:
        """Return the value that counts against the threshold.

        Args:
            values: The newest observations as logged, at least one, oldest first.
            evaluated: Whether each is a whole evaluation.
            window: Number of observations of a step's loss whose mean counts.

        Returns:
            The newest evaluation, or the mean over the window (over what there is, if that is less).
        """
        if evaluated:
            return values[-1]
        recent = list(values)[-window:]
        return sum(recent) / len(recent)

    def is_met(self, values: Sequence[float], evaluated: bool, window: int) -> bool:
        """Whether the threshold is reached, by as many whole evaluations as asked or by the mean over a whole window.

        Args:
            values: The newest observations as logged, oldest first.
            evaluated: Whether each is a whole evaluation.
            window: Number of observations of a step's loss whose mean counts.
        """
        if evaluated:
            recent = list(values)[-self.for_evaluations :]
            return len(recent) == self.for_evaluations and all(map(self.reaches, recent))
        return len(values) >= window and self.reaches(self.reached(values, evaluated, window))

    def reaches(self, value: float) -> bool:
        """Whether a value is as good as the threshold, to what a float32 can tell, or better."""
        if math.isclose(value, self.goal, rel_tol=FLOAT32):
            return True
        return value >= self.goal if self.grows else value <= self.goal

    def better(self, one: float, other: float) -> float:
        """Return the better of two values."""
        return max(one, other) if self.grows else min(one, other)

    def show(self, value: float) -> str:
        """Return a value as people are shown it."""
        return f"{value:.4g}"

    def to_dict(self) -> dict[str, Any]:
        """Return the target as a bundle spells it."""
        body: dict[str, Any] = {"metric": self.metric}
        body |= {"at_least": self.at_least, "best": self.best} if self.grows else {"at_most": self.at_most}
        return body | ({"for_evaluations": self.for_evaluations} if self.for_evaluations > 1 else {})

    def __str__(self) -> str:
        best = f" of {self.best:.4g}" if self.grows and self.best != 1.0 else ""
        times = f" for {self.for_evaluations} evaluations" if self.for_evaluations > 1 else ""
        return f"{self.metric} {'>=' if self.grows else '<='} {self.show(self.goal)}{best}{times}"


@dataclass(frozen=True, slots=True)
class BatchTarget:
    """A known amount of work: so many batches.

    Args:
        batches: Number of batches from the beginning of the run.

    Raises:
        ValueError: If it is no whole number of at least 1.
    """

    batches: int

    def __post_init__(self) -> None:
        if not isinstance(self.batches, Integral) or isinstance(self.batches, bool) or self.batches < 1:
            raise ValueError(f"target batches must be a whole number of at least 1, got {self.batches!r}")
        object.__setattr__(self, "batches", int(self.batches))

    @property
    def metric(self) -> str:
        """What is counted."""
        return "batches"

    @property
    def grows(self) -> bool:
        """Whether more is better."""
        return True

    @property
    def for_evaluations(self) -> int:
        """Number of observations that must reach the target."""
        return 1

    @property
    def goal(self) -> float:
        """The number of batches."""
        return float(self.batches)

    def falling(self, value: float) -> float:
        """The step's loss, which is shown beside the batches, as it is."""
        return value

    def logged(self, falling: float) -> float:
        """The step's loss, as it is."""
        return falling

    def show(self, value: float) -> str:
        """Return a number of batches as people are shown it."""
        return f"{value:.0f}"

    def to_dict(self) -> dict[str, Any]:
        """Return the target as a bundle spells it."""
        return {"batches": self.batches}

    def __str__(self) -> str:
        return f"{self.batches} batches"


Target = LossTarget | BatchTarget


def target_from_dict(value: Mapping[str, Any]) -> Target:
    """Return the target that :meth:`LossTarget.to_dict` or :meth:`BatchTarget.to_dict` gave.

    Raises:
        ValueError: If a value is out of its range.
        TypeError: If a key is missing or unknown.
    """
    return BatchTarget(**value) if "batches" in value else LossTarget(**value)


def parse_target(text: str) -> Target:
    """Read a target that is written in one line.

    Raises:
        ValueError: If it is of none of the forms, or a number is out of its range.

    Example::

        >>> [str(parse_target(text)) for text in ("train_loss<=0.35", "val_acc >= 0.9", "2000 batches")]
        ['train_loss <= 0.35', 'val_acc >= 0.9', '2000 batches']
        >>> parse_target("val_acc >= 92 of 100 for 2 evaluations")
        LossTarget(metric='val_acc', at_most=None, at_least=92.0, best=100.0, for_evaluations=2)
    """
    match = _LINE.fullmatch(text)
    if match is None:
        raise ValueError(f"target must be like {FORMS}, got {text!r}")
    if match["batches"]:
        return BatchTarget(_whole(match["batches"], "before batches"))
    value = _number(match["value"], f"after {match['way']}")
    terms: dict[str, Any] = {"at_most" if match["way"] == "<=" else "at_least": value}
    if match["best"]:
        if match["way"] == "<=":
            raise ValueError(f"target: 'of {match['best']}' is the best that a metric with >= can be, got {text!r}")
        terms["best"] = _number(match["best"], "after 'of'")
    if match["times"]:
        terms["for_evaluations"] = _whole(match["times"], "after 'for'")
    return LossTarget(match["metric"], **terms)


def as_target(value: object) -> Target:
    """Return a target that was given as one, or as one line.

    Raises:
        ValueError: If it is neither, or the line cannot be read.

    Example::

        >>> as_target("val_acc>=0.9")
        LossTarget(metric='val_acc', at_most=None, at_least=0.9, best=1.0, for_evaluations=1)
        >>> as_target(0.35)
        Traceback (most recent call last):
        ...
        ValueError: target must be like 'train_loss<=0.35', 'val_acc>=0.9' or '2000 batches', a LossTarget or a \
BatchTarget, got 0.35; did you mean 'loss<=0.35'?
    """
    if isinstance(value, LossTarget | BatchTarget):
        return value
    if isinstance(value, str):
        return parse_target(value)
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."
    hint = f"; did you mean '{STEP_LOSS}<={value}'?" if _is_number(value) else ""
    if isinstance(value, Mapping):
        hint = "; a mapping is for bundle files"
    raise ValueError(f"target must be like {FORMS}, a LossTarget or a BatchTarget, got {shown}{hint}")


def is_loss(value: float) -> bool:
    """Whether a value can be counted with: NaN, infinity and what is nearly that cannot.

    Example::

        >>> [is_loss(value) for value in (-3.2, 0.0, float("nan"), float("inf"), 1e308)]
        [True, True, False, False, False]
    """
    return -MOST < value < MOST


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _number(text: str, place: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"target must be a number {place}, got {text!r}") from None


def _whole(text: str, place: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError(f"target must be a whole number {place}, got {text!r}")
    return int(text)
