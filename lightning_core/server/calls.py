"""Requests to a pool's server: parsed and checked, with their answers written as JSON."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from lightning_core.core.answers import Directive, JobForecast, JobStatus, JoinReply
from lightning_core.core.codec import answer_to_dict, decode_event, job_from_dict, job_to_dict
from lightning_core.core.commands import Command, check_sender
from lightning_core.core.events import Close, Event, PartEvent, Report, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.limits import MAX_REPORTED_CELLS, shown
from lightning_core.core.names import check_name, check_program, did_you_mean, sender_name
from lightning_core.core.parts import all_parts, check_job_data, message_class
from lightning_core.core.protocols import AccessRefusedError, DeviceNotSharedError
from lightning_core.core.validation import MAX_INTEGER, checked, converted
from lightning_core.server import json_limits
from lightning_core.server.access.people import Person, Right, person_from_dict
from lightning_core.server.clients.socket_client import PROTOCOL
from lightning_core.server.connections import ClientConnection
from lightning_core.server.load.shared_status import Json, SharedStatus

# Events that clients may send; the scheduler's own events are not among them.
EVENTS = Report | WorkerExited | Close | Command | PartEvent
MAX_WAIT = 60.0
# Maximum characters of an id, and of a refusal, which may repeat its request.
MAX_ID_LENGTH, MAX_WORDS_LENGTH = 64, 2000
# Jobs and bytes of one launch; a value of its JSON counts as this many bytes.
MAX_LAUNCHED_JOBS, MAX_LAUNCH_BYTES, BYTES_PER_VALUE = 1000, 64 * 2**20, 64


class ServedScheduler(Protocol):
    """A scheduler that a server serves: an actor, or a proxy of one.

    A call with a user refuses everything that this user may not see or do.
    """

    async def join(self, job: Job, device: str, incarnation: int | None, connection: int, person: Person) -> JoinReply:
        """Add or recognise the job of a script, for which the connection of this number reports from now on."""

    async def event(self, event: Event, connection: int, person: Person) -> Directive | None:
        """Handle an event and return the newest directive of its job, if it is newer than the sender's."""

    async def report(self, report: Report, connection: int, person: Person) -> tuple[Directive | None, float]:
        """Handle a report; return the same, and the seconds that should lie between two reports."""

    async def wait(self, job: str, version: int, timeout: float, person: Person) -> Directive | None:
        """Return the next directive of the job."""

    async def job_forecast(self, job: str, person: Person) -> JobForecast | None:
        """Return the forecast of the job."""

    async def status(self) -> tuple[float, list[JobStatus]]:
        """Return the scheduler time and the status of all jobs; the same list while nothing has changed."""

    async def launch(self, specs: list[Any]) -> None:
        """Submit jobs for the pool to launch."""

    async def job(self, name: str, person: Person) -> Job:
        """Return a job with its current terms."""

    async def about(self) -> dict[str, Any]:
        """Return a description of the pool."""

    async def counters(self) -> dict[str, Any]:
        """Return the counters of the scheduler's process since its start."""

    async def disconnected(self, connection: int) -> None:
        """Take note that a connection has closed."""


class Paced(NamedTuple):
    """The answer to a report."""

    value: Any
    period: float
    """Seconds that should lie between two reports; said only if there are any."""


def read_id(body: Any) -> int | str:
    """Return the id of a request, under which it is answered.

    Raises:
        ValueError: If it is of another type, or too long to be repeated.
    """
    number = body["id"]
    if type(number) is int and abs(number) <= MAX_INTEGER:
        return number
    if isinstance(number, str) and len(number) <= MAX_ID_LENGTH:
        return number
    raise ValueError(f"id must be a whole number or a text of at most {MAX_ID_LENGTH} characters")


