"""What controllers ask of jobs, and which of them may ask what."""

from __future__ import annotations

from lightning_core.core.control.asks import NOTHING, RIGHTS, Ask, Asked, Asker, Rights

__all__ = ["NOTHING", "RIGHTS", "Ask", "Asked", "Asker", "Rights"]
