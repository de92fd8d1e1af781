"""Who may see and change what, through the pool's socket: by rights, and by the owner of the job."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.codec import job_to_dict, status_to_dict
from lightning_core.core.commands import (
    Cancel,
    Command,
    Pause,
    Resume,
    SetDeadline,
    SetDevices,
    SetLocation,
    SetTerms,
)
from lightning_core.core.events import Close, PartEvent, Report, Submit, WorkerExited
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.protocols import AccessRefusedError, JoinRefusedError, NameTakenError
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.pool import Pool as Client
from lightning_core.pool import UnknownJobError
from lightning_core.scheduler.reports import unknown_job
from lightning_core.server import calls, pool_calls
from lightning_core.server.access.accounts import account_of
from lightning_core.server.access.people import ALL_RIGHTS, Person, Right, person_from_dict, rights_of
from lightning_core.server.clients.socket_client import PROTOCOL, SocketClient
from lightning_core.server.load import shared_status
from tests.builders import spec
from tests.examples import examples
from tests.socket_servers import Pool

SCRIPT = frozenset({Capability.TIME_SLICE, Capability.HOLD})
SUBMITS = rights_of(["submit", "steer-own"])
COMMANDS: list[Callable[[str], Command]] = [
    Cancel, Pause, Resume, lambda job: SetDeadline(job, 50.0), lambda job: SetDevices(job, 0),
    lambda job: SetLocation(job, ""), lambda job: SetTerms(job, weight=2.0),
]  # fmt: skip

Make = Callable[..., SocketClient]


@pytest.fixture
def of(pool: Pool) -> Iterator[Make]:
    """Makes clients that speak for a person with these rights."""
    made: list[SocketClient] = []

    def make(name: str, *rights: str) -> SocketClient:
        made.append(SocketClient(pool.path, Person(name, rights_of(rights))))
        return made[-1]

    yield make
    for client in made:
        client.close()


def script(name: str) -> Job:
    return Job(name, 600.0, BatchTarget(1000), can=SCRIPT)


def seen(client: SocketClient) -> dict[str, str]:
    """Return the owners of the jobs that a client sees, by name."""
    return {job.name: job.owner for job in client.status()[1]}


def everything(pool: Pool) -> list[JobStatus]:
    jobs: list[JobStatus] = pool.do(pool.actor.status())[1]
    return [replace(job, busy=0.0) for job in jobs]


# ---------------------------------------------------------------------------------------------------- seeing


def test_without_the_right_to_see_a_person_sees_their_own_jobs_alone(of: Make) -> None:
    of("ann", "submit").launch([spec("a")])
    of("bob", "submit").launch([spec("b")])
    assert seen(of("ann")) == {"a": "ann"}
    assert seen(of("bob")) == {"b": "bob"}
    assert seen(of("eve")) == {}
    for right in ("see", "steer-all"):
        assert seen(of("eve", right)) == {"a": "ann", "b": "bob"}


def test_a_job_of_another_is_as_one_that_is_unknown(of: Make, pool: Pool) -> None:
    of("bob", "submit").launch([spec("secret-name")])
    ann = of("ann", "submit", "steer-own")
    ann.launch([spec("secret-names")])
    assert ann.job_forecast("secret-name") == ann.job_forecast("nothing") is None
    for ask in (ann.job, lambda job: ann.event(Cancel(job)), lambda job: ann.wait(job, 0, 0.1)):
        said = []
        for job in ("secret-name", "nothing-name"):
            with pytest.raises((JoinRefusedError, ConnectionError)) as refused:
                ask(job)
            said.append(str(refused.value).replace(job, "JOB").split(";")[0])
        assert said[0] == said[1]
    with pytest.raises(JoinRefusedError) as refused:
        ann.job("secret-nam")
    assert str(refused.value) == "no job 'secret-nam'; did you mean 'secret-names'?"  # not the one that it does not see
    with pytest.raises(JoinRefusedError, match="did you mean 'secret-name'"):
        of("eve", "see").job("secret-nam")


def test_one_report_for_a_job_of_another_is_answered_as_for_an_unknown_one(of: Make, pool: Pool) -> None:
    of("bob", "submit").launch([spec("b")])
    before = everything(pool)
    ann = of("ann", "submit", "steer-own", "see")
    for job in ("b", "nothing"):
        assert ann.report(Report(job, 1, 1, 0, 999, 1.0)) == unknown_job(job)
        ann.left(WorkerExited(job, 1))
    assert everything(pool) == before


def test_what_the_pool_says_of_itself_names_no_jobs_of_others(of: Make, pool: Pool) -> None:
    assert (of("eve").about()["controllers"], of("eve").about()["failed"]) == ({}, {})
    assert of("eve").about()["settings"] == of("ann", "see").about()["settings"]


def test_the_pool_says_which_devices_it_does_not_plan_on(of: Make, pool: Pool) -> None:
    settings = of("ann", "see").about()["settings"]
    assert of("ann", "see").about()["unavailable"] == []
    pool.do(pool.actor.set_unavailable([(0, "its node is lost"), (settings["devices"], "no device of the pool")]))
    assert of("ann", "see").about()["unavailable"] == [{"device": 0, "why": "its node is lost"}]
    assert of("eve").about()["unavailable"] == [{"device": 0, "why": ""}]  # a reason may name a job
    pool.do(pool.actor.set_unavailable([(0, "its worker is starting")]))  # no event: the core plans as before
    assert of("ann", "see").about()["unavailable"] == [{"device": 0, "why": "its worker is starting"}]
    pool.do(pool.actor.set_unavailable([]))
    assert of("ann", "see").about()["unavailable"] == []


def test_a_pool_manager_that_has_gone_silent_is_told_of(of: Make, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of("ann").about()["manager_silent"] == 0.0
    heard = pool.actor._manager_heard
    assert heard is not None
    monkeypatch.setattr(pool_calls, "MAX_MANAGER_SILENCE", 0.0)
    assert of("ann").about()["manager_silent"] > 0.0
    pool.do(pool.actor.register_devices([("cpu0", "/turn")]))
    assert (pool.actor._manager_heard or 0.0) > heard


def test_what_another_owner_has_is_not_told(of: Make, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pool.actor._host.scheduler, "shares", lambda: [{"owner": "ann"}, {"owner": "bob"}, {"team": "x"}]
    )
    assert of("ann").about()["shares"] == [{"owner": "ann"}]
    assert len(of("eve", "see").about()["shares"]) == 3


def test_the_pool_says_to_whom_it_speaks(of: Make, pool: Pool) -> None:
    ann = of("ann", "see")
    assert Client(ann).person == ann.person
    with Client(SocketClient(pool.path)) as client:
        assert client.person == Person(account_of(os.geteuid()), ALL_RIGHTS)


def test_earlier_runs_of_others_are_not_named(of: Make, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    of("ann", "submit").launch([spec("a")])
    told = [replace(job, like=Reason("like", (0.8,), "run-of-bob")) for job in everything(pool)]

    async def status() -> tuple[float, list[JobStatus]]:
        return 1.0, told

    assert pool.actor._server is not None
    monkeypatch.setattr(pool.actor._server._calls._status, "_status", status)
    assert of("ann").status()[1][0].like is None
    assert str(of("ann", "see").status()[1][0].like) == "like run-of-bob, 80%"


def test_all_who_see_everything_share_one_text(of: Make, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    of("ann", "submit").launch([spec("a")])
    written: list[str] = []

    def write(job: JobStatus) -> dict[str, Any]:
        written.append(job.name)
        return status_to_dict(job)

    monkeypatch.setattr(shared_status, "status_to_dict", write)
    for client in (of("ann", "see"), of("bob", "steer-all"), SocketClient(pool.path)):
        assert seen(client) == {"a": "ann"}
        client.close()
    assert written == ["a"]


# ---------------------------------------------------------------------------------------------------- changing


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("who", "rights", "may"),
    [
        ("ann", ["steer-own"], True),
        ("ann", ["see", "submit"], False),
        ("ann", [], False),
        ("eve", ["steer-all"], True),
        ("eve", ["steer-own", "see", "submit"], False),
        ("eve", ["steer-own"], False),
        ("eve", [], False),
    ],
)
def test_who_may_change_a_job(
    of: Make, pool: Pool, command: Callable[[str], Command], who: str, rights: list[str], may: bool
) -> None:
    of("ann", "submit").launch([spec("a")])
    if isinstance(command("a"), Resume):
        of("ann", "steer-own").event(Pause("a"))
    before, terms = everything(pool), pool.do(pool.actor.job("a"))
    client = of(who, *rights)
    if may:
        client.event(command("a"))
        assert (everything(pool), pool.do(pool.actor.job("a"))) != (before, terms) or isinstance(
            command("a"), SetLocation
        )
    else:
        expected = AccessRefusedError if client.person is not None and client.person.sees("ann") else JoinRefusedError
        with pytest.raises(expected):
            client.event(command("a"))
        assert (everything(pool), pool.do(pool.actor.job("a"))) == (before, terms)


def test_a_refusal_says_which_right_is_missing(of: Make) -> None:
    of("ann", "submit").launch([spec("a")])
    with pytest.raises(AccessRefusedError) as refused:
        of("eve", "see", "steer-own").event(Cancel("a"))
    assert str(refused.value) == (
        "a belongs to ann; to change it, eve needs the right steer-all, and has see, steer-own"
    )
    with pytest.raises(AccessRefusedError, match="ann needs the right steer-own, and has none"):
        of("ann").event(Cancel("a"))


@pytest.mark.parametrize("event", [Close("eve"), PartEvent("edge_cloud.plan_given", {})])
def test_only_who_may_steer_all_closes_the_pool_or_gives_it_a_plan(of: Make, pool: Pool, event: Any) -> None:
    with pytest.raises(AccessRefusedError, match="eve needs the right steer-all, and has see, submit, steer-own"):
        of("eve", "see", "submit", "steer-own").event(event)
    assert not pool.actor._host.scheduler.state()["closing"]


def test_only_who_may_submit_submits(of: Make, pool: Pool) -> None:
    eve = of("eve", "see", "steer-all")
    for submit in (lambda: eve.launch([spec("e")]), lambda: eve.join(script("e"), "cpu"),
                   lambda: eve.call("prepare", specs=[spec("e")])):  # fmt: skip
        with pytest.raises(AccessRefusedError, match="eve needs the right submit, and has see, steer-all"):
            submit()
    assert everything(pool) == []


def test_no_one_takes_up_the_job_of_another_whose_script_has_gone(of: Make, pool: Pool) -> None:
    """Within the grace in which its own script may come back, and after it has, the name is taken."""
    ann = of("ann", "submit")
    first = ann.join(script("a"), "cpu")
    ann.close()
    eve = of("eve", "submit", "steer-all", "see")
    with pytest.raises(NameTakenError):
        eve.call("join", job=job_to_dict(script("a")), device="cpu", incarnation=first.incarnation)
    again = of("ann", "submit").join(script("a"), "cpu")
    assert again.incarnation == first.incarnation
    assert [(job.owner, job.state is State.ENDED) for job in everything(pool)] == [("ann", False)]


def test_a_job_of_unknown_owner_is_for_those_who_may_do_everything(of: Make, pool: Pool) -> None:
    pool.do(pool.actor.submit((replace(script("old"), owner=""),)))
    assert seen(of("ann")) == {}
    with pytest.raises(JoinRefusedError, match="no job 'old'"):
        of("ann", "steer-own").event(Cancel("old"))
    with pytest.raises(AccessRefusedError, match="old belongs to an unknown owner"):
        of("ann", "steer-own", "see").event(Cancel("old"))
    with pytest.raises(NameTakenError):
        of("ann", "submit").join(script("old"), "cpu")
    of("ann", "steer-all").event(Cancel("old"))
    assert str(everything(pool)[0].reason) == "cancelled by ann"


def test_a_name_that_means_the_job_of_another_by_now_is_not_steered(of: Make, pool: Pool) -> None:
    """A request that was meant for one's own job, and arrives, or is replayed, after the name has got another owner."""
    ann, bob = of("ann", "submit", "steer-own"), of("bob", "submit", "steer-own")
    ann.launch([spec("a")])
    ann.event(Cancel("a"))
    bob.launch([spec("a")])
    with pytest.raises(JoinRefusedError, match="no job 'a'"):
        ann.event(Cancel("a"))
    assert [(job.owner, job.state is State.ENDED) for job in everything(pool)] == [("ann", True), ("bob", False)]
    assert seen(ann) == {"a": "ann"}
    with pytest.raises(JoinRefusedError):
        ann.job("a")


