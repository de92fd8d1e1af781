"""The pool's door for processes that have not joined Ray: JSON lines over a Unix socket.

Rules

1. A script that trains, and every command of a person, speaks through this door: it needs no Ray, so a lost head
   cannot kill it, and to ask for the status takes milliseconds.
2. The socket lies in a folder that is private to its user. JSON only: nothing that comes in is executed.
3. Both sides say their protocol first. If they differ, the client is told to be upgraded, and nothing is done.
4. A connection that speaks for a job speaks for the life of its process: when it closes, the process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from lightning_core.codec import (
    answer_from_dict,
    answer_to_dict,
    decode_event,
    encode_event,
    job_from_dict,
    job_to_dict,
    status_from_dict,
    status_to_dict,
)
from lightning_core.protocols import JoinRefused
from lightning_core.types import (
    Amend,
    Cancel,
    Close,
    Directive,
    End,
    Event,
    Grant,
    Job,
    JobStatus,
    Outlook,
    Pause,
    Report,
    Resume,
    Verdict,
    Welcome,
    WorkerLeft,
)

PROTOCOL = 1
# What may come in from outside: never the scheduler's own events.
EVENTS = (Report, WorkerLeft, Close, Cancel, Pause, Resume, Amend)
LONGEST_LINE = 16 * 2**20
CALL_TIMEOUT = 10.0
# By process, pool and job, the incarnation it has: so that a process that comes back is known again.
_joined: dict[tuple[int, str, str], int] = {}


class Pool(Protocol):
    """What stands behind the door: a scheduler's actor, or a way to one."""

    async def join(self, job: Job, device: str, incarnation: int | None, line: int) -> Welcome:
        """As :meth:`lightning_core.protocols.Client.join`; ``line`` is the connection that speaks for the job."""

    async def event(self, event: Event, line: int | None = None) -> Directive | None:
        """Takes in an event; the newest directive of its job if that is news to it."""

    async def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        """The next directive of the job."""

    async def outlook(self, job: str) -> Outlook | None:
        """What is forecast for the job."""

    async def status(self) -> tuple[float, list[JobStatus]]:
        """Scheduler time, and all jobs."""

    async def launch(self, specs: list[dict[str, Any]]) -> None:
        """Submits jobs that the pool is to launch."""

    async def job(self, name: str) -> Job:
        """A job with its terms as they are now."""

    async def about(self) -> dict[str, Any]:
        """The pool: its policy, devices, folder."""

    async def hung_up(self, line: int) -> None:
        """A connection has closed."""


class Door:
    """Serves a pool on a socket.

    Args:
        pool: that stands behind it.
        path: of the socket, at most 107 characters; made with permissions for its user alone.
    """

    def __init__(self, pool: Pool, path: Path) -> None:
        self._pool = pool
        self._path = path
        self._lines = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Begins to listen; a socket that a process before this one left is replaced."""
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._path, limit=LONGEST_LINE)
        finally:
            os.umask(before)

    async def close(self) -> None:
        """Takes the socket away."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines += 1
        line = self._lines
        calls: set[asyncio.Task[None]] = set()
        watch = _watch_process(writer)
        try:
            while text := await reader.readline():
                call = asyncio.create_task(self._answer(text, line, writer))
                calls.add(call)
                call.add_done_callback(calls.discard)
        except (OSError, ValueError):  # it died in the middle of a line, or sent one without end
            pass
        finally:
            for call in calls:
                call.cancel()
            if watch is not None:
                asyncio.get_running_loop().remove_reader(watch)
                os.close(watch)
            writer.close()
            await self._pool.hung_up(line)

    async def _answer(self, text: bytes, line: int, writer: asyncio.StreamWriter) -> None:
        number = None
        try:
            request = json.loads(text)
            number = request["id"]
            if request["protocol"] != PROTOCOL:
                raise JoinRefused(f"scheduler protocol {PROTOCOL}, client {request['protocol']}: upgrade the older one")
            answer = {"id": number, "value": await self._call(request["call"], request["args"], line)}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            answer = {"id": number, "refused": str(error) or type(error).__name__}
        except Exception as error:  # the pool is in trouble; whoever asked may ask again
            answer = {"id": number, "failed": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError):  # nobody listens any more
            writer.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
            await writer.drain()

    async def _call(self, call: str, args: Mapping[str, Any], line: int) -> Any:
        pool = self._pool
        match call:
            case "join":
                return await pool.join(job_from_dict(args["job"]), args["device"], args["incarnation"], line)
            case "event":
                event = decode_event(args["event"])
                if not isinstance(event, EVENTS):
                    raise ValueError(f"{type(event).__name__} is not for clients to send")
                return _directive_to_dict(await pool.event(event, line))
            case "wait":
                return _directive_to_dict(await pool.wait(args["job"], args["version"], min(args["timeout"], 60.0)))
            case "outlook":
                return await pool.outlook(args["job"])
            case "status":
                now, jobs = await pool.status()
                return [now, [status_to_dict(job) for job in jobs]]
            case "launch":
                return await pool.launch(args["specs"])
            case "job":
                return job_to_dict(await pool.job(args["job"]))
            case "about":
                return await pool.about()
            case _:
                raise ValueError(f"unknown call {call!r}")


