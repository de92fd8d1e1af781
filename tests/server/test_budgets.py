"""What one client may send, hold and ask for, so that no other client waits for it."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.answers import Grant
from lightning_core.core.events import Cell, Report
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.protocols import JoinRefusedError
from lightning_core.core.targets import BatchTarget
from lightning_core.node import unix_sockets
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.server import calls, connections, json_limits, server
from lightning_core.server.access.accounts import Peer
from lightning_core.server.access.people import POOL
from lightning_core.server.clients import socket_client
from lightning_core.server.clients.socket_client import PROTOCOL, SocketClient
from lightning_core.server.connections import MAX_HELD_BYTES, Connections
from lightning_core.server.server import MAX_LINE_BYTES
from tests.conftest import ROOT
from tests.server.test_client import event, request, say, spec
from tests.socket_servers import Pool
from tests.waiting import until

MB = 2**20
# Seconds that an honest call may take beside hostile clients, or times as long as without them on a loaded machine.
# Without budgets it took 7 to 10 seconds.
MAX_SECONDS, MAX_TIMES = 5.0, 20.0


@contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(path))
        yield connection


def hangs_up(connection: socket.socket) -> bool:
    """Whether the server closes a connection, whatever it says before."""
    try:
        while connection.recv(MB):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


# ---------------------------------------------------------------------------------------------------- one request


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"[" * 51 + b"]" * 51 + b"\n", "nested too deeply (limit 50)"),
        (b'{"id":1,"a":' + b'{"a":' * 60 + b"1" + b"}" * 61 + b"\n", "nested too deeply (limit 50)"),
        (b"[" + b"[]," * 60_000 + b"[]]\n", "too many values (limit 50,000)"),
        (b"[" + b'"",' * 110_000 + b'""]\n', "too many strings (limit 100,000)"),
        (b'{"id": 1e999}\n', "numbers must be finite, got 1e999"),
        (b'{"id": 1.5}\n', "id must be a whole number or a text of at most 64 characters"),
        (b'{"id": true}\n', "id must be a whole number"),
        (b'{"id": [1]}\n', "id must be a whole number"),
        (b'{"id": 9007199254740993}\n', "id must be a whole number"),
        (b'{"id": "' + b"x" * 65 + b'"}\n', "id must be a whole number"),
        (b'{"id": ' + b"9" * 5000 + b"}\n", "Exceeds the limit"),
        (request("x" * 10**6), "unknown call 'xxx"),
        (request("wait", job="x" * 10**5, version=0, timeout=1), "expected at most 8,192 characters, got 100,000"),
        (request("wait", job="\ud800", version=0, timeout=1), "expected characters of UTF-8"),
        (request("wait", job="../x", version=0, timeout=1), "invalid job name '../x'"),
        (request("job", job="x" * 64), "invalid job name"),
        (request("job_forecast", job=""), "invalid job name ''"),
        (event(kind="cancel", job="x\n"), "invalid job name"),
        (event(kind="report", job="x" * MB, incarnation=1, number=1, version=0, batches=1, busy=1.0), "at most 8,192"),
        (event(kind="report", job="x" * 100, incarnation=1, number=1, version=0, batches=1, busy=1.0), "invalid job"),
        (event(kind="report", job="x", incarnation=1, number=1, version=0, batches=1, busy=1.0,
               cells=[[k, k, 0.5] for k in range(1001)]), "a report must have at most 1,000 cells, got 1,001"),
        (request("event", event="[" * 1000), "nested too deeply (limit 50)"),
        (request("event", event={"kind": "close"}), "an event must be a text of JSON, got dict"),
        (request("join", job=spec(target={"metric": "m" * MB, "at_most": 1.0, "at_least": None})["job"] | {
            "can": ["hold"]}, device="cpu", incarnation=None), "target: metric: expected at most 8,192 characters"),
        (request("prepare", specs=[{}], after=1), "1 specs must have been prepared before these, got 0"),
        (request("prepare", specs=[1] * 1001), "a launch must have at most 1,000 jobs"),
    ],
)  # fmt: skip
def test_a_request_beyond_its_limits_is_refused(pool: Pool, line: bytes, words: str) -> None:
    [answer] = say(pool.path, line)
    assert words in answer["refused"]
    assert len(answer["refused"]) < 3000
    assert answer["id"] in (None, 1)


def test_a_line_that_is_too_long_is_refused_and_the_connection_closed(pool: Pool) -> None:
    with connected(pool.path) as connection:
        with pytest.raises(OSError, match=r"pipe|reset"):
            connection.sendall(b"x" * (MAX_LINE_BYTES + MB))
        assert json.loads(connection.recv(MB)) == {"id": None, "refused": "a request must be at most 1,114,112 bytes"}
        assert hangs_up(connection)


def test_brackets_in_texts_are_no_levels() -> None:
    text = json.dumps({"a": "[" * 1000 + '\\"' + "{" * 1000, "b": [1, "\\"]})
    assert json_limits.loads(text) == json.loads(text)
    deep = json.dumps(["[" * 100, *json.loads("[" * 49 + "]" * 49)])
    assert json_limits.loads(deep) == json.loads(deep)
    with pytest.raises(ValueError, match="nested too deeply"):
        json_limits.loads('["' + "\\\\" * 40 + '",' + "[" * 50 + "]" * 51)
    with pytest.raises(ValueError, match="Invalid"):
        json_limits.loads('"' + "\\" + "[" * 60)  # a text that never ends


@pytest.mark.parametrize("text", ['"' * MB, '\\"' * (MB // 2), '"\\' * (MB // 2), "[" * MB, '{"a":' * (MB // 5)])
def test_hostile_texts_are_refused_in_linear_time(text: str) -> None:
    """Quadratic time would take hours."""
    with pytest.raises(ValueError, match=r"too many|nested|Expecting|Extra|Unterminated|delimiter"):
        json_limits.loads(text)


# ---------------------------------------------------------------------------------------------------- a launch


def test_a_large_launch_is_sent_in_parts_and_submitted_at_once(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    call = SocketClient.call

    def spied(client: SocketClient, name: str, *rest: Any, **args: Any) -> Any:
        sent.append(name)
        return call(client, name, *rest, **args)

    monkeypatch.setattr(SocketClient, "call", spied)
    monkeypatch.setattr(socket_client, "PART_BYTES", 2000)
    client = SocketClient(pool.path)
    client.launch([spec(f"job{k}") | {"config": {"a": "b" * 500}} for k in range(10)])
    assert sent == ["prepare"] * 4 + ["launch"]
    assert len(client.status()[1]) == 10
    with pytest.raises(JoinRefusedError, match="the name 'job0' is taken"):
        client.launch([spec("job0"), *(spec(f"new{k}") | {"config": {"a": "b" * 500}} for k in range(10))])
    assert len(client.status()[1]) == 10  # none of them
    client.launch([spec("again")])  # nothing is left of the one that was refused
    client.launch([])
    assert [job.submitted_at for job in client.status()[1][:10]] == [client.status()[1][0].submitted_at] * 10
    client.close()


def test_a_launch_that_holds_too_much_is_refused(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_LAUNCH_BYTES", 100_000)
    line = request("prepare", specs=[{"a": "b" * 60_000}], after=0)
    again = request("prepare", specs=[{"a": "b" * 60_000}], after=1)
    first, second = say(pool.path, line, again, answers=2)
    assert first["value"] is None
    assert "a launch must have at most 1,000 jobs and 100,000 bytes, got 2 and 12" in second["refused"]


# ---------------------------------------------------------------------------------------------------- connections


def test_a_connection_that_never_makes_a_valid_request_is_closed(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PROOF_TIMEOUT", 2.0)
    with connected(pool.path) as silent, connected(pool.path) as wrong, connected(pool.path) as valid:
        wrong.sendall(b"{}\n")
        valid.sendall(request("about"))
        assert b"value" in valid.recv(MB)
        assert hangs_up(silent)
        assert hangs_up(wrong)
        valid.sendall(request("about"))
        assert b"value" in valid.recv(MB)


def test_a_request_that_is_never_complete_is_not_waited_for(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LINE_TIMEOUT", 0.3)
    with connected(pool.path) as slow:
        slow.sendall(request("about") + b'{"id"')
        assert b"value" in slow.recv(MB)
        try:
            for _ in range(20):
                slow.sendall(b" ")
                time.sleep(0.1)
        except OSError:
            pass
        assert hangs_up(slow)


class Transport:
    """A transport that only notes whether it was aborted."""

    def __init__(self, unread: int = 0) -> None:
        self.aborted, self.unread = False, unread

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return 0 if self.aborted else self.unread


def admitted(room: Connections, pid: int, now: float = 0.0, unread: int = 0) -> tuple[Any, Transport]:
    transport = Transport(unread)
    return room.admit(Peer(pid, POOL), transport, now), transport  # type: ignore[arg-type]


def test_the_process_with_most_connections_makes_room_for_another() -> None:
    room = Connections(4)
    crowd = [admitted(room, 7, now) for now in (3.0, 1.0, 2.0, 4.0)]
    assert admitted(room, 7)[0] is None  # not for itself
    newcomer, _ = admitted(room, 8)
    assert newcomer.number == 5
    assert [transport.aborted for _, transport in crowd] == [False, True, False, False]  # the least recently used
    assert admitted(room, 9)[0] is not None
    assert admitted(room, 8)[0] is None  # no process has two more than it
    assert len(room) == 4


def test_processes_that_are_not_visible_are_counted_apart() -> None:
    room = Connections(2)
    assert [admitted(room, 0)[0] is not None for _ in range(3)] == [True, True, False]


@pytest.mark.promise("R17", "F13")
def test_calls_are_delayed_beyond_a_rate_for_all_connections_of_a_process() -> None:
    room = Connections()
    (one, _), (two, _), (other, _) = (admitted(room, pid) for pid in (7, 7, 8))
    delays = [room.delay(one if k % 2 else two, 0, 10.0) for k in range(1200)]
    assert delays[:1000] == [0.0] * 1000
    assert delays[-1] == pytest.approx(2.0)
    assert room.delay(other, 0, 10.0) == 0.0
    room.drop(one)
    room.drop(two)
    (back, _), _ = admitted(room, 7, 10.5), admitted(room, 8, 10.5)
    assert room.delay(back, 0, 10.5) == pytest.approx(1.51)  # to connect again does not help
    assert room.delay(back, 0, 60.0) == 0.0
    assert room.delay(other, MB, 10.0) == 0.0  # a large request counts as many
    assert room.delay(other, 32 * MB, 10.0) > 30.0
    with pytest.raises(ValueError, match="too many requests: more than 100 per second"):
        room.delay(other, 0, 10.0)
    assert room.delay(other, 0, 20.0) > 20.0


def test_the_process_that_holds_most_is_disconnected_where_memory_is_short() -> None:
    room = Connections()
    hoard = [admitted(room, 7, unread=MAX_HELD_BYTES // 8) for _ in range(8)]
    (honest, kept) = admitted(room, 8)
    honest.unfinished = 2 * MB
    hoard[3][0].prepared = 3 * MB
    room.limit_memory(MAX_HELD_BYTES + 5 * MB)
    assert [transport.aborted for _, transport in hoard] == [k == 3 for k in range(8)]
    assert not kept.aborted
    hoard[4][0].prepared = 20 * MB
    room.limit_memory(20 * MB)  # what is held counts, however much came and went before
    assert [transport.aborted for _, transport in hoard] == [k in (3, 4) for k in range(8)]


@pytest.mark.promise("S16")
def test_unfinished_lines_hold_no_more_than_the_budget(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_HELD_BYTES", 4 * MB)
    honest = SocketClient(pool.path)
    honest.about()
    tracemalloc.start()
    try:
        with ExitStack() as stack:
            for _ in range(30):
                connection = stack.enter_context(connected(pool.path))
                connection.settimeout(2)
                with suppress(OSError):
                    connection.sendall(b"x" * MB)
            assert honest.about()["devices"] == ["cpu0"]
            assert tracemalloc.get_traced_memory()[1] < 30 * MB
    finally:
        tracemalloc.stop()
    honest.close()


def test_answers_that_are_not_read_are_dropped(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_HELD_BYTES", 2 * MB)

    async def about() -> dict[str, str]:
        return {"folder": "x" * MB}

    monkeypatch.setattr(pool.actor, "about", about)
    with connected(pool.path) as flood:
        flood.sendall(request("about") * 8)
        until(lambda: not len(pool.actor._server._connections))  # type: ignore[union-attr]  # it has one


def test_when_there_is_no_room_a_newcomer_is_told_so(pool: Pool) -> None:
    assert pool.actor._server is not None
    pool.actor._server._connections._max = 1
    first, second = SocketClient(pool.path), SocketClient(pool.path)
    first.about()
    with pytest.raises(ConnectionError, match="the pool's server has 1 connections, which is its limit; try again"):
        second.about()
    assert first.about()["devices"] == ["cpu0"]
    first.close()
    until(lambda: not len(pool.actor._server._connections))  # type: ignore[union-attr]  # it has one
    assert second.about()["devices"] == ["cpu0"]
    second.close()


def test_a_burst_of_connections_is_taken_in_when_the_server_s_loop_is_free_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()
    pool.loop.call_soon_threadsafe(held.wait)
    told: list[bool] = []

    def ask() -> None:
        client = SocketClient(pool.path)
        told.append(client.about()["devices"] == ["cpu0"])
        client.close()

    threads = [threading.Thread(target=ask) for _ in range(300)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    held.set()
    for thread in threads:
        thread.join()
    assert told == [True] * 300


def test_a_full_backlog_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_sockets, "BACKLOG", 1)
    with unix_sockets.listen(tmp_path / "s") as listener, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(unix_sockets.connect(tmp_path / "s", 0.05))
        with pytest.raises(BlockingIOError):
            unix_sockets.connect(tmp_path / "s", 0.05)
        threading.Timer(0.2, listener.accept).start()
        unix_sockets.connect(tmp_path / "s", 10.0).close()
    with pytest.raises(ConnectionRefusedError):
        unix_sockets.connect(tmp_path / "s", 10.0)


# ---------------------------------------------------------------------------------------------------- status


def test_a_status_is_made_once_for_all_who_ask_at_the_same_time(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    status = Scheduler.status

    def counted(scheduler: Scheduler) -> Any:
        made.append(1)
        return status(scheduler)

    monkeypatch.setattr(Scheduler, "status", counted)
    client = SocketClient(pool.path)
    client.launch([spec(f"job{k}") for k in range(60)])
    held = threading.Event()
    with ExitStack() as stack:
        askers = [stack.enter_context(connected(pool.path)) for _ in range(20)]
        pool.loop.call_soon_threadsafe(held.wait)
        for asker in askers:
            asker.sendall(request("status"))
        held.set()
        told = [json.loads(asker.makefile("rb").readline())["value"] for asker in askers]
    assert all(len(jobs) == 60 for _, jobs in told)
    assert len(made) <= 3  # and the scheduler was woken in between
    client.close()


def test_a_status_knows_what_was_acknowledged_before_it_was_asked_for(pool: Pool) -> None:
    client = SocketClient(pool.path)
    for k in range(20):
        client.launch([spec(f"job{k}")])
        assert len(client.status()[1]) == k + 1
    client.close()


# ---------------------------------------------------------------------------------------------------- hostile clients

ATTACK = """
import json, socket, sys, time
path, kind, protocol = sys.argv[1], sys.argv[2], int(sys.argv[3])
def call(name, **args): return json.dumps({"id": 1, "protocol": protocol, "call": name, "args": args}).encode() + b"\\n"
lines = {
    "lists": b'{"id":1,"a":[' + b"[]," * 340_000 + b"[]]}\\n",
    "texts": b'{"id":1,"a":[' + b'"",' * 90_000 + b'""]}\\n',
    "long": b"x" * 15 * 2**20,
    "strangers": b"".join(
        call("event", event=json.dumps({"kind": "report", "job": "x", "incarnation": 1, "number": 1, "version": 0,
                                        "batches": 1, "busy": 1.0})) for _ in range(8)),
    "status": call("status") * 8,
    "specs": call("prepare", specs=[[0] * 40_000]),
}
print("up", flush=True)
while True:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        try:
            one.connect(path)
            for _ in range(20):
                one.sendall(lines[kind])
                if kind != "long":
                    one.recv(2**16)
        except OSError:
            time.sleep(0.001)
