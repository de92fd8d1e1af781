"""The controllers of a scheduler: they hear of each event, and what they ask of jobs is taken in with it."""

from __future__ import annotations

from functools import partial

from lightning_core.core.events import Event
from lightning_core.scheduler.requests import take_ask
from lightning_core.scheduler.state import SchedulerState


def tell_controllers(state: SchedulerState, event: Event, now: float) -> bool:
    """Tell the controllers of an event, and take in what they ask; return whether a round is needed.

    What they ask is among the answers. It is part of the event: a replay asks them again.
    """
    asked = [ask for one in state.controllers for ask in one.handle(event, now, partial(state.names, active=True))]
    taken = [ask for ask in asked if take_ask(state, ask)]
    state.answers += taken
    return bool(taken)


def next_wakeup(state: SchedulerState, next_round: float | None) -> float | None:
    """Return when a round is due or a controller wants to be woken, whichever comes first; None for never.

    Where no round is due and no job is held, there is nothing that a controller could change.
    """
    table = state.table
    if next_round is None and not (table.active & table.paused).any():
        return None
    times = (next_round, *(controller.wakeup() for controller in state.controllers))
    return min((time for time in times if time is not None), default=None)
