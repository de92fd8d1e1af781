"""The device arbiter: one holder at a time, in proportion to shares, also when processes die or hang."""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_core.core.protocols import DeviceLock
from lightning_core.node import arbiter_client, device_arbiter
from lightning_core.node.arbiter_client import STOPPED_AFTER, ArbiterClient, signs_file
from lightning_core.node.device_arbiter import DeviceArbiter
from tests.waiting import until


@pytest.fixture
def arbiter(tmp_path: Path) -> Iterator[DeviceArbiter]:
    made = DeviceArbiter(tmp_path / "t", hang_timeout=1e9)
    yield made
    made.close()


def next_holder(*waiting: tuple[ArbiterClient, float]) -> ArbiterClient:
    """Return the one of some clients, each with its share, that gets the next quantum."""
    return until(lambda: next((client for client, share in waiting if client.acquire(share, 0.0)), None))  # type: ignore[no-any-return]


def test_a_process_alone_never_waits(arbiter: DeviceArbiter) -> None:
    client = ArbiterClient(arbiter.path, quantum=0.0)
    assert isinstance(client, DeviceLock)
    assert client.acquire(0.1, 60.0)
    time.sleep(0.05)
    assert client.held
    assert not client.expired()
    client.close()


def test_a_second_process_waits_for_the_first(arbiter: DeviceArbiter) -> None:
    first, second = (ArbiterClient(arbiter.path, quantum=0.0) for _ in range(2))
    assert first.acquire(0.5, 60.0)
    assert not second.acquire(0.5, 0.05)
    until(first.expired)
    first.release(again=True, share=0.5)
    assert second.acquire(0.5, 60.0)
    assert not first.acquire(0.5, 0.05)
    second.release(again=False)
    assert first.acquire(0.5, 60.0)
    assert not first.expired()
    first.close()
    second.close()


def test_a_withdrawn_request_leaves_no_quantum_behind(arbiter: DeviceArbiter) -> None:
    """A grant that arrives while its request is withdrawn must not answer a later request."""
    first, second = (ArbiterClient(arbiter.path) for _ in range(2))
    assert first.acquire(0.5, 60.0)
    assert not second.acquire(0.5, 0.01)
    first.release(again=False)  # the grant is on its way to second ...
    time.sleep(0.1)
    second.release(again=False)  # ... which no longer wants it
    assert first.acquire(0.5, 60.0)
    assert not second.acquire(0.5, 0.1)
    first.close()
    second.close()


