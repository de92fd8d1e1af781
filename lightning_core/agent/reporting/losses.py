"""The losses of one fit: the number that the target is about, and whether the training has diverged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_core.agent.reporting.loss_meter import LossMeter
from lightning_core.agent.reporting.target_reader import LoggedMetrics, Stage, TargetReader, read_step_loss
from lightning_core.core.events import BadLosses, Cell
from lightning_core.core.targets import STEP_LOSS, Target


class Losses:
    """Measures the losses of one fit.

    Args:
        target: Target of the job.
        deliver: Called with each loss cell.
        every: Minimum batches per cell.
        metrics: Metrics that the training logs.
        evaluated_in: Stage in which the target's number is evaluated, if that is known from a checkpoint.
        private: Whether the losses of batches are private (:meth:`LossMeter.add_tensor`).
    """

    def __init__(
        self, target: Target, deliver: Callable[[Cell], None], every: int, metrics: LoggedMetrics, evaluated_in: str,
        *, private: bool,
    ) -> None:  # fmt: skip
        self._meter = LossMeter(deliver, every)
        # The target's metric may be finite although the losses that are trained on are not.
        is_step_loss = target.observed == STEP_LOSS
        self._step_meter = self._meter if is_step_loss else LossMeter(lambda cell: None, every)
        self._step_meter.exact = False
        self._private = private
        self._reader = TargetReader(target, self._meter, metrics, evaluated_in, private=private)
        self.aim(target)

    @property
    def evaluated(self) -> bool:
        """Return whether each cell is a whole evaluation."""
        return bool(self._reader.evaluated_in)

    @property
    def evaluated_in(self) -> str:
        """Stage in which the target's number is evaluated; empty if it is new after each batch."""
        return self._reader.evaluated_in

    @property
    def rejected(self) -> int:
        """Values kept out of the cells because they are NaN or infinite."""
        return self._meter.rejected

    @property
    def bad(self) -> BadLosses | None:
        """Newest run of values that are NaN or infinite: of the losses trained on, else of the target's metric."""
        step, metric = self._step_meter.bad, self._meter.bad
        return metric if step is None or (step.over and metric is not None and not metric.over) else step

    @property
    def next_cell(self) -> int | None:
        """Batches after which the next cell is delivered, if each batch has a number; None if no batch has one."""
        return self._meter.next_cell if self._reader.is_read_after_batches else None

    def aim(self, target: Target) -> None:
        """Deliver cells after the same batch in every run, if the training stops by them or keeps its best model."""
        self._meter.exact = target.observes or target.watches

    def start_at(self, batches: int, cells: int) -> None:
        """Continue after so many batches and so many cells that were delivered before."""
        self._meter.start_at(batches, cells)
        self._step_meter.start_at(batches, cells)

    def read_batch(self, outputs: Any, accumulated: int, batches: int) -> str | None:
        """Read the losses after a batch; see :meth:`TargetReader.read_batch`."""
        complaint = self._reader.read_batch(outputs, accumulated, batches)
        if self._step_meter is not self._meter:
            read_step_loss(outputs, accumulated, batches, self._step_meter, private=self._private)
        return complaint

    def read_evaluation(self, stage: Stage, batches: int) -> str | None:
        """Read the target's number after a validation or an epoch; see :meth:`TargetReader.read_evaluation`."""
        return self._reader.read_evaluation(stage, batches)

    def expect(self, stage: Stage) -> None:
        """Note that a stage has a number; see :meth:`TargetReader.expect`."""
        self._reader.expect(stage)

    def complaint(self) -> str | None:
        """Return what is wrong after an epoch, once; see :meth:`TargetReader.complaint`."""
        return self._reader.complaint()

    def flush(self) -> None:
        """Wait for the cells that are still on their way from a GPU, and deliver them."""
        self._meter.flush()
