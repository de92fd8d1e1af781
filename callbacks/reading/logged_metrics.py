"""Logged metrics of a Trainer, read without computing any.

``trainer.callback_metrics`` computes whatever is missing. On several ranks that is a collective, and before the
module's own hook at the end of an epoch a metric that the hook completes would be wrong for everybody who reads it
later. So only what Lightning itself has computed is read, from where it keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl


class TrainerMetrics:
    """The metrics that a Trainer has logged, as :class:`~lightning_core.agent.reporting.target_reader.LoggedMetrics`.

    Args:
        trainer: Trainer of the job.
    """

    without_loss = "training_step returned no loss: return it"

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self.unlogged: Mapping[str, Any] = {}
        """Metrics that nothing logs, as computed after the newest validation."""

    @property
    def has_validation(self) -> bool:
        """Whether the Trainer validates."""
        return self._trainer.enable_validation

    def computed(self) -> Mapping[str, Any]:
        """Return the newest value of each metric that Lightning has computed, in hooks that lie behind."""
        logged = self._trainer._logger_connector._callback_metrics
        return {**self.unlogged, **logged} if self.unlogged else logged

    def is_logged(self, name: str) -> bool:
        """Return whether a metric has been logged, here or in the stage in progress."""
        results: Mapping[str, Any] = self._trainer._results or {}
        return name in self.computed() or any(metric.meta.name == name for metric in results.values())

    def of_batch(self, name: str) -> Any:
        """Return the value that a batch has logged; if it has logged none, the newest computed one; None for none.

        To be called in ``on_train_batch_end``, before the Trainer computes the metrics of the batch.

        Args:
            name: Name of the metric.
        """
        value = self.computed().get(name)
        for metric in (self._trainer._results or {}).values():
            known = metric.meta
            if known.on_step and not metric.has_reset and name in (known.name, known.forked_name(on_step=True)):
                value = value if metric._forward_cache is None else metric._forward_cache
        return value
