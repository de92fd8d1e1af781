"""Conversion of events and answers to one line of JSON each and back, exact for every finite float."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, fields
from typing import Any

from lightning_core.core.answers import (
    Accepted,
    Alert,
    Answer,
    End,
    Grant,
    JobStatus,
    PartCall,
    State,
    Verdict,
    VerdictChanged,
    Watched,
)
from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline, SetDevices, SetLocation, SetTerms
from lightning_core.core.control import (
    Ask,
    Asked,
    Asker,
    CloudPart,
    CloudTrouble,
    NodesSeen,
    Quoted,
    QuotedBefore,
    WallClock,
)
from lightning_core.core.control.cloud import PoolAnswer, places_from_lists, pool_answer_from_dict, pool_answer_to_dict
from lightning_core.core.control.day_plan import DemandSeen, PlanGiven, plan_from_list, rates_from_list
from lightning_core.core.control.offers import Offer
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.events import (
    BadLosses,
    Cell,
    Checkpoint,
    Close,
    DevicesUnavailable,
    EarlierFeedback,
    EarlierRuns,
    Event,
    ExitCause,
    Horizon,
    LaunchTimedOut,
    PartEvent,
    Report,
    SelectorFeedback,
    Submit,
    Tick,
    WorkerExited,
    WorkersLost,
)
from lightning_core.core.jobs import Capability, Job, OnHold, OnMiss, OnNan
from lightning_core.core.reasons import reason_from_list
from lightning_core.core.reported import Hang, LearningRates, MemoryUse, bounded
from lightning_core.core.targets import Met, Target, target_from_dict
from lightning_core.core.validation import checked

_PLAIN: dict[str, type[Any]] = {
    "earlier_feedback": EarlierFeedback,
    "earlier_runs": EarlierRuns,
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
    "ask": Ask,
    "wall_clock": WallClock,
    "nodes_seen": NodesSeen,
    "quoted": Quoted,
    "quoted_before": QuotedBefore,
    "cloud_trouble": CloudTrouble,
    "plan_given": PlanGiven,
    "demand_seen": DemandSeen,
    "part_event": PartEvent,
}
_KIND = {kind: name for name, kind in _PLAIN.items()} | {Submit: "submit", SetTerms: "set_terms"}
# How a field of an event is read from JSON, where that is not its value already.
_READERS: dict[str, Callable[[Any], Any]] = {
    "cells": lambda cells: tuple(Cell(*cell) for cell in cells),
    "horizon": lambda parts: Horizon(*parts),
    "bad_losses": lambda parts: BadLosses(*parts),
    "hang": lambda parts: Hang(*parts),
    "learning_rates": lambda parts: LearningRates(*map(tuple, parts)),
    "memory": lambda parts: MemoryUse(*parts),
    "hyper_parameters": bounded,
    "met": lambda parts: Met(*parts),
    "checkpoint": lambda parts: Checkpoint(*parts),
    "cause": ExitCause,
    "devices": lambda devices: _tuple(devices),
    "utilities": tuple,
    "played": lambda rows: tuple(map(tuple, rows)),
    "jobs": lambda rows: tuple(map(tuple, rows)),
    "spot": lambda nodes: _tuple(nodes),
    "on_demand": lambda nodes: _tuple(nodes),  # or the price of one
    "billed_spot": tuple,
    "billed_on_demand": tuple,
    "prices": tuple,
    "counts": tuple,
    "part": CloudPart,
    "offers": lambda offers: tuple(Offer(*offer) for offer in offers),
    "places": places_from_lists,
    "reason": reason_from_list,
    "runs": lambda runs: tuple(map(_earlier_run, runs)),
    "plan": plan_from_list,
    "rates": rates_from_list,
    "found": lambda found: tuple((job, tuple(places)) for job, places in found),
}

# Fields of a job that are left out where they are unset.
_OFTEN_UNSET = ("spec_sha256", "like", "model", "batch_size", "save_every", "memory", "owner", "trial_of")


def _tuple(value: Any) -> Any:
    """Return a list as a tuple, and anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def job_to_dict(job: Job) -> dict[str, Any]:
    """Return a job as JSON values."""
    body = {f.name: getattr(job, f.name) for f in fields(job)}
    for name in _OFTEN_UNSET:
        if not body[name]:
            del body[name]
    if job.on_hold is OnHold.KEEP:
        del body["on_hold"]
    return body | {"target": job.target.to_dict(), "can": sorted(job.can), "deadline": seconds_or_none(job.deadline)}


def seconds_or_none(deadline: float) -> float | None:
    """Return a deadline as JSON has it, which knows no infinity: None for none."""
    return None if deadline == math.inf else deadline


def deadline_from(value: float | None) -> float:
    """Return the deadline that :func:`seconds_or_none` wrote."""
    return math.inf if value is None else value