"""


@contextmanager
def attacked(path: Path, kinds: list[str]) -> Iterator[None]:
    line = [sys.executable, "-c", ATTACK, str(path)]
    attackers = [subprocess.Popen([*line, kind, str(PROTOCOL)], stdout=subprocess.PIPE, cwd=ROOT) for kind in kinds]
    try:
        for attacker in attackers:
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == b"up\n"
        yield
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.wait()
            assert attacker.stdout is not None
            attacker.stdout.close()


def honest_calls(path: Path, seconds: float, name: str = "honest") -> float:
    """Join, report and ask all the time; return the longest time that a call took, in seconds."""
    client = SocketClient(path)
    job = Job(name, 600.0, BatchTarget(10**9), can=frozenset({Capability.TIME_SLICE, Capability.HOLD}))
    worst, end, number = 0.0, time.monotonic() + seconds, 0

    def timed(call: Callable[[], object]) -> object:
        nonlocal worst
        began = time.monotonic()
        answer = call()
        worst = max(worst, time.monotonic() - began)
        return answer

    timed(lambda: client.join(job, "cpu"))
    while time.monotonic() < end:
        number += 1
        cells = (Cell(number, 5 * number, 0.5),)
        answer = timed(partial(client.report, Report(name, 1, number, 0, 5 * number, 0.1 * number, cells)))
        assert isinstance(answer, Grant)
        assert timed(lambda: client.job_forecast(name)) is not None
        assert timed(client.status)
        time.sleep(0.02)
    client.close()
    return worst


def stands(pool: Pool, kinds: list[str], seconds: float) -> float:
    """Attack a pool and return the longest honest call."""
    calm = honest_calls(pool.path, 0.5, "calm")
    with attacked(pool.path, kinds):
        worst = honest_calls(pool.path, seconds)
    assert worst < max(MAX_SECONDS, MAX_TIMES * calm)
    return worst


@pytest.mark.promise("S16", "R17", "F13")
def test_hostile_clients_do_not_make_another_wait(pool: Pool, record_property: Callable[[str, object], None]) -> None:
    tracemalloc.start()
    try:
        worst = stands(pool, ["lists", "strangers"], 1.0)
        assert tracemalloc.get_traced_memory()[1] < MAX_HELD_BYTES
    finally:
        tracemalloc.stop()
    record_property("figure", f"longest call beside two hostile clients: {worst:.2f} s")


@pytest.mark.nightly
@pytest.mark.promise("S16")
def test_many_hostile_clients_do_not_make_another_wait(
    pool: Pool, record_property: Callable[[str, object], None]
) -> None:
    SocketClient(pool.path).launch([spec(f"job{k}") for k in range(500)])
    kinds = ["lists", "texts", "long", "strangers", "status", "specs"]
    worst = stands(pool, [*kinds, *kinds], 20.0)
    record_property("figure", f"longest call beside twelve hostile clients: {worst:.2f} s")


FLOOD = """
import json, socket, sys, threading, time
path, protocol, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
def call(name, **args): return json.dumps({"id": 1, "protocol": protocol, "call": name, "args": args}).encode() + b"\\n"
def report(number): return call("event", event=json.dumps({"kind": "report", "job": "flood", "incarnation": 1,
                                                           "number": number, "version": 0, "batches": 1, "busy": 1.0}))
