"""What `down` ends and removes: the head of its pool and the folder of its files, and nothing else."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_core.cluster import head as heads
from lightning_core.cluster import ray_head
from lightning_core.cluster.head import down
from lightning_core.cluster.ray_cluster import join_ray
from lightning_core.cluster.ray_head import MARK, MARK_FILE, HeadError, await_address, end_ray, joined, new_head
from lightning_core.node import processes
from lightning_core.node.processes import is_alive, started
from lightning_core.server.discovery import read_head
from lightning_core.server.probe import no_answer
from tests.others import OTHER, as_root
from tests.waiting import until


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide a short folder for temporary ones."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


class Head:
    """What `up` leaves behind, with a process that sleeps in place of Ray."""

    def __init__(self, pool: Path, mark: str | None = None, group: bool = True) -> None:
        self.pool = pool
        self.note: dict[str, Any] = new_head(1, "cpu")
        self.temp = Path(self.note["temp"])
        marked = os.environ | {MARK: self.note["mark"] if mark is None else mark}
        self.process = subprocess.Popen(["sleep", "60"], start_new_session=group, env=marked)
        self.note |= {"pid": self.process.pid, "started": started(self.process.pid), "address": "127.0.0.1:1"}
        self.write()

    def write(self, **changed: Any) -> None:
        self.note |= changed
        self.pool.mkdir(exist_ok=True, mode=0o700)
        (self.pool / "head.json").write_text(json.dumps(self.note))

    @property
    def lives(self) -> bool:
        return self.process.poll() is None and is_alive(self.note)


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return tmp_path / "pool"


@pytest.fixture
def head(pool: Path) -> Iterator[Head]:
    made = Head(pool)
    yield made
    made.process.kill()
    made.process.wait()


@pytest.mark.promise("S14")
def test_a_head_with_its_mark_is_ended_and_its_folder_removed(head: Head) -> None:
    (head.temp / "ray").mkdir()
    end_ray(head.note)
    assert head.process.wait(60) < 0
    assert not head.temp.exists()


def test_a_head_that_has_just_begun_is_known_as_soon_as_it_has_its_environment(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment the kernel shows none: Ctrl-C may come then."""
    read, empty = Path.read_bytes, [b""] * 3
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: empty.pop() if path.name == "environ" and empty else read(path)
    )
    end_ray(head.note)
    assert empty == []
    assert head.process.wait(60) < 0


def test_a_process_without_an_environment_is_not_waited_for_for_ever(
    pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "BEGIN_TIMEOUT", 0.1)
    with subprocess.Popen(["sleep", "60"], start_new_session=True, env={}) as process:
        assert not processes.is_marked(process.pid, MARK, "a" * 32)
        process.kill()


@pytest.mark.promise("S14")
@pytest.mark.parametrize("mark", ["", "0" * 32, None])
def test_a_process_without_the_mark_is_not_ended(mark: str | None, pool: Path) -> None:
    """Its id and start time are right, as in a note that was forged."""
    forged = Head(pool, mark="" if mark is None else mark)
    try:
        if mark is not None:
            forged.write(mark="f" * 32)
        with pytest.raises(HeadError, match=r"which is not the head of this pool.*nothing was ended or removed"):
            down(pool, now=True)
        with pytest.raises(HeadError, match="which is not the head of this pool"):
            end_ray(forged.note)
        assert forged.lives
        assert forged.temp.exists()
    finally:
        forged.process.kill()
        forged.process.wait()


@pytest.mark.parametrize("mark", [None, 1, "", "a", "../" * 12, "x" * 32])
def test_a_note_without_a_mark_ends_nothing(mark: object, head: Head) -> None:
    """As those of earlier versions."""
    head.write(mark=mark)
    with pytest.raises(HeadError, match="or was started by another version"):
        down(head.pool, now=True)
    assert head.lives
    assert head.temp.exists()