def job_from_dict(value: dict[str, Any]) -> Job:
    """Return the job that :func:`job_to_dict` wrote.

    Raises:
        ValueError: If a value is out of its range.
        KeyError: If a field is missing.
        TypeError: If a field is unknown.
    """
    body = dict(value)
    body = _terms_from_dict(body | {"can": frozenset(map(Capability, body["can"]))})
    body["deadline"] = deadline_from(body["deadline"])
    return Job(**body | {key: tuple(body.get(key, ())) for key in ("sizes", "throughputs")})


def _terms_from_dict(body: dict[str, Any]) -> dict[str, Any]:
    """Return the given terms of a job, converted to their types."""
    kinds: dict[str, Callable[[Any], Any]] = {"target": target_from_dict, "on_miss": OnMiss, "on_nan": OnNan,
                                             "on_hold": OnHold}  # fmt: skip
    return body | {name: kind(body[name]) for name, kind in kinds.items() if name in body}


def kind_of(event: type[Event]) -> str:
    """Return the name of a kind of event, as journals have it.

    Example::

        >>> kind_of(WorkerExited)
        'worker_exited'
    """
    return _KIND[event]


def encode_event(event: Event) -> str:
    """Encode an event as one line of JSON, without the fields that have their default, which keeps journals small.

    Raises:
        ValueError: If a number is not finite; no valid event contains one.
    """
    if isinstance(event, Submit):
        return _text({"kind": "submit", "jobs": [job_to_dict(job) for job in event.jobs]})
    if isinstance(event, SetTerms):
        terms = event.terms()
        if isinstance(event.target, Target):
            terms["target"] = event.target.to_dict()
        who = {"who": event.who} if event.who else {}
        return _text({"kind": "set_terms", "job": event.job, "terms": terms, "by": event.by, **who})
    body = {f.name: value for f in fields(event) if (value := getattr(event, f.name)) != f.default}
    if isinstance(event, SetDeadline):
        body["deadline"] = seconds_or_none(event.deadline)
    if isinstance(event, Quoted) and event.offers:
        body["offers"] = [astuple(offer) for offer in event.offers]
    return _text({"kind": _KIND[type(event)], **body})


def decode_event(text: str) -> Event:
    """Decode an event; the result equals the event that was encoded.

    Raises:
        ValueError: If a value is of another type or out of its range; AttributeError, KeyError or TypeError where the
            text has another form.
    """
    return event_from_dict(json.loads(text))


def event_from_dict(body: dict[str, Any]) -> Event:
    """Return the event of a line of JSON that has been read; see :func:`decode_event`."""
    kind = body.pop("kind")
    if kind == "submit":
        return checked(Submit(tuple(map(job_from_dict, body["jobs"]))), Submit)  # type: ignore[no-any-return]
    if "by" in body and kind != "close":
        body["by"] = Asker(body["by"])
    if kind == "set_deadline":
        body["deadline"] = deadline_from(body["deadline"])
    if kind == "set_terms":
        terms = SetTerms(body["job"], by=body["by"], who=body.get("who", ""), **_terms_from_dict(body["terms"]))
        return checked(terms, SetTerms)  # type: ignore[no-any-return]
    for name in _READERS.keys() & body.keys():
        if body[name] is not None:
            body[name] = _READERS[name](body[name])
    event: Event = checked(_PLAIN[kind](**body), _PLAIN[kind])
    return event


