"""Which process is which: ids come again, so a process is known by its id and the time at which it started."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def is_alive(head: Mapping[str, Any]) -> bool:
    """Whether the head's process runs, and is the one that was started then."""
    return started(head["pid"]) == int(head["started"])


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None if there is none. Process ids come again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state == "Z" else int(rest[18])


def process_watch(connection: Any) -> int:
    """A descriptor that can be read once the process at the other end of a Unix socket has ended; close it.

    Raises:
        OSError: if that process cannot be seen from here.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return os.pidfd_open(struct.unpack("3i", credentials)[0])