def test_a_process_that_leads_no_group_is_not_ended(pool: Path) -> None:
    """The group that it is in is the one of this test."""
    forged = Head(pool, group=False)
    try:
        with pytest.raises(HeadError, match="which is not the head of this pool"):
            end_ray(forged.note)
        assert forged.lives
    finally:
        forged.process.kill()
        forged.process.wait()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("printf 'starting\\nno space left\\n\\n' >&2; exit 1", "did not start: no space left; see .*head.log"),
        ("exit 1", "did not start: it said nothing; see .*head.log"),
        ("sleep 60", "has not started within 0 s; see .*head.log"),
    ],
)
def test_a_ray_that_does_not_start_says_why(script: str, why: str, pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_head, "START_TIMEOUT", 0.3 if "sleep" in script else 60.0)
    pool.mkdir()
    (pool / "head.log").write_text(earlier := "an earlier head said this\n")
    with (pool / "head.log").open("ab") as log, subprocess.Popen(["sh", "-c", script], stderr=log) as process:
        with pytest.raises(HeadError, match=why):
            await_address(process, len(earlier), new_head(1, "cpu"), pool, [])
        process.kill()


@pytest.mark.parametrize(("failures", "at_once"), [(0, 0.0), (1, 0.0), (2, 0.0), (1, 60.0)])
def test_a_ray_that_gives_up_is_started_once_more_if_it_has_tried(
    failures: int, at_once: float, pool: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an empty folder and the same token, which this process may have read."""
    python, note = pool / "python", new_head(1, "cpu")
    tries, ready, left = pool / "tries", Path(note["temp"]) / "ray" / "ray_current_cluster", pool / "left"
    pool.mkdir()
    python.write_text(
        f"#!/bin/sh\ncat {note['token']} >> {tries}; echo >> {tries}\n"
        f"[ -e {ready.parent} ] && touch {left}\nmkdir {ready.parent}\n"
        f"[ $(wc -l < {tries}) -le {failures} ] && {{ echo it timed out; exit 1; }}\n"
        f"echo 127.0.0.1:1 > {ready}; exec sleep 60\n"
    )
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(heads, "AT_ONCE", at_once)
    if failures < 2 and not at_once:
        heads._start_head(pool, note, [])
        assert note["address"] == "127.0.0.1:1"
        assert read_head(pool) == {name: value for name, value in note.items() if name != "address"}
    else:
        with pytest.raises(HeadError, match="did not start: it timed out"):
            heads._start_head(pool, note, [])
    tried_again = failures > 0 and not at_once
    assert ("it timed out; see" in capsys.readouterr().err) == tried_again
    end_ray(note)
    tokens = tries.read_text().split()
    assert len(tokens) == 1 + tried_again
    assert len(set(tokens)) == 1
    assert not left.exists()


@pytest.mark.parametrize("has_grpc", [True, False])
def test_ray_s_server_for_clients_has_a_port_of_its_own(
    has_grpc: bool, pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default every Ray of a machine takes port 10001 for it, and a head that does not get it ends."""
    python, note, words = pool / "python", new_head(1, "cpu"), pool / "words"
    pool.mkdir()
    python.write_text(f'#!/bin/sh\necho "$@" > {words}; exec sleep 60\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(ray_head, "find_spec", lambda name: SimpleNamespace(origin="grpc.py") if has_grpc else None)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):  # restored afterwards
        monkeypatch.setenv(name, os.environ.get(name, ""))
    process, _ = ray_head.start_ray(pool, note)
    try:
        until(lambda: words.exists() and words.read_text().endswith("\n"))
    finally:
        process.kill()
        process.wait()
        end_ray(note)
    ports = re.findall(r"--ray-client-server-port=(\d+)", words.read_text())
    assert len(ports) == has_grpc
    assert all(1024 <= int(port) < 65536 and port != "10001" for port in ports)


@as_root
def test_a_ray_that_does_not_answer_is_told_at_once() -> None:
    """Its machine may have another address now; Ray itself would look for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        address = f"127.0.0.1:{there.getsockname()[1]}"
        assert no_answer(address) == ""
    assert "does not answer" in no_answer(address)
    assert "does not answer" in no_answer("no address")
    with pytest.raises(ValueError, match="end the remains of Ray on all nodes"):
        join_ray(address)
    with (
        pytest.raises(HeadError, match="end the remains of Ray on all nodes"),
        joined({"address": address, "token": ""}),
    ):
        pass


def test_a_process_of_another_user_is_not_ended(pool: Path) -> None:
    note = new_head(1, "cpu")
    process = subprocess.Popen(
        ["sleep", "60"], start_new_session=True, env=os.environ | {MARK: note["mark"]}, user=OTHER, group=OTHER
    )
    try:
        with pytest.raises(HeadError, match="which is not the head of this pool"):
            end_ray(note | {"pid": process.pid, "started": started(process.pid)})
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def ended(head: Head) -> dict[str, Any]:
    """Return the note of a head that was killed."""
    head.process.kill()
    head.process.wait()
    return head.note


def is_a_link(head: Head) -> None:
    away = head.temp.with_name("lc-away")
    head.temp.rename(away)
    head.temp.symlink_to(away)


def can_be_read(head: Head) -> None:
    head.temp.chmod(0o755)


def has_another_mark(head: Head) -> None:
    (head.temp / MARK_FILE).write_text("0" * 32)


def has_no_mark(head: Head) -> None:
    (head.temp / MARK_FILE).unlink()


def has_a_link_for_a_mark(head: Head) -> None:
    (head.temp / MARK_FILE).rename(head.temp / "other")
    (head.temp / MARK_FILE).symlink_to("other")


def has_another_name(head: Head) -> None:
    head.temp.rename(head.temp.with_name("precious"))
    head.note["temp"] = str(head.temp.with_name("precious"))


def is_relative(head: Head) -> None:
    head.note["temp"] = os.path.relpath(head.temp)


@pytest.mark.promise("S14")
@pytest.mark.parametrize(
    "change",
    [is_a_link, can_be_read, has_another_mark, has_no_mark, has_a_link_for_a_mark, has_another_name, is_relative],
)
def test_a_folder_that_was_not_made_by_the_pool_is_not_removed(
    change: Any, head: Head, capsys: pytest.CaptureFixture[str]
) -> None:
    (head.temp / "kept").write_text("kept")
    change(head)
    end_ray(ended(head))
    assert "was not removed: it was not made by this pool" in capsys.readouterr().err
    assert (Path(head.note["temp"]) / "kept").read_text() == "kept"


@as_root
def test_a_folder_of_another_user_is_not_removed(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    os.chown(head.temp, OTHER, OTHER)
    end_ray(ended(head))
    assert "it is not a private folder of this user" in capsys.readouterr().err
    assert head.temp.exists()


def test_a_folder_that_is_gone_is_no_problem(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    (head.temp / MARK_FILE).unlink()
    head.temp.rmdir()
    end_ray(ended(head))
    assert capsys.readouterr().err == ""


def test_the_lock_and_the_note_follow_no_link(pool: Path, tmp_path: Path) -> None:
    pool.mkdir(mode=0o700)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in ("head.lock", "head.json.new"):
        (pool / name).symlink_to(precious)
        with pytest.raises(HeadError, match="is a link to"):
            down(pool)
        (pool / name).unlink()
    os.mkfifo(pool / "head.lock")
    began = time.monotonic()
    with pytest.raises(HeadError, match="cannot be written"):
        down(pool)
    assert time.monotonic() - began < 30
    (pool / "head.lock").unlink()
    heads._write(pool, {"pid": 1})
    assert (pool / "head.json").stat().st_mode & 0o777 == 0o600
    assert precious.read_text() == "precious"
