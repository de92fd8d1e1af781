"""Conversion of events and answers to one line of JSON each and back, exact for every finite float.

The types that are annotated are the form: each noun is an object of its fields, those that have their default left out,
and the tuples within it are arrays. msgspec writes and reads them, and :mod:`.validation` says what bounds hold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypedDict, get_args, get_type_hints

import msgspec

from lightning_core.core.answers import Accepted, Answer, JobStatus, PartCall
from lightning_core.core.commands import TERMS, SetTerms
from lightning_core.core.control import Asker
from lightning_core.core.events import Event, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.limits import shown
from lightning_core.core.reasons import Reason, check_reason
from lightning_core.core.reported import bounded
from lightning_core.core.targets import Target, own_keys, target_from_dict
from lightning_core.core.targets.unknown import UnknownTarget
from lightning_core.core.validation import Hook, check_bounds, converted, form_of, loads, made


def _named(kinds: tuple[type[Any], ...]) -> dict[str, type[Any]]:
    """Return classes by their names as journals have them: ``worker_exited`` for ``WorkerExited``."""
    return {re.sub("(?<=.)([A-Z])", r"_\1", kind.__name__).lower(): kind for kind in kinds}


EVENTS, ANSWERS = _named(get_args(Event)), _named(get_args(Answer))
"""Kinds of events and of answers, by name."""
_NAME = {kind: name for name, kind in (EVENTS | ANSWERS).items()}


@cache
def _defaults_of(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the names of the fields of a dataclass or NamedTuple, each with its default."""
    if is_dataclass(kind):
        return tuple((one.name, one.default if one.default_factory is MISSING else one.default_factory())
                     for one in fields(kind))  # fmt: skip
    return tuple((name, kind._field_defaults.get(name, MISSING)) for name in kind._fields)


def _fields_of(noun: Any) -> dict[str, Any]:
    """Return the fields of a noun that differ from their defaults, by name."""
    kind: Any = type(noun)
    body = {name: value for name, default in _defaults_of(kind) if (value := getattr(noun, name)) != default}
    if isinstance(target := body.get("target"), Target):
        body["target"] = target.to_dict()
    if "deadline" in body:
        body["deadline"] = seconds_or_none(body["deadline"])
    return body


