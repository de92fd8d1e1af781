"""Targets of a falling loss, or of a growing metric."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from lightning_core.core.limits import check_length
from lightning_core.core.targets.base import (
    MAX_LOSS,
    STEP_LOSS,
    Target,
    is_loss,
    is_number,
    is_whole,
    line_int,
    line_number,
)
from lightning_core.core.validation import positive_int, read_number

MAX_EVALUATIONS = 1000
_LINE = re.compile(
    r"\s*(?P<metric>[^\s<>=]+)\s*(?P<way><=|>=)\s*(?P<value>\S+)"
    r"(?:\s+of\s+(?P<best>\S+))?(?:\s+for\s+(?P<times>\S+)\s+evaluations?)?\s*"
)


@dataclass(frozen=True, slots=True)
class LossTarget(Target):
    """A loss of at most a threshold, or a metric of at least a threshold.

    Args:
        metric: Name under which it is logged, or ``"loss"`` for the result of ``training_step``.
        at_most: Threshold of a loss; zero or below for a loss that can be negative (NLL, ELBO).
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

    KEY: ClassVar[str] = "metric"
    KEYS: ClassVar[tuple[str, ...]] = ("loss", "metric", "at_most", "at_least", "best", "for_evaluations")
    FORMS: ClassVar[tuple[str, ...]] = ("train_loss<=0.35", "val_acc>=0.9")
    MAPPINGS: ClassVar[tuple[str, ...]] = (
        "{loss: E}", "{metric: NAME, at_most: E}", "{metric: NAME, at_least: X}",
    )  # fmt: skip

    metric: str
    at_most: float | None = None
    at_least: float | None = None
    best: float = 1.0
    for_evaluations: int = 1

    def __post_init__(self) -> None:
        self._check_metric()
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError(f"target needs either at_most or at_least, got {self.at_most} and {self.at_least}")
        for name in ("at_most", "at_least", "best"):
            value = getattr(self, name)
            if value is None:
                continue
            if not is_number(value):
                raise ValueError(f"target {name} must be a number, got {value!r}")
            object.__setattr__(self, name, float(value))
        if self.at_most is not None and not is_loss(self.at_most):
            raise ValueError(f"target loss must be finite, got {self.at_most:g}")
        for name in ("at_least", "best"):
            value = getattr(self, name)
            if value is not None and not is_loss(value):
                raise ValueError(f"target {name} must be above {-MAX_LOSS:g} and below {MAX_LOSS:g}, got {value:g}")
        if self.at_least is not None and not self.at_least < self.best:
            best = 100.0 if self.at_least < 100 else 2 * self.at_least
            raise ValueError(
                f"target at_least must be below the best there can be, {self.best:g}, got {self.at_least:g}; write the "
                f"best of {self.metric}, or its upper bound: '{self.metric} >= {self.at_least:g} of {best:g}' "
                f"(best: {best:g})"
            )
        self._check_evaluations()

    def _check_metric(self) -> None:
        if not isinstance(self.metric, str):
            turned = isinstance(self.at_most, str) and is_number(self.metric)
            hint = f"; did you mean LossTarget({self.at_most!r}, {self.metric!r})?" if turned else ""
            raise ValueError(f"target metric must be a name, got {self.metric!r}{hint}")
        if not self.metric:
            raise ValueError("target metric must have a name, got ''")
        check_length("target metric", self.metric)

    def _check_evaluations(self) -> None:
        times = self.for_evaluations
        if not is_whole(times, MAX_EVALUATIONS):
            raise ValueError(
                f"target for_evaluations must be a whole number from 1 to {MAX_EVALUATIONS}, got {times!r}"
            )
        object.__setattr__(self, "for_evaluations", int(times))
        if times > 1 and self.metric == STEP_LOSS:
            raise ValueError(
                "target for_evaluations is for a metric that is logged at the end of a validation or an epoch, got "
                f"{times} of '{STEP_LOSS}', the loss of every batch: remove it, or name another metric"
            )

    @classmethod
    def from_line(cls, text: str) -> Self | None:
        match = _LINE.fullmatch(text)
        if match is None:
            return None
        grows = match["way"] == ">="
        terms: dict[str, Any] = {
            "at_least" if grows else "at_most": line_number(match["value"], f"after {match['way']}")
        }
        if match["best"]:
            if not grows:
                raise ValueError(f"target: 'of {match['best']}' is the best that a metric with >= can be, got {text!r}")
            terms["best"] = line_number(match["best"], "after 'of'")
        if match["times"]:
            terms["for_evaluations"] = line_int(match["times"], "after 'for'")
        return cls(match["metric"], **terms)

    @classmethod
    def from_terms(cls, terms: Mapping[str, Any]) -> Self | None:
        left = dict(terms)
        if "loss" in left and not {"metric", "at_most"} & left.keys():
            left |= {"metric": STEP_LOSS, "at_most": left.pop("loss")}
        times = positive_int(left.pop("for_evaluations", 1))
        if not isinstance(left.get("metric", ""), str):
            raise ValueError(f"metric must be a name, got {left['metric']!r}")
        if left.keys() not in ({"metric", "at_most"}, {"metric", "at_least"}, {"metric", "at_least", "best"}):
            return None
        numbers = {key: read_number(left[key]) for key in ("at_most", "at_least", "best") if key in left}
        return cls(left["metric"], **numbers, for_evaluations=times)

    @property
    def quantity(self) -> str:
        return self.metric

    @property
    def grows(self) -> bool:
        return self.at_least is not None

    @property
    def goal(self) -> float:
        if self.at_least is not None:
            return self.at_least
        assert self.at_most is not None  # the constructor has checked it
        return self.at_most

    @property
    def evaluations(self) -> int:
        return self.for_evaluations

    def falling(self, value: float) -> float:
        return self.best - value if self.grows else value

    def logged(self, falling: float) -> float:
        return self.best - falling if self.grows else falling

    def to_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"metric": self.metric}
        body |= {"at_least": self.at_least, "best": self.best} if self.grows else {"at_most": self.at_most}
        return body | ({"for_evaluations": self.for_evaluations} if self.for_evaluations > 1 else {})

    def __str__(self) -> str:
        best = f" of {self.best:.4g}" if self.grows and self.best != 1.0 else ""
        times = f" for {self.for_evaluations} evaluations" if self.for_evaluations > 1 else ""
        return f"{self.metric} {'>=' if self.grows else '<='} {self.show(self.goal)}{best}{times}"
