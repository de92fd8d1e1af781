"""Controllers, which decide beside the policy: by the hour of the day, a budget, a plan or a market. One file each.

A controller is listed here, and its rights in :data:`lightning_core.core.control.RIGHTS`.
"""

from __future__ import annotations

from lightning_core.controllers.budget import Budget
from lightning_core.controllers.calendar import Calendar
from lightning_core.controllers.controller import Controller
from lightning_core.core.control import Asker
from lightning_core.core.specs import Family, later

CONTROLLERS: Family[Controller] = Family("controller", {
    str(Asker.CALENDAR): Calendar,
    str(Asker.BUDGET): Budget,
    # A pool without a market or a plan does not import what these stand on.
    str(Asker.PLAN): later("lightning_core.controllers.placement", "PlacementController"),
    str(Asker.MARKET): later("lightning_core.controllers.market", "MarketController"),
}, outside="controllers", methods=("handle", "wakeup", "state", "restore"))  # fmt: skip

__all__ = ["CONTROLLERS", "Budget", "Calendar", "Controller"]
