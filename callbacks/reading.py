"""Which number a target speaks of, and when there is a new one.

What ``training_step`` returns is new with every batch, and so is a metric that it logs; one that it logs now and then
counts until it is logged again. A metric that was first seen at the end of a validation or of an epoch is new only
there, and each of its values is a whole evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal

import lightning.pytorch as pl
import torch

from lightning_core.core.targets import STEP_LOSS, LossTarget, Target

from .meter import LossMeter


class Reading:
    """Reads a target's number off a Trainer into a meter.

    Args:
        target: a known amount of work is shown beside the step's loss, if there is one.
        meter: what becomes of the numbers.
        place: where the number is evaluated, if that is known from before.
    """

    def __init__(self, target: Target, meter: LossMeter, place: str = "") -> None:
        self._loss = isinstance(target, LossTarget)
        self._metric = target.metric if isinstance(target, LossTarget) else STEP_LOSS
        self._times = target.for_evaluations
        self._meter = meter
        self._seen = False
        self._complained = False
        self._validated = False
        self.place = place
        """Where the number is evaluated: ``validation``, ``epoch``, or empty if it is none that is."""

    @property
    def evaluated(self) -> bool:
        """Whether each number is a whole evaluation."""
        return bool(self.place)

    def batch(self, trainer: pl.Trainer, outputs: Any, accumulated: int, batches: int) -> str | None:
        """Reads after a batch.

        Args:
            trainer: that trains.
            outputs: of ``training_step``, as ``on_train_batch_end`` has them: a mapping, or None.
            accumulated: what Lightning has divided the loss by.
            batches: done with this one.

        Returns:
            A complaint, the first time that the number is none.
        """
        if self.place:
            return None
        scale = float(accumulated)
        value = None
        if self._metric == STEP_LOSS:
            value = outputs.get("loss") if outputs else None
        if value is None and self._loss:
            value = trainer.callback_metrics.get(self._metric)
            scale = 1.0
        if value is None:
            return None
        self._seen = True
        if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
            self._meter.add_tensor(value, scale, batches)
        elif isinstance(value, Real):
            self._meter.add(float(value) * scale, batches)
        elif not self._complained:
            self._complained = True
            return f"the loss expects a number, got {_words(value)}"
        return None

    def evaluation(self, trainer: pl.Trainer, place: Literal["validation", "epoch"], batches: int) -> None:
        """Reads at the end of a validation or an epoch, whichever is the number's place."""
        self._validated = self._validated or place == "validation"
        if self._loss and (self.place == place or not self._seen):
            value = trainer.callback_metrics.get(self._metric)
            if value is not None:
                self._seen, self.place = True, place
                self._meter.evaluation(value, batches)

    def missing(self, trainer: pl.Trainer) -> str | None:
        """A complaint, once, if an epoch has passed, and a validation if there are any, without what is asked."""
        if self._times > 1 and self._seen and not self.evaluated and not self._complained:
            self._complained = True
            return (
                f"target metric {self._metric!r} is logged with every batch, so for_evaluations: {self._times} counts "
                "nothing: remove it, or name a metric that is logged at the end of a validation or an epoch"
            )
        if not self._loss or self._seen or self._complained or (trainer.enable_validation and not self._validated):
            return None
        self._complained = True
        if self._metric == STEP_LOSS:
            return "training_step returned no loss; return it, or name a metric that is logged in the target"
        names = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
        return f"target metric {self._metric!r} was never logged; logged so far: {names}"


def watch(outputs: Any, accumulated: int, batches: int, meter: LossMeter) -> None:
    """Read the loss that ``training_step`` returned, if it is one, beside a target that speaks of another number."""
    value = outputs.get("loss") if isinstance(outputs, Mapping) else None
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        meter.add_tensor(value, float(accumulated), batches)


def _words(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        kind = "a complex tensor" if value.is_complex() else "a tensor"
        return f"{kind} of {value.numel()} elements"
    return f"{type(value).__name__} {str(value)[:40]!r}"
