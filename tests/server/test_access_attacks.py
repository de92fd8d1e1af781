"""Attacks on a pool's socket by who may connect: claims, forged events, and requests that were recorded and sent again.

SECURITY.md has the table of what was tried, with the tests beside this one.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.codec import encode_event, job_to_dict
from lightning_core.core.commands import Cancel, Pause, SetDeadline, SetTerms
from lightning_core.core.events import Report
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.server import server
from lightning_core.server.access.people import ALL_RIGHTS, Person, rights_of
from lightning_core.server.clients.socket_client import PROTOCOL
from tests.builders import spec
from tests.socket_servers import Pool

SCRIPT = frozenset({Capability.TIME_SLICE, Capability.HOLD})
TYPES_OF_OWNERS = ["eve", ["eve"], {"name": "eve"}, None, 7]


class Line:
    """A connection that sends bytes as they are, and receives answers."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(path))
        self._answers = self._socket.makefile("rb")

    def __call__(self, request: bytes) -> dict[str, Any]:
        self._socket.sendall(request)
        answer: dict[str, Any] = json.loads(self._answers.readline() or b"{}")
        return answer

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


@pytest.fixture
def line(pool: Pool) -> Iterator[Line]:
    made = Line(pool.path)
    yield made
    made.close()


def request(call: str, person: Person | None = None, **args: Any) -> bytes:
    body = {"id": 1, "protocol": PROTOCOL, "call": call, "args": args}
    return json.dumps(body | ({} if person is None else {"person": person.to_dict()})).encode() + b"\n"


def person(name: str, *rights: str) -> Person:
    return Person(name, rights_of(rights))


def status(pool: Pool, job: str) -> Any:
    return [one for one in pool.do(pool.actor.status())[1] if one.name == job][-1]


# ---------------------------------------------------------------------------------------------------- claims


@pytest.mark.parametrize("owner", TYPES_OF_OWNERS)
@pytest.mark.parametrize("command", [SetTerms("a", weight=9.0), SetDeadline("a", 9.0), Pause("a"), Cancel("a")])
def test_a_command_that_names_an_owner_is_refused(pool: Pool, line: Line, command: Any, owner: object) -> None:
    """No command gives a job away, or takes one."""
    line(request("launch", person("ann", "submit"), specs=[spec("a")]))
    before = status(pool, "a")
    forged = json.loads(encode_event(command))
    forged.get("terms", forged)["owner"] = owner
    assert "refused" in line(request("event", event=json.dumps(forged)))
    assert status(pool, "a") == before
    assert before.owner == "ann"


@pytest.mark.parametrize("by", ["plan", "market", "budget", "calendar"])
def test_a_command_that_claims_to_be_a_controllers_is_refused(pool: Pool, line: Line, by: str) -> None:
    """It would stand where the plan of the pool does, and `why` would blame that."""
    line(request("launch", person("ann", "submit"), specs=[spec("a")]))
    forged = json.loads(encode_event(Pause("a"))) | {"by": by}
    assert f"Pause is no command that {by} may send" in line(request("event", event=json.dumps(forged)))["refused"]
    assert not status(pool, "a").paused


def test_a_program_is_noted_beside_its_user_and_gives_no_rights(pool: Pool, line: Line) -> None:
    line(request("launch", person("ann", "submit"), specs=[spec("a")]))
    pause = encode_event(Pause("a", who="bob"))

    def through(program: object, who: Person) -> dict[str, Any]:
        body = json.loads(request("event", who, event=pause)) | {"through": program}
        return line(json.dumps(body).encode() + b"\n")

    for program in (None, "", 7, ["mcp"], "ann", "\x1b[2J", "mcp (a) (b)", "a through b", "x" * 10**5):
        answer = through(program, person("ann", "steer-own"))
        assert ("refused" in answer) == (program != "ann"), program
    assert str(status(pool, "a").grant_reason) == "paused by ann through ann"
    assert "eve needs the right steer-all" in through("mcp", person("eve", "see"))["refused"]
    assert "no job 'a'" in through("ann", person("eve", "steer-own"))["refused"]


@pytest.mark.parametrize("owner", TYPES_OF_OWNERS)
def test_an_owner_beside_the_job_of_a_spec_or_a_request_means_nothing(pool: Pool, line: Line, owner: object) -> None:
    ann = person("ann", "submit")
    line(request("launch", ann, specs=[spec("a") | {"owner": owner}], owner=owner))
    script = job_to_dict(Job("s", 600.0, BatchTarget(1000), can=SCRIPT))
    line(request("join", ann, job=script, device="cpu", incarnation=None, owner=owner))
    owners = {job.name: job.owner for job in pool.do(pool.actor.status())[1]}
    assert owners.pop("s") == "ann"
    assert owners in ({"a": "ann"}, {})  # a spec with a key too many may be refused


def test_specs_that_one_person_has_prepared_belong_to_the_one_who_launches_them(pool: Pool, line: Line) -> None:
    """So nothing is launched in the name of who only prepared it, nor with the rights of that person."""
    assert "value" in line(request("prepare", person("ann", "submit"), specs=[spec("a")], after=0))
    refused = line(request("launch", person("eve", "see", "steer-all"), specs=[], after=1))
    assert "eve needs the right submit" in refused["refused"]
    assert "value" in line(request("launch", person("bob", "submit"), specs=[], after=1))
    assert status(pool, "a").owner == "bob"


