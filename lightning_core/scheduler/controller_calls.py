"""The controllers of a scheduler: each handles every event, and its requests are applied with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

from lightning_core.controllers import Controller
from lightning_core.core.codec import answer_from_dict, answer_to_dict
from lightning_core.core.control import RIGHTS, Allowance, Ask, Asker, NodesWanted, PoolAnswer, rights_of
from lightning_core.core.events import Event, PartEvent
from lightning_core.core.limits import MAX_TEXT
from lightning_core.core.reasons import Reason
from lightning_core.scheduler.requests import is_news, take_ask
from lightning_core.scheduler.scheduler_view import SchedulerView
from lightning_core.scheduler.settings import MIN_PERIOD
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
        for answer in _answers(state, by, controller, event, now, view):
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


def _answers(
    state: SchedulerState, by: Asker, controller: Controller, event: Event, now: float, view: SchedulerView
) -> Sequence[Ask | PoolAnswer]:
    """Return what a controller answers, checked; if it fails, only what its failure means for money."""
    is_pure = rights_of(by).is_pure

    def asked() -> list[Ask | PoolAnswer]:
        told = event.decoded() if isinstance(event, PartEvent) else event
        answers = list(controller.handle(told, now, view))
        if by not in RIGHTS:  # its name here is that by which it was registered, or its class path
            answers = [replace(answer, by=by) if isinstance(answer, Ask) else answer for answer in answers]
        for answer in answers:
            check_right(by, answer)
        return answers if is_pure else [one for one in answers if is_news(state, one)]

    if is_pure and not (by == Asker.MARKET and state.settings.is_market_outside):
        try:
            return asked()
        except Exception as error:
            state.cloud.failed[by] = f"{type(error).__name__}: {error}"[:MAX_TEXT]
    else:
        part = f"controller {by}"
        bodies: list[dict[str, Any]] = state.calls.ask(
            part, "handle", lambda: [answer_to_dict(one) for one in asked()], list, list, usual=[]
        )
        if (words := state.calls.failed.get(part)) is None:
            return [answer_from_dict(dict(body)) for body in bodies]  # type: ignore[misc]
        state.cloud.failed[by] = words
    if rights_of(by).limits:  # no controller says any more how much may be spent
        return [Allowance(state.cloud.spent, Reason("part", (), f"the controller {by} has failed"))]
    return []


def _given_up(state: SchedulerState) -> NodesWanted | None:
    """Return that no nodes are wanted, if what rents them has failed and no job is left that could use them."""
    wanted, table = state.cloud.wanted, state.table
    is_failed = any(rights_of(by).rents for by in state.cloud.failed)
    if not is_failed or not (wanted.spot or wanted.on_demand) or table.active[: len(table)].any():
        return None
    return NodesWanted(wanted.version + 1, 0, 0, Reason("no_nodes"))


def check_right(by: Asker, answer: Ask | PoolAnswer) -> None:
    """Check that a controller may ask or want something; an AssertionError says that it may not."""
    if isinstance(answer, Ask):
        may = answer.by == by
    else:
        may = rights_of(by).limits if isinstance(answer, Allowance) else rights_of(by).rents
    if not may:
        raise AssertionError(f"{by.words} may not want {answer}")


def next_wakeup(state: SchedulerState, next_round: float | None, now: float) -> float | None:
    """Return when a round is due or a controller wants to be woken, whichever comes first; None for never.

    Where no round is due and no job is held, there is nothing that a controller could change, unless nodes are wanted.
    """
    table, wanted = state.table, state.cloud.wanted
    holds_nodes = bool(wanted.spot or wanted.on_demand)
    is_idle = next_round is None and not (table.active & table.paused).any()
    times = [] if next_round is None else [next_round]
    for by, controller in state.controllers.items():
        if by not in state.cloud.failed and (not is_idle or (rights_of(by).rents and holds_nodes)):
            times += _wakeup(by, controller, now)
    return min(times, default=None)


def _wakeup(by: Asker, controller: Controller, now: float) -> list[float]:
    """Return when a controller wants to be woken, if it does; one whose answers are recorded at a bearable rate."""
    if rights_of(by).is_pure:
        return [] if (at := controller.wakeup()) is None else [at]
    try:
        at = controller.wakeup()
        return [max(float(at), now + MIN_PERIOD)] if at is not None and at < inf else []
    except Exception:  # it is told of the next round
        return []
