"""Identifying processes: ids are reused, so a process is identified by its id and its start time."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Seconds that a process which has just begun may take to have its environment.
BEGIN_TIMEOUT = 5.0


def is_alive(head: Mapping[str, Any]) -> bool:
    """Return whether the process of a pool's head still runs."""
    return started(head["pid"]) == int(head["started"])


def started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state == "Z" else int(rest[18])


def is_ancestor(pid: int) -> bool:
    """Return whether this process was started by a process, or by one that it has started, and so on."""
    above = os.getppid()
    while above > 1:
        if above == pid:
            return True
        try:
            stat = Path(f"/proc/{above}/stat").read_text()
        except OSError:
            return False
        above = int(stat.rpartition(")")[2].split()[1])
    return False


def is_marked(pid: int, name: str, value: str) -> bool:
    """Return whether a process of this user leads its process group and was started with a variable of this value.

    Its environment can be read by its user alone, so that no other user knows a random value in it.
    """
    folder = Path(f"/proc/{pid}")
    try:
        ours = folder.stat().st_uid == os.geteuid() and os.getpgid(pid) == pid
        return ours and f"{name}={value}".encode() in _environment(pid).split(b"\0")
    except OSError:
        return False


def _environment(pid: int) -> bytes:
    """Return the environment that a process was started with: the kernel shows none for a moment after it has begun."""
    path, until = Path(f"/proc/{pid}/environ"), time.monotonic() + BEGIN_TIMEOUT
    while not (found := path.read_bytes()) and started(pid) is not None and time.monotonic() < until:
        time.sleep(0.01)
    return found


def process_watch(connection: Any) -> int:
    """Return a file descriptor that becomes readable when the process at the other end of a Unix socket ends.

    The caller closes it.

    Raises:
        OSError: If that process is not visible from here.
    """
    return os.pidfd_open(peer_of(connection))


def peer_of(connection: Any) -> int:
    """Return the id of the process that opened the other end of a Unix socket; 0 if it is not visible from here."""
    return _credentials(connection)[0]


def user_of(connection: Any) -> int:
    """Return the user id of the process that opened the other end of a Unix socket, as the kernel knows it."""
    return _credentials(connection)[1]


def _credentials(connection: Any) -> tuple[int, int]:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    pid, uid, _ = struct.unpack("iII", credentials)
    return pid, uid
