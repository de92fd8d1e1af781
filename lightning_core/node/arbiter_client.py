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

# A request: its kind, the share, the number of the group, and its own. The grant repeats the latter, so that one that
# answers a withdrawn request is recognised, and says which turn it is.
REQUEST = struct.Struct("<cdqQ")
ACQUIRE, RELEASE = b"w", b"g"
GRANTED = struct.Struct("<QB")
# The arbiter's shared file. One byte each: the number of processes that wait for the turn to end, 255 at most, and the
# turn, modulo 256. At its end a counter that the arbiter keeps incrementing, whichever process holds the device.
WAITING_AT, TURN_AT, BEATS_AT, SIGNS_SIZE = 0, 1, 8, 16
BEATS = struct.Struct("<Q")
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
        quantum: Seconds for which the device is held while other groups wait; one batch at least, and less if the turn
            of its group ends earlier.
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
        self._turn: int | None = None  # in which the device was granted; None if it was taken without an arbiter
        self._reconnect_at = 0.0
        self._socket: socket.socket | None = None
        self._signs: mmap.mmap | None = None
        self._is_stopped = False
        self._sign = 0
        self._silent_for = self._looked_at = 0.0
        self._connect()

    def acquire(self, share: float, timeout: float, beside: int = 0) -> bool:
        self.bind()
        if self._socket is None:
            self._connect()
        if not self._has_requested:
            self._send_request(share, beside)
        self._turn, until = None, time.monotonic() + timeout
        while self._socket is not None and not self._looks_stopped():
            answer = self._receive(min(max(until - time.monotonic(), 0.0), LOOK_INTERVAL))
            if answer is not None and answer[0] == self._request:
                self._turn = answer[1]
                break
            if answer is None and time.monotonic() >= until:
                return False
        # Granted; or there is no arbiter that works, and so no process to wait for.
        self._has_requested = False
        self.held = True
        self._acquired_at = time.monotonic()
        return True

    def expired(self) -> bool:
        if self._signs is None or self._looks_stopped():
            return False
        if self._signs[TURN_AT] != self._turn:  # it ends or is over, or the arbiter works again and knows of none
            return True
        over = time.monotonic() - self._acquired_at >= self._quantum
        return over and self._signs[WAITING_AT] != 0

    def release(self, *, again: bool, share: float = 0.0, beside: int = 0) -> None:
        self.held = False
        if again:
            self._send_request(share, beside)
        else:
            self._has_requested = False
            self._send(RELEASE, share, beside)

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
        sign, now = BEATS.unpack_from(self._signs, BEATS_AT)[0], time.monotonic()
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

    def _receive(self, timeout: float) -> tuple[int, int] | None:
        """Return the number of the request that is granted, and the turn, within some seconds; None if none is."""
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
        number, turn = GRANTED.unpack(answer)
        return number, turn

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
                self._signs = mmap.mmap(file.fileno(), SIGNS_SIZE, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            connection.close()
            return False
        self._socket, self._looked_at = connection, time.monotonic()
        return True

    def _send_request(self, share: float, beside: int) -> None:
        self._request += 1
        self._has_requested = True
        self._send(ACQUIRE, share, beside)

    def _send(self, kind: bytes, share: float, beside: int) -> None:
        if self._socket is not None:
            try:
                self._socket.send(REQUEST.pack(kind, share, beside, self._request))
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
