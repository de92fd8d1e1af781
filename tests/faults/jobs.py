"""Jobs for runs under faults."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from lightning_core.callbacks.core_callback import CoreCallback
from tests.tiny import Batch, Line, Net


class SavedOften(Net):
    """A small net, trained slowly and saved about once a second, as a long run is saved every few minutes.

    Args:
        pause: Seconds that a batch sleeps.
    """

    def __init__(self, pause: float = 0.0) -> None:
        super().__init__()
        self.pause = pause

    def on_fit_start(self) -> None:
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if isinstance(callback, CoreCallback):
                callback._checkpointer._every, callback._checkpointer._next = 1.0, time.monotonic() + 1.0


class HangsOnce(Line):
    """Hangs in its 40th step, unless it has done so before; its process goes on answering.

    Args:
        mark: Path of the file that says that it has.
    """

    def __init__(self, mark: str) -> None:
        super().__init__(pause=0.005)
        self.mark = Path(mark)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        if self.steps == 40 and not self.mark.exists():
            self.mark.touch()
            time.sleep(1e6)
        return super().training_step(batch, batch_idx)
