"""The folders of device arbiters: each goes with its process, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.cluster.arbiter_actor import ArbiterActor, remove_abandoned
from lightning_core.node.suspender_client import Condition, Move, SuspenderClient, suspender_of
from tests.conftest import ROOT

KILLED = """
import os, sys
from lightning_core.cluster.arbiter_actor import ArbiterActor
os.environ["RAY_TMPDIR"] = sys.argv[1]
print(ArbiterActor().path(), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a path short enough for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        yield Path(folder)


def test_the_folder_of_a_killed_arbiter_goes_with_the_next_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [sys.executable, "-c", KILLED, str(place)]
    killed = Path(subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip())
    assert killed.parent.parent == place
    assert killed.exists()
    monkeypatch.setenv("RAY_TMPDIR", str(place))
    arbiter = ArbiterActor()
    assert [path.name for path in place.iterdir()] == [Path(arbiter.path()).parent.name]
    remove_abandoned(place)
    assert Path(arbiter.path()).exists()  # its process lives
    arbiter.close()
    assert list(place.iterdir()) == []


def test_a_suspender_is_beside_the_arbiter_until_both_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(place))
    arbiter = ArbiterActor()
    path = suspender_of(Path(arbiter.path()))
    assert SuspenderClient(path, "GPU-1").ask(Move.STILL, 10.0).condition is Condition.RUNNING
    arbiter.close()
    assert not path.exists()


def test_only_folders_of_arbiters_are_removed(tmp_path: Path) -> None:
    here = os.stat("/proc/self/ns/pid").st_ino
    kept = ["lc-abc", f"lc-arbiter-{here + 1}-999999999-1-y", f"lc-arbiter-{here}-999999999-1-link"]
    for name in kept[:2]:
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (tmp_path / kept[2]).symlink_to("elsewhere")
    (tmp_path / f"lc-arbiter-{here}-999999999-1-z").mkdir()
    remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "elsewhere"])
    assert (tmp_path / "elsewhere" / "file").exists()
