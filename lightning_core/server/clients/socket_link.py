"""One connection to the pool's server, over which several threads call at the same time."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from typing import Any

CHUNK_BYTES = 2**16


class SocketLink:
    """A connection. Of the threads that wait for an answer, one reads for all.

    Args:
        connection: The socket, connected.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)
        self._unfinished = bytearray()
        self._arrived = threading.Condition()
        self._answers: dict[int, Any] = {}
        self._is_read = False

    def send(self, request: bytes) -> None:
        """Send a request; one thread at a time.

        Raises:
            OSError: If it cannot be sent in time.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the answer says why
            self._socket.sendall(request)

    def receive(self, number: int, patience: float) -> Any:
        """Return the answer to a request, or one that is to none.

        Args:
            number: Number of the request.
            patience: Seconds to wait at most.

        Raises:
            OSError: If there is no answer.
            ValueError: If it is not JSON.
        """
        until = time.monotonic() + patience
        with self._arrived:
            if not self._arrived.wait_for(lambda: number in self._answers or not self._is_read, patience):
                raise TimeoutError("timed out")
            if number in self._answers:
                return self._answers.pop(number)
            self._is_read = True
        try:
            self._read(number, until)
        finally:
            with self._arrived:
                self._is_read = False
                self._arrived.notify_all()
        return self._answers.pop(number)

    def close(self) -> None:
        """Close the connection; a thread that waits for an answer gets an OSError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, number: int, until: float) -> None:
        """Read answers up to the one to a request."""
        while number not in self._answers:
            if self._socket.fileno() < 0:
                raise OSError("the connection is closed")
            if not self._readable.poll(1e3 * max(until - time.monotonic(), 0.0)):
                raise TimeoutError("timed out")
            if not (chunk := self._socket.recv(CHUNK_BYTES)):
                raise OSError("it closed the connection")
            self._unfinished += chunk
            if b"\n" in chunk:
                *lines, self._unfinished = self._unfinished.split(b"\n")
                for answer in map(json.loads, lines):
                    with self._arrived:
                        self._answers[number if answer["id"] is None else answer["id"]] = answer
                        self._arrived.notify_all()
