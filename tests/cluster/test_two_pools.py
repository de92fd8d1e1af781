"""Two pools of one user side by side: each with its own commands, tokens, folders, and cores while there are enough."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.node.core_claims import CoreClaim, free_cores
from lightning_core.node.device_cores import CORES, cores_of, note_first_core
from lightning_core.node.processes import is_alive
from lightning_core.server.discovery import read_head
from tests.builders import launched
from tests.cluster.test_pool import Shell
from tests.waiting import until


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_pools_take_different_cores_while_there_are_enough(temporary: Path) -> None:
    cores = [7, 6, 5, 4]
    one, two, three, four = (CoreClaim(cores) for _ in range(4))
    assert free_cores(cores) == 4
    assert not list(temporary.iterdir())  # to look leaves nothing behind
    assert [one.claim(1), two.claim(2)] == [0, 1]
    assert free_cores(cores) == 1
    assert three.claim(2) == 0  # too few are left: it shares cores, and takes none from another pool
    assert four.claim(1) == 3
    two.release()
    assert free_cores(cores) == 2
    assert three.claim(2) == 1
    assert four.claim(9) == 0
    for claim in (one, three, four):
        claim.release()
    assert not list(temporary.iterdir())  # nor does a pool that is down


def test_a_lock_whose_file_was_removed_meanwhile_is_none(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another pool removes the file of its claim between the two calls with which this one takes it."""
    before, after, other = CoreClaim([3]), CoreClaim([3]), CoreClaim([3])
    assert before.claim(1) == 0
    lock, held = fcntl.flock, [0]

    def late(file: int, how: int) -> None:
        if held:
            held.pop()
            before.release()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    after.claim(1)
    assert free_cores([3]) == 0
    other.claim(1)
    other.release()  # it has none
    assert free_cores([3]) == 0
    after.release()
    assert not list(temporary.iterdir())


def test_a_folder_of_another_user_is_not_used(temporary: Path) -> None:
    (temporary / f"lc-cores-{os.getuid()}").symlink_to(temporary)
    assert CoreClaim([1, 0]).claim(1) == 0
    assert [path.name for path in temporary.iterdir()] == [f"lc-cores-{os.getuid()}"]


def test_a_script_finds_its_cores_beside_the_arbiter(tmp_path: Path) -> None:
    assert cores_of(0) == cores_of(0, 1, tmp_path / "turn") == {CORES[0]}
    note_first_core(tmp_path / "turn", 1)
    assert cores_of(0, 1, tmp_path / "turn") == {CORES[1 % len(CORES)]}
    (tmp_path / "turn.cores").write_text("?")
    assert cores_of(0, 1, tmp_path / "turn") == {CORES[0]}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    for name in ("a", "b"):
        head = read_head(tmp_path / name)
        if head is not None and is_alive(head):
            made.command("down", "--folder", str(tmp_path / name), "--now")


def bound_to(head: dict[str, object]) -> set[int]:
    """Return the cores to which threads of a pool's processes are bound."""
    found: set[int] = set()
    for task in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        try:
            command = (task.parent.parent / "environ").read_bytes()
            cores = os.sched_getaffinity(int(task.name))
        except OSError:
            continue
        if str(head["token"]).encode() in command and cores < set(CORES):
            found |= cores
    return found


@pytest.mark.nightly
@pytest.mark.cluster
def test_two_pools_side_by_side(shell: Shell) -> None:
    a, b = str(shell.home / "a"), str(shell.home / "b")
    job = launched({"batches": 10**6}, model="tests.script.Busy")
    (shell.home / "x.yaml").write_text(json.dumps({"jobs": {"x": job}}))
    heads = []
    (shell.home / "pool.yaml").write_text("pool: {resident: 1}")
    for folder in (a, b):
        shell.command("up", "--folder", folder, "--config", "pool.yaml")
        heads.append(read_head(Path(folder)))
        shell.command("submit", str(shell.home / "x.yaml"), "--pool", folder)
    one, two = heads
    assert one is not None
    assert two is not None
    assert all(one[key] != two[key] for key in ("pid", "temp", "socket", "token", "address"))
    assert Path(one["token"]).read_text() != Path(two["token"]).read_text()
    assert "no pool is up" in shell.command("status", code=2)  # neither is the one of this home

    def batches(folder: str) -> int:
        return int(json.loads(shell.command("status", "--json", "--pool", folder))["jobs"][-1]["batches"])

    until(lambda: batches(a) > 20 and batches(b) > 20)
    if len(CORES) > 1:
        assert sorted([*bound_to(one), *bound_to(two)]) == sorted(CORES[:2])
    assert "x: cancelled" in shell.command("cancel", "x", "--pool", a)
    before = batches(b)
    script = shell.script("s", batches=200, LIGHTNING_CORE_POOL=a)
    assert script.wait(300) == 0
    assert "s" in shell.command("why", "s", "--pool", a)
    assert "no job 's'" in shell.command("why", "s", "--pool", b, code=2)
    shell.command("down", "--folder", a)
    assert not is_alive(one)
    assert is_alive(two)
    assert until(lambda: batches(b) > before)
    assert f"{a}: its pool is down" in shell.command("status", "--pool", a, code=2)
    shell.command("down", "--folder", b)
