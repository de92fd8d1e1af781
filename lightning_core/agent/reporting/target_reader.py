"""Reads the number that a target is about from a training, whenever there is a new one.

The loss that ``training_step`` returns is new after every batch, and so is a metric that it logs; a metric that it logs
only sometimes keeps its last value in between. A metric that first appears at the end of a validation or of an epoch is
new only there, and each of its values is a whole evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import modules
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsFloat, TypeGuard

import numpy as np

from lightning_core.agent.reporting.loss_meter import LossMeter
from lightning_core.agent.user_code.random_state import RandomStateKept
from lightning_core.agent.user_code.torch_here import is_tensor, torch_here
from lightning_core.core.targets import STEP_LOSS, Target

if TYPE_CHECKING:
    import torch

Stage = Literal["validation", "epoch"]


class LoggedMetrics(Protocol):
    """The metrics that a training has logged. Reading them computes none, so that ranks may read alone."""

    @property
    def without_loss(self) -> str:
        """What the log says if the target is about the loss of a batch, and no batch has one."""

    @property
    def has_validation(self) -> bool:
        """Whether the training is validated."""

    def computed(self) -> Mapping[str, Any]:
        """Return the newest computed value of each metric."""

    def of_batch(self, name: str) -> Any:
        """Return the value that the newest batch has logged; if it has logged none, the newest computed one, or None.

        Args:
            name: Name of the metric.
        """


class TargetReader:
    """Reads a target's number from a training into a meter.

    Args:
        target: Target of the job. For a target in batches, the loss of the step is read if there is one.
        meter: Meter that takes the numbers.
        metrics: Metrics that the training logs.
        evaluated_in: Stage in which the number is evaluated, if that is known from a checkpoint.
        private: Whether the losses of batches are private (:meth:`LossMeter.add_tensor`).
    """

    def __init__(
        self, target: Target, meter: LossMeter, metrics: LoggedMetrics, evaluated_in: str = "", *, private: bool = False
    ) -> None:
        self._has_metric = target.observes or target.watches
        self._metric = target.observed
        self._is_step_loss = self._metric == STEP_LOSS
        self._times = target.evaluations
        self._meter = meter
        self._private = private
        self._metrics = metrics
        self._seen = False
        self._complained = False
        self._validated = False
        self._evaluation: Any = None
        self.evaluated_in = evaluated_in
        """Stage in which the number is evaluated, ``validation`` or ``epoch``; empty if it is new after each batch."""

    @property
    def evaluated(self) -> bool:
        """Return whether each number is a whole evaluation."""
        return bool(self.evaluated_in)

    @property
    def is_read_after_batches(self) -> bool:
        """Return whether numbers of batches have been read, not of whole evaluations."""
        return self._seen and not self.evaluated_in

    def read_batch(self, outputs: Any, accumulated: int, batches: int) -> str | None:
        """Read the number after a batch.

        Args:
            outputs: Result of the training step: a mapping whose ``loss`` is read, or None.
            accumulated: Factor by which the loss has been divided, because gradients are accumulated.
            batches: Batches that are done, this one included.

        Returns:
            A complaint, the first time that the value is not a number; else None.
        """
        if self.evaluated_in:
            return None
        scale, value, private = float(accumulated), None, self._private
        if self._is_step_loss and (type(outputs) is dict or isinstance(outputs, Mapping)):
            value = outputs.get("loss")
        if value is None and self._has_metric:
            value, scale, private = self._metrics.of_batch(self._metric), 1.0, False
        if value is None:
            return None
        self._seen = True
        number = as_number(value)
        if type(number) is float:
            self._meter.add(number * scale, batches)
        elif is_tensor(number):
            self._meter.add_tensor(number, scale, batches, private=private and _is_plain(value))
        else:
            what = "the loss" if self._is_step_loss else f"target metric {self._metric!r}"
            return self._complain(f"{what} must be a number, got {_describe(value)}")
        return None

    def read_evaluation(self, stage: Stage, batches: int) -> str | None:
        """Read the number after a validation or an epoch, if it was evaluated there; return a complaint, if any.

        It is to be called once the metrics of the stage have been computed.

        Args:
            stage: Stage that has ended.
            batches: Batches that are done.
        """
        self._validated = self._validated or stage == "validation"
        if not self._has_metric or (self._seen and self.evaluated_in != stage):
            return None
        value = self._metrics.computed().get(self._metric)
        if value is None or (value is self._evaluation and is_tensor(value)):
            return None  # nothing, or what an earlier stage has logged
        self._evaluation = value
        self._seen, self.evaluated_in = True, stage
        if (number := as_number(value)) is None:
            return self._complain(f"target metric {self._metric!r} must be a number, got {_describe(value)}")
        self._meter.add_evaluation(number, batches)
        return None

    def expect(self, stage: Stage) -> None:
        """Note that a stage has a number, whether it could be computed this time or not."""
        self._seen = self._seen or not self.evaluated_in
        self.evaluated_in = self.evaluated_in or stage

    def complaint(self) -> str | None:
        """Return what is wrong after an epoch, once: the number was never logged, or not as the target requires."""
        if self._times > 1 and self._seen and not self.evaluated:
            return self._complain(
                f"target metric {self._metric!r} is logged with every batch, so for_evaluations: {self._times} has no "
                "effect: remove it, or name a metric that is logged at the end of a validation or an epoch"
            )
        if not self._has_metric or self._seen or (self._metrics.has_validation and not self._validated):
            return None
        names = ", ".join(sorted(self._metrics.computed())) or "nothing"
        if self._is_step_loss:
            known = "" if names == "nothing" else f"; logged so far: {names}"
            return self._complain(f"{self._metrics.without_loss}, or name a logged metric in the target{known}")
        return self._complain(f"target metric {self._metric!r} was never logged; logged so far: {names}")

    def _complain(self, words: str) -> str | None:
        before, self._complained = self._complained, True
        return None if before else words


def read_step_loss(outputs: Any, accumulated: int, batches: int, meter: LossMeter, *, private: bool) -> None:
    """Read the loss that ``training_step`` returned, if any, for a job whose target is about another number."""
    value = outputs.get("loss") if isinstance(outputs, Mapping) else None
    number = as_number(value) if type(value) is float or is_tensor(value) else None
    if type(number) is float:
        meter.add(number * accumulated, batches)
    elif is_tensor(number):
        meter.add_tensor(number, float(accumulated), batches, private=private and _is_plain(value))


def as_number(value: Any) -> torch.Tensor | float | None:
    """Return a value as a float, or as a tensor of one element if it is on a device; None if it is neither.

    Example::

        >>> import torch
        >>> as_number(torch.tensor([0.5])), as_number(np.array(0.5)), as_number(1), as_number("0.5"), as_number([0.5])
        (0.5, 0.5, 1.0, None, None)
    """
    if type(value) is float:
        return value
    torch = modules.get("torch")
    if torch is not None and type(value) is torch.Tensor and value.dim() == 0:  # as nearly every loss
        if value.is_cuda and value.is_floating_point():
            return value  # type: ignore[no-any-return]  # a tensor
        if value.is_cpu:
            number = value.item()
            if type(number) is float:
                return number
    if is_tensor(value):
        return _number_of_tensor(value)
    if isinstance(value, np.ndarray):
        value = value.reshape(()).item() if value.size == 1 else None
    try:
        with RandomStateKept():
            return float(value) if isinstance(value, SupportsFloat) else None
    except Exception:  # too large, or the code of others
        return None


def _is_plain(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether a value is a tensor, and of no subclass."""
    torch = torch_here()
    return torch is not None and type(value) is torch.Tensor


