"""The pool's server: access, validation of requests, and detection of processes that have exited."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.answers import End, Grant, State, Verdict
from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline
from lightning_core.core.events import Cell, Event, ExitCause, Report, Submit, Tick, WorkerExited, WorkersLost
from lightning_core.core.jobs import Capability, Job, OnMiss
from lightning_core.core.protocols import DeviceNotSharedError, JoinRefusedError, NameTakenError
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.server import calls, clocks
from lightning_core.server.access.accounts import account_of
from lightning_core.server.clients.socket_client import PROTOCOL, SocketClient, forget_joining
from lightning_core.server.ray_actor import SchedulerActor
from lightning_core.storage.journals import journal_lock
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.conftest import ROOT
from tests.socket_servers import Pool
from tests.waiting import join, until, until_async

SCRIPT = frozenset({Capability.TIME_SLICE, Capability.HOLD})
JOB = Job("job", 600.0, BatchTarget(1000), can=SCRIPT)


@pytest.fixture
def client(pool: Pool) -> Iterator[SocketClient]:
    made = SocketClient(pool.path)
    yield made
    made.close()


def report(number: int = 1, **changed: Any) -> Report:
    return replace(Report("job", 1, number, 0, 5 * number, 0.5 * number, (Cell(1, 5, 0.5),)), **changed)


def say(path: Path, *lines: bytes, answers: int = 1) -> list[dict[str, Any]]:
    """Return the answers to lines that are sent unchanged."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(path))
        connection.sendall(b"".join(lines))
        with connection.makefile("rb") as file:
            return [json.loads(line) for line in (file.readline() for _ in range(answers)) if line]


def is_hung_up_on(connection: socket.socket, text: bytes) -> bool:
    """Return whether the server closes the connection instead of reading everything."""
    try:
        connection.sendall(text)
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:  # reset, or broken
        pass
    return True


def request(call: str, protocol: int = PROTOCOL, **args: Any) -> bytes:
    return json.dumps({"id": 1, "protocol": protocol, "call": call, "args": args}).encode() + b"\n"


# ---------------------------------------------------------------------------------------------------- requests


def test_every_call_of_the_protocol(client: SocketClient) -> None:
    assert client.about()["devices"] == ["cpu0"]
    reply = client.join(JOB, "cpu")
    assert (reply.incarnation, reply.arbiters, reply.again) == (1, ("/turn",), False)
    grant = client.report(report())
    assert isinstance(grant, Grant)
    assert (grant.share, grant.devices) == (1.0, (0,))
    client.report(report(2, version=grant.version))
    job_forecast = client.job_forecast("job")
    assert job_forecast is not None
    assert job_forecast.share == 1.0
    assert client.job("job") == replace(JOB, device=None, owner=account_of(os.getuid()))
    _, [status] = client.status()
    assert (status.name, status.batches, status.loss) == ("job", 10, 0.5)
    client.event(Pause("job"))
    client.event(Resume("job"))
    client.event(SetDeadline("job", 900.0, from_submission=True))
    assert client.job("job").deadline == 900.0
    client.left(WorkerExited("job", 1))
    end = client.report(report(3))
    assert isinstance(end, End)
    assert end.verdict is Verdict.MISSED