def test_a_wait_that_began_for_ones_own_job_tells_nothing_of_the_next_of_its_name(of: Make, pool: Pool) -> None:
    person = Person("ann", SUBMITS)
    of("ann", "submit").launch([spec("a")])

    async def story() -> Any:
        waiting = asyncio.ensure_future(pool.actor.wait("a", 10**9, 0.3, person))
        await asyncio.sleep(0.05)
        await pool.actor.event(Cancel("a"), 1, person)
        await pool.actor._handle(Submit((replace(script("a"), owner="bob"),)))
        return await waiting

    assert pool.do(story()) is None


# ---------------------------------------------------------------------------------------------------- for whom


def test_what_is_done_for_a_person_is_done_in_that_name(of: Make, pool: Pool) -> None:
    with Client(SocketClient(pool.path)) as client, client.acting_for(Person("ann", SUBMITS)) as ann:
        assert isinstance(ann.client, SocketClient)
        ann.client.launch([spec("a")])
        ann.pause("a")
        assert str(ann.status("a").grant_reason) == "paused by ann"
        with client.acting_for(Person("bob", SUBMITS)) as bob, pytest.raises(UnknownJobError):
            bob.cancel("a")
        client.resume("a")  # the account itself may do everything


@pytest.mark.parametrize(
    "person",
    [
        None, "ann", {}, {"name": "ann"}, {"rights": []}, {"name": "<b>", "rights": []}, {"name": "", "rights": []},
        {"name": "ann", "rights": ["all"]}, {"name": "ann", "rights": "see"}, {"name": ["ann"], "rights": []},
        {"name": "x" * 10**5, "rights": []}, {"name": "ann", "rights": [["see"]]}, {"name": "a\nb", "rights": []},
    ],
)  # fmt: skip
def test_a_person_that_is_none_is_refused(pool: Pool, person: Any) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(pool.path))
        body = {"id": 1, "protocol": PROTOCOL, "call": "status", "args": {}, "person": person}
        connection.sendall(json.dumps(body).encode() + b"\n")
        assert "refused" in json.loads(connection.makefile().readline())


