"""The device arbiter: one holder at a time, in proportion to shares, also when processes die or hang."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.core.protocols import DeviceLock
from lightning_core.node import device_arbiter
from lightning_core.node.arbiter_client import ArbiterClient
from lightning_core.node.device_arbiter import DeviceArbiter


@pytest.fixture
def arbiter(tmp_path: Path) -> Iterator[DeviceArbiter]:
    made = DeviceArbiter(tmp_path / "t", hang_timeout=0.5)
    yield made
    made.close()


def test_a_process_alone_never_waits(arbiter: DeviceArbiter) -> None:
    client = ArbiterClient(arbiter.path, quantum=0.0)
    assert isinstance(client, DeviceLock)
    assert client.acquire(0.1, 5.0)
    time.sleep(0.05)
    assert client.held
    assert not client.expired()
    client.close()


def test_a_second_process_waits_for_the_first(arbiter: DeviceArbiter) -> None:
    first, second = (ArbiterClient(arbiter.path, quantum=0.0) for _ in range(2))
    assert first.acquire(0.5, 5.0)
    assert not second.acquire(0.5, 0.05)
    assert first.expired()
    first.release(again=True, share=0.5)
    assert second.acquire(0.5, 5.0)
    assert not first.acquire(0.5, 0.05)
    second.release(again=False)
    assert first.acquire(0.5, 5.0)
    assert not first.expired()
    first.close()
    second.close()


def test_a_withdrawn_request_leaves_no_quantum_behind(arbiter: DeviceArbiter) -> None:
    """A grant that arrives while its request is withdrawn must not answer a later request."""
    first, second = (ArbiterClient(arbiter.path) for _ in range(2))
    assert first.acquire(0.5, 5.0)
    assert not second.acquire(0.5, 0.01)
    first.release(again=False)  # the grant is on its way to second ...
    time.sleep(0.1)
    second.release(again=False)  # ... which no longer wants it
    assert first.acquire(0.5, 5.0)
    assert not second.acquire(0.5, 0.1)
    first.close()
    second.close()


def test_a_quantum_is_charged_at_the_share_at_which_it_began(arbiter: DeviceArbiter) -> None:
    """A job that is held releases the device with share 0; that must not starve it later."""
    held, other = (ArbiterClient(arbiter.path, quantum=0.0) for _ in range(2))
    assert held.acquire(0.5, 5.0)
    assert not other.acquire(0.5, 0.1)
    held.release(again=False, share=0.0)
    assert other.acquire(0.5, 5.0)
    assert not held.acquire(0.5, 0.01)
    start = time.monotonic()
    while not held.held:
        time.sleep(0.01)
        other.release(again=True, share=0.5)
        assert held.acquire(0.5, 0.001) or other.acquire(0.5, 5.0)
    assert time.monotonic() - start < 1.0
    held.close()
    other.close()


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.7, 0.2, 0.1)])
def test_quanta_are_proportional_to_shares(arbiter: DeviceArbiter, shares: tuple[float, ...]) -> None:
    """Time held, over a second, by threads that do nothing but take quanta; never two at once."""
    held = [0.0] * len(shares)
    inside: list[int] = []
    overlaps: list[int] = []
    end = time.monotonic() + 2.0

    def take_turns(k: int) -> None:
        client = ArbiterClient(arbiter.path, quantum=0.01)
        while time.monotonic() < end:
            if client.acquire(shares[k], 1.0):
                start = time.monotonic()
                inside.append(k)
                if len(inside) > 1:
                    overlaps.append(k)
                while not client.expired() and time.monotonic() < end:
                    time.sleep(0.001)
                inside.remove(k)
                held[k] += time.monotonic() - start
                client.release(again=True, share=shares[k])
        client.close()

    threads = [threading.Thread(target=take_turns, args=(k,)) for k in range(len(shares))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not overlaps
    for seconds, share in zip(held, shares, strict=True):
        assert seconds / sum(held) == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize("share", [math.inf, 1e308])
def test_a_share_beyond_one_does_not_starve_others(arbiter: DeviceArbiter, share: float) -> None:
    """Time divided by a share without bound costs nothing."""
    hostile, other = (ArbiterClient(arbiter.path, quantum=0.0) for _ in range(2))
    assert hostile.acquire(share, 5.0)
    assert not other.acquire(0.5, 0.05)
    for _ in range(20):
        hostile.release(again=True, share=share)
        if other.acquire(0.5, 0.05):
            break
        assert hostile.acquire(share, 5.0)
        time.sleep(0.02)
    assert other.held
    hostile.close()
    other.close()


def test_a_process_has_a_limited_number_of_connections(arbiter: DeviceArbiter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_arbiter, "MAX_CONNECTIONS_PER_PROCESS", 3)
    clients = [ArbiterClient(arbiter.path) for _ in range(5)]
    time.sleep(0.1)
    assert len(arbiter._processes) == 3
    assert clients[4].acquire(0.5, 5.0)  # it trains without time slicing
    for client in clients:
        client.close()


HOLD = """
import sys, time
from pathlib import Path
from lightning_core.node.arbiter_client import ArbiterClient
client = ArbiterClient(Path(sys.argv[1]))
client.acquire(0.5, 5.0)
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_hung_holder_does_not_stop_the_others(arbiter: DeviceArbiter, fault: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(arbiter.path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        client = ArbiterClient(arbiter.path)
        assert not client.acquire(0.5, 0.05)
        os.kill(process.pid, fault)
        assert client.acquire(0.5, 5.0)
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
    assert "training continues without time slicing" in caplog.text
    client.close()
    never = ArbiterClient(tmp_path / "nowhere")
    assert never.acquire(0.5, 1.0)


def test_only_the_user_can_connect(arbiter: DeviceArbiter) -> None:
    assert arbiter.path.stat().st_mode & 0o077 == 0