def write_answer(number: int | str | None, kind: str, value: Any, **more: Any) -> bytes:
    """Return an answer as a line: a ``"value"``, or why it was ``"refused"`` or has ``"failed"``, in words."""
    if isinstance(value, Paced):
        more = {"period": value.period} if value.period else {}
        value = value.value
    if isinstance(value, Json):
        return f'{{"id":{json.dumps(number)},"{kind}":{value}}}\n'.encode()
    if kind != "value":
        value = value if len(value) <= MAX_WORDS_LENGTH else f"{value[:MAX_WORDS_LENGTH]}..."
    body = {"id": number, kind: value, **more}
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"


class Calls:
    """The calls of a pool.

    Args:
        pool: The pool.
    """

    def __init__(self, pool: ServedScheduler) -> None:
        self._pool = pool
        self._status = SharedStatus(pool.status)

    def parse(self, body: Any, size: int, connection: ClientConnection) -> Callable[[], Awaitable[Any]]:
        """Return the call that a request asks for, checked; nothing has been done yet.

        Args:
            body: The request.
            size: Number of bytes that it is assumed to hold.
            connection: Connection on which it was made.

        Raises:
            ValueError: If it is of another protocol version, or a value in it is invalid. Values of the
                wrong type may raise KeyError, TypeError or AttributeError.
        """
        if body["protocol"] != PROTOCOL:
            raise ValueError(f"scheduler protocol {PROTOCOL}, client {body['protocol']}: upgrade the older one")
        pool, call, args, person = self._pool, body["call"], body["args"], _person(body, connection)
        match call:
            case "join":
                _check_joins(connection)
                person.check(Right.SUBMIT)
                job, device = _own_job(args["job"], person), checked(args["device"], str)
                incarnation = checked(args["incarnation"], int | None)
                return partial(pool.join, job, device, incarnation, connection.number, person)
            case "event":
                event = _event(args["event"], person, _program(body))
                if isinstance(event, Report):
                    return partial(_report, pool, event, connection.number, person)
                return partial(_directive, pool.event, event, connection.number, person)
            case "wait":
                name, version = _name(args), checked(args["version"], int)
                timeout = min(checked(args["timeout"], float), MAX_WAIT)
                return partial(_directive, pool.wait, name, version, timeout, person)
            case "job_forecast":
                return partial(pool.job_forecast, _name(args), person)
            case "status":
                return self._status.text if person.may(Right.SEE) else partial(self._status.text_for, person)
            case "prepare" | "launch":
                person.check(Right.SUBMIT)
                _add_specs(args, size, connection)
                return _nothing if call == "prepare" else partial(pool.launch, _taken_specs(connection, person))
            case "job":
                return partial(_terms, pool, _name(args), person)
            case "about":
                return partial(_about, pool, person)
            case "counters":
                return pool.counters
            case _:
                raise ValueError(f"unknown call {call!r}")


def _person(body: Mapping[str, Any], connection: ClientConnection) -> Person:
    """Return the person for whom a request is made.

    Raises:
        AccessRefusedError: If it names one, and its process is of another account than the pool.
    """
    peer = connection.peer
    if "person" not in body:
        return peer.person
    if not peer.speaks_for_others:
        raise AccessRefusedError(f"only the pool's own account may speak for others, and you are {peer.person.name}")
    return person_from_dict(body["person"])


def _program(body: Mapping[str, Any]) -> str:
    """Return the program through which a person asks; empty for none. It gives no rights: it is only noted."""
    return check_program(body["through"]) if "through" in body else ""


def _name(args: Mapping[str, Any]) -> str:
    return check_name(checked(args["job"], str))


def _check_joins(connection: ClientConnection) -> None:
    """Check that the scripts of an account can join.

    Raises:
        DeviceNotSharedError: If not; the script trains alone, since waiting would change nothing.
    """
    if connection.peer.of_group:
        raise DeviceNotSharedError(
            "scripts take turns at device arbiters, which are for the pool's own account, and this one belongs to "
            f"{connection.peer.person.name}; a bundle can be submitted, and the pool trains it"
        )


def _own_job(body: Any, person: Person) -> Job:
    """Return the job of a script. It belongs to its sender, whatever owner it names."""
    job = job_from_dict({**body, "owner": ""})
    check_job_data(job.parts)
    return replace(job, owner=person.name)


