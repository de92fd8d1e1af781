"""Connections of a server, and the resources that each client process may use.

Rules

1. Budgets are per process where that is possible: opening more connections gains nothing. Another account has one for
   all its processes.
2. When memory is short, the process that uses most of it gives way. 3. A client that is slow waits, a request that is
   too large is refused, and a client that holds on to memory is disconnected; no other client suffers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from lightning_core.server.access.accounts import Peer

# Connections at a time: each is a training, or a command of a user.
MAX_CONNECTIONS = 4096
# Bytes that all connections hold together: unfinished requests, prepared launches, and answers that are not read.
MAX_HELD_BYTES = 128 * 2**20
# Calls of a process per second, and at once after a pause. A training makes some five per second.
CALLS_PER_SECOND, MAX_BURST = 100.0, 1000.0
# Seconds for which a request may be delayed: the process that makes more is refused until then.
MAX_DELAY = 30.0
# Bytes of a request that count as one call.
BYTES_PER_CALL = 2**13


@dataclass(eq=False)
class ClientProcess:
    """A process, or another account with all its processes, and the usage of its connections."""

    connections: set[ClientConnection] = field(default_factory=set)
    paid_until: float = float("-inf")
    """Time until which its calls so far would have taken at the permitted rate."""

    @property
    def held(self) -> int:
        """Bytes that its connections hold."""
        return sum(connection.held for connection in self.connections)


@dataclass(eq=False)
class ClientConnection:
    """A connection of a client.

    Args:
        number: Number of the connection: 1, 2, 3, ...
        process: Process at its other end.
        transport: Its transport.
        used_at: Time of its newest request.
        peer: Process at its other end.
    """

    number: int
    process: ClientProcess
    transport: asyncio.WriteTransport
    used_at: float
    peer: Peer
    unfinished: int = 0
    """Bytes of a request that has not arrived completely."""
    specs: list[Any] = field(default_factory=list)
    """Specs of a launch that has not been asked for completely."""
    prepared: int = 0
    """Bytes that these take."""
    proven: bool = False
    """Whether it has sent a valid request."""

    @property
    def held(self) -> int:
        """Bytes that the server holds for it."""
        return self.unfinished + self.prepared + self.transport.get_write_buffer_size()


class Connections:
    """All connections of a server.

    Args:
        max_connections: Maximum number of connections.
    """

    def __init__(self, max_connections: int = MAX_CONNECTIONS) -> None:
        self._max = max_connections
        self._count = 0
        self._open: set[ClientConnection] = set()
        self._processes: dict[int | str, ClientProcess] = {}
        self._held_at_most = 0

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, peer: Peer, transport: asyncio.WriteTransport, now: float) -> ClientConnection | None:
        """Return a new connection; None if there is no room.

        Args:
            peer: Process at its other end; one that is not visible from here counts as a new one each time.
            transport: Its transport.
            now: Time in seconds.
        """
        self._processes = {
            key: process for key, process in self._processes.items() if process.connections or process.paid_until > now
        }
        key = peer.person.name if peer.of_group else peer.pid or -1 - self._count
        process = self._processes.setdefault(key, ClientProcess())
        if len(self._open) >= self._max and not self._make_room(process):
            return None
        self._count += 1
        connection = ClientConnection(self._count, process, transport, now, peer)
        self._open.add(connection)
        process.connections.add(connection)
        return connection

    def _make_room(self, newcomer: ClientProcess) -> bool:
        """Disconnect the least recently used connection of the process with most, unless the new one has as many."""
        crowd = max(self._processes.values(), key=lambda process: len(process.connections))
        if len(crowd.connections) <= len(newcomer.connections) + 1:
            return False
        self.drop(min(crowd.connections, key=lambda connection: connection.used_at))
        return True

    def delay(self, connection: ClientConnection, size: int, now: float) -> float:
        """Count a request of a connection; return the seconds after which it may be answered.

        Args:
            connection: The connection.
            size: Bytes of the request.
            now: Time in seconds.

        Raises:
            ValueError: If its process has sent so many requests that this one would wait too long.
        """
        process, connection.used_at = connection.process, now
        if process.paid_until > now + MAX_DELAY:
            raise ValueError(f"too many requests: more than {CALLS_PER_SECOND:.0f} per second; try again later")
        earliest = now - MAX_BURST / CALLS_PER_SECOND
        process.paid_until = max(process.paid_until, earliest) + (1 + size / BYTES_PER_CALL) / CALLS_PER_SECOND
        return max(process.paid_until - now, 0.0)

    def limit_memory(self, more: int) -> None:
        """Disconnect the largest connections of the process that holds most, until the total is within the limit.

        Args:
            more: Bytes that may be held besides those of the last call. The bytes held are counted only when these add
                up to the limit: with thousands of connections counting takes longer than a request.
        """
        self._held_at_most += more
        while self._held_at_most > MAX_HELD_BYTES:
            self._held_at_most = sum(connection.held for connection in self._open)
            if self._held_at_most <= MAX_HELD_BYTES:
                return
            greedy = max((process for process in self._processes.values()), key=lambda process: process.held)
            self.drop(max(greedy.connections, key=lambda connection: connection.held))

    def drop(self, connection: ClientConnection) -> None:
        """Disconnect at once, even if data is unsent."""
        connection.transport.abort()
        self._open.discard(connection)
        connection.process.connections.discard(connection)
        connection.specs, connection.prepared, connection.unfinished = [], 0, 0

    def drop_unproven(self, connection: ClientConnection) -> None:
        """Disconnect if there was no valid request."""
        if not connection.proven:
            self.drop(connection)

    def drop_all(self) -> None:
        """Disconnect all."""
        for connection in list(self._open):
            self.drop(connection)
