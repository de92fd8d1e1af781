"""What heads that were killed have left among the temporary files: folders with a token, and with Ray's files."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from lightning_core.cluster.ray_head import MARK, MARK_FILE, TEMP_PREFIX
from lightning_core.node.unix_sockets import connect
from lightning_core.server.clocks import wall_clock
from lightning_core.storage.private_files import read_own, this_user

# Seconds that the scheduler of a pool may take to accept a connection, and a pool to have its first process.
TIMEOUT, START = 0.2, 300.0
MAX_MARK_BYTES = 64


def remains(proc: Path = Path("/proc")) -> list[Path]:
    """Return the folders of this user's heads that run no more.

    A folder counts as one if it has the mark of a head from some minutes ago, no process carries this mark, and no
    scheduler listens in it.

    Args:
        proc: Folder in which the kernel shows processes.
    """
    marks, now = {}, wall_clock().seconds
    for folder in Path(tempfile.gettempdir()).glob(f"{TEMP_PREFIX}*"):
        with suppress(OSError, ValueError):  # it is another user's, has no mark, or is being removed
            is_old = now - (folder / MARK_FILE).lstat().st_mtime > START
            if is_old and folder.lstat().st_uid == this_user():
                marks[folder] = read_own(folder, MARK_FILE, MAX_MARK_BYTES)
    if not marks:
        return []
    carried = _carried(proc)
    return sorted(folder for folder, mark in marks.items() if mark not in carried and not _is_heard(folder / "socket"))


def _carried(proc: Path) -> set[bytes]:
    """Return the marks in the environment of all processes that this user may read."""
    found = set()
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):
            if folder.stat().st_uid != os.geteuid():
                continue
            for word in (folder / "environ").read_bytes().split(b"\0"):
                name, _, value = word.partition(b"=")
                if name == MARK.encode():
                    found.add(value)
    return found


def _is_heard(path: Path) -> bool:
    """Return whether a server listens at a socket: the head of a pool in a cluster carries no mark."""
    with suppress(OSError):
        connect(path, TIMEOUT).close()
        return True
    return False
