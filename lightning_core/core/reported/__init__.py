"""What a training reports beside its losses and its progress."""

from __future__ import annotations

from lightning_core.core.reported.hang import Hang
from lightning_core.core.reported.hyper_parameters import HyperParameters, hyper_parameters
from lightning_core.core.reported.learning_rates import LearningRates, fewer
from lightning_core.core.reported.memory_use import MemoryUse

__all__ = ["Hang", "HyperParameters", "LearningRates", "MemoryUse", "fewer", "hyper_parameters"]
