"""A wrong address or token is reported within seconds, and the script trains without a pool."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_core.agent.reporting import joining
from lightning_core.cli.main import main
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.server import discovery, probe
from tests.conftest import ROOT
from tests.waiting import PATIENCE, until

TOKEN = {"RAY_AUTH_TOKEN": "0" * 64}
# The first frame of a server of HTTP/2.
HELLO = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def answering(listener: socket.socket, words: bytes) -> str:
    """Return the address of a listener that answers the first connection with given bytes and closes it."""

    def serve() -> None:
        line, _ = listener.accept()
        with line:
            line.recv(100)
            line.sendall(words)

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_ray_is_recognised_by_its_first_frame(listener: socket.socket) -> None:
    probe.check(answering(listener, HELLO), TOKEN)


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b""])
def test_another_program_listens_at_the_address(words: bytes, listener: socket.socket) -> None:
    with pytest.raises(
        probe.PoolUnavailableError,
        match=r"the program that listens there is not Ray; is this the address of the Ray that `",
    ):
        probe.check(answering(listener, words), TOKEN)


def test_a_silent_listener_times_out(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "ANSWER_TIMEOUT", 0.2)
    with pytest.raises(ConnectionError, match="no answer within 0 s") as caught:
        probe.check(f"127.0.0.1:{listener.getsockname()[1]}", TOKEN)
    assert not isinstance(caught.value, probe.PoolUnavailableError)  # it may be a Ray in trouble: scripts look again


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (
            "127.0.0.1:1",
            "nothing listens there; is the pool up, and is this the address of the Ray",
        ),
        ("127.0.0.1:99999", "a port must be 1 to 65535, got 99999"),
        ("nowhere.invalid:6379", "there is no machine named nowhere.invalid"),
    ],
)
def test_an_address_without_a_listener(
    address: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    assert main(["status", "--pool", address]) == 2
    assert capsys.readouterr().err.startswith(f"error: {address}: {words}")
    assert not discovery._proxies


def test_no_token_to_show(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    (tmp_path / "empty").write_text("\n")
    for environment, words in (
        (
            home,
            "RAY_AUTH_TOKEN is not set; `lightning-core up` printed the path of the token's file on the pool's machine",
        ),
        (home | {"RAY_AUTH_TOKEN_PATH": "/nowhere/token"}, "/nowhere/token does not exist"),
        (home | {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "empty")}, "empty is empty"),
        (home | {"RAY_AUTH_TOKEN_PATH": str(tmp_path)}, "cannot be read: Is a directory"),
    ):
        with pytest.raises(probe.PoolUnavailableError, match=words):
            probe.check("127.0.0.1:1", environment)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("0" * 64)
    assert probe.token_source("x:1", home) == str(tmp_path / ".ray" / "auth_token")
    with pytest.raises(ConnectionError, match="nothing listens"):
        probe.check("127.0.0.1:1", home)


def test_without_ray_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "find_spec", lambda name: None)
    with pytest.raises(
        probe.PoolUnavailableError, match=r"run pip install -c constraints.txt '\.\[ray\]' in the clone"
    ):
        probe.check("127.0.0.1:1", TOKEN)


@pytest.mark.parametrize("ours", ["127.0.0.1", "::1"])
def test_a_machine_that_is_no_node_is_told_how_to_become_one(ours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray ends a process that joins from there."""
    nodes = {1: SimpleNamespace(node_manager_address="198.51.100.1", state=probe.ALIVE),
             2: SimpleNamespace(node_manager_address=ours, state=probe.ALIVE + 1)}  # fmt: skip
    there = SimpleNamespace(get_all_node_info=lambda timeout: nodes)
    monkeypatch.setattr("ray._raylet.GcsClient", lambda address: there)
    with pytest.raises(
        probe.PoolUnavailableError, match="no node of that Ray: run `ray start --address=x:1 --num-cpus=0"
    ):
        probe.ask("x:1", TOKEN)
    nodes[2].state = probe.ALIVE
    probe.ask("x:1", TOKEN)


def test_why_a_proxy_ended() -> None:
    told = discovery._why_ended("x:1", probe.UNUSABLE, "a warning\nx:1: no")
    assert (type(told), str(told)) == (probe.PoolUnavailableError, "x:1: no")
    told = discovery._why_ended("x:1", probe.UNREACHABLE, "x:1: not yet")
    assert (type(told), str(told)) == (ConnectionError, "x:1: not yet")
    told = discovery._why_ended("x:1", -6, "C 1: Failed to connect\n*** StackTrace Information ***\n_start")
    assert str(told).endswith("the process that joins its Ray ended (C 1: Failed to connect)")


