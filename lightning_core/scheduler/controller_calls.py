"""The controllers of a scheduler: each handles every event, and its requests are applied with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from lightning_core.controllers import Controller, is_pure
from lightning_core.core.codec import answer_from_dict, answer_to_dict
from lightning_core.core.control import RIGHTS, Ask, Asker, Note, PartAnswer
from lightning_core.core.events import Event, PartEvent
from lightning_core.core.limits import MAX_TEXT
from lightning_core.scheduler.requests import is_news, take_ask, take_note
from lightning_core.scheduler.scheduler_view import SchedulerView
from lightning_core.scheduler.settings import MIN_PERIOD
from lightning_core.scheduler.state import SchedulerState

Answered = Ask | Note | PartAnswer


def tell_controllers(state: SchedulerState, event: Event, now: float) -> bool:
    """Tell the controllers of an event, and apply what they answer; return whether a round is needed.

    What they answer is part of the event: a replay asks them again, or takes what is recorded. A controller that raises
    is disabled; its last requests stay in force, and users are told. The same events make it raise again.
    """
    needs_round, view = False, SchedulerView(state, now)
    for by, controller in state.controllers.items():
        if by in state.failed:
            continue
        for answer in _answers(state, by, controller, event, now, view):
            if isinstance(answer, Ask):
                if take_ask(state, answer):
                    state.answers.append(answer)
                    needs_round = True
                continue
            if isinstance(answer, Note):
                take_note(state, answer)
            state.answers.append(answer)
    return needs_round


def _answers(
    state: SchedulerState, by: Asker, controller: Controller, event: Event, now: float, view: SchedulerView
) -> Sequence[Answered]:
    """Return what a controller answers, checked; nothing if it fails."""
    pure = is_pure(by, controller)

    def asked() -> list[Answered]:
        told = event.decoded() if isinstance(event, PartEvent) else event
        answered: Any = controller.handle(told, now, view)
        if not isinstance(answered, Iterable):
            raise TypeError(f"handle() must return a list, got {type(answered).__name__}")
        answers = [_named(by, answer) for answer in answered]
        return answers if pure else [one for one in answers if is_news(state, one)]

    if pure:
        try:
            return asked()
        except Exception as error:
            state.failed[by] = f"{type(error).__name__}: {error}"[:MAX_TEXT]
            return []
    part = f"controller {by}"
    bodies: list[dict[str, Any]] = state.calls.ask(
        part, "handle", lambda: [_as_json(one) for one in asked()], list, list, usual=[]
    )
    if (words := state.calls.failed.get(part)) is None:
        return [answer_from_dict(dict(body)) for body in bodies]  # type: ignore[misc]
    state.failed[by] = words
    return []


def _as_json(answer: Answered) -> dict[str, Any]:
    """Return an answer as JSON values that can be read again; one that cannot be is an error of its controller."""
    body = answer_to_dict(answer)
    answer_from_dict(dict(body))
    return body


def _named(by: Asker, answer: Any) -> Answered:
    """Return an answer with the name of its controller: that by which it was registered, or its class path."""
    if not isinstance(answer, Ask | Note):
        return answer if isinstance(answer, PartAnswer) else PartAnswer.of(answer)
    if by in RIGHTS and answer.by != by:
        raise AssertionError(f"{by.words} may answer in its own name alone, got {answer}")
    if answer.by == by:
        return answer
    return replace(answer, by=by) if isinstance(answer, Ask) else answer._replace(by=by)


def next_wakeup(state: SchedulerState, next_round: float | None, now: float) -> float | None:
    """Return when a round is due or a controller wants to be woken, whichever comes first; None for never.

    Where no round is due and no job is held, there is nothing that a controller could change, unless it is busy.
    """
    table = state.table
    is_idle = next_round is None and not (table.active & table.paused).any()
    times = [] if next_round is None else [next_round]
    for by, controller in state.controllers.items():
        if by not in state.failed and (not is_idle or getattr(controller, "is_busy", False)):
            times += _wakeup(by, controller, now)
    return min(times, default=None)


def _wakeup(by: Asker, controller: Controller, now: float) -> list[float]:
    """Return when a controller wants to be woken, if it does; one whose answers are recorded at a limited rate."""
    if is_pure(by, controller):
        return [] if (at := controller.wakeup()) is None else [at]
    try:
        at = controller.wakeup()
        return [max(float(at), now + MIN_PERIOD)] if at is not None and at < inf else []
    except Exception:  # it is told of the next round
        return []
