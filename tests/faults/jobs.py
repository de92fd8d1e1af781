"""Jobs for runs under faults."""

from __future__ import annotations

import time
from typing import Any

from lightning_core.callbacks.core_callback import CoreCallback
from tests.tiny import Net


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