# ---------------------------------------------------------------------------------------------------- scripts

JOB = Job("a", 60.0, BatchTarget(1000))


def test_a_script_that_can_never_join_trains_without_the_pool(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("HOME", str(tmp_path))
    join = joining.Join(JOB, "127.0.0.1:1", "cpu")
    assert not join().is_fallback
    assert not join().is_fallback
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith("a: training without the pool: 127.0.0.1:1: there is no token to show to the pool: RAY_AUTH")


def test_a_local_scheduler_stands_in_for_a_pool_that_is_not_up_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    join = joining.Join(JOB, "127.0.0.1:1", "cpu")
    with pytest.raises(ConnectionError, match="nothing listens there"):
        join()
    monkeypatch.setattr(joining, "POOL_TIMEOUT", 0.0)
    assert join().is_fallback


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_wrong_token_is_reported_before_ray_gives_up(local_ray: None) -> None:
    """Also that the private class of Ray that is asked is there, and asks once."""
    import ray

    address = ray.get_runtime_context().gcs_address
    with tempfile.TemporaryDirectory(prefix="lc-") as home:
        env = os.environ | TOKEN | {"RAY_AUTH_MODE": "token", "LIGHTNING_CORE_HOME": home, "PYTHONPATH": str(ROOT)}
        line = [sys.executable, "-m", "lightning_core.cli.main", "status", "--pool", address]
        began = time.monotonic()
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60)
        print(f"told after {time.monotonic() - began:.1f} s")
        assert done.returncode == 2
        words = f"{address}: the pool refuses the token in RAY_AUTH_TOKEN: it is another pool's token, or an old one"
        assert done.stderr.startswith(f"error: {words}; `lightning-core up` printed the path of the token's file")
        assert done.stderr.count("\n") == 1

        line = [sys.executable, "-m", "tests.script", "a", "60s", "1500"]
        env["LIGHTNING_CORE_POOL"] = address
        done = subprocess.run(line, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert f"a: training without the pool: {words}" in done.stderr
        assert "target met" in done.stderr
        assert "Traceback" not in done.stderr + done.stdout
        assert "a ended after 15" in done.stdout


# Starts a proxy, which is a program that notes how it ends, and waits.
WITH_PROXY = """
import sys, time
from lightning_core.server import discovery
discovery.check = lambda address: None
sys.executable = sys.argv[1]
discovery._start_proxy("pool:1")
print(discovery._proxies.popitem()[1].process.pid, flush=True)
time.sleep(60)
"""
NOTING = """#!/bin/sh
trap 'echo signal >> "$0.end"' INT TERM
touch "$4"
while read -r line; do :; done
echo closed >> "$0.end"
"""


def test_what_a_group_of_processes_is_sent_does_not_reach_a_proxy(tmp_path: Path) -> None:
    """Jupyter interrupts and kills a kernel's group: a proxy that goes with it cannot tell the pool what has ended."""
    proxy = tmp_path / "proxy"
    proxy.write_text(NOTING)
    proxy.chmod(0o755)
    line = [sys.executable, "-c", WITH_PROXY, str(proxy)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True) as script:
        assert script.stdout is not None
        script.stdout.readline()
        os.killpg(script.pid, signal.SIGINT)
        script.wait(PATIENCE)
    end = Path(f"{proxy}.end")
    until(lambda: end.exists() and "closed" in end.read_text())
    assert end.read_text() == "closed\n"


# Starts what waits as a proxy does, and forks a child that keeps the pipe to it open.
WITH_CHILD = """
import os, subprocess, sys, time
waits = "import asyncio, os; from lightning_core.server.proxy import until_orphaned; parent = os.getppid();"
waits += "print(1, flush=True); asyncio.run(until_orphaned(parent)); print(2)"
proxy = subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE)
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""


def test_a_proxy_ends_with_its_script_though_a_child_of_that_keeps_the_pipe() -> None:
    line = [sys.executable, "-c", WITH_CHILD]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=ROOT) as script:
        assert script.stdout is not None
        said = {script.stdout.readline(), script.stdout.readline()}
        child = int(max(said, key=len))
        try:
            script.kill()
            assert script.stdout.readline() == "2\n"
            os.kill(child, 0)  # it is running
        finally:
            os.kill(child, signal.SIGKILL)
