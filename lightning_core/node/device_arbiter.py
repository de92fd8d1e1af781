"""One turnstile a device, on its node: processes that share the device train one at a time, in turns.

Rules

1. At most one process holds the turn; who waits longest for its weight goes next (weighted fair queueing: each turn
   adds its seconds over its duty to a job's virtual time, the least virtual time is next).
2. A turn ends between batches: after ``quantum`` seconds if others wait, never if nobody does. A process learns that
   others wait from one shared byte, so a job alone on its device sends no message at all.
3. Time alone is not charged, and time away earns nothing.
4. A process that dies lets go, also while a child that it forked keeps its socket open; one that hangs in its turn is
   passed over after ``patience``.
5. If the turnstile dies, training goes on without turns.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import selectors
import socket
import struct
import threading
import time
from collections.abc import Collection
from pathlib import Path

from lightning_core.node.processes import process_watch

log = logging.getLogger(__name__)

# What, duty, and the number of the asking: a turn that comes for an asking since withdrawn is known by it.
_MESSAGE = struct.Struct("<cdQ")
_WANT, _GIVE = b"w", b"g"
_GO = struct.Struct("<Q")
MIN_SHARE = 1e-3
# Before any thread of this process is bound to one.
CORES = sorted(os.sched_getaffinity(0), reverse=True)


class _Process:
    """One process at the turnstile."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.share = MIN_SHARE
        self.virtual = 0.0
        self.waits = False
        self.asking = 0
        self.watch: int | None = None


