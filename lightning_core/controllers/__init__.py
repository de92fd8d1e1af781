"""Controllers, which decide beside the policy: by the hour of the day, a budget or a market. One file each.

A controller is listed here, and its rights in :data:`lightning_core.core.control.RIGHTS`.
"""

from __future__ import annotations

from lightning_core.controllers.budget import Budget
from lightning_core.controllers.calendar import Calendar
from lightning_core.controllers.controller import ChecksEvents, Controller, Describes
from lightning_core.core.control import Asker
from lightning_core.core.parts import later
from lightning_core.core.specs import Family

CONTROLLERS: Family[Controller] = Family("controller", {
    str(Asker.CALENDAR): Calendar,
    str(Asker.BUDGET): Budget,
    # A pool without a market does not import what it stands on.
    str(Asker.MARKET): later("lightning_core.controllers.market", "MarketController"),
}, outside="controllers", methods=("handle", "wakeup", "state", "restore"))  # fmt: skip

__all__ = ["CONTROLLERS", "Budget", "Calendar", "ChecksEvents", "Controller", "Describes"]
