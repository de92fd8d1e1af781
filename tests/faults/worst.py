"""The worst that a user's code can do to its process."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import torch

from tests.tiny import Batch, Line


class Worst(Line):
    """Trains a little, then harms its process.

    Args:
        how: ``"leaves"`` (``sys.exit``), ``"dies"`` (``os._exit``), ``"falls"`` (reads from nowhere), ``"unbuilt"``
            (does not get as far), ``"thirsts"`` (asks for more memory than there is).
    """

    def __init__(self, how: str) -> None:
        super().__init__(pause=0.005)
        self.how = how
        if how == "unbuilt":
            raise ValueError("not today")

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.steps == 20:
            worst: Any = {
                "leaves": lambda: sys.exit(3),
                "dies": lambda: os._exit(9),
                "falls": lambda: ctypes.string_at(0),
                "thirsts": lambda: bytearray(2**62),
            }[self.how]
            worst()
        return loss
