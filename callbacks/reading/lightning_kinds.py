"""Lightning's own callbacks among those of a Trainer, recognised by their type and not by the names they have."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl

# Modules and names of callbacks.
TIMER = "timer", "Timer"
EARLY_STOPPING = "early_stopping", "EarlyStopping"
AVERAGING = "weight_averaging", "WeightAveraging"
ACCUMULATION_SCHEDULER = "gradient_accumulation_scheduler", "GradientAccumulationScheduler"
STOCHASTIC_AVERAGING = "stochastic_weight_avg", "StochasticWeightAveraging"


def callbacks_of(trainer: pl.Trainer, module: str, name: str) -> list[Any]:
    """Return the callbacks of a class of Lightning, which has two packages, and of its subclasses.

    Others may have attributes of the same names, which mean something else.

    Args:
        trainer: Trainer of the job.
        module: Module of the class among Lightning's callbacks.
        name: Name of the class.
    """
    homes = [f"{package}.callbacks.{module}" for package in ("lightning.pytorch", "pytorch_lightning")]
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return [
        one
        for one in callbacks
        if any(kind.__name__ == name and kind.__module__ in homes for kind in type(one).__mro__)
    ]