def _taken_specs(connection: ClientConnection, person: Person) -> list[Any]:
    """Return the specs that a connection has prepared, whose jobs belong to their sender."""
    specs, connection.specs, connection.prepared = connection.specs, [], 0
    return [
        {**spec, "job": {**spec["job"], "owner": person.name}}
        if isinstance(spec, dict) and isinstance(spec.get("job"), dict)
        else spec  # it is for the pool to refuse
        for spec in specs
    ]


def _event(text: Any, person: Person, program: str) -> Event:
    if not isinstance(text, str):
        raise ValueError(f"an event must be a text of JSON, got {type(text).__name__}")
    json_limits.check(text)
    event = decode_event(text)
    if not isinstance(event, EVENTS):
        raise ValueError(f"{type(event).__name__} is not for clients to send")
    if isinstance(event, PartEvent):
        if event.decoded() is event:  # that of the packages is the scheduler's own
            known = [f"{one.name}.{name}" for one in all_parts() for name in one.part.events]
            words = f"no part that is installed with the pool has the event {shown(event.name)}"
            raise ValueError(f"{words}{did_you_mean(event.name, known)}")
        if not getattr(message_class(event.name, "events"), "FROM_CLIENTS", True):
            raise ValueError(f"{event.name} is not for clients to send")
        return replace(event, who=person.name)
    if not isinstance(event, Close):
        check_name(event.job)
    if isinstance(event, Command):
        check_sender(event)
        event = replace(event, who=sender_name(person.name, program))
    if isinstance(event, Report) and len(event.cells) > MAX_REPORTED_CELLS:
        raise ValueError(f"a report must have at most {MAX_REPORTED_CELLS:,} cells, got {len(event.cells):,}")
    return event


def _add_specs(args: Mapping[str, Any], size: int, connection: ClientConnection) -> None:
    """Add specs to the launch that a connection prepares; the first part of a launch replaces an earlier one."""
    specs, after = converted(args["specs"], list), checked(args.get("after", 0), int)
    if after == 0:
        connection.specs, connection.prepared = [], 0
    elif after != len(connection.specs):
        raise ValueError(f"{after} specs must have been prepared before these, got {len(connection.specs)}")
    prepared, count = connection.prepared + size, after + len(specs)
    if count > MAX_LAUNCHED_JOBS or prepared > MAX_LAUNCH_BYTES:
        connection.specs, connection.prepared = [], 0
        raise ValueError(
            f"a launch must have at most {MAX_LAUNCHED_JOBS:,} jobs and {MAX_LAUNCH_BYTES:,} bytes, got {count:,} and "
            f"{prepared:,}; launch fewer at a time"
        )
    connection.specs, connection.prepared = [*connection.specs, *specs], prepared


async def _nothing() -> None:
    return None


async def _report(pool: ServedScheduler, report: Report, connection: int, person: Person) -> Paced:
    directive, period = await pool.report(report, connection, person)
    return Paced(None if directive is None else answer_to_dict(directive), period)


async def _directive(ask: Callable[..., Awaitable[Directive | None]], *args: Any) -> dict[str, Any] | None:
    directive = await ask(*args)
    return None if directive is None else answer_to_dict(directive)


async def _terms(pool: ServedScheduler, name: str, person: Person) -> dict[str, Any]:
    return job_to_dict(await pool.job(name, person))


async def _about(pool: ServedScheduler, person: Person) -> dict[str, Any]:
    about = await pool.about() | {"person": person.to_dict()}
    if person.may(Right.SEE):
        return about
    # Plans and messages about trouble may name jobs of other users.
    shares = [one for one in about["shares"] if "owner" in one and person.sees(one["owner"])]
    unavailable = [one | {"why": ""} for one in about["unavailable"]]
    waiting = [one for one in about["waiting"] if person.sees(one["owner"])]
    hidden = {"controllers": {}, "failed": {}, "shares": shares, "unavailable": unavailable, "waiting": waiting}
    return about | hidden
