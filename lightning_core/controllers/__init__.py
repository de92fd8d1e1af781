"""Controllers, which decide beside the policy: by the hour of the day, a budget, a plan or a market. One file each.

A controller is listed here, and its rights in :data:`lightning_core.core.control.RIGHTS`.
"""

from __future__ import annotations

from lightning_core.controllers.budget import Budget
from lightning_core.controllers.calendar import Calendar
from lightning_core.controllers.controller import Controller
from lightning_core.controllers.market import MarketController
from lightning_core.controllers.placement import PlacementController
from lightning_core.core.control import Asker
from lightning_core.core.specs import Family

CONTROLLERS: Family[Controller] = Family("controller", {
    str(Asker.CALENDAR): Calendar,
    str(Asker.BUDGET): Budget,
    str(Asker.PLAN): PlacementController,
    str(Asker.MARKET): MarketController,
}, outside="controllers", methods=("handle", "wakeup", "state", "restore"))  # fmt: skip

__all__ = ["CONTROLLERS", "Budget", "Calendar", "Controller", "MarketController", "PlacementController"]