class DeviceArbiter:
    """The server: one thread, a Unix socket and the shared byte beside it.

    Args:
        path: of the socket; its folder must be private, and the path short (a socket's has 107 characters at most).
        patience: seconds after which a process that holds the turn and says nothing is passed over.
    """

    def __init__(self, path: Path, patience: float = 30.0) -> None:
        self.path = path
        self._patience = patience
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        os.chmod(path, 0o600)
        self._listener.listen()
        byte = _waiting_file(path)
        byte.write_bytes(b"\0")
        with byte.open("r+b") as file:
            self._waiting = mmap.mmap(file.fileno(), 1)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._processes: list[_Process] = []
        self._holder: _Process | None = None
        self._since = 0.0  # when the holder's turn began, or when somebody first waited for it
        self._floor = 0.0  # virtual time of whoever was served last: where newcomers start
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="arbiter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and removes the files; whoever is connected trains on without turns."""
        self._closed = True
        self._thread.join()
        for process in list(self._processes):
            self._forget(process)
        self._listener.close()
        self.path.unlink(missing_ok=True)
        _waiting_file(self.path).unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(timeout=0.2):
                if key.data is None:
                    self._welcome()
                elif key.fd == key.data.watch:
                    self._forget(key.data)
                else:
                    self._listen(key.data)
            hung = self._holder is not None and self._waiters() and time.monotonic() - self._since > self._patience
            if hung:
                log.warning("a process has held its turn for %.0f s: passed over", self._patience)
                self._end_turn()
                self._next()

    def _welcome(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # no descriptor is left, say: those that are here go on
            log.warning("the turnstile %s cannot take in another process: %s", self.path, error)
            time.sleep(0.1)
            return
        connection.setblocking(False)  # nobody waits for a process that does not read
        process = _Process(connection)
        self._processes.append(process)
        self._selector.register(connection, selectors.EVENT_READ, process)
        with contextlib.suppress(OSError):  # else only the socket can tell that it has died
            process.watch = process_watch(connection)
            self._selector.register(process.watch, selectors.EVENT_READ, process)

    def _listen(self, process: _Process) -> None:
        if process not in self._processes:
            return
        try:
            message = process.connection.recv(_MESSAGE.size)
        except OSError:
            message = b""
        if len(message) != _MESSAGE.size:
            self._forget(process)
            return
        what, share, asking = _MESSAGE.unpack(message)
        held = process is self._holder
        if held:
            self._end_turn()  # charged at the duty under which it was taken, not at what comes next
        process.share = max(share, MIN_SHARE) if share == share else MIN_SHARE
        process.asking = asking
        if what == _WANT and not held and not process.waits:
            process.virtual = max(process.virtual, self._floor)
            if self._holder is not None and not self._waiters():
                self._since = time.monotonic()
        process.waits = what == _WANT
        self._next()

    def _forget(self, process: _Process) -> None:
        if process not in self._processes:  # two signs of one death
            return
        self._selector.unregister(process.connection)
        process.connection.close()
        if process.watch is not None:
            self._selector.unregister(process.watch)
            os.close(process.watch)
        self._processes.remove(process)
        process.waits = False
        if process is self._holder:
            self._end_turn()
        self._next()

    def _waiters(self) -> list[_Process]:
        return [process for process in self._processes if process.waits]

    def _end_turn(self) -> None:
        holder = self._holder
        if holder is not None:
            if self._waiters():
                holder.virtual += (time.monotonic() - self._since) / holder.share
            self._holder = None

    def _next(self) -> None:
        waiters = self._waiters()
        if self._holder is None and waiters:
            chosen = min(waiters, key=lambda process: process.virtual)
            chosen.waits = False
            self._holder = chosen
            self._since = time.monotonic()
            self._floor = chosen.virtual
            waiters.remove(chosen)
            self._waiting[0] = min(len(waiters), 255)
            try:
                chosen.connection.send(_GO.pack(chosen.asking))
            except OSError:
                self._forget(chosen)
        else:
            self._waiting[0] = min(len(waiters), 255)


class ArbiterClient:
    """The end of a turnstile in the training process; implements :class:`lightning_core.core.protocols.DeviceLock`.

    Args:
        path: of the turnstile's socket.
        quantum: seconds that a turn lasts while others wait, one batch at least.
        cores: to bind the training thread to, where they are the device. Unbound, a process wakes up for its turn on
            whatever core is free, with cold caches: its batches then take 10 to 20 % longer (measured).
    """

    def __init__(self, path: Path, quantum: float = 0.048, cores: Collection[int] | None = None) -> None:
        self.held = False
        self._path = path
        self._quantum = quantum
        self._cores = cores
        self._asked = False
        self._asking = 0
        self._began = 0.0
        self._retry_at = 0.0
        self._socket: socket.socket | None = None
        self._waiting: mmap.mmap | None = None
        self._connect()

    def acquire(self, share: float, timeout: float) -> bool:
        self.bind()
        if self._socket is None:
            self._connect()
        if not self._asked:
            self._ask(share)
        while self._socket is not None:
            try:
                ready, _, _ = select.select([self._socket], [], [], timeout)
                if not ready:
                    return False
                answer = self._socket.recv(_GO.size)
            except OSError:
                answer = b""
            if len(answer) != _GO.size:
                self._lost()
            elif _GO.unpack(answer)[0] == self._asking:
                break
        # Our turn; or there is no turnstile, and so nobody to wait for.
        self._asked = False
        self.held = True
        self._began = time.monotonic()
        return True

    def expired(self) -> bool:
        return self._waiting is not None and time.monotonic() - self._began >= self._quantum and self._waiting[0] != 0

    def release(self, *, again: bool, share: float = 0.0) -> None:
        self.held = False
        if again:
            self._ask(share)
        else:
            self._asked = False
            self._send(_GIVE, share)

    def bind(self) -> None:
        if self._cores is not None:
            os.sched_setaffinity(0, self._cores)  # of this thread, and of those that it starts
            self._cores = None

    def close(self) -> None:
        self.held = self._asked = False
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> bool:
        if time.monotonic() < self._retry_at:
            return False
        self._retry_at = time.monotonic() + 1.0
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(str(self._path))
            with _waiting_file(self._path).open("rb") as file:
                self._waiting = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
        except OSError:
            connection.close()
            return False
        self._socket = connection
        return True

    def _ask(self, share: float) -> None:
        self._asking += 1
        self._asked = True
        self._send(_WANT, share)

    def _send(self, what: bytes, share: float) -> None:
        if self._socket is not None:
            try:
                self._socket.send(_MESSAGE.pack(what, share, self._asking))
            except OSError:
                self._lost()

    def _lost(self) -> None:
        log.warning("the turnstile %s is gone: training goes on without turns", self._path)
        self._waiting = None
        self.close()


def cores_of(device: int, cores: int = 1, arbiter: Path | None = None) -> set[int]:
    """Return the cores that are a CPU pool's device: the last ones first, since the first is everybody's.

    Args:
        device: its number in the pool.
        cores: of each device.
        arbiter: path of the device's; beside it stands how many cores before these are other pools'.
    """
    first = 0
    if arbiter is not None:
        with contextlib.suppress(OSError, ValueError):  # of a pool on another machine, say
            first = int(_first_core_file(arbiter).read_text())
    return {CORES[(first + device * cores + core) % len(CORES)] for core in range(cores)}


def note_first_core(arbiter: Path, first: int) -> None:
    """Write beside a turnstile's socket where the cores of its pool begin."""
    _first_core_file(arbiter).write_text(str(first))


def _first_core_file(path: Path) -> Path:
    return path.with_suffix(".cores")


def _waiting_file(path: Path) -> Path:
    return path.with_suffix(".waiting")