class SocketClient:
    """Speaks with a pool through its door; implements :class:`lightning_core.protocols.Client`.

    Args:
        path: of the socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._rest = b""
        self._number = 0

    def join(self, job: Job, device: str) -> Welcome:
        key = (os.getpid(), str(self._path), job.name)
        before = _joined.get(key)
        incarnation, turnstiles, again = self.call("join", job=job_to_dict(job), device=device, incarnation=before)
        _joined[key] = incarnation
        return Welcome(incarnation, tuple(turnstiles), again)

    def report(self, report: Report) -> Directive | None:
        return self.event(report)

    def event(self, event: Event) -> Directive | None:
        """Hands over any event; the newest directive of its job if that is news to it.

        Raises:
            ValueError: if the pool refuses it, with its words.
        """
        return _directive_from_dict(self.call("event", event=encode_event(event)))

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        patience = timeout + CALL_TIMEOUT
        return _directive_from_dict(self.call("wait", patience, job=job, version=version, timeout=timeout))

    def outlook(self, job: str) -> Outlook | None:
        value = self.call("outlook", job=job)
        if value is None:
            return None
        verdict, *rest = value
        return Outlook(None if verdict is None else Verdict(verdict), *rest)

    def left(self, event: WorkerLeft) -> None:
        self.event(event)

    def status(self) -> tuple[float, list[JobStatus]]:
        """Scheduler time, and every job."""
        now, jobs = self.call("status")
        return now, [status_from_dict(job) for job in jobs]

    def launch(self, specs: list[dict[str, Any]]) -> None:
        """Submits jobs that the pool is to launch."""
        self.call("launch", specs=specs)

    def job(self, name: str) -> Job:
        """A job with its terms as they are now."""
        return job_from_dict(self.call("job", job=name))

    def about(self) -> dict[str, Any]:
        """The pool: its policy, devices, folder."""
        body: dict[str, Any] = self.call("about")
        return body

    def close(self) -> None:
        with self._lock:
            self._hang_up()

    def call(self, call: str, patience: float = CALL_TIMEOUT, **args: Any) -> Any:
        """One question, one answer.

        Raises:
            ConnectionError: if there is none; that does not mean that nothing was done.
            JoinRefused: if the pool refuses, with its words.
        """
        with self._lock:
            self._number += 1
            request = {"id": self._number, "protocol": PROTOCOL, "call": call, "args": args}
            try:
                connection = self._connected()
                connection.settimeout(patience)
                connection.sendall(json.dumps(request, separators=(",", ":")).encode() + b"\n")
                while (answer := json.loads(self._line(connection)))["id"] != self._number:
                    pass  # of a question that was given up
            except (OSError, ValueError) as error:
                self._hang_up()
                raise ConnectionError(f"the pool at {self._path} does not answer: {error}") from error
        if "refused" in answer:
            raise JoinRefused(answer["refused"])
        if "failed" in answer:
            raise ConnectionError(answer["failed"])
        return answer["value"]

    def _connected(self) -> socket.socket:
        if self._socket is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(CALL_TIMEOUT)
                connection.connect(str(self._path))
            except OSError:
                connection.close()
                raise
            self._socket, self._rest = connection, b""
        return self._socket

    def _line(self, connection: socket.socket) -> bytes:
        while b"\n" not in self._rest:
            more = connection.recv(65536)
            if not more:
                raise OSError("it hung up")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _watch_process(writer: asyncio.StreamWriter) -> int | None:
    """Closes the connection when the process that opened it ends: a child that it forked may keep the socket open."""
    try:
        watch = process_watch(writer.get_extra_info("socket"))
    except OSError:  # of another machine's or container's processes nothing can be known: the socket has to tell
        return None
    asyncio.get_running_loop().add_reader(watch, writer.transport.abort)
    return watch


def process_watch(connection: Any) -> int:
    """A descriptor that can be read once the process at the other end of a Unix socket has ended; close it.

    Raises:
        OSError: if that process cannot be seen from here.
    """
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return os.pidfd_open(struct.unpack("3i", credentials)[0])


def _directive_to_dict(directive: Directive | None) -> dict[str, Any] | None:
    return None if directive is None else answer_to_dict(directive)


def _directive_from_dict(value: dict[str, Any] | None) -> Directive | None:
    if value is None:
        return None
    directive = answer_from_dict(value)
    if not isinstance(directive, Grant | End):
        raise ConnectionError(f"the pool answered with what is no directive: {directive}")
    return directive
