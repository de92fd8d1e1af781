"""A training process's connection to the suspender of its device, and the messages between the two."""

from __future__ import annotations

import json
import socket
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from lightning_core.node.unix_sockets import connect

# Seconds that connecting may take.
CONNECT_TIMEOUT = 2.0
# Bytes of a message.
MAX_MESSAGE = 4096


class Move(StrEnum):
    """What a process asks for itself."""

    TRY = "try"
    """Whether it can be suspended."""
    OUT = "out"
    """To be suspended."""
    STILL = "still"
    """Nothing: it is there, and stays suspended."""
    BACK = "back"
    """To be brought back."""


class Condition(StrEnum):
    """Where a process is."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    LOST = "lost"


class Whereabouts(NamedTuple):
    """What the suspender answers."""

    condition: Condition
    why: str = ""
    """Why it is not where it asked to be."""
    size: int = 0
    """Bytes of the GPU that it needs to come back."""


class SuspenderClient:
    """The connection of this process to a suspender.

    Args:
        path: Path of the suspender's socket.
        device: UUID of the GPU of this process.

    Raises:
        OSError: If nothing listens there.
    """

    def __init__(self, path: Path, device: str) -> None:
        self._device = device
        self._number = 0
        self._socket = connect(path, CONNECT_TIMEOUT, socket.SOCK_SEQPACKET)

    def ask(self, what: Move, timeout: float, size: int = 0) -> Whereabouts:
        """Ask for something, and return what has become of it.

        Args:
            what: What is asked for.
            timeout: Seconds that it may take.
            size: Bytes that torch has reserved on the GPU.

        Raises:
            OSError: If the suspender is gone, or has not answered in time.
        """
        self._number += 1
        self._socket.settimeout(timeout)
        self._socket.send(json.dumps([self._number, what, self._device, size]).encode())
        while message := self._socket.recv(MAX_MESSAGE):
            number, condition, why, needed = json.loads(message)
            if number == self._number:  # else of a question that was interrupted
                return Whereabouts(Condition(condition), why, needed)
        raise ConnectionResetError("it has closed the connection")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def suspender_of(arbiter: Path) -> Path:
    """Return the path of the socket of a device's suspender, which is beside that of its arbiter, and no longer."""
    return arbiter.with_name("suspend")
