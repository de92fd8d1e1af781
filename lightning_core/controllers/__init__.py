"""Controllers, which decide beside the policy: by the hour of the day, or as a part brings them. One file each."""

from __future__ import annotations

from lightning_core.controllers.calendar import Calendar
from lightning_core.controllers.controller import (
    ChecksEvents,
    Controller,
    Describes,
    PublishedLevel,
    Publishes,
    is_pure,
)
from lightning_core.core.control import Asker
from lightning_core.core.specs import Family

CONTROLLERS: Family[Controller] = Family("controller", {
    str(Asker.CALENDAR): Calendar,
}, outside="controllers", methods=("handle", "wakeup", "state", "restore"))  # fmt: skip

__all__ = [
    "CONTROLLERS",
    "Calendar",
    "ChecksEvents",
    "Controller",
    "Describes",
    "PublishedLevel",
    "Publishes",
    "is_pure",
]