def test_an_older_pool_refuses_a_request_for_a_person(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not read for whom the request is, and do everything."""
    monkeypatch.setattr(calls, "PROTOCOL", 7)
    client = SocketClient(pool.path, Person("ann", frozenset()))
    with pytest.raises(JoinRefusedError, match=f"scheduler protocol 7, client {PROTOCOL}"):
        client.status()
    client.close()


def test_a_person_goes_through_json() -> None:
    for rights in (frozenset[Right](), ALL_RIGHTS, SUBMITS):
        person = Person("ann", rights)
        assert person_from_dict(json.loads(json.dumps(person.to_dict()))) == person


# ---------------------------------------------------------------------------------------------------- everything

NAMES = st.sampled_from(["ann", "bob", "eve"])
JOBS = st.sampled_from(["j1", "j2", "j3"])
RIGHTS = st.frozensets(st.sampled_from(list(Right)))
STEPS = st.lists(
    st.tuples(
        NAMES,
        RIGHTS,
        st.sampled_from(
            ["launch", "join", "job", "job_forecast", "status", "report", "left", "wait", "about", "command"]
        ),
        JOBS,
        st.integers(0, len(COMMANDS) - 1),
    ),
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_no_one_sees_or_changes_what_is_not_theirs(steps: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Random people with random rights make random calls about random jobs."""
    folder = tmp_path_factory.mktemp("p")
    pool = Pool(folder / "pool", Path(f"/tmp/lc-access-{os.getpid()}"))
    try:
        for name, rights, call, job, number in steps:
            _step(pool, Person(name, rights), call, job, COMMANDS[number](job))
    finally:
        pool.close()


def _step(pool: Pool, person: Person, call: str, job: str, command: Command) -> None:
    before = everything(pool)
    owner = next((told.owner for told in reversed(before) if told.name == job), None)
    terms = None if owner is None else pool.do(pool.actor.job(job))
    client = SocketClient(pool.path, person)
    does: dict[str, Callable[[], Any]] = {
        "launch": lambda: client.launch([spec(job)]),
        "join": lambda: client.join(script(job), "cpu"),
        "job": lambda: client.job(job),
        "job_forecast": lambda: client.job_forecast(job),
        "status": client.status,
        "report": lambda: client.report(Report(job, 1, 1, 0, 5, 0.1)),
        "left": lambda: client.left(WorkerExited(job, 1)),
        "wait": lambda: client.wait(job, -1, 0.01),
        "about": client.about,
        "command": lambda: client.event(command),
    }
    answer: Any = None
    refused = False
    try:
        answer = does[call]()
    except (JoinRefusedError, ConnectionError):
        refused = True
    finally:
        client.close()
    # What is answered holds no job of another.
    if call == "status":
        assert all(person.sees(told.owner) for told in answer[1])
    if call == "report" and answer is not None and owner != person.name and not person.may(Right.STEER_ALL):
        assert answer == unknown_job(job)
    if call in ("job", "job_forecast", "wait") and answer is not None:
        assert owner is not None
        assert person.sees(owner)
    # What is not the person's has not changed.
    after = everything(pool)
    assert len(after) >= len(before)
    new = after[len(before) :]
    assert all(told.owner == person.name for told in new)
    assert not new or (person.may(Right.SUBMIT) and call in ("launch", "join"))
    if call == "command" and not (owner is not None and person.steers(owner)):
        assert refused
        assert after == before
        assert owner is None or pool.do(pool.actor.job(job)) == terms
    if call in ("report", "left") and owner != person.name and not person.may(Right.STEER_ALL):
        assert after == before
    if call not in ("command", "launch", "join", "report", "left"):
        assert after == before
    ended = {told.name: told.state is State.ENDED for told in before}
    for told, was in zip(after, before, strict=False):
        if told.state is State.ENDED and was.state is not State.ENDED:
            assert person.steers(was.owner) or was.owner == person.name
    with suppress(KeyError):
        assert not (call == "launch" and new and not ended[job])
