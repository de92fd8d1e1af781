"""The training process's connection to its device's arbiter, and the messages between the two."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Collection
from pathlib import Path

from lightning_core.node.unix_sockets import connect

log = logging.getLogger(__name__)

# A request: its kind, the share, and its number. The grant repeats the number, so that a grant that answers a
# withdrawn request is recognised.
REQUEST = struct.Struct("<cdQ")
ACQUIRE, RELEASE = b"w", b"g"
GRANTED = struct.Struct("<Q")
# Layout of the arbiter's shared file: the number of waiting processes, 255 at most, and a counter that the arbiter
# keeps incrementing, whichever process holds the device.
SIGNS = struct.Struct("<B7xQ")
# Seconds between two attempts to connect.
RECONNECT_INTERVAL = 1.0
# Seconds that an attempt may take while many processes connect; it is the training thread that waits.
CONNECT_TIMEOUT = 0.25
# Seconds without a sign of life after which the arbiter counts as stopped, and seconds between two looks while waiting.
# A longer gap between two looks does not count: this process was suspended itself and saw nothing.
STOPPED_AFTER, LOOK_INTERVAL = 2.0, 0.25


class ArbiterClient:
    """The lock of a device that an arbiter shares out; implements :class:`lightning_core.core.protocols.DeviceLock`.

    While the arbiter is gone or stopped, the training has the device whenever it likes.

    Args:
        path: Path of the arbiter's socket.
        quantum: Seconds for which the device is held while others wait; one batch at least.
        cores: Cores to pin the training thread to, where cores are the device. An unpinned process wakes up on
            whichever core is free, with cold caches, and its batches take 10 to 20 % longer (measured).
        tell: Logs a line.
    """

    def __init__(
        self,
        path: Path,
        quantum: float = 0.048,
        cores: Collection[int] | None = None,
        tell: Callable[[str], object] = log.warning,
    ) -> None:
        self.held = False
        self._path = path
        self._quantum = quantum
        self._cores = cores
        self._tell = tell
        self._has_requested = False
        self._request = 0
        self._acquired_at = 0.0
        self._reconnect_at = 0.0
        self._socket: socket.socket | None = None
        self._signs: mmap.mmap | None = None
        self._is_stopped = False
        self._sign = 0
        self._silent_for = self._looked_at = 0.0
        self._connect()

    def acquire(self, share: float, timeout: float) -> bool:
        self.bind()
        if self._socket is None:
            self._connect()
        if not self._has_requested:
            self._send_request(share)
        until = time.monotonic() + timeout
        while self._socket is not None and not self._looks_stopped():
            answer = self._receive(min(max(until - time.monotonic(), 0.0), LOOK_INTERVAL))
            if answer == self._request:
                break
            if answer is None and time.monotonic() >= until:
                return False
        # Granted; or there is no arbiter that works, and so no process to wait for.
        self._has_requested = False
        self.held = True
        self._acquired_at = time.monotonic()
        return True

    def expired(self) -> bool:
        was_stopped = self._is_stopped
        if self._signs is None or self._looks_stopped():
            return False
        if was_stopped:  # it works again, and may take another process for the holder
            return True
        over = time.monotonic() - self._acquired_at >= self._quantum
        return over and self._signs[0] != 0

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

    def _looks_stopped(self) -> bool:
        """Look for a sign of life of the arbiter; return whether there has been none for too long."""
        if self._signs is None:
            return False
        sign, now = SIGNS.unpack_from(self._signs)[1], time.monotonic()
        gap, self._looked_at = min(now - self._looked_at, 2 * LOOK_INTERVAL), now
        if sign != self._sign:
            if self._is_stopped:
                self._log("the device arbiter works again")
            self._sign, self._silent_for, self._is_stopped = sign, 0.0, False
            return False
        self._silent_for += gap
        if self._silent_for > STOPPED_AFTER and not self._is_stopped:
            self._is_stopped = True
            self._log("the device arbiter has stopped: training continues without turns until it works again")
        return self._is_stopped

    def _receive(self, timeout: float) -> int | None:
        """Return the number of the request that is granted, within some seconds; None if none is."""
        assert self._socket is not None
        answer = b""
        try:
            ready = select.poll()  # select() knows no descriptor beyond the first 1,024
            ready.register(self._socket, select.POLLIN)
            if not ready.poll(1e3 * timeout):
                return None
            answer = self._socket.recv(GRANTED.size)
        except OSError:
            pass
        if len(answer) != GRANTED.size:
            self._disconnect()
            return None
        return int(GRANTED.unpack(answer)[0])

    def _connect(self) -> bool:
        if time.monotonic() < self._reconnect_at:
            return False
        self._reconnect_at = time.monotonic() + RECONNECT_INTERVAL
        try:
            connection = connect(self._path, CONNECT_TIMEOUT, socket.SOCK_SEQPACKET)
        except OSError:
            return False
        try:
            # The training thread waits for no room to send: an arbiter that takes nothing is one that is gone.
            connection.setblocking(False)
            with signs_file(self._path).open("rb") as file:
                self._signs = mmap.mmap(file.fileno(), SIGNS.size, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            connection.close()
            return False
        self._socket, self._looked_at = connection, time.monotonic()
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
        self._log("lost the device arbiter: training continues without turns")
        self._signs = None
        self.close()

    def _log(self, words: str) -> None:
        with contextlib.suppress(Exception):  # a handler of the user's
            self._tell(f"{words} ({self._path})")


def signs_file(path: Path) -> Path:
    """Return the path of the shared file with the arbiter's signs."""
    return path.with_suffix(".signs")
