"""The placement plan of a scheduler: whether a plan, or a demand, fits the pool, and what the plan says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from lightning_core.controllers import Controller
from lightning_core.core.control import Asker, PlanEvent, PlanGiven
from lightning_core.core.limits import shown
from lightning_core.core.names import listed
from lightning_core.scheduler.state import SchedulerState

if TYPE_CHECKING:
    from lightning_core.controllers.placement import PlacementController


def check(state: SchedulerState, event: PlanEvent) -> None:
    """Check that a plan, or a demand, fits the pool.

    Raises:
        ValueError: If it does not, or the pool has no controller for plans.
    """
    controller = _controller(state.controllers)
    if controller is None:
        raise ValueError("the pool takes no plan: its devices must be at locations, got none")
    if isinstance(event, PlanGiven) and event.plan is not None:
        there = set(state.settings.locations)
        for location in event.plan.locations:
            if location not in there:
                raise ValueError(f"nodes of a plan must be locations of the pool, {listed(sorted(there))}, "
                                 f"got {shown(location)}")  # fmt: skip
    controller.check(event)


def changes(state: SchedulerState, event: PlanEvent) -> bool:
    """Return whether a plan, or a demand, is news to the pool, and fits."""
    controller = _controller(state.controllers)
    if controller is None or not controller.changes(event):
        return False
    try:
        check(state, event)
    except ValueError:
        return False
    return True


def describe(controllers: Mapping[Asker, Controller]) -> dict[str, Any] | None:
    """Return what the plan of a pool says now, as JSON values; None if it has none."""
    controller = _controller(controllers)
    return None if controller is None else controller.to_dict()


def _controller(controllers: Mapping[Asker, Controller]) -> PlacementController | None:
    return cast("PlacementController | None", controllers.get(Asker.PLAN))
