"""Reads the number that a target is about from a Trainer, whenever there is a new one.

The loss that ``training_step`` returns is new after every batch, and so is a metric that it logs; a metric that it logs
only sometimes keeps its last value in between. A metric that first appears at the end of a validation or of an epoch is
new only there, and each of its values is a whole evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal

import lightning.pytorch as pl
import torch

from lightning_core.core.targets import STEP_LOSS, Target

from .loss_meter import LossMeter

Stage = Literal["validation", "epoch"]


class TargetReader:
    """Reads a target's number from a Trainer into a meter.

    Args:
        target: Target of the job. For a target in batches, the loss of the step is read if there is one.
        meter: Meter that takes the numbers.
        evaluated_in: Stage in which the number is evaluated, if that is known from a checkpoint.
    """

    def __init__(self, target: Target, meter: LossMeter, evaluated_in: str = "") -> None:
        self._has_metric = target.observes or target.watches
        self._metric = target.observed
        self._times = target.evaluations
        self._meter = meter
        self._seen = False
        self._complained = False
        self._validated = False
        self.evaluated_in = evaluated_in
        """Stage in which the number is evaluated, ``validation`` or ``epoch``; empty if it is new after each batch."""

    @property
    def evaluated(self) -> bool:
        """Return whether each number is a whole evaluation."""
        return bool(self.evaluated_in)

    def read_batch(self, trainer: pl.Trainer, outputs: Any, accumulated: int, batches: int) -> str | None:
        """Read the number after a batch.

        Args:
            trainer: Trainer of the job.
            outputs: Result of ``training_step``, as ``on_train_batch_end`` gets it: a mapping, or None.
            accumulated: Factor by which Lightning has divided the loss.
            batches: Batches that are done, this one included.

        Returns:
            A complaint, the first time that the value is not a number; else None.
        """
        if self.evaluated_in:
            return None
        scale = float(accumulated)
        value = None
        if self._metric == STEP_LOSS:
            value = outputs.get("loss") if outputs else None
        if value is None and self._has_metric:
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
            return f"the loss must be a number, got {_describe(value)}"
        return None

    def read_evaluation(self, trainer: pl.Trainer, stage: Stage, batches: int) -> None:
        """Read the number at the end of a validation or an epoch, if it is evaluated there."""
        self._validated = self._validated or stage == "validation"
        if self._has_metric and (self.evaluated_in == stage or not self._seen):
            value = trainer.callback_metrics.get(self._metric)
            if value is not None:
                self._seen, self.evaluated_in = True, stage
                self._meter.add_evaluation(value, batches)

    def complaint(self, trainer: pl.Trainer) -> str | None:
        """Return what is wrong after an epoch, once: the number was never logged, or not as the target requires."""
        if self._times > 1 and self._seen and not self.evaluated and not self._complained:
            self._complained = True
            return (
                f"target metric {self._metric!r} is logged with every batch, so for_evaluations: {self._times} has no "
                "effect: remove it, or name a metric that is logged at the end of a validation or an epoch"
            )
        if (
            not self._has_metric
            or self._seen
            or self._complained
            or (trainer.enable_validation and not self._validated)
        ):
            return None
        self._complained = True
        if self._metric == STEP_LOSS:
            return "training_step returned no loss: return it, or name a logged metric in the target"
        names = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
        return f"target metric {self._metric!r} was never logged; logged so far: {names}"


def read_step_loss(outputs: Any, accumulated: int, batches: int, meter: LossMeter) -> None:
    """Read the loss that ``training_step`` returned, if any, for a job whose target is about another number."""
    value = outputs.get("loss") if isinstance(outputs, Mapping) else None
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        meter.add_tensor(value, float(accumulated), batches)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        kind = "a complex tensor" if value.is_complex() else "a tensor"
        return f"{kind} of {value.numel()} elements"
    return f"{type(value).__name__} {str(value)[:40]!r}"
