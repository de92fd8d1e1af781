"""What controllers ask of jobs, which of them may ask what, and what they are told beside what jobs do."""

from __future__ import annotations

from lightning_core.core.control.asks import NOTHING, RIGHTS, Ask, Asked, Asker, Rights
from lightning_core.core.control.wall_clock import WallClock

__all__ = ["NOTHING", "RIGHTS", "Ask", "Asked", "Asker", "Rights", "WallClock"]
