"""The target's metric where it is an attribute of the module that nothing logs.

It is copied before the module's own hook at the end of a validation, which may reset it, and the copy is computed once
that hook has run and nothing was logged under the name. So the user's metric keeps its state and what it remembers.
"""

from __future__ import annotations

import zlib
from typing import Any

import lightning.pytorch as pl

from lightning_core.agent.steering.ranks import Ranks
from lightning_core.agent.user_code.guarded import Guarded
from lightning_core.agent.user_code.torch_here import is_metric, is_tensor

from .logged_metrics import TrainerMetrics

# What ranks tell one another of the metric, instead of a number of its state.
_NONE, _LOGGED = -1, 0


class UnloggedMetric:
    """Copies and computes a metric of a module; to be made on all ranks or on none.

    Args:
        name: Name of the metric, and of the module's attribute.
        pl_module: Module that is trained.
        metrics: What the Trainer has logged, where the computed value is put.
        guarded: Asks the user's code.
        ranks: Agreement of the ranks; None if there is one process.
    """

    def __init__(
        self, name: str, pl_module: pl.LightningModule, metrics: TrainerMetrics, guarded: Guarded, ranks: Ranks | None
    ) -> None:
        self._name, self._module, self._metrics = name, pl_module, metrics
        self._guarded, self._ranks = guarded, ranks
        self._wanted = True
        self._copy: Any = None
        self._state = _NONE

    def copy(self) -> bool:
        """Copy the metric of this rank; return whether the module has one that is updated and not logged."""
        self._copy, self._state, self._metrics.unlogged = None, _NONE, {}
        metric = self._guarded(self._what, self._find, None) if self._wanted else None
        if metric is not None:
            self._copy, self._state = self._guarded(self._what, lambda: _copied(metric), (None, _NONE))
        return metric is not None

    def compute(self) -> None:
        """Compute the copy, which its ranks gather: on all of them, or on none if they differ."""
        copy, self._copy = self._copy, None
        if not self._wanted:
            return
        state = _LOGGED if self._name in self._metrics.computed() else self._state
        if self._ranks is not None:
            state = self._ranks.common(state)
        self._wanted = state != _LOGGED
        if state > _LOGGED and (value := self._guarded(self._what, copy.compute, None)) is not None:
            self._metrics.unlogged = {self._name: value}

    @property
    def _what(self) -> str:
        return f"its metric {self._name}"

    def _find(self) -> Any:
        metric: Any = getattr(self._module, self._name, None)
        found = is_metric(metric) and metric.update_called and not self._metrics.is_logged(self._name)
        return metric if found else None


def _copied(metric: Any) -> tuple[Any, int]:
    """Return a copy of a metric, and a number that is equal on ranks whose states can be gathered together."""
    states = [
        (type(part).__qualname__, [(name, _kind(value)) for name, value in part.metric_state.items()])
        for part in metric.modules()
        if is_metric(part)
    ]
    return metric.clone(), 1 + zlib.crc32(repr(states).encode())


def _kind(value: Any) -> str:
    if is_tensor(value):
        return f"{value.dtype}, {value.dim()} dimensions"
    return f"list of {_kind(value[0]) if value else 'nothing'}" if isinstance(value, list) else type(value).__name__