def test_a_quantum_is_charged_at_the_share_at_which_it_began(arbiter: DeviceArbiter) -> None:
    """A job that is held releases the device with share 0; that must not starve it later."""
    held, other = (ArbiterClient(arbiter.path, quantum=0.0) for _ in range(2))
    assert held.acquire(0.5, 60.0)
    assert not other.acquire(0.5, 0.1)
    held.release(again=False, share=0.0)
    assert other.acquire(0.5, 60.0)
    assert not held.acquire(0.5, 0.01)
    start = time.monotonic()
    while not held.held:
        time.sleep(0.01)
        other.release(again=True, share=0.5)
        next_holder((held, 0.5), (other, 0.5))
    assert time.monotonic() - start < 20.0  # a tenth of a second at the least share would be a hundred
    held.close()
    other.close()


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.7, 0.2, 0.1)])
def test_quanta_are_proportional_to_shares(
    arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch, shares: tuple[float, ...]
) -> None:
    """Clients that do nothing but take quanta, which begin and end as the test says; never two at once."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(device_arbiter, "time", SimpleNamespace(monotonic=lambda: clock.now))
    clients = [ArbiterClient(arbiter.path) for _ in shares]
    held = dict.fromkeys(clients, 0.0)
    holder, *others = clients
    assert holder.acquire(shares[0], 60.0)
    for client, share in zip(others, shares[1:], strict=True):
        assert not client.acquire(share, 0.0)
    until(lambda: len(arbiter._waiters()) == len(others))
    for _ in range(200):
        assert not any(
            client.acquire(share, 0.0) for client, share in zip(clients, shares, strict=True) if client is not holder
        )
        clock.now += 0.01
        held[holder] += 0.01
        holder.release(again=True, share=shares[clients.index(holder)])
        holder = next_holder(*zip(clients, shares, strict=True))
    for client, share in zip(clients, shares, strict=True):
        assert held[client] / sum(held.values()) == pytest.approx(share, abs=0.02)
        client.close()


@pytest.mark.parametrize("share", [math.inf, 1e308])
def test_a_share_beyond_one_does_not_starve_others(arbiter: DeviceArbiter, share: float) -> None:
    """Time divided by a share without bound costs nothing."""
    hostile, other = (ArbiterClient(arbiter.path, quantum=0.0) for _ in range(2))
    assert hostile.acquire(share, 60.0)
    assert not other.acquire(0.5, 0.05)
    for _ in range(20):
        hostile.release(again=True, share=share)
        if next_holder((hostile, share), (other, 0.5)) is other:
            break
        time.sleep(0.02)
    assert other.held
    hostile.close()
    other.close()


def test_a_process_has_a_limited_number_of_connections(arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_arbiter, "MAX_CONNECTIONS_PER_PROCESS", 3)
    clients = [ArbiterClient(arbiter.path) for _ in range(5)]
    until(lambda: len(arbiter._processes) >= 3)
    time.sleep(0.1)
    assert len(arbiter._processes) == 3
    assert clients[4].acquire(0.5, 60.0)  # it trains without time slicing
    for client in clients:
        client.close()


HOLD = """
import sys, time
from pathlib import Path
from lightning_core.node.arbiter_client import ArbiterClient
client = ArbiterClient(Path(sys.argv[1]))
client.acquire(0.5, 60.0)
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_hung_holder_does_not_stop_the_others(arbiter: DeviceArbiter, fault: signal.Signals) -> None:
    arbiter._hang_timeout = 0.5 if fault == signal.SIGSTOP else 1e9
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(arbiter.path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        client = ArbiterClient(arbiter.path)
        assert not client.acquire(0.5, 0.05)
        os.kill(process.pid, fault)
        assert client.acquire(0.5, 60.0)
        client.close()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_training_goes_on_without_an_arbiter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arbiter = DeviceArbiter(tmp_path / "t")
    client = ArbiterClient(arbiter.path, quantum=0.0)
    assert client.acquire(0.5, 1.0)
    arbiter.close()
    client.release(again=True, share=0.5)
    assert client.acquire(0.5, 1.0)
    assert not client.expired()
    assert "training continues without turns" in caplog.text
    client.close()
    never = ArbiterClient(tmp_path / "nowhere")
    assert never.acquire(0.5, 1.0)


ARBITER = """
import sys, time
from pathlib import Path
from lightning_core.node.device_arbiter import DeviceArbiter
arbiter = DeviceArbiter(Path(sys.argv[1]), hang_timeout=1e9)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """An arbiter in a process of its own, at ``tmp_path / "t"``."""
    command = [sys.executable, "-c", ARBITER, str(tmp_path / "t")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.promise("F35")
def test_training_goes_on_while_the_arbiter_is_stopped_and_takes_turns_again_after_it(
    apart: subprocess.Popen[str], tmp_path: Path
) -> None:
    said: list[str] = []
    first, second = (ArbiterClient(tmp_path / "t", quantum=0.0, tell=said.append) for _ in range(2))
    assert first.acquire(0.5, 60.0)
    assert not second.acquire(0.5, 0.05)
    os.kill(apart.pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{apart.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    for _ in range(2):  # once it is known, no job waits for it any more
        for client in (first, second):
            began = time.monotonic()
            until(lambda one=client: one.acquire(0.5, 1.0), STOPPED_AFTER + 10.0)  # type: ignore[misc]
            waited = time.monotonic() - began
            client.release(again=True, share=0.5)
    assert waited < 0.5
    assert sum("has stopped" in words for words in said) == 2
    for client in (first, second):
        assert client.acquire(0.5, 1.0)
    os.kill(apart.pid, signal.SIGCONT)
    for client in (first, second):
        until(client.expired)  # neither keeps what it has taken meanwhile
        client.release(again=True, share=0.5)
    assert next_holder((first, 0.5), (second, 0.5)) in (first, second)
    assert first.held != second.held
    assert sum("arbiter works again" in words for words in said) == 2


@pytest.mark.promise("F35")
def test_a_long_turn_of_another_job_is_no_sign_that_the_arbiter_has_stopped(arbiter: DeviceArbiter) -> None:
    said: list[str] = []
    first, second = (ArbiterClient(arbiter.path, tell=said.append) for _ in range(2))
    assert first.acquire(0.5, 60.0)
    assert not second.acquire(0.5, 1.5 * STOPPED_AFTER)
    assert said == []


def test_time_in_which_this_process_stood_still_says_nothing_of_the_arbiter(
    arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    client = ArbiterClient(arbiter.path, quantum=0.0, tell=said.append)
    assert client.acquire(0.5, 60.0)
    arbiter._show = lambda: None  # type: ignore[method-assign]
    for later in (1e3, 2e3):
        monkeypatch.setattr(arbiter_client, "time", SimpleNamespace(monotonic=lambda at=later: at))
        client.expired()
    assert said == []


def test_an_arbiter_that_is_started_again_does_not_shorten_the_file_that_others_read(tmp_path: Path) -> None:
    """To read what was cut off kills a process."""
    first = DeviceArbiter(tmp_path / "t")
    client = ArbiterClient(tmp_path / "t")
    assert client.acquire(0.5, 60.0)
    before = signs_file(tmp_path / "t").stat().st_ino
    second = DeviceArbiter(tmp_path / "t")
    assert signs_file(tmp_path / "t").stat().st_ino != before
    assert not client.expired()
    for one in (first, second):
        one.close()


def test_a_process_may_have_more_files_than_select_knows(arbiter: DeviceArbiter) -> None:
    kept, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, most), most))
    files = [open(os.devnull) for _ in range(1100)]  # noqa: SIM115
    try:
        client = ArbiterClient(arbiter.path)
        assert client._socket is not None
        assert client._socket.fileno() > 1024
        assert client.acquire(0.5, 60.0)
        client.close()
    finally:
        for file in files:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (kept, most))


def test_only_the_user_can_connect(arbiter: DeviceArbiter) -> None:
    assert arbiter.path.stat().st_mode & 0o077 == 0
