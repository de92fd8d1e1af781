"""The controllers of a scheduler: each handles every event, and its requests are applied with it."""

from __future__ import annotations

from lightning_core.core.control import RIGHTS, Allowance, Ask, Asker, NodesWanted, PoolAnswer
from lightning_core.core.events import Event
from lightning_core.core.limits import MAX_TEXT
from lightning_core.core.reasons import Reason
from lightning_core.scheduler.asking.view import SchedulerView
from lightning_core.scheduler.requests import take_ask
from lightning_core.scheduler.state import SchedulerState


def tell_controllers(state: SchedulerState, event: Event, now: float) -> bool:
    """Tell the controllers of an event, and take in what they ask and want; return whether a round is needed.

    What they ask and want is among the answers. It is part of the event: a replay asks them again. A controller that
    raises is disabled; its last requests stay in force, and users are told. The same events make it raise again.
    """
    needs_round, view = False, SchedulerView(state, now)
    for by, controller in state.controllers.items():
        if by in state.cloud.failed:
            continue
        try:
            answers = controller.handle(event, now, view)
            for answer in answers:
                check_right(by, answer)
        except Exception as error:  # it may be a plug-in
            state.cloud.failed[by] = f"{type(error).__name__}: {error}"[:MAX_TEXT]
            continue
        for answer in answers:
            if isinstance(answer, PoolAnswer):
                state.cloud.answer(answer)
                state.answers.append(answer)
            elif take_ask(state, answer):
                state.answers.append(answer)
                needs_round = True
    if (given_up := _given_up(state)) is not None:
        state.cloud.answer(given_up)
        state.answers.append(given_up)
    return needs_round


def _given_up(state: SchedulerState) -> NodesWanted | None:
    """Return that no nodes are wanted, if what rents them has failed and no job is left that could use them."""
    wanted, table = state.cloud.wanted, state.table
    is_failed = any(RIGHTS[by].rents for by in state.cloud.failed)
    if not is_failed or not (wanted.spot or wanted.on_demand) or table.active[: len(table)].any():
        return None
    return NodesWanted(wanted.version + 1, 0, 0, Reason("no_nodes"))


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

    Where no round is due and no job is held, there is nothing that a controller could change, unless nodes are wanted.
    """
    table, wanted = state.table, state.cloud.wanted
    holds_nodes = bool(wanted.spot or wanted.on_demand)
    is_idle = next_round is None and not (table.active & table.paused).any()
    told = {by: one for by, one in state.controllers.items() if by not in state.cloud.failed}
    heard = (one for by, one in told.items() if not is_idle or (RIGHTS[by].rents and holds_nodes))
    times = (next_round, *(controller.wakeup() for controller in heard))
    return min((time for time in times if time is not None), default=None)