def test_another_protocol_version_is_refused(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PROTOCOL", PROTOCOL + 1)
    [answer] = say(pool.path, request("join"))
    assert answer["refused"] == f"scheduler protocol {PROTOCOL + 1}, client {PROTOCOL}: upgrade the older one"
    client = SocketClient(pool.path)
    with pytest.raises(JoinRefusedError, match=f"scheduler protocol {PROTOCOL + 1}, client {PROTOCOL}: upgrade"):
        client.join(JOB, "cpu")
    client.close()


def spec(name: str = "x", **changed: Any) -> dict[str, Any]:
    job = {"name": name, "deadline": 9.0, "target": {"batches": 9}, "begin": 0.0, "weight": 1.0, "min_devices": 1,
           "max_devices": 1, "on_miss": "continue", "can": ["hold", "release", "time_slice"], "device": None,
           "work": None}  # fmt: skip
    return {"job": job | changed, "config": {}, "cell": 1, "save_every": 300.0, "keep_best": False, "hang": None,
            "paths": []}  # fmt: skip


def event(**body: Any) -> bytes:
    return request("event", event=json.dumps(body))


GOOD = {
    "kind": "report",
    "job": "job",
    "incarnation": 1,
    "number": 9,
    "version": 0,
    "batches": 9,
    "busy": 1.0,
    "cells": [],
}

GARBAGE = {
    "no JSON": (b"\xff\xfe\n", "invalid request: UnicodeDecodeError"),
    "half a line of JSON": (b'{"id": 1,\n', "invalid request: JSONDecodeError"),
    "a list": (b"[1]\n", "invalid request: TypeError"),
    "nothing asked": (b"{}\n", "invalid request: KeyError: 'id'"),
    "bottomless": (b"[" * 100_000 + b"\n", "too many values (limit 50,000)"),
    "no number": (b'{"id": NaN}\n', "numbers must be finite, got NaN"),
    "unknown call": (request("sudo"), "unknown call 'sudo'"),
    "a call that is no word": (request(["close"]), "unknown call ['close']"),  # type: ignore[arg-type]
    "a method that is no call": (request("close"), "unknown call 'close'"),
    "arguments missing": (request("wait"), "invalid request: KeyError: 'job'"),
    "a job that is a list": (request("wait", job=[], version=0, timeout=1), "expected str, got []"),
    "wait for ever": (b'{"id":1,"protocol":5,"call":"wait","args":{"job":"job","version":0,"timeout":1e999}}\n',
                      "numbers must be finite, got 1e999"),
    "time": (event(kind="tick"), "Tick is not for clients to send"),
    "a submission": (event(kind="submit", jobs=[]), "Submit is not for clients to send"),
    "workers lost": (event(kind="workers_lost"), "WorkersLost is not for clients to send"),
    "an unknown event": (event(kind="reboot"), "invalid request: KeyError: 'reboot'"),
    "an event with more": (event(**GOOD, more=1), "unknown field 'more'"),
    "a count that is a word": (event(**GOOD | {"batches": "9"}), "batches: expected int, got '9'"),
    "a count that is true": (event(**GOOD | {"number": True}), "number: expected int, got True"),
    "a count beyond all": (event(**GOOD | {"batches": 10**400}), "batches: expected int of at most 2**53, got "),
    "seconds without end": (event(**GOOD | {"busy": 1e999}), "invalid JSON: JSON is malformed"),
    "cells of words": (event(**GOOD | {"cells": [[1, 2, "a"]]}), "cells[0][2]: expected float, got 'a'"),
    "cells of two": (event(**GOOD | {"cells": [[1, 2]]}), "cells[0]: expected array of length 3, got [1, 2]"),
    "a job named 5": (event(kind="cancel", job=5), "job: expected str, got 5"),
    "a target of words": (
        request("launch", specs=[spec(target={"batches": "9"})]), "target batches must be a whole number"),
    "half a batch": (request("launch", specs=[spec(target={"batches": 9.5})]), "target batches must be a whole number"),
    "a path for a name": (request("launch", specs=[spec("../../x")]), "invalid job name '../../x'"),
    "an escape for a name": (request("launch", specs=[spec("\x1b[2J")]), "invalid job name"),
    "a spec of more": (request("launch", specs=[spec() | {"env": {}}]), "unknown field 'env'"),
    "a spec without a config": (request("launch", specs=[{"job": spec()["job"]}]), "missing required field config"),
    "paths that are none": (request("launch", specs=[spec() | {"paths": [1]}]), "paths[0]: expected str, got 1"),
    "a spec that cannot leave": (request("launch", specs=[spec(can=["time_slice"])]), "must be able to release"),
    "a spec with its own device": (request("launch", specs=[spec(device=0)]), "must be able to release"),
    "a name twice": (request("launch", specs=[spec(), spec()]), "the name 'x' is taken"),
    "a huge spec": (request("launch", specs=[spec() | {"config": {"a": "b" * 2**20}}]), "must be at most 1048576"),
    "specs that are none": (request("launch", specs="all"), "expected array, got 'all'"),
    "a script as a path": (
        request("join", job=spec("../x")["job"], device="cpu", incarnation=None), "invalid job name '../x'"),
    "a script of another machine": (
        request("join", job=spec()["job"], device="GPU-1", incarnation=None), "but the pool manages cpu0"),
}  # fmt: skip


def test_invalid_requests_are_refused_and_change_nothing(pool: Pool, client: SocketClient) -> None:
    client.join(JOB, "cpu")
    client.report(report())
    with Journal.open(pool.folder / "journal.db", read_only=True) as journal:
        before = replay(journal)
    answers = {what: say(pool.path, line)[0] for what, (line, _) in GARBAGE.items()}
    assert not {what: answer for what, answer in answers.items() if GARBAGE[what][1] not in answer.get("refused", "")}
    assert not (pool.folder / "jobs").exists() or not any((pool.folder / "jobs").iterdir())
    assert pool.is_current("job")
    with Journal.open(pool.folder / "journal.db", read_only=True) as journal:
        after = replay(journal)
    # Only time has passed for it.
    assert {status.name for status in after.scheduler.status()} == {"job"}
    assert after.scheduler.status()[0].batches == before.scheduler.status()[0].batches == 5


@pytest.mark.parametrize("call", [Tick(), Submit((JOB,)), WorkersLost()])
def test_clients_may_not_send_the_scheduler_s_own_events(client: SocketClient, call: Event) -> None:
    with pytest.raises(JoinRefusedError, match=f"{type(call).__name__} is not for clients to send"):
        client.event(call)


def test_jobs_are_transferred_unchanged(client: SocketClient, pool: Pool) -> None:
    job = Job(
        "odd", 60.5, LossTarget("val/acc", at_least=0.9, best=2.0), 1.5, 2.5, 1, 3, OnMiss.HOLD, SCRIPT, None, 7.0
    )
    client.join(job, "cpu")
    assert client.job("odd") == replace(job, owner=account_of(os.getuid()))


# ---------------------------------------------------------------------------------------------------- access


def test_only_the_user_can_open_the_socket(pool: Pool) -> None:
    assert stat.S_IMODE(pool.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(pool.path.parent.stat().st_mode) == 0o700


def test_a_connection_cannot_report_for_the_job_of_another(pool: Pool, client: SocketClient) -> None:
    client.join(JOB, "cpu")
    stranger = SocketClient(pool.path)
    for said in (report(7), WorkerExited("job", 1), WorkerExited("job", 1, ExitCause.RAISED)):
        with pytest.raises(ConnectionError, match="another process reports for job"):
            stranger.event(said)
    with pytest.raises(NameTakenError, match="the name 'job' is taken"):
        stranger.join(JOB, "cpu")
    stranger.close()
    assert pool.is_current("job")
    client.report(report())  # it still speaks for itself


def test_joining_on_an_unmanaged_device_is_refused(pool: Pool, client: SocketClient) -> None:
    with pytest.raises(DeviceNotSharedError, match="trains on GPU-7, but the pool manages cpu0"):
        client.join(JOB, "GPU-7")
    with pytest.raises(JoinRefusedError, match="trains on 9 devices, the pool has 1"):
        client.join(replace(JOB, min_devices=9, max_devices=9), "cpu")


def test_no_script_reports_for_a_launched_job(pool: Pool, client: SocketClient) -> None:
    client.launch([spec()])
    with pytest.raises(ConnectionError, match="another process reports for x"):
        client.report(report(job="x"))
    with pytest.raises(NameTakenError, match="the name 'x' is taken"):
        client.join(replace(JOB, name="x"), "cpu")
    with pytest.raises(NameTakenError, match="the name 'x' is taken"):
        client.launch([spec()])


def test_a_late_exit_of_an_old_incarnation_does_no_harm(pool: Pool, client: SocketClient) -> None:
    client.join(JOB, "cpu")
    client.left(WorkerExited("job", 1))
    heir = SocketClient(pool.path)
    assert heir.join(JOB, "cpu").incarnation == 2
    client.left(WorkerExited("job", 1))
    end = client.report(report(9))
    assert isinstance(end, End)
    assert end.reason.code == "superseded"
    assert pool.is_current("job", 2)
    heir.close()
    until(lambda: pool.crashed("job"))  # the end of the newer connection still counts


def test_a_client_that_reads_no_answers_is_disconnected(pool: Pool, client: SocketClient) -> None:
    client.join(JOB, "cpu")
    line = request("wait", job="job", version=10**6, timeout=60)
    with socket.socket(socket.AF_UNIX) as flood:
        flood.settimeout(60)
        flood.connect(str(pool.path))
        assert is_hung_up_on(flood, line * 10_000)
    assert client.about()["devices"] == ["cpu0"]
    until(lambda: len(asyncio.all_tasks(pool.loop)) < 10)


def test_a_client_that_sends_an_endless_line_is_disconnected(pool: Pool, client: SocketClient) -> None:
    with socket.socket(socket.AF_UNIX) as endless:
        endless.settimeout(60)
        endless.connect(str(pool.path))
        assert is_hung_up_on(endless, b"x" * 40 * 2**20)
    assert client.about()["devices"] == ["cpu0"]


def test_an_incomplete_line_is_no_request(pool: Pool, client: SocketClient) -> None:
    client.launch([spec()])
    with socket.socket(socket.AF_UNIX) as cut:
        cut.connect(str(pool.path))
        cut.sendall(event(kind="cancel", job="x").rstrip(b"\n"))
    time.sleep(0.2)
    assert pool.is_current("x")


# ---------------------------------------------------------------------------------------------------- processes


class Grace:
    """Grace periods that last until the test ends them."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: list[asyncio.Future[None]] = []

    async def sleep(self, seconds: float) -> None:
        self._waiting.append(self._pool.loop.create_future())
        await self._waiting[-1]

    def end(self, begun: int = 1) -> None:
        """End all, once as many have begun."""
        until(lambda: len(self._waiting) >= begun)
        self._pool.do(self._end())

    def forget(self) -> None:
        """Forget those that have begun."""
        self._waiting.clear()

    async def _end(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():  # of a scheduler that was closed meanwhile
                one.set_result(None)


@pytest.fixture
def grace(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Grace:
    made = Grace(pool)
    monkeypatch.setattr(clocks, "sleep", made.sleep)
    return made


def test_a_disconnected_script_has_a_grace_period(pool: Pool, grace: Grace) -> None:
    client = SocketClient(pool.path)
    client.join(JOB, "cpu")
    client.report(report())
    client.close()
    client.report(report(2))  # on another connection
    grace.end()
    assert pool.is_current("job")
    client.close()
    assert client.join(JOB, "cpu").again
    grace.end()
    assert pool.is_current("job")
    client.close()
    grace.end()
    until(lambda: pool.crashed("job"))
    assert client.join(JOB, "cpu")[0] == 2
    client.close()


def test_an_exit_report_ends_only_its_own_incarnation(pool: Pool, grace: Grace) -> None:
    client = SocketClient(pool.path)
    client.join(JOB, "cpu")
    client.close()
    until(lambda: not pool.actor._sessions.reporters)
    pool.do(pool.actor.event(Cancel("job")))
    client.launch([spec("job")])
    grace.end()
    assert pool.is_current("job", 2)
    client.close()


def test_a_restarted_scheduler_waits_for_its_scripts(pool: Pool, grace: Grace) -> None:
    back, gone = SocketClient(pool.path), SocketClient(pool.path)
    back.join(JOB, "cpu")
    gone.join(replace(JOB, name="gone"), "cpu")
    pool.restart()
    with pytest.raises(ConnectionError):
        back.report(report())  # of the connection that broke
    assert isinstance(back.report(report()), Grant)
    stranger = SocketClient(pool.path)
    with pytest.raises(ConnectionError, match="another process reports for job"):
        stranger.report(report(2))  # its reporter is known again
    grace.end(2)
    until(lambda: pool.crashed("gone"))
    assert pool.is_current("job")
    for one in (back, gone, stranger):
        one.close()


def test_after_down_and_up_a_script_goes_on_as_one_job_and_one_that_is_gone_ends(pool: Pool, grace: Grace) -> None:
    folder = str(pool.folder)
    back, gone, again = (SocketClient(pool.path, pool=folder) for _ in range(3))
    back.join(JOB, "cpu")
    back.report(report(7))
    gone.join(replace(JOB, name="gone"), "cpu")
    again.join(replace(JOB, name="again"), "cpu")
    pool.path = pool.path.with_name("socket of the next pool")
    pool.restart()
    grace.forget()
    pool.do(pool.actor.event(WorkersLost()))
    for one in (back, gone, again):
        one.close()
    back = SocketClient(pool.path, pool=folder)
    reply = back.join(JOB, "cpu")
    assert (reply.incarnation, reply.again) == (2, False)  # it numbers its reports anew
    assert isinstance(back.report(report(1, incarnation=2, batches=50, batches_at_start=40)), Grant)
    stranger = SocketClient(pool.path)
    assert stranger.join(replace(JOB, name="again"), "cpu").incarnation == 3  # another process, another job
    grace.end(3)
    words = "the pool was down, and its script has not joined again"
    until(lambda: ("gone", words) in [(job.name, str(job.reason)) for job in pool.do(pool.actor.status())[1]])
    _, jobs = pool.do(pool.actor.status())
    assert [(job.name, job.batches, job.state) for job in jobs if job.name != "gone"] == [
        ("job", 50, State.RUNNING), ("again", 0, State.ENDED), ("again", 0, State.QUEUED),
    ]  # fmt: skip
    for one in (back, stranger):
        one.close()


def test_a_script_that_was_away_when_it_was_cancelled_is_told_when_it_joins_again(pool: Pool, grace: Grace) -> None:
    client = SocketClient(pool.path, pool="a pool")
    client.join(JOB, "cpu")
    client.report(report())
    pool.do(pool.actor.event(Cancel("job")))
    assert pool.do(pool.actor.stopping()) == ["job"]
    client.close()
    until(lambda: pool.do(pool.actor.stopping()) == [])
    assert client.join(JOB, "cpu").again
    end = client.report(report(2, batches=99))
    assert isinstance(end, End)
    assert end.reason.code.startswith("cancelled")
    forget_joining("job")  # another training of the same process
    client.close()
    assert client.join(JOB, "cpu").incarnation == 2
    client.close()


FORKED = """
import os, sys, time
from pathlib import Path
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
client = SocketClient(Path(sys.argv[1]))
client.join(Job("forked", 600.0, BatchTarget(1000), can=frozenset({Capability.TIME_SLICE, Capability.HOLD})), "cpu")
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(300)
"""


def test_a_killed_script_counts_as_lost_though_its_child_keeps_the_socket(pool: Pool) -> None:
    line = [sys.executable, "-c", FORKED, str(pool.path)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert pool.is_current("forked")
    try:
        process.kill()
        process.wait()
        until(lambda: pool.crashed("forked"))
        os.kill(child, 0)  # it is running
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_a_silent_proxy_counts_as_disconnected(pool: Pool, grace: Grace) -> None:
    first = 7 << 32
    pool.do(pool.actor.heartbeat(first))
    pool.do(pool.actor.join(JOB, "cpu", None, first + 1))
    pool.do(pool.actor.join(replace(JOB, name="near"), "cpu", None, 1))
    for _ in range(4):
        pool.do(pool.actor.heartbeat(first))
        grace.end()
    assert pool.is_current("job")
    grace.end()  # it has been silent since
    grace.end()  # and does not reconnect
    until(lambda: pool.crashed("job"))
    assert pool.is_current("near")


def test_the_pool_says_how_often_to_report(pool: Pool, client: SocketClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.join(JOB, "cpu")
    monkeypatch.setattr(pool.actor, "_report_period", lambda: 1.5)
    client.report(report())
    assert client.report_period == 1.5
    client.event(Pause("job"))
    assert client.report_period == 1.5
    monkeypatch.setattr(pool.actor, "_report_period", lambda: 0.0)
    client.report(report(2))
    assert client.report_period == 0.0


def test_several_threads_call_over_one_connection(pool: Pool, client: SocketClient) -> None:
    client.join(JOB, "cpu")
    version = client.report(report()).version  # type: ignore[union-attr]  # it trains
    heard: list[object] = []
    listeners = [threading.Thread(target=lambda: heard.append(client.wait("job", version, 10.0))) for _ in range(3)]
    for listener in listeners:
        listener.start()
    numbers = [threading.Thread(target=lambda: [client.status() for _ in range(20)]) for _ in range(3)]
    for thread in numbers:
        thread.start()
    for thread in numbers:
        thread.join()
    assert not heard
    assert pool.actor._server is not None
    assert len(pool.actor._server._connections) == 1
    client.event(Pause("job"))
    for listener in listeners:
        listener.join()
    assert [directive.share for directive in heard] == [0.0] * 3  # type: ignore[attr-defined]  # grants


def test_a_thread_that_waits_is_told_when_the_connection_is_closed(client: SocketClient) -> None:
    client.join(JOB, "cpu")
    version = client.report(report()).version  # type: ignore[union-attr]  # it trains
    failed: list[Exception] = []

    def listen() -> None:
        try:
            client.wait("job", version, 60.0)
        except ConnectionError as error:
            failed.append(error)

    listener = threading.Thread(target=listen)
    listener.start()
    until(lambda: client._link is not None and client._link._is_read)
    client.close()
    join(listener)
    assert failed
    assert client.status()  # over a new connection


def test_no_server_at_the_socket() -> None:
    client = SocketClient(Path("/nowhere/door"))
    with pytest.raises(ConnectionError, match=r"the pool at /nowhere/door does not answer: .*No such file"):
        client.about()


def test_an_interrupted_request_does_not_disturb_the_next(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    client = SocketClient(pool.path)
    client.about()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client._link, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.about()
    assert client.status()[1] == []
    client.close()


# ---------------------------------------------------------------------------------------------------- the actor


def test_connections_leave_nothing_open(pool: Pool) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    SocketClient(pool.path).about()
    time.sleep(0.2)
    before = descriptors()
    for _ in range(20):
        client = SocketClient(pool.path)
        client.about()
        client.close()
    until(lambda: descriptors() <= before + 1)
    until(lambda: len(asyncio.all_tasks(pool.loop)) <= 3)


def test_two_schedulers_never_write_one_journal(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_lock, "RELEASE_TIMEOUT", 0.1)
    second = SchedulerActor({}, str(pool.folder), str(tmp_path / "door"))
    with pytest.raises(RuntimeError, match="another scheduler is writing the journal here"):
        pool.do(second.about())
    assert not (tmp_path / "door").exists()


@pytest.mark.parametrize("what", ["text", "hole"])
def test_every_call_reports_a_damaged_journal(tmp_path: Path, what: str) -> None:
    async def ask() -> None:
        await SchedulerActor({}, str(tmp_path)).about()

    path = tmp_path / "journal.db"
    if what == "text":
        path.write_text("no journal " * 1000)
    else:
        asyncio.run(fill(tmp_path))
        with path.open("r+b") as file:
            file.seek(8192)
            file.write(b"\xff" * 20000)
    size = path.stat().st_size
    with pytest.raises(RuntimeError, match=r"journal|database"):
        asyncio.run(ask())
    assert path.stat().st_size == size


async def fill(folder: Path) -> None:
    actor = SchedulerActor({}, str(folder))
    for number in range(100):
        await actor.submit((replace(JOB, name=f"job{number}"),))
    await actor.close()


@pytest.mark.promise("R2")
def test_a_scheduler_opens_its_socket_without_a_call(tmp_path: Path) -> None:
    """Ray refuses calls to an actor that it restarts until the restart is known everywhere: its own ones as well."""

    async def story() -> None:
        actor = SchedulerActor({}, str(tmp_path), str(tmp_path / "door"))
        await until_async((tmp_path / "door").exists)
        await actor.close()

    asyncio.run(story())


def test_every_call_reports_a_socket_that_cannot_be_opened(tmp_path: Path) -> None:
    actor = SchedulerActor({}, str(tmp_path), str(tmp_path / ("d" * 120)))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the socket server cannot be opened: AF_UNIX path too long"):
            asyncio.run(actor.pid())


def test_an_old_folder_of_a_job_of_the_same_name_is_moved_away(pool: Pool, client: SocketClient) -> None:
    folder = pool.folder / "jobs" / "x"
    folder.mkdir(parents=True)
    (folder / "last.ckpt").write_text("of another incarnation")
    client.launch([spec()])
    assert [file.name for file in folder.iterdir()] == ["spec.json"]
    assert (pool.folder / "old" / "x~1" / "last.ckpt").exists()
