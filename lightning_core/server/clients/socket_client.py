"""The client of the pool's socket server (:mod:`lightning_core.server.server`): JSON lines over a Unix socket."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from pathlib import Path
from typing import Any

from lightning_core.core.answers import Directive, End, Grant, JobForecast, JobStatus, JoinReply, Verdict
from lightning_core.core.codec import answer_from_dict, encode_event, job_from_dict, job_to_dict, status_from_dict
from lightning_core.core.events import Event, Report, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.protocols import AccessRefusedError, DeviceNotSharedError, JoinRefusedError, NameTakenError
from lightning_core.node.unix_sockets import connect
from lightning_core.server.access.people import Person

CHUNK_BYTES = 2**16
PROTOCOL = 11
CALL_TIMEOUT = 10.0
# Bytes of specs in one request, unless one spec is larger.
PART_BYTES = 2**17
# Codes that tell refusals apart, sent beside their messages.
REFUSALS: dict[str, type[JoinRefusedError]] = {
    "name": NameTakenError,
    "device": DeviceNotSharedError,
    "access": AccessRefusedError,
}
# Incarnation by process, pool and job, so that a process that reconnects is recognised.
_joined: dict[tuple[int, str, str], int] = {}


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


def forget_joining(job: str) -> None:
    """Forget that this process has joined under a name: a training that begins is another one."""
    for key in [key for key in _joined if (key[0], key[2]) == (os.getpid(), job)]:
        del _joined[key]


class SocketClient:
    """Speaks with a pool through its socket; implements :class:`lightning_core.core.protocols.Client`.

    Args:
        path: Path of the pool's socket.
        person: Person for whom it speaks, which the pool grants to processes of its own account alone; None for the
            account of this process.
        pool: Name of the pool that it keeps when it is restarted with another socket; the socket's path by default.
        through: Program that asks for that person, which is noted with each command; empty for none.
    """

    def __init__(self, path: Path, person: Person | None = None, pool: str = "", through: str = "") -> None:
        self._pool = pool or str(path)
        self.path = path
        """Path of the pool's socket."""
        self.person = person
        """Person for whom it speaks; None for the account of this process."""
        self.through = through
        """Program that asks for that person; empty for none."""
        self.report_period = 0.0
        self._lock = threading.RLock()
        self._link: SocketLink | None = None
        self._number = 0

    def join(self, job: Job, device: str) -> JoinReply:
        key = (os.getpid(), self._pool, job.name)
        before = _joined.get(key)
        reply = JoinReply(*self.call("join", job=job_to_dict(job), device=device, incarnation=before))
        _joined[key] = reply.incarnation
        return reply._replace(arbiters=tuple(reply.arbiters))

    def report(self, report: Report) -> Directive | None:
        return self.event(report)

    def event(self, event: Event) -> Directive | None:
        """Send an event and return the newest directive of its job, if it is newer than the sender's.

        Raises:
            ValueError: If the pool refuses the event; the message is the pool's.
        """
        answer = self._ask("event", event=encode_event(event))
        if isinstance(event, Report):
            self.report_period = answer.get("period", 0.0)
        return _directive_from_dict(answer["value"])

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        patience = timeout + CALL_TIMEOUT
        return _directive_from_dict(self.call("wait", patience, job=job, version=version, timeout=timeout))

    def job_forecast(self, job: str) -> JobForecast | None:
        value = self.call("job_forecast", job=job)
        if value is None:
            return None
        verdict, *rest = value
        return JobForecast(None if verdict is None else Verdict(verdict), *rest)

    def left(self, event: WorkerExited) -> None:
        self.event(event)

    def status(self) -> tuple[float, list[JobStatus]]:
        """Return the scheduler time and the status of every job."""
        now, jobs = self.call("status")
        return now, [status_from_dict(job) for job in jobs]

    def launch(self, specs: list[dict[str, Any]]) -> None:
        """Submit jobs for the pool to launch: all of them at once, though no request is large."""
        with self._lock:
            sent = 0
            *parts, last = _parts(specs)
            for part in parts:
                self.call("prepare", specs=part, after=sent)
                sent += len(part)
            self.call("launch", specs=last, after=sent)

    def job(self, name: str) -> Job:
        """Return a job with its current terms."""
        return job_from_dict(self.call("job", job=name))

    def about(self) -> dict[str, Any]:
        """Return a description of the pool: its settings, devices and folder."""
        body: dict[str, Any] = self.call("about")
        return body

    def counters(self) -> dict[str, Any]:
        """Return the counters of the scheduler's process since its start; see :class:`~.load.counters.Counters`."""
        body: dict[str, Any] = self.call("counters")
        return body

    def close(self) -> None:
        with self._lock:
            self._hang_up(self._link)

    def call(self, call: str, patience: float = CALL_TIMEOUT, **args: Any) -> Any:
        """Send a request and return the answer.

        Raises:
            ConnectionError: If there is no answer, which does not mean that the request was not carried out.
            JoinRefusedError: If the pool refuses; the message is the pool's.
        """
        return self._ask(call, patience, **args)["value"]

    def _ask(self, call: str, patience: float = CALL_TIMEOUT, **args: Any) -> dict[str, Any]:
        """Send a request and return the answer with all that is said beside its value; see :meth:`call`."""
        link = None
        try:
            with self._lock:
                self._number += 1
                number = self._number
                request = {"id": number, "protocol": PROTOCOL, "call": call, "args": args}
                if self.person is not None:
                    request["person"] = self.person.to_dict()
                if self.through:
                    request["through"] = self.through
                link = self._link = self._link or SocketLink(connect(self.path, CALL_TIMEOUT))
                link.send(json.dumps(request, separators=(",", ":")).encode() + b"\n")
            answer: dict[str, Any] = link.receive(number, patience)
        except (OSError, ValueError) as error:
            self._hang_up(link)
            raise ConnectionError(f"the pool at {self.path} does not answer: {error}") from error
        except BaseException:  # Ctrl-C: the next request must not get the answer to this one
            self._hang_up(link)
            raise
        if "refused" in answer:
            raise REFUSALS.get(answer.get("because", ""), JoinRefusedError)(answer["refused"])
        if "failed" in answer:
            if answer["id"] is None:  # the server has no room for another connection, and has closed this one
                self._hang_up(link)
            raise ConnectionError(answer["failed"])
        return answer

    def _hang_up(self, link: SocketLink | None) -> None:
        if link is not None:
            link.close()
        if self._link is link:
            self._link = None


def _parts(specs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return specs in parts that are sent one after the other; the last one may be empty."""
    parts: list[list[dict[str, Any]]] = [[]]
    size = 0
    for spec in specs:
        size += len(json.dumps(spec))
        if size > PART_BYTES and parts[-1]:
            parts.append([])
            size = len(json.dumps(spec))
        parts[-1].append(spec)
    return parts


def _directive_from_dict(value: dict[str, Any] | None) -> Directive | None:
    if value is None:
        return None
    directive = answer_from_dict(value)
    if not isinstance(directive, Grant | End):
        raise ConnectionError(f"the pool must answer with a directive, got {directive}")
    return directive
