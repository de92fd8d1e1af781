"""Unix sockets for one user: a listener that many may call at once, and callers that wait until there is room."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

# Connections that wait to be accepted: as many as Linux allows, so that a burst finds room while a loop is busy.
BACKLOG = 4096
# Bytes of the path of a socket.
MAX_PATH_BYTES = 107
# Seconds until a full listener is called again: doubled after each attempt, from the first to the second.
MIN_RETRY_DELAY, MAX_RETRY_DELAY = 0.001, 0.05


def listen(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM, group: int | None = None) -> socket.socket:
    """Return a socket that listens at a path, which its user can open; what was there before is replaced.

    Args:
        path: Path of the socket.
        kind: Kind of socket.
        group: Id of a group whose members can open it too; None for none.

    Raises:
        OSError: If the path is longer than 107 bytes, its folder cannot be written, or the user is not in the group.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
        if group is not None:
            os.chown(path, -1, group)
            path.chmod(0o660)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def connect(path: Path, timeout: float, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket that is connected to the listener at a path.

    Args:
        path: Path of the listener.
        timeout: Seconds to wait while more callers wait there than it has room for; the socket keeps it.
        kind: Kind of socket.

    Raises:
        OSError: If nothing listens there, or there was no room in time.
    """
    until, delay = time.monotonic() + timeout, MIN_RETRY_DELAY
    connection = socket.socket(socket.AF_UNIX, kind)
    try:
        connection.settimeout(timeout)
        while True:
            try:
                connection.connect(str(path))
            except BlockingIOError:  # its backlog is full
                if time.monotonic() + delay > until:
                    raise
                time.sleep(delay)
                delay = min(2 * delay, MAX_RETRY_DELAY)
            else:
                return connection
    except BaseException:
        connection.close()
        raise


def max_connections(wanted: int) -> int:
    """Return how many connections a process can hold, each with a watch of the process at its other end."""
    import resource  # which not every system has

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else max(min(wanted, (files - 128) // 2), 8)