@cache
def _reasons_of(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or NamedTuple that are reasons."""
    return tuple(name for name, hint in get_type_hints(kind).items() if hint in (Reason, Reason | None))


def _noun(kind: Any, body: dict[str, Any], hook: Hook | None = None) -> Any:
    """Return the noun whose fields :func:`_fields_of` gave and whose bounds were checked."""
    if "deadline" in body:
        body = body | {"deadline": deadline_from(body["deadline"])}
    noun = SetTerms(**converted(body, _terms(), _custom)) if kind is SetTerms else made(kind, body, hook or _custom)
    for name in _reasons_of(kind):
        if (reason := getattr(noun, name)) is not None:
            check_reason(reason)
    return noun


def _custom(kind: type, value: Any) -> Any:
    """Return a value of a type that msgspec does not know: a target or who asks, of which parts bring more."""
    if kind is Asker and isinstance(value, str):
        return Asker(value)
    if not issubclass(kind, Target) or not isinstance(value, dict):
        raise ValueError(f"expected {kind.__name__}, got {shown(value)}")
    return target_from_dict(value)


@cache
def _terms() -> Any:
    """Return the form of :class:`SetTerms`: a term has the type that it has in a job, and may be missing."""
    job, event = get_type_hints(Job), get_type_hints(SetTerms)
    hints = {name: (job if name in TERMS else event)[name] for name, _ in _defaults_of(SetTerms)}
    return TypedDict("SetTerms", hints, total=False)  # type: ignore[operator]


def _plain(value: Any) -> Any:
    """Return what JSON holds in place of a value of another type: a float for one of numpy, the name of who asks."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    raise ValueError(f"expected a JSON value, got {shown(value)}")


def _values(body: Any) -> Any:
    return msgspec.to_builtins(body, enc_hook=_plain)


def _text(body: Any) -> str:
    return msgspec.json.encode(body, enc_hook=_plain).decode()


def _check_read(found: Any, given: Any) -> None:
    """Check that what was written is read back as it was: a number may be none that JSON knows."""
    if found != given:
        kind: Any = type(given)
        parts = [(name, getattr(given, name)) for name, _ in _defaults_of(kind)]
        other = [f"{name} {shown(value)}" for name, value in parts if getattr(found, name, None) != value]
        raise ValueError(f"{kind.__name__} must be read back from JSON as it is, got {', '.join(other)}")


def job_to_dict(job: Job) -> dict[str, Any]:
    """Return a job as JSON values."""
    body = _fields_of(job)
    if "can" in body:
        body["can"] = sorted(job.can)
    return _values(body)  # type: ignore[no-any-return]


def job_from_dict(value: dict[str, Any]) -> Job:
    """Return the job that :func:`job_to_dict` wrote.

    Raises:
        ValueError: If a field is missing or unknown, or a value of another type or out of its range.
    """
    check_bounds(value)
    return _job(value)


def _job(value: dict[str, Any]) -> Job:
    job: Job = _noun(Job, value)
    return job


def seconds_or_none(deadline: float) -> float | None:
    """Return a deadline as JSON has it, which knows no infinity: None for none."""
    return None if deadline == math.inf else deadline


def deadline_from(value: float | None) -> float:
    """Return the deadline that :func:`seconds_or_none` wrote."""
    return math.inf if value is None else value


# A field whose parts are not written by their types: jobs, each read with its own errors; and texts
# that are shortened.
_PARTS: dict[type[Any], tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    Submit: ("jobs", lambda jobs: list(map(job_to_dict, jobs)), lambda bodies: tuple(map(_job, bodies))),
    Report: ("hyper_parameters", lambda rows: rows, lambda rows: bounded(rows or ())),
}


def kind_of(event: type[Event]) -> str:
    """Return the name of a kind of event, as journals have it.

    Example::

        >>> kind_of(Report)
        'report'
    """
    return _NAME[event]


def encode_event(event: Event) -> str:
    """Encode an event as one line of JSON, without the fields that have their default, which keeps journals small.

    Raises:
        ValueError: If it could not be read back as it is: a number is not finite, say, or a value of another type.
    """
    kind = type(event)
    body = {"kind": _NAME[kind], **_fields_of(event)}
    if kind in _PARTS and (name := _PARTS[kind][0]) in body:
        body[name] = _PARTS[kind][1](body[name])
    try:
        text = _text(body)
        _check_read(decode_event(text), event)
    except ValueError:
        check_bounds(body)  # names what was given, where JSON has null for a number that is not finite
        raise
    return text


def decode_event(text: str) -> Event:
    """Decode an event; the result equals the event that was encoded.

    Raises:
        ValueError: If a value is of another type or out of its range; AttributeError, KeyError or TypeError where the
            text has another form.
    """
    return event_from_dict(loads(text))


def event_from_dict(body: dict[str, Any]) -> Event:
    """Return the event of a line of JSON that has been read; see :func:`decode_event`."""
    check_bounds(body)
    kind = EVENTS[body.pop("kind")]
    if kind in _PARTS and (name := _PARTS[kind][0]) in body:
        body[name] = _PARTS[kind][2](body[name])
    event: Event = _noun(kind, body)
    return event


def encode_answers(
    answers: Sequence[Answer],
    accepted: Sequence[Accepted] = (),
    event: Event | None = None,
    calls: Sequence[PartCall] = (),
) -> str:
    """Encode answers and the accepted parts of an event as one line of JSON, a list.

    Of an accepted part only what differs from the event is encoded, which keeps journals small.

    Args:
        answers: The answers to the event.
        accepted: The accepted parts of the event.
        event: The event, which :func:`decode_accepted` needs as well; None if nothing was accepted.
        calls: What parts from outside the library returned.

    Raises:
        ValueError: If a number is not finite, or a value is too long or too large.
    """
    bodies = [*map(_answer_body, answers), *(_accepted_body(part, event) for part in accepted)]
    check_bounds(bodies)
    return _text(bodies + list(map(_call_body, calls)))


def decode_answers(text: str) -> list[Answer]:
    """Decode the answers; the result equals those that were encoded."""
    return answers_from_dicts(loads(text))


def answers_from_dicts(bodies: list[dict[str, Any]]) -> list[Answer]:
    """Return the answers in a line of JSON that has been read."""
    return [answer_from_dict(body) for body in bodies if "accepted" not in body and "called" not in body]


def decode_accepted(text: str, event: Event) -> list[Accepted]:
    """Decode the accepted parts of an event; the result equals those that were encoded with it."""
    return accepted_from_dicts(loads(text), event)


def accepted_from_dicts(bodies: list[dict[str, Any]], event: Event) -> list[Accepted]:
    """Return the accepted parts in a line of JSON that has been read."""
    return [_accepted(body, event) for body in bodies if "accepted" in body]


def decode_calls(text: str) -> list[PartCall]:
    """Decode what parts from outside the library returned; equal to what was encoded."""
    if '"called":' not in text:  # reading all of it takes long, and most pools have no such part
        return []
    return [
        PartCall(converted(body["called"], str), body.get("returned"), converted(body.get("raised", ""), str))
        for body in loads(text)
        if "called" in body
    ]


def _call_body(call: PartCall) -> dict[str, Any]:
    return {"called": call.part, **({"raised": call.raised} if call.raised else {"returned": call.returned})}


def _accepted_whole(job: str, event: Event | None) -> Accepted:
    """Return what is accepted of an event about a job if nothing of it is refused."""
    if not isinstance(event, Report) or event.job != job:
        return Accepted(job)
    cells = tuple((batches, value) for _, batches, value in event.cells)
    return Accepted(job, event.batches, float(event.busy), cells, event.rejected, event.evaluated)


def _accepted_body(accepted: Accepted, event: Event | None) -> dict[str, Any]:
    columns = zip(Accepted._fields, accepted, _accepted_whole(accepted.job, event), strict=True)
    return {"job": accepted.job, "accepted": {name: value for name, value, whole in columns if value != whole}}


def _accepted(body: dict[str, Any], event: Event) -> Accepted:
    check_bounds(body)
    found = converted(body["accepted"], form_of(Accepted))
    if found.get("fault") is not None:
        check_reason(found["fault"])
    return _accepted_whole(converted(body["job"], str), event)._replace(**found)


def _answer_body(answer: Answer) -> dict[str, Any]:
    return {"kind": _NAME[type(answer)], **_fields_of(answer)}


def answer_to_dict(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON values."""
    return _values(_answer_body(answer))  # type: ignore[no-any-return]


def answer_from_dict(value: dict[str, Any]) -> Answer:
    """Return the answer that :func:`answer_to_dict` wrote.

    Raises:
        ValueError: If a value is of another type or out of its range; AttributeError, KeyError or TypeError where it
            has another form.
    """
    check_bounds(value)
    body = dict(value)
    answer: Answer = _noun(ANSWERS[body.pop("kind")], body)
    return answer


def status_to_dict(status: JobStatus) -> dict[str, Any]:
    """Return the status of a job as JSON values."""
    body = {name: getattr(status, name) for name, _ in _defaults_of(JobStatus)}
    deadline = seconds_or_none(status.deadline)
    return _values(body | {"target": status.target.to_dict(), "deadline": deadline})  # type: ignore[no-any-return]


def status_from_dict(value: dict[str, Any]) -> JobStatus:
    """Return the status that :func:`status_to_dict` wrote."""
    check_bounds(value)
    status: JobStatus = _noun(JobStatus, value, _shown)
    return status


def _shown(kind: type, value: Any) -> Any:
    """Return a value as :func:`_custom` does; a target of a part that is not installed here can still be shown."""
    try:
        return _custom(kind, value)
    except ValueError:
        if kind is not Target or not isinstance(value, dict) or not value.keys().isdisjoint(own_keys()):
            raise
        return UnknownTarget(tuple(value.items()))
