"""Events of parts: whether one fits a pool, and whether it is news to the controllers that hear it."""

from __future__ import annotations

from lightning_core.controllers import ChecksEvents
from lightning_core.core.control import Asker
from lightning_core.core.events import PartEvent
from lightning_core.core.names import listed
from lightning_core.core.parts import controllers_hearing
from lightning_core.core.pool_view import PoolView
from lightning_core.scheduler.state import SchedulerState


def check(state: SchedulerState, event: PartEvent, pool: PoolView) -> None:
    """Check that an event fits the pool, before its commit.

    Raises:
        ValueError: If it does not, or none of the controllers that could hear it is in the pool.
    """
    told, hearing = event.decoded(), controllers_hearing(event.name)
    if hearing and state.controllers.keys().isdisjoint(hearing):
        raise ValueError(f"event {event.name}: the pool has no controller that hears it ({listed(hearing)})")
    for by in hearing:
        controller = state.controllers.get(Asker(by))
        if isinstance(controller, ChecksEvents) and by not in state.failed:
            controller.check(told, pool)


def is_known(state: SchedulerState, event: PartEvent, pool: PoolView) -> bool:
    """Return whether an event is no news to any of the controllers that could hear it."""
    hearing = controllers_hearing(event.name)
    here = [controller for by in hearing if (controller := state.controllers.get(Asker(by))) is not None]
    if not hearing or not all(isinstance(controller, ChecksEvents) for controller in here):
        return False
    told = event.decoded()
    return not any(controller.changes(told, pool) for controller in here if isinstance(controller, ChecksEvents))
