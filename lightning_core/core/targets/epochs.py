"""Targets of a number of passes through the training data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from lightning_core.core.limits import MAX_COUNT, check_length, shown
from lightning_core.core.targets.base import STEP_LOSS, CountedTarget, is_whole, line_int
from lightning_core.core.validation import positive_int

_LINE = re.compile(r"\s*(?P<epochs>[^\s,]+)\s+epochs?(?:\s*,\s*(?P<best>lowest|highest)\s+(?P<metric>\S+))?\s*")
_BEST = {"lowest": "min", "highest": "max"}


@dataclass(frozen=True, slots=True)
class EpochTarget(CountedTarget):
    """A number of epochs. How many batches those are is known once the training has said how long its loader is.

    A metric may be watched meanwhile: the job reports it, and its best model is the one with the best value. Where it
    is evaluated at the end of a validation or an epoch, the target is met with the evaluation after the last epoch.

    Args:
        epochs: Number of epochs from the beginning of the run.
        epoch_batches: Batches of an epoch; None until the training has said. Two targets that differ in it are equal.
        metric: Name of the logged metric that is watched; by default the loss that ``training_step`` returns.
        mode: Whether its lowest value is the best, ``"min"``, or its highest, ``"max"``.

    Raises:
        ValueError: If a number is not whole and at least 1, there are more than 10**12 batches, the metric has no name,
            or the mode is another.

    Example::

        >>> target = EpochTarget(90)
        >>> target.work, target.resolved(391).work
        (None, 35190)
        >>> str(EpochTarget(90, metric="val_acc", mode="max"))
        '90 epochs, highest val_acc'
    """

    KEY: ClassVar[str] = "epochs"
    KEYS: ClassVar[tuple[str, ...]] = ("epochs", "epoch_batches", "metric", "mode")
    FORMS: ClassVar[tuple[str, ...]] = ("90 epochs",)
    MAPPINGS: ClassVar[tuple[str, ...]] = ("{epochs: N}",)

    epochs: int
    epoch_batches: int | None = field(default=None, compare=False)
    metric: str = STEP_LOSS
    mode: str = "min"

    def __post_init__(self) -> None:
        for name in ("epochs", "epoch_batches"):
            if (value := getattr(self, name)) is None and name == "epoch_batches":
                continue
            if not is_whole(value, MAX_COUNT):
                raise ValueError(f"target {name} must be a whole number from 1 to {MAX_COUNT}, got {shown(value)}")
            object.__setattr__(self, name, int(value))
        if (self.work or 0) > MAX_COUNT:
            raise ValueError(f"target epochs must be at most {MAX_COUNT} batches, got {self.work}")
        if not isinstance(self.metric, str) or not self.metric or " " in self.metric:
            raise ValueError(f"target metric must be a name, got {shown(self.metric)}")
        check_length("target metric", self.metric)
        if self.mode not in ("min", "max"):
            raise ValueError(f"target mode must be min or max, got {shown(self.mode)}")
        if self.mode == "max" and self.metric == STEP_LOSS:
            raise ValueError("target mode max is for a metric, and this target names none")

    @classmethod
    def from_line(cls, text: str) -> Self | None:
        match = _LINE.fullmatch(text)
        if match is None:
            return None
        epochs = line_int(match["epochs"], "before epochs")
        return cls(epochs, metric=match["metric"], mode=_BEST[match["best"]]) if match["metric"] else cls(epochs)

    @classmethod
    def from_terms(cls, terms: Mapping[str, Any]) -> Self | None:
        if terms.keys() == {"epochs", "for_evaluations"}:
            raise ValueError("for_evaluations needs a metric, and this target counts epochs; remove it")
        if "epochs" not in terms or not terms.keys() <= set(cls.KEYS):
            return None
        words = ("metric", "mode")
        read: dict[str, Any] = {key: value if key in words else positive_int(value) for key, value in terms.items()}
        return cls(**read)

    @property
    def work(self) -> int | None:
        return None if self.epoch_batches is None else self.epochs * self.epoch_batches

    def resolved(self, epoch_batches: int) -> Self:
        return replace(self, epoch_batches=epoch_batches)

    @property
    def observed(self) -> str:
        """The metric that is watched."""
        return self.metric

    @property
    def watches(self) -> bool:
        return self.metric != STEP_LOSS

    @property
    def lower_is_better(self) -> bool:
        return self.mode == "min"

    @property
    def goal(self) -> float:
        """Batches; epochs until it is known how many batches those are."""
        return float(self.work or self.epochs)

    @property
    def axis(self) -> str:
        return "batches done" if self.work else "epochs"

    def show(self, value: float) -> str:
        """Return batches in epochs, once it is known how many those are."""
        return f"{value:,.0f}" if self.epoch_batches is None else f"{round(value / self.epoch_batches, 1):g}"

    def describe_progress(self, batches: int, value: float | None) -> str:
        return f"{self.show(batches)}{' batches' if self.epoch_batches is None else ''} / {self}"

    def to_dict(self) -> dict[str, Any]:
        known = {} if self.epoch_batches is None else {"epoch_batches": self.epoch_batches}
        watched = {"metric": self.metric, "mode": self.mode} if self.watches else {}
        return {"epochs": self.epochs} | known | watched

    def __str__(self) -> str:
        best = next(word for word, mode in _BEST.items() if mode == self.mode)
        return f"{self.epochs} epochs{f', {best} {self.metric}' if self.watches else ''}"