lock, numbers, answered = threading.Lock(), iter(range(1, 10**9)), []
def flood(until):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
        lines, waiting = one.makefile("rb"), 0
        try:
            while (left := until - time.monotonic()) > 0:
                one.settimeout(left)
                while waiting < 15:
                    with lock:
                        one.sendall(report(next(numbers)))
                    waiting += 1
                answered.append(lines.readline())
                waiting -= 1
        except OSError:
            pass
until = time.monotonic() + seconds
threads = [threading.Thread(target=flood, args=(until,)) for _ in range(8)]
for thread in threads: thread.start()
print("up", flush=True)
for thread in threads: thread.join()
print(sum(b"value" in line for line in answered), flush=True)
"""


@pytest.mark.promise("F13")
def test_a_client_that_reports_a_thousand_times_too_much_slows_no_other_client(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """It is answered as often as its process may call, and the others at once: reports, and decisions about them."""
    monkeypatch.setattr(connections, "MAX_BURST", 50.0)
    calm = honest_calls(pool.path, 0.5, "calm")
    seconds, flood = 3.0, Job("flood", 600.0, BatchTarget(10**9), can=frozenset({Capability.HOLD}))
    SocketClient(pool.path).join(flood, "cpu")
    pool.actor._sessions.reporters.clear()  # its connections are those of the flood
    monkeypatch.setattr(pool.actor._sessions, "check_reporter", lambda *_: None)
    command = [sys.executable, "-c", FLOOD, str(pool.path), str(PROTOCOL), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flooding:
        assert flooding.stdout is not None
        assert flooding.stdout.readline() == "up\n"
        worst = honest_calls(pool.path, seconds - 0.5)
        taken = int(flooding.stdout.readline())
    assert worst < max(MAX_SECONDS, MAX_TIMES * calm)
    assert 50 <= taken < 50 + 100 * (seconds + 2.0)
    record_property("figure", f"beside 8 x 15 reports at a time, of which {taken / seconds:.0f} a second are taken, "
                              f"the longest call of another client took {worst:.2f} s")  # fmt: skip


@pytest.mark.promise("R22")
def test_connections_are_forgotten(pool: Pool) -> None:
    client = SocketClient(pool.path)
    client.about()
    assert pool.actor._server is not None
    room = pool.actor._server._connections
    assert len(room) == 1
    client.close()
    until(lambda: not len(room))
    until(lambda: len(asyncio.all_tasks(pool.loop)) <= 3)
