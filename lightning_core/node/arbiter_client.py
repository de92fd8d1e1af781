"""The training process's connection to its device's arbiter, and the messages between the two."""

from __future__ import annotations

import logging
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Collection
from pathlib import Path

from lightning_core.node.unix_sockets import connect

log = logging.getLogger(__name__)

# A request: its kind, the share, and its number. The grant repeats the number, so that a grant that answers a
# withdrawn request is recognised.
REQUEST = struct.Struct("<cdQ")
ACQUIRE, RELEASE = b"w", b"g"
GRANTED = struct.Struct("<Q")
# Seconds between two attempts to connect.
RECONNECT_INTERVAL = 1.0
# Seconds that an attempt may take while many processes connect; it is the training thread that waits.
CONNECT_TIMEOUT = 0.25


class ArbiterClient:
    """The lock of a device that an arbiter shares out; implements :class:`lightning_core.core.protocols.DeviceLock`.

    Args:
        path: Path of the arbiter's socket.
        quantum: Seconds for which the device is held while others wait; one batch at least.
        cores: Cores to pin the training thread to, where cores are the device. An unpinned process wakes up on
            whichever core is free, with cold caches, and its batches take 10 to 20 % longer (measured).
    """

    def __init__(self, path: Path, quantum: float = 0.048, cores: Collection[int] | None = None) -> None:
        self.held = False
        self._path = path
        self._quantum = quantum
        self._cores = cores
        self._has_requested = False
        self._request = 0
        self._acquired_at = 0.0
        self._reconnect_at = 0.0
        self._socket: socket.socket | None = None
        self._waiting: mmap.mmap | None = None
        self._connect()

    def acquire(self, share: float, timeout: float) -> bool:
        self.bind()
        if self._socket is None:
            self._connect()
        if not self._has_requested:
            self._send_request(share)
        while self._socket is not None:
            try:
                ready, _, _ = select.select([self._socket], [], [], timeout)
                if not ready:
                    return False
                answer = self._socket.recv(GRANTED.size)
            except OSError:
                answer = b""
            if len(answer) != GRANTED.size:
                self._disconnect()
            elif GRANTED.unpack(answer)[0] == self._request:
                break
        # Granted; or there is no arbiter, and so no process to wait for.
        self._has_requested = False
        self.held = True
        self._acquired_at = time.monotonic()
        return True

    def expired(self) -> bool:
        over = time.monotonic() - self._acquired_at >= self._quantum
        return over and self._waiting is not None and self._waiting[0] != 0

    def release(self, *, again: bool, share: float = 0.0) -> None:
        self.held = False
        if again:
            self._send_request(share)
        else:
            self._has_requested = False
            self._send(RELEASE, share)

    def bind(self) -> None:
        if self._cores is not None:
            os.sched_setaffinity(0, self._cores)  # this thread, and those that it starts
            self._cores = None

    def close(self) -> None:
        self.held = self._has_requested = False
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> bool:
        if time.monotonic() < self._reconnect_at:
            return False
        self._reconnect_at = time.monotonic() + RECONNECT_INTERVAL
        try:
            connection = connect(self._path, CONNECT_TIMEOUT, socket.SOCK_SEQPACKET)
        except OSError:
            return False
        try:
            connection.settimeout(None)
            with waiting_file(self._path).open("rb") as file:
                self._waiting = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
        except OSError:
            connection.close()
            return False
        self._socket = connection
        return True

    def _send_request(self, share: float) -> None:
        self._request += 1
        self._has_requested = True
        self._send(ACQUIRE, share)

    def _send(self, kind: bytes, share: float) -> None:
        if self._socket is not None:
            try:
                self._socket.send(REQUEST.pack(kind, share, self._request))
            except OSError:
                self._disconnect()

    def _disconnect(self) -> None:
        log.warning("lost the device arbiter %s: training continues without time slicing", self._path)
        self._waiting = None
        self.close()


def waiting_file(path: Path) -> Path:
    """Return the path of the file with the shared byte: how many processes wait, 255 at most."""
    return path.with_suffix(".waiting")
