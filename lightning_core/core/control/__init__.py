"""Requests of controllers for jobs, the rights to make them, and events for controllers."""

from __future__ import annotations

from lightning_core.core.control.asks import (
    NOTHING,
    RIGHTS,
    Ask,
    Asked,
    Asker,
    Rights,
    check_known,
    declare_rights,
    rights_of,
)
from lightning_core.core.control.part_answers import Note, PartAnswer, part_objects
from lightning_core.core.control.wall_clock import WallClock

__all__ = [
    "NOTHING",
    "RIGHTS",
    "Ask",
    "Asked",
    "Asker",
    "Note",
    "PartAnswer",
    "Rights",
    "WallClock",
    "check_known",
    "declare_rights",
    "part_objects",
    "rights_of",
]
