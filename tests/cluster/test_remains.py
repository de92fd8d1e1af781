"""Folders of heads that were killed are found; those of pools that are up, and those of others, are not."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.cluster.ray_head import MARK, MARK_FILE, new_head
from lightning_core.cluster.remains import START, remains
from lightning_core.node.unix_sockets import listen
from tests.others import as_root, give_away


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide a short folder for temporary ones."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def head(age: float = 2 * START) -> Path:
    """Make the folder of a head that was started so many seconds ago."""
    temp = Path(new_head(1, "cpu")["temp"])
    then = (temp / MARK_FILE).stat().st_mtime - age
    os.utime(temp / MARK_FILE, (then, then))
    return temp


def process(proc: Path, pid: int, **environment: str) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "environ").write_text("".join(f"{name}={value}\0" for name, value in environment.items()))


def test_a_folder_whose_mark_no_process_carries_is_found(temporary: Path) -> None:
    dead, alive = head(), head()
    head(age=0)  # it is being started
    (temporary / "lc-other").mkdir()
    (temporary / "lc-file").touch()
    proc = temporary / "proc"
    process(proc, 1, **{MARK: (alive / MARK_FILE).read_text(), "A": "b"})
    process(proc, 2, NAME=(dead / MARK_FILE).read_text())
    assert remains(proc) == [dead]


def test_a_pool_in_a_cluster_is_known_by_its_socket(temporary: Path) -> None:
    """No process carries its mark: Ray was there before."""
    folder = head()
    listener = listen(folder / "socket", socket.SOCK_STREAM)
    assert remains(temporary) == []
    listener.close()  # the file stays
    assert remains(temporary) == [folder]


def test_without_such_folders_no_process_is_looked_at(temporary: Path) -> None:
    assert remains(temporary / "none") == []


@as_root
def test_folders_of_other_users_are_theirs(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_away(head(), monkeypatch)
    assert remains(temporary) == []