def _number_of_tensor(value: torch.Tensor) -> torch.Tensor | float | None:
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if value.is_meta or value.is_nested:
        return None
    # The whole of a tensor that is spread over ranks could be read by all of them together only.
    whole = value if _is_plain(value) or not is_traceable_wrapper_subclass(value) else _own_part(value)
    if whole is None or whole.numel() != 1 or whole.is_complex():
        return None
    return float(whole.item()) if whole.is_cpu else whole


def _own_part(value: torch.Tensor) -> torch.Tensor | None:
    """Return this rank's part of a distributed tensor if it is the whole; None if not.

    The whole of another one is computed by all ranks together, which only the training can order.
    """
    placements = getattr(value, "placements", ())
    if not placements:
        return None
    sizes = value.device_mesh.shape  # type: ignore[attr-defined]
    whole = all(placement.is_replicate() or size == 1 for placement, size in zip(placements, sizes, strict=True))
    return value.to_local() if whole else None  # type: ignore[attr-defined]


def _describe(value: Any) -> str:
    if is_tensor(value):
        if parts := getattr(value, "placements", ()):
            return f"a tensor spread over ranks ({', '.join(map(str, parts))}): return value.full_tensor() instead"
        kind = "a complex tensor" if value.is_complex() else "a tensor"
        return f"{kind} of {value.numel()} elements"
    try:
        return f"{type(value).__name__} {str(value)[:40]!r}"
    except Exception:  # it is the code of others
        return f"{type(value).__name__}"
