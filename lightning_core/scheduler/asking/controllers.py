"""The controllers of a scheduler: they hear of each event, and what they ask and want is taken in with it."""

from __future__ import annotations

from lightning_core.core.control import RIGHTS, Allowance, Ask, Asker, PoolAnswer
from lightning_core.core.events import Event
from lightning_core.scheduler.asking.view import View
from lightning_core.scheduler.requests import take_ask
from lightning_core.scheduler.state import SchedulerState


def tell_controllers(state: SchedulerState, event: Event, now: float) -> bool:
    """Tell the controllers of an event, and take in what they ask and want; return whether a round is needed.

    What they ask and want is among the answers. It is part of the event: a replay asks them again.
    """
    needs_round, view = False, View(state, now)
    for by, controller in state.controllers.items():
        for answer in controller.handle(event, now, view):
            check_right(by, answer)
            if isinstance(answer, PoolAnswer):
                state.cloud.answer(answer)
                state.answers.append(answer)
            elif take_ask(state, answer):
                state.answers.append(answer)
                needs_round = True
    return needs_round


def check_right(by: Asker, answer: Ask | PoolAnswer) -> None:
    """Check that a controller may ask or want something; an AssertionError says that it may not."""
    if isinstance(answer, Ask):
        may = answer.by is by
    else:
        may = RIGHTS[by].limits if isinstance(answer, Allowance) else RIGHTS[by].rents
    if not may:
        raise AssertionError(f"{RIGHTS[by].words} may not want {answer}")


def next_wakeup(state: SchedulerState, next_round: float | None) -> float | None:
    """Return when a round is due or a controller wants to be woken, whichever comes first; None for never.

    Where no round is due, no job is held and no node is wanted, there is nothing that a controller could change.
    """
    table, wanted = state.table, state.cloud.wanted
    if next_round is None and not (wanted.spot or wanted.on_demand or (table.active & table.paused).any()):
        return None
    times = (next_round, *(controller.wakeup() for controller in state.controllers.values()))
    return min((time for time in times if time is not None), default=None)
