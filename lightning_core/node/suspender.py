"""The suspender of a device: a server beside its arbiter that takes a process off its GPU, and back, when it asks.

Rules

1. A process asks for itself only: the kernel says which one is at the other end of the socket.
2. One process at a time is moved, so that no other takes the room that it is about to use. It is brought back when
   the device has as much room as it left, because it can be tried only once.
3. A suspended process says now and then that it is there. One that is silent is brought back as soon as there is room:
   a thread of it may wait in a call of CUDA and hold Python's lock, so that no other could ask. So is one whose
   connection ends while it lives.
4. If the suspender dies, the process brings itself back: what is needed for that is in its own memory.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lightning_core.node.cuda_driver import CannotSuspendError, CudaDriver, ProcessLostError
from lightning_core.node.processes import peer_of, started
from lightning_core.node.suspender_client import MAX_MESSAGE, Condition, Move, Whereabouts
from lightning_core.node.unix_sockets import listen

log = logging.getLogger(__name__)

# Seconds after which a suspended process that says nothing is brought back.
SILENCE = 15.0
# Seconds between two looks whether there is room for it.
ROOM_INTERVAL = 0.5
# Connections that are served; others are closed.
MAX_PROCESSES = 128
# Bytes that have to be free beside what a process had.
MARGIN = 2**28
# Characters of a reason.
MAX_REASON = 1000


class _Process:
    """A process that is connected."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.started = started(pid)
        self.device = ""
        self.size = 0  # bytes that have to be free before it is brought back
        self.condition = Condition.RUNNING
        self.why = ""

    @property
    def lives(self) -> bool:
        """Whether it runs; a number may be another process's by now."""
        return self.started is not None and started(self.pid) == self.started


class Suspender:
    """The server: a Unix socket, and one thread for each process.

    Args:
        path: Path of the socket; its folder must be private.
        open_driver: Returns the driver, when a process first asks.
        silence: Seconds after which a suspended process that says nothing is brought back.
    """

    def __init__(
        self, path: Path, open_driver: Callable[[], CudaDriver] = CudaDriver, silence: float = SILENCE
    ) -> None:
        self.path = path
        self._open_driver = open_driver
        self._silence = silence
        self._driver: CudaDriver | None = None
        self._moving = threading.Lock()
        self._connections = set[socket.socket]()
        self._closed = False
        self._listener = listen(path, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(target=self._accept, name="suspender", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server; processes that are suspended bring themselves back."""
        self._closed = True
        for one in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # unlike its end, it wakes the thread that waits for it
        self._thread.join()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._closed:
                    log.warning("the suspender %s cannot accept another process: %s", self.path, error)
                    time.sleep(ROOM_INTERVAL)
                continue
            if len(self._connections) >= MAX_PROCESSES:
                connection.close()
                continue
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="suspends one", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        process = _Process(peer_of(connection))
        try:
            with connection:
                while message := self._receive(connection, process):
                    number, what, device, size = json.loads(message)
                    answer = self._answer(process, Move(what), str(device), int(size))
                    connection.send(json.dumps([number, *answer]).encode())
        except (OSError, ValueError, TypeError) as error:
            log.warning("process %d asks the suspender for nothing that it knows: %s", process.pid, error)
        finally:
            self._connections.discard(connection)
        if not self._closed:
            self._rescue(process)

    def _receive(self, connection: socket.socket, process: _Process) -> bytes:
        """Return the next message; empty at the end. A process that is silent is brought back meanwhile."""
        while True:
            suspended = process.condition is Condition.SUSPENDED
            connection.settimeout(self._silence if suspended else None)
            try:
                return connection.recv(MAX_MESSAGE)
            except TimeoutError:
                if not process.lives:
                    return b""
                if self._bring_back(process).condition is Condition.RUNNING:
                    process.why = f"it said nothing for {self._silence:.0f} s and was brought back"
                    log.warning("process %d was suspended, and %s", process.pid, process.why)
            except ConnectionError:
                return b""

    def _rescue(self, process: _Process) -> None:
        """Bring back a process that is not connected any more, once there is room."""
        while process.condition is Condition.SUSPENDED and not self._closed:
            time.sleep(ROOM_INTERVAL)  # a process that ends closes its connections a moment before
            if not process.lives:
                return
            self._bring_back(process)

    def _answer(self, process: _Process, what: Move, device: str, size: int) -> Whereabouts:
        if process.condition is Condition.LOST:
            return Whereabouts(process.condition, process.why)
        if what is Move.STILL:
            return Whereabouts(process.condition, process.why, process.size)
        if what is Move.BACK:
            return self._bring_back(process)
        return self._take_off(process, what, device, size)

    def _take_off(self, process: _Process, what: Move, device: str, size: int) -> Whereabouts:
        if not process.lives:
            return Whereabouts(Condition.RUNNING, "its process is not visible from where the device's arbiter runs")
        if process.condition is Condition.SUSPENDED:
            return Whereabouts(process.condition, "", process.size)
        with self._moving:
            try:
                driver = self._driver = self._driver or self._open_driver()
                before = driver.free(device)
                if what is Move.TRY:
                    driver.try_lock(process.pid)
                    return Whereabouts(Condition.RUNNING)
                driver.take_off(process.pid)
                process.condition, process.why, process.device, process.size = Condition.SUSPENDED, "", device, size
                # What others have left meanwhile counts too: rather too much room is waited for than too little. But
                # what is free now is enough: a process may have had the GPU to itself, without a margin.
                after = driver.free(device)
                process.size = min(max(size, after - before) + MARGIN, after)
            except CannotSuspendError as error:
                return Whereabouts(process.condition, str(error)[:MAX_REASON], process.size)
            except ProcessLostError as error:
                return _lose(process, error)
        return Whereabouts(process.condition, "", process.size)

    def _bring_back(self, process: _Process) -> Whereabouts:
        with self._moving:
            if process.condition is not Condition.SUSPENDED:
                return Whereabouts(process.condition, process.why)
            assert self._driver is not None  # it has suspended the process
            try:
                if (free := self._driver.free(process.device)) < process.size:
                    return Whereabouts(process.condition, room_words(process.size, free), process.size)
                self._driver.bring_back(process.pid)
            except CannotSuspendError as error:  # it is not known whether there is room
                return Whereabouts(process.condition, str(error)[:MAX_REASON], process.size)
            except ProcessLostError as error:
                return _lose(process, error)
            process.condition = Condition.RUNNING
        return Whereabouts(process.condition, process.why)


def _lose(process: _Process, error: ProcessLostError) -> Whereabouts:
    process.condition, process.why = Condition.LOST, str(error)[:MAX_REASON]
    return Whereabouts(process.condition, process.why)


def room_words(size: int, free: int) -> str:
    """Return that a device has no room, in words."""
    return f"it needs {size / 2**30:.1f} GiB of its GPU, of which {free / 2**30:.1f} GiB are free"
