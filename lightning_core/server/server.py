"""The pool's server for processes that have not joined Ray: JSON lines over a Unix socket.

Rules

1. Scripts that train and all commands use this server. They need no Ray, so a lost head cannot kill them, and a status
   request takes milliseconds.
2. The socket lies in a folder that is private to its user. Requests are JSON: nothing in them is executed, and every
   value is checked for its type. An invalid line is refused and changes nothing.
3. Every request names its protocol version. If the versions differ, the request is refused and nothing is done.
4. A connection that reports for a job stands for its process: when it closes, the process counts as gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from lightning_core.core.answers import Directive, JobForecast, JobStatus, JoinReply
from lightning_core.core.codec import answer_to_dict, decode_event, job_from_dict, job_to_dict, status_to_dict
from lightning_core.core.commands import Command
from lightning_core.core.events import Close, Event, Report, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.validation import checked
from lightning_core.node.processes import process_watch
from lightning_core.server.clients.socket_client import PROTOCOL, REFUSALS

# Events that clients may send; the scheduler's own events are not among them.
EVENTS = Report | WorkerExited | Close | Command
MAX_LINE_BYTES = 16 * 2**20
# A client makes one request at a time; one with so many unanswered requests is disconnected.
MAX_PENDING_CALLS = 16
MAX_WAIT = 60.0


class Pool(Protocol):
    """What a server serves: a scheduler's actor, or a proxy of one."""

    async def join(self, job: Job, device: str, incarnation: int | None, connection: int) -> JoinReply:
        """Add or recognise the job of a script, for which the connection of this number reports from now on."""

    async def event(self, event: Event, connection: int) -> Directive | None:
        """Handle an event and return the newest directive of its job, if it is newer than the sender's."""

    async def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        """Return the next directive of the job."""

    async def job_forecast(self, job: str) -> JobForecast | None:
        """Return the forecast of the job."""

    async def status(self) -> tuple[float, list[JobStatus]]:
        """Return the scheduler time and the status of all jobs."""

    async def launch(self, specs: list[Any]) -> None:
        """Submit jobs for the pool to launch."""

    async def job(self, name: str) -> Job:
        """Return a job with its current terms."""

    async def about(self) -> dict[str, Any]:
        """Return a description of the pool."""

    async def disconnected(self, connection: int) -> None:
        """Take note that a connection has closed."""


class SocketServer:
    """Serves a pool on a socket.

    Args:
        pool: Pool to serve.
        path: Path of the socket, at most 107 characters; accessible to its user only.
    """

    def __init__(self, pool: Pool, path: Path) -> None:
        self._pool = pool
        self._path = path
        self._connections = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.WriteTransport] = set()

    async def open(self) -> None:
        """Begin to listen; the socket of an earlier process is replaced.

        Raises:
            OSError: If the path is too long, or its folder cannot be written.
        """
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(str(self._path))
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(before)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=MAX_LINE_BYTES)

    async def close(self) -> None:
        """Remove the socket and close all connections."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        for transport in self._open:
            transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        connection = self._connections
        calls: set[asyncio.Task[None]] = set()
        watch = _watch_process(writer)
        self._open.add(writer.transport)
        try:
            while (text := await reader.readline()).endswith(b"\n") and len(calls) < MAX_PENDING_CALLS:
                call = asyncio.create_task(self._answer(text, connection, writer))
                calls.add(call)
                call.add_done_callback(calls.discard)
        except (OSError, ValueError):  # it died in the middle of a line, or sent an endless one
            pass
        finally:
            for call in calls:
                call.cancel()
            if watch is not None:
                asyncio.get_running_loop().remove_reader(watch)
                os.close(watch)
            writer.transport.abort()
            self._open.discard(writer.transport)
            await self._pool.disconnected(connection)

    async def _answer(self, text: bytes, connection: int, writer: asyncio.StreamWriter) -> None:
        number = None
        try:
            request = json.loads(text, parse_constant=_refuse)
            number = request["id"]
            if request["protocol"] != PROTOCOL:
                raise ValueError(f"scheduler protocol {PROTOCOL}, client {request['protocol']}: upgrade the older one")
            asked = self._parse(request["call"], request["args"], connection)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            # A plain ValueError has a message for people; that of a KeyError, say, has none.
            words = str(error) if type(error) is ValueError else f"invalid request: {type(error).__name__}: {error}"
            answer: dict[str, Any] = {"id": number, "refused": words}
        else:
            try:
                answer = {"id": number, "value": await asked()}
            except ValueError as error:  # JoinRefusedError is one
                because = [name for name, kind in REFUSALS.items() if isinstance(error, kind)]
                answer = {"id": number, "refused": str(error)} | ({"because": because[0]} if because else {})
            except Exception as error:  # the pool is in trouble; the client may ask again
                answer = {"id": number, "failed": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError):  # the client is gone
            writer.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
            await writer.drain()

    def _parse(self, call: str, args: Mapping[str, Any], connection: int) -> Callable[[], Awaitable[Any]]:
        """Return the call that a request asks for; nothing has been done yet."""
        pool = self._pool
        match call:
            case "join":
                job, device = job_from_dict(args["job"]), checked(args["device"], str)
                incarnation = checked(args["incarnation"], int | None)
                return partial(pool.join, checked(job, Job), device, incarnation, connection)
            case "event":
                event = decode_event(args["event"])
                if not isinstance(event, EVENTS):
                    raise ValueError(f"{type(event).__name__} is not for clients to send")
                return partial(_directive, pool.event, checked(event, type(event)), connection)
            case "wait":
                name, version = checked(args["job"], str), checked(args["version"], int)
                timeout = min(checked(args["timeout"], float), MAX_WAIT)
                return partial(_directive, pool.wait, name, version, timeout)
            case "job_forecast":
                return partial(pool.job_forecast, checked(args["job"], str))
            case "status":
                return partial(_status, pool)
            case "launch":
                return partial(pool.launch, checked(args["specs"], list))
            case "job":
                return partial(_terms, pool, checked(args["job"], str))
            case "about":
                return pool.about
            case _:
                raise ValueError(f"unknown call {call!r}")


async def _directive(ask: Callable[..., Awaitable[Directive | None]], *args: Any) -> dict[str, Any] | None:
    directive = await ask(*args)
    return None if directive is None else answer_to_dict(directive)


async def _status(pool: Pool) -> list[Any]:
    now, jobs = await pool.status()
    return [now, [status_to_dict(job) for job in jobs]]


async def _terms(pool: Pool, name: str) -> dict[str, Any]:
    return job_to_dict(await pool.job(name))


def _refuse(constant: str) -> float:
    raise ValueError(f"numbers must be finite, got {constant}")


def _watch_process(writer: asyncio.StreamWriter) -> int | None:
    """Close the connection when the process that opened it ends: a child that it forked may keep the socket open."""
    try:
        watch = process_watch(writer.get_extra_info("socket"))
    except OSError:  # it is in another container, say: the connection closes with its last process
        return None
    asyncio.get_running_loop().add_reader(watch, writer.transport.abort)
    return watch
