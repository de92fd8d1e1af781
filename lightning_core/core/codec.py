"""Conversion of events and answers to one line of JSON each and back, exact for every finite float."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from lightning_core.core.answers import Accepted, Alert, Answer, End, Grant, JobStatus, State, Verdict, VerdictChanged
from lightning_core.core.commands import (
    Asker,
    Cancel,
    Pause,
    Resume,
    SetDeadline,
    SetDevices,
    SetLocation,
    SetTerms,
)
from lightning_core.core.events import (
    BadLosses,
    Cell,
    Checkpoint,
    Close,
    DevicesUnavailable,
    Event,
    ExitCause,
    Horizon,
    LaunchTimedOut,
    Report,
    SelectorFeedback,
    Submit,
    Tick,
    WorkerExited,
    WorkersLost,
)
from lightning_core.core.jobs import Capability, Job, OnMiss, OnNan
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import Target, target_from_dict

_PLAIN: dict[str, type[Any]] = {
    "report": Report,
    "worker_exited": WorkerExited,
    "launch_timed_out": LaunchTimedOut,
    "devices_unavailable": DevicesUnavailable,
    "workers_lost": WorkersLost,
    "close": Close,
    "cancel": Cancel,
    "pause": Pause,
    "resume": Resume,
    "set_deadline": SetDeadline,
    "set_devices": SetDevices,
    "set_location": SetLocation,
    "selector_feedback": SelectorFeedback,
    "tick": Tick,
}
_KIND = {kind: name for name, kind in _PLAIN.items()}


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def job_to_dict(job: Job) -> dict[str, Any]:
    """Return a job as JSON values."""
    body = {f.name: getattr(job, f.name) for f in fields(job)}
    return body | {"target": job.target.to_dict(), "can": sorted(job.can)}


def job_from_dict(value: dict[str, Any]) -> Job:
    """Return the job that :func:`job_to_dict` wrote.

    Raises:
        ValueError: If a value is out of its range.
        KeyError: If a field is missing.
        TypeError: If a field is unknown.
    """
    body = dict(value)
    body = _terms_from_dict(body | {"can": frozenset(map(Capability, body["can"]))})
    return Job(**body | {key: tuple(body.get(key, ())) for key in ("sizes", "throughputs")})


def _terms_from_dict(body: dict[str, Any]) -> dict[str, Any]:
    """Return the given terms of a job, converted to their types."""
    kinds: dict[str, Callable[[Any], Any]] = {"target": target_from_dict, "on_miss": OnMiss, "on_nan": OnNan}
    return body | {name: kind(body[name]) for name, kind in kinds.items() if name in body}


def encode_event(event: Event) -> str:
    """Encode an event as one line of JSON.

    Raises:
        ValueError: If a number is not finite; no valid event contains one.
    """
    if isinstance(event, Submit):
        return _text({"kind": "submit", "jobs": [job_to_dict(job) for job in event.jobs]})
    if isinstance(event, SetTerms):
        terms = event.terms()
        if isinstance(event.target, Target):
            terms["target"] = event.target.to_dict()
        return _text({"kind": "set_terms", "job": event.job, "terms": terms, "by": event.by})
    body = {f.name: getattr(event, f.name) for f in fields(event)}
    return _text({"kind": _KIND[type(event)], **body})


def decode_event(text: str) -> Event:
    """Decode an event; the result equals the event that was encoded."""
    body = json.loads(text)
    kind = body.pop("kind")
    if kind == "submit":
        return Submit(tuple(map(job_from_dict, body["jobs"])))
    if "by" in body and kind != "close":
        body["by"] = Asker(body["by"])
    if kind == "set_terms":
        return SetTerms(body["job"], by=body["by"], **_terms_from_dict(body["terms"]))
    if kind == "report":
        body["cells"] = tuple(Cell(*cell) for cell in body["cells"])
        if body.get("horizon") is not None:
            body["horizon"] = Horizon(*body["horizon"])
        if body.get("bad") is not None:
            body["bad"] = BadLosses(*body["bad"])
    if kind == "devices_unavailable":
        body["devices"] = tuple(body["devices"])
    if kind == "selector_feedback":
        body["utilities"] = tuple(body["utilities"])
    if kind == "worker_exited":
        body["cause"] = ExitCause(body["cause"])
    if body.get("saved") is not None:
        body["saved"] = Checkpoint(*body["saved"])
    event: Event = _PLAIN[kind](**body)
    return event


def encode_answers(answers: Sequence[Answer], accepted: Sequence[Accepted] = ()) -> str:
    """Encode answers and the accepted parts of the event as one line of JSON, a list."""
    return _text([*map(answer_to_dict, answers), *map(_accepted_to_dict, accepted)])


def decode_answers(text: str) -> list[Answer]:
    """Decode the answers; the result equals those that were encoded."""
    return [answer_from_dict(body) for body in json.loads(text) if "accepted" not in body]


def decode_accepted(text: str) -> list[Accepted]:
    """Decode the accepted parts of the event; the result equals those that were encoded."""
    return [_accepted_from_dict(body) for body in json.loads(text) if "accepted" in body]


def _accepted_to_dict(accepted: Accepted) -> dict[str, Any]:
    """Return the fields that are not at their defaults, to keep journals small."""
    body = {
        name: value
        for name, value in accepted._asdict().items()
        if name != "job" and value != Accepted._field_defaults[name]
    }
    if accepted.fault is not None:
        body["fault"] = list(accepted.fault)
    return {"job": accepted.job, "accepted": body}


def _accepted_from_dict(value: dict[str, Any]) -> Accepted:
    body = dict(value["accepted"])
    if "cells" in body:
        body["cells"] = tuple((batches, loss) for batches, loss in body["cells"])
    if "fault" in body:
        body["fault"] = _reason(body["fault"])
    return Accepted(value["job"], **body)


def answer_to_dict(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON values."""
    return answer._asdict() | {"reason": list(answer.reason)}


