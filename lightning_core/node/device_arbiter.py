"""The device arbiter: one server per device, on the device's node, so that processes share it one quantum at a time.

Rules

1. At most one process holds the device. Weighted fair queueing decides who is next: each quantum adds its seconds,
   divided by the process's share, to the process's virtual time, and the waiting process with the least virtual time
   goes next.
2. A quantum ends between batches: after ``quantum`` seconds if other processes wait, never if none does. A process
   reads from a shared file whether others wait, so a job alone on its device sends no message at all.
3. Time alone on the device is not charged, and absence earns no credit.
4. A process that dies releases the device, even if a child that it forked keeps its socket open; one that hangs is
   passed over after ``hang_timeout``.
5. If the arbiter dies or stops, training continues without time slicing: it increments a counter in the shared file all
   the time, even during a long quantum, and processes see when it stops.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import selectors
import socket
import threading
import time
from pathlib import Path

from lightning_core.node.arbiter_client import ACQUIRE, GRANTED, REQUEST, SIGNS, signs_file
from lightning_core.node.processes import peer_of, process_watch
from lightning_core.node.unix_sockets import listen, max_connections

log = logging.getLogger(__name__)

MIN_SHARE = 1e-3
# Connections that are served, and those of one process; others are closed.
MAX_PROCESSES, MAX_CONNECTIONS_PER_PROCESS = 512, 64
# Seconds after which the loop looks for a holder that hangs, and pauses after a failed accept.
POLL_INTERVAL = 0.2
ACCEPT_RETRY_DELAY = 0.1


class _ConnectedProcess:
    """A process connected to the arbiter."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.share = MIN_SHARE
        self.virtual_time = 0.0
        self.waits = False
        self.request = 0
        self.watch: int | None = None


class DeviceArbiter:
    """The server: one thread, a Unix socket and the shared file beside it.

    Args:
        path: Path of the socket; its folder must be private, and the path at most 107 characters long.
        hang_timeout: Seconds after which a process that holds the device without a message is passed over.
    """

    def __init__(self, path: Path, hang_timeout: float = 30.0) -> None:
        self.path = path
        self._hang_timeout = hang_timeout
        self._signs = _new_signs(path)  # before any client can connect and read those of an earlier arbiter
        self._beats = 0
        self._listener = listen(path, socket.SOCK_SEQPACKET)
        self._max_processes = max_connections(MAX_PROCESSES)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._processes: list[_ConnectedProcess] = []
        self._holder: _ConnectedProcess | None = None
        self._charged_from = 0.0  # when the holder's quantum began, or when the first other process began to wait
        self._virtual_floor = 0.0  # virtual time of the process served last: newcomers start there
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="arbiter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and remove the files; connected processes train on without time slicing."""
        self._closed = True
        self._thread.join()
        for process in list(self._processes):
            self._disconnect(process)
        self._listener.close()
        self.path.unlink(missing_ok=True)
        signs_file(self.path).unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._closed:
            self._show()
            for key, _ in self._selector.select(timeout=POLL_INTERVAL):
                if key.data is None:
                    self._accept()
                elif key.fd == key.data.watch:
                    self._disconnect(key.data)
                else:
                    self._receive(key.data)
            held_for = time.monotonic() - self._charged_from
            if self._holder is not None and self._waiters() and held_for > self._hang_timeout:
                log.warning("a process has held its device for more than %.0f s: passed over", self._hang_timeout)
                self._end_quantum()
                self._grant_next()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # out of file descriptors, for example: connected processes are still served
            log.warning("the device arbiter %s cannot accept another process: %s", self.path, error)
            time.sleep(ACCEPT_RETRY_DELAY)
            return
        pid = peer_of(connection)
        of_it = sum(process.pid == pid for process in self._processes) if pid else 0
        if of_it >= MAX_CONNECTIONS_PER_PROCESS or len(self._processes) >= self._max_processes:
            connection.close()  # it trains without time slicing
            return
        connection.setblocking(False)  # never wait for a process that does not read
        process = _ConnectedProcess(connection, pid)
        self._processes.append(process)
        self._selector.register(connection, selectors.EVENT_READ, process)
        with contextlib.suppress(OSError):  # without a watch, only the socket can tell that the process has died
            process.watch = process_watch(connection)
            self._selector.register(process.watch, selectors.EVENT_READ, process)

    def _receive(self, process: _ConnectedProcess) -> None:
        if process not in self._processes:
            return
        try:
            message = process.connection.recv(REQUEST.size)
        except OSError:
            message = b""
        if len(message) != REQUEST.size:
            self._disconnect(process)
            return
        kind, share, request = REQUEST.unpack(message)
        held = process is self._holder
        if held:
            self._end_quantum()  # charged at the share under which it was granted, not at the new one
        process.share = min(max(share, MIN_SHARE), 1.0) if share == share else MIN_SHARE
        process.request = request
        if kind == ACQUIRE and not held and not process.waits:
            process.virtual_time = max(process.virtual_time, self._virtual_floor)
            if self._holder is not None and not self._waiters():
                self._charged_from = time.monotonic()
        process.waits = kind == ACQUIRE
        self._grant_next()

    def _disconnect(self, process: _ConnectedProcess) -> None:
        if process not in self._processes:  # its socket and its watch both report one death
            return
        self._selector.unregister(process.connection)
        process.connection.close()
        if process.watch is not None:
            self._selector.unregister(process.watch)
            os.close(process.watch)
        self._processes.remove(process)
        process.waits = False
        if process is self._holder:
            self._end_quantum()
        self._grant_next()

    def _waiters(self) -> list[_ConnectedProcess]:
        return [process for process in self._processes if process.waits]

    def _end_quantum(self) -> None:
        holder = self._holder
        if holder is not None:
            if self._waiters():
                holder.virtual_time += (time.monotonic() - self._charged_from) / holder.share
            self._holder = None

    def _grant_next(self) -> None:
        waiters = self._waiters()
        if self._holder is None and waiters:
            chosen = min(waiters, key=lambda process: process.virtual_time)
            chosen.waits = False
            self._holder = chosen
            self._charged_from = time.monotonic()
            self._virtual_floor = chosen.virtual_time
            self._show()
            try:
                chosen.connection.send(GRANTED.pack(chosen.request))
            except OSError:
                self._disconnect(chosen)
        else:
            self._show()

    def _show(self) -> None:
        """Show in the shared file that this process works, and how many wait."""
        self._beats += 1
        SIGNS.pack_into(self._signs, 0, min(len(self._waiters()), 255), self._beats)


def _new_signs(path: Path) -> mmap.mmap:
    """Return a new shared file for an arbiter: truncating an earlier one would kill the processes that map it."""
    part = signs_file(path).with_suffix(".part")
    part.write_bytes(bytes(SIGNS.size))
    part.replace(signs_file(path))
    with signs_file(path).open("r+b") as file:
        return mmap.mmap(file.fileno(), SIGNS.size)
