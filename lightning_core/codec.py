"""Events and directives as JSON text, and back: exact for every finite float, one line each, no pickle."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from lightning_core.reasons import Reason
from lightning_core.types import (
    BatchTarget,
    Cancel,
    Cell,
    Directive,
    End,
    Event,
    Grant,
    Job,
    LossTarget,
    Report,
    Submit,
    Target,
    Tick,
    Verdict,
    WorkerLeft,
)

_PLAIN: dict[str, type[Any]] = {"report": Report, "worker_left": WorkerLeft, "cancel": Cancel, "tick": Tick}
_KIND = {kind: name for name, kind in _PLAIN.items()}


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def target_to_dict(target: Target) -> dict[str, Any]:
    if isinstance(target, BatchTarget):
        return {"batches": target.batches}
    return {"metric": target.metric, "at_most": target.at_most}


def target_from_dict(value: dict[str, Any]) -> Target:
    return BatchTarget(**value) if "batches" in value else LossTarget(**value)


def encode_event(event: Event) -> str:
    """One line of JSON.

    Raises:
        ValueError: if a number is not finite: no event that we make has one.
    """
    if isinstance(event, Submit):
        jobs = [{"name": j.name, "deadline": j.deadline, "target": target_to_dict(j.target)} for j in event.jobs]
        return _text({"kind": "submit", "jobs": jobs})
    body = {f.name: getattr(event, f.name) for f in fields(event)}
    return _text({"kind": _KIND[type(event)], **body})


def decode_event(text: str) -> Event:
    """The event that was encoded, equal to it."""
    body = json.loads(text)
    kind = body.pop("kind")
    if kind == "submit":
        return Submit(tuple(Job(j["name"], j["deadline"], target_from_dict(j["target"])) for j in body["jobs"]))
    if kind == "report":
        body["cells"] = tuple(Cell(*cell) for cell in body["cells"])
    event: Event = _PLAIN[kind](**body)
    return event


def encode_directives(directives: list[Directive]) -> str:
    """One line of JSON: a list."""
    return _text([d._asdict() | {"reason": list(d.reason)} for d in directives])


def decode_directives(text: str) -> list[Directive]:
    """The directives that were encoded, equal to them."""
    made: list[Directive] = []
    for body in json.loads(text):
        code, numbers, words = body.pop("reason")
        reason = Reason(code, tuple(numbers), words)
        if "verdict" in body:
            made.append(End(body["job"], body["version"], Verdict(body["verdict"]), reason))
        else:
            made.append(Grant(body["job"], body["version"], body["duty"], tuple(body["devices"]), reason))
    return made