def answer_from_dict(value: dict[str, Any]) -> Answer:
    """Return the answer that :func:`answer_to_dict` wrote."""
    body = value | {"reason": _reason(value["reason"])}
    if "share" in body:
        return Grant(**body | {"devices": tuple(body["devices"])})
    if "verdict" not in body:
        return Alert(**body)
    kind = End if "version" in body else VerdictChanged
    return kind(**body | {"verdict": Verdict(body["verdict"])})


def status_to_dict(status: JobStatus) -> dict[str, Any]:
    """Return the status of a job as JSON values."""
    body = {f.name: getattr(status, f.name) for f in fields(status)}
    fault = None if status.fault is None else list(status.fault)
    spot = None if status.spot is None else list(status.spot)
    alert = None if status.alert is None else list(status.alert)
    reasons = {"reason": list(status.reason), "why": list(status.why), "fault": fault, "spot": spot, "alert": alert}
    return body | {"target": status.target.to_dict()} | reasons


def status_from_dict(value: dict[str, Any]) -> JobStatus:
    """Return the status that :func:`status_to_dict` wrote."""
    return JobStatus(
        **value
        | {
            "state": State(value["state"]),
            "verdict": None if value["verdict"] is None else Verdict(value["verdict"]),
            "target": target_from_dict(value["target"]),
            "reason": _reason(value["reason"]),
            "why": _reason(value["why"]),
            "fault": None if value["fault"] is None else _reason(value["fault"]),
            "alert": None if value["alert"] is None else _reason(value["alert"]),
            "spot": None if value["spot"] is None else _reason(value["spot"]),
            "finish": None if value["finish"] is None else tuple(value["finish"]),
            "devices": tuple(value["devices"]),
        }
    )


def _reason(value: list[Any]) -> Reason:
    code, numbers, words = value
    return Reason(code, tuple(numbers), words)