def test_only_the_connection_that_has_joined_reports_for_a_script(pool: Pool, line: Line) -> None:
    ann = person("ann", "submit", "steer-own")
    script = job_to_dict(Job("s", 600.0, BatchTarget(1000), can=SCRIPT))
    line(request("join", ann, job=script, device="cpu", incarnation=None))
    other = Line(pool.path)
    other(request("event", ann, event=encode_event(Report("s", 1, 1, 0, 999, 1.0))))
    other.close()
    assert status(pool, "s").batches == 0


# ---------------------------------------------------------------------------------------------------- sent again


def test_a_recorded_request_does_what_its_sender_may_do_not_what_its_author_might(pool: Pool, line: Line) -> None:
    """Requests hold no secret and no proof: who sends one is told by the connection, each time."""
    line(request("launch", person("ann", "submit"), specs=[spec("a")]))
    recorded = request("event", person("ann", "steer-own"), event=encode_event(Cancel("a")))
    eve = json.loads(recorded) | {"person": person("eve", "see", "submit", "steer-own").to_dict()}
    assert "a belongs to ann" in line(json.dumps(eve).encode() + b"\n")["refused"]
    assert status(pool, "a").finished_at is None


def test_requests_that_are_sent_again_change_nothing_twice(pool: Pool, line: Line) -> None:
    ann = person("ann", "submit", "steer-own")
    launch = request("launch", ann, specs=[spec("a")])
    assert "value" in line(launch)
    assert "the name 'a' is taken" in line(launch)["refused"]
    script = job_to_dict(Job("s", 600.0, BatchTarget(1000), can=SCRIPT))
    line(request("join", ann, job=script, device="cpu", incarnation=None))
    report = request("event", ann, event=encode_event(Report("s", 1, 1, 0, 10, 1.0)))
    for _ in range(3):
        line(report)
    assert (status(pool, "s").batches, status(pool, "s").busy) == (10, 1.0)
    cancel = request("event", ann, event=encode_event(Cancel("a")))
    assert "value" in line(cancel)
    ended = status(pool, "a")
    line(cancel)
    assert status(pool, "a") == ended


def test_a_request_that_is_sent_again_after_a_right_was_taken_is_refused(pool: Pool, line: Line) -> None:
    """Rights come with each request, from the process that knows the tokens as they are now."""
    line(request("launch", person("ann", "submit"), specs=[spec("a")]))
    pause = encode_event(Pause("a"))
    assert "value" in line(request("event", person("ann", "steer-own"), event=pause))
    assert "ann needs the right steer-own" in line(request("event", person("ann"), event=pause))["refused"]


def test_a_name_that_is_used_again_by_another_takes_no_request_meant_for_the_job_before(pool: Pool, line: Line) -> None:
    """The recorded cancel of one's own job does not reach the job that a colleague has submitted under its name."""
    ann = person("ann", "submit", "steer-own")
    line(request("launch", ann, specs=[spec("a")]))
    cancel = request("event", ann, event=encode_event(Cancel("a")))
    line(cancel)
    assert "value" in line(request("launch", person("bob", "submit"), specs=[spec("a")]))
    assert "refused" in line(cancel)
    assert status(pool, "a").finished_at is None
    assert status(pool, "a").owner == "bob"


# ---------------------------------------------------------------------------------------------------- huge and slow


def test_what_one_person_sends_without_end_is_not_waited_for_by_another(
    pool: Pool, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LINE_TIMEOUT", 0.3)
    slow, huge, deep = Line(pool.path), Line(pool.path), Line(pool.path)
    slow._socket.sendall(b'{"id": 1, ')
    assert "at most" in huge(b"x" * (server.MAX_LINE_BYTES + 1))["refused"]
    assert "refused" in deep(b"[" * 10_000 + b"\n")
    assert "value" in line(request("about"))
    assert slow(b"") == {}  # it was disconnected
    for one in (slow, huge, deep):
        one.close()


# ---------------------------------------------------------------------------------------------------- hostile names

HOSTILE = ["\x1b[2J", "a\nb", "\u202eann", "<b>ann</b>", "ann\x00", "../ann", "-rf", "", "a" * 64, "\ud83d\ude00"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused_wherever_a_person_can_be_named(pool: Pool, line: Line, name: str) -> None:
    """A refusal repeats it escaped, in case that is printed."""
    line(request("launch", person("ann", "submit"), specs=[spec("a")]))
    told = [line(request("status", Person(name, frozenset()))), line(request("launch", Person(name, ALL_RIGHTS)))]
    if name:  # of a command, no name means that its sender is unknown
        told.append(line(request("event", event=json.dumps(json.loads(encode_event(Pause("a"))) | {"who": name}))))
    for answer in told:
        assert "invalid name of a person" in answer["refused"]
        assert answer["refused"].isascii()
        assert answer["refused"].isprintable()
    assert (status(pool, "a").owner, status(pool, "a").paused) == ("ann", False)
