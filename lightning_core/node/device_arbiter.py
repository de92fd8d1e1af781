"""The device arbiter: one server per device, on the device's node, so that processes share it one turn at a time.

Rules

1. A turn belongs to a group: to all processes that name the same number, or to one process that names none. During it
   each member that asks gets the device at once. Turns of two groups never overlap.
2. Weighted fair queueing decides which group is next: the seconds of its turn, divided by its weight, are added to its
   virtual time, and the waiting group with the least virtual time is next. Its weight is the sum of the shares of its
   connected members, as of the newest message of one of them.
3. A turn ends between batches: when a member has had the device for ``quantum`` seconds and another group waits, never
   if none does. From then on no member gets the device in this turn, and those that have it release it after their
   batch. A process reads from a shared file whether other groups wait, and which turn it is, so a group alone on its
   device sends no message at all.
4. Time alone on the device is not charged, and absence earns no credit. A new group starts as one that was absent; one
   whose weight changes owes as many seconds of the device as before.
5. A process may change its group with each message; it then leaves the turn of the earlier one.
6. A process that dies releases the device, even if a child that it forked keeps its socket open. If one hangs, its turn
   is passed over after ``hang_timeout``; it sees that when it recovers, and waits for another one.
7. If the arbiter dies or stops, training continues without turns: it increments a counter in the shared file all the
   time, even during a long turn, and processes see when it stops.
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

from lightning_core.node.arbiter_client import (
    ACQUIRE,
    BEATS,
    BEATS_AT,
    GRANTED,
    REQUEST,
    SIGNS_SIZE,
    TURN_AT,
    WAITING_AT,
    signs_file,
)
from lightning_core.node.processes import peer_of, process_watch
from lightning_core.node.unix_sockets import listen, max_connections

log = logging.getLogger(__name__)

MIN_SHARE = 1e-3
# Connections that are served, and those of one process; others are closed.
MAX_PROCESSES, MAX_CONNECTIONS_PER_PROCESS = 512, 64
# Seconds after which the loop looks for a holder that hangs, and pauses after a failed accept.
POLL_INTERVAL = 0.2
ACCEPT_RETRY_DELAY = 0.1


class _Companions:
    """Processes that have the device in the same turns: those that name one number, or one that names none."""

    def __init__(self, number: int, virtual_time: float) -> None:
        self.number = number
        self.virtual_time = virtual_time
        self.weight = MIN_SHARE


class _ConnectedProcess:
    """A process connected to the arbiter."""

    def __init__(self, connection: socket.socket, pid: int, group: _Companions) -> None:
        self.connection = connection
        self.pid = pid
        self.group = group
        self.share = 0.0
        self.waits = False
        self.holds = False
        self.request = 0
        self.watch: int | None = None


class DeviceArbiter:
    """The server: one thread, a Unix socket and the shared file beside it.

    Args:
        path: Path of the socket; its folder must be private, and the path at most 107 characters long.
        hang_timeout: Seconds after which a turn is passed over that does not end although others wait.
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
        self._turn: _Companions | None = None  # the group whose turn it is
        self._turn_ends = False
        self._turns = 0  # that were ended: the number of the present one
        self._charged_until = 0.0
        self._blocked_since = 0.0  # when the turn began, or when a process began to wait during it
        self._virtual_floor = 0.0  # virtual time of the group served last: newcomers start there
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
            blocked_for = time.monotonic() - self._blocked_since
            if self._turn is not None and self._waiters() and blocked_for > self._hang_timeout:
                log.warning("a process has held its device for more than %.0f s: passed over", self._hang_timeout)
                self._charge()
                self._end_turn()
                for process in self._processes:
                    process.holds = False
                self._grant()

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
        process = _ConnectedProcess(connection, pid, _Companions(0, self._virtual_floor))
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
        kind, share, number, request = REQUEST.unpack(message)
        self._charge()
        if kind == ACQUIRE and process.holds and self._waiters():
            self._end_turn()
        process.share = min(max(share, 0.0), 1.0) if share == share else 0.0
        process.request, process.holds, process.waits = request, False, kind == ACQUIRE
        self._assign(process, number)
        self._grant()

    def _assign(self, process: _ConnectedProcess, number: int) -> None:
        """Make a process a member of the group with a number, or with 0 of one of its own; weigh that group anew."""
        if number != process.group.number:
            named = (other.group for other in self._processes if number and other.group.number == number)
            process.group = next(named, None) or _Companions(number, self._virtual_floor)
        group = process.group
        owed = max(group.virtual_time - self._virtual_floor, 0.0) * group.weight
        share = sum(member.share for member in self._processes if member.group is group)
        group.weight = min(max(share, MIN_SHARE), 1.0)
        group.virtual_time = self._virtual_floor + owed / group.weight

    def _disconnect(self, process: _ConnectedProcess) -> None:
        if process not in self._processes:  # its socket and its watch both report one death
            return
        self._charge()
        self._selector.unregister(process.connection)
        process.connection.close()
        if process.watch is not None:
            self._selector.unregister(process.watch)
            os.close(process.watch)
        self._processes.remove(process)
        self._grant()

    def _waiters(self) -> list[_ConnectedProcess]:
        """Return those that wait: for the turn of another group to end, or for their own one to have ended."""
        return [process for process in self._processes if process.waits]

    def _charge(self) -> None:
        """Charge the time since the last message, during which nothing changed."""
        now = time.monotonic()
        if not self._waiters():
            self._blocked_since = now
        elif self._turn is not None:
            self._turn.virtual_time += (now - self._charged_until) / self._turn.weight
        self._charged_until = now

    def _end_turn(self) -> None:
        if not self._turn_ends:
            self._turn_ends = True
            self._turns += 1

    def _grant(self) -> None:
        """Grant the device to members of the group whose turn it is; else the next turn begins."""
        waiters = self._waiters()
        if not any(process.holds for process in self._processes):
            self._turn = min((one.group for one in waiters), key=lambda group: group.virtual_time, default=None)
            self._turn_ends = False
            if self._turn is not None:
                self._blocked_since = self._charged_until
                self._virtual_floor = self._turn.virtual_time
        granted = [one for one in waiters if one.group is self._turn and not self._turn_ends]
        for process in granted:
            process.waits, process.holds = False, True
        self._show()
        for process in granted:
            try:
                process.connection.send(GRANTED.pack(process.request, self._turns % 256))
            except OSError:
                self._disconnect(process)

    def _show(self) -> None:
        """Show in the shared file that this process works, how many wait for the turn to end, and which turn it is."""
        self._beats += 1
        self._signs[WAITING_AT] = min(len(self._waiters()), 255)
        self._signs[TURN_AT] = self._turns % 256
        BEATS.pack_into(self._signs, BEATS_AT, self._beats)


def _new_signs(path: Path) -> mmap.mmap:
    """Return a new shared file for an arbiter: truncating an earlier one would kill the processes that map it."""
    part = signs_file(path).with_suffix(".part")
    part.write_bytes(bytes(SIGNS_SIZE))
    part.replace(signs_file(path))
    with signs_file(path).open("r+b") as file:
        return mmap.mmap(file.fileno(), SIGNS_SIZE)