def _earlier_run(value: list[Any]) -> EarlierRun:
    name, batches, losses, met_at, throughputs, memory = value
    return EarlierRun(name, tuple(batches), tuple(losses), met_at, tuple(map(tuple, throughputs)), memory)


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
    """
    taken = (_accepted_to_dict(part, event) for part in accepted)
    return _text([*map(answer_to_dict, answers), *taken, *map(_call_to_dict, calls)])


def decode_answers(text: str) -> list[Answer]:
    """Decode the answers; the result equals those that were encoded."""
    return answers_from_dicts(json.loads(text))


def answers_from_dicts(bodies: list[dict[str, Any]]) -> list[Answer]:
    """Return the answers in a line of JSON that has been read."""
    answers = [answer_from_dict(body) for body in bodies if "accepted" not in body and "called" not in body]
    return [checked(answer, type(answer)) for answer in answers]


def decode_accepted(text: str, event: Event) -> list[Accepted]:
    """Decode the accepted parts of an event; the result equals those that were encoded with it."""
    return accepted_from_dicts(json.loads(text), event)


def accepted_from_dicts(bodies: list[dict[str, Any]], event: Event) -> list[Accepted]:
    """Return the accepted parts in a line of JSON that has been read."""
    parts = [_accepted_from_dict(body, event) for body in bodies if "accepted" in body]
    return [checked(part, Accepted) for part in parts]


def decode_calls(text: str) -> list[PartCall]:
    """Decode what parts from outside the library returned; equal to what was encoded."""
    if '"called":' not in text:  # reading all of it takes long, and most pools have no such part
        return []
    return [
        PartCall(checked(body["called"], str), body.get("returned"), checked(body.get("raised", ""), str))
        for body in json.loads(text)
        if "called" in body
    ]


def _call_to_dict(call: PartCall) -> dict[str, Any]:
    return {"called": call.part, **({"raised": call.raised} if call.raised else {"returned": call.returned})}


def _accepted_whole(job: str, event: Event | None) -> Accepted:
    """Return what is accepted of an event about a job if nothing of it is refused."""
    if not isinstance(event, Report) or event.job != job:
        return Accepted(job)
    cells = tuple((batches, value) for _, batches, value in event.cells)
    return Accepted(job, event.batches, float(event.busy), cells, event.rejected, event.evaluated)


def _accepted_to_dict(accepted: Accepted, event: Event | None) -> dict[str, Any]:
    columns = zip(Accepted._fields, accepted, _accepted_whole(accepted.job, event), strict=True)
    return {"job": accepted.job, "accepted": {name: value for name, value, whole in columns if value != whole}}


def _accepted_from_dict(value: dict[str, Any], event: Event) -> Accepted:
    body = dict(value["accepted"])
    if "cells" in body:
        body["cells"] = tuple((batches, loss) for batches, loss in body["cells"])
    if "fault" in body:
        body["fault"] = reason_from_list(body["fault"])
    return _accepted_whole(value["job"], event)._replace(**body)


def answer_to_dict(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON values."""
    if isinstance(answer, Ask):
        return {"job": answer.job, "asked": {"by": answer.by, **_given(answer.asked)}}
    if isinstance(answer, PoolAnswer):
        return pool_answer_to_dict(answer)
    body: dict[str, Any] = answer._asdict()
    if isinstance(answer, Grant) and (target := body.pop("target")) is not None:
        body["target"] = target.to_dict()
    return body | {"reason": list(answer.reason)}


def answer_from_dict(value: dict[str, Any]) -> Answer:
    """Return the answer that :func:`answer_to_dict` wrote."""
    if "asked" in value:
        return _ask(value["job"], dict(value["asked"]))
    if "reason" not in value and (answer := pool_answer_from_dict(value)) is not None:
        return answer
    body = value | {"reason": reason_from_list(value["reason"])}
    if "share" in body:
        target = body.get("target")
        given = None if target is None else target_from_dict(target)
        return Grant(**body | {"devices": tuple(body["devices"]), "target": given})
    if "verdict" not in body:
        return Alert(**body)
    kind = End if "version" in body else VerdictChanged
    return kind(**body | {"verdict": Verdict(body["verdict"])})


def _given(asked: Asked) -> dict[str, Any]:
    """Return what is asked for, without what is not."""
    return {name: value for name, value in asked._asdict().items() if value != Asked._field_defaults[name]}


def _ask(job: str, body: dict[str, Any]) -> Ask:
    if "reason" in body:
        body["reason"] = reason_from_list(body["reason"])
    return Ask(job, Asker(body.pop("by")), **body)


def status_to_dict(status: JobStatus) -> dict[str, Any]:
    """Return the status of a job as JSON values."""
    body = {f.name: getattr(status, f.name) for f in fields(status)}
    fault = None if status.fault is None else list(status.fault)
    spot = None if status.spot_policy is None else list(status.spot_policy)
    alert = None if status.alert is None else list(status.alert)
    reasons = {
        "reason": list(status.reason),
        "grant_reason": list(status.grant_reason),
        "fault": fault,
        "spot_policy": spot,
        "like": None if status.like is None else list(status.like),
        "alert": alert,
    }
    return body | {"target": status.target.to_dict(), "deadline": seconds_or_none(status.deadline)} | reasons


def status_from_dict(value: dict[str, Any]) -> JobStatus:
    """Return the status that :func:`status_to_dict` wrote."""
    return JobStatus(
        **value
        | {
            "state": State(value["state"]),
            "verdict": None if value["verdict"] is None else Verdict(value["verdict"]),
            "target": target_from_dict(value["target"]),
            "deadline": deadline_from(value["deadline"]),
            "reason": reason_from_list(value["reason"]),
            "grant_reason": reason_from_list(value["grant_reason"]),
            "fault": None if value["fault"] is None else reason_from_list(value["fault"]),
            "alert": None if value["alert"] is None else reason_from_list(value["alert"]),
            "like": None if value["like"] is None else reason_from_list(value["like"]),
            "spot_policy": None if value["spot_policy"] is None else reason_from_list(value["spot_policy"]),
            "finish": None if value["finish"] is None else tuple(value["finish"]),
            "devices": tuple(value["devices"]),
            "watched": None if value["watched"] is None else Watched(*value["watched"]),
        }
    )
