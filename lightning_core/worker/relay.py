"""Relays the calls of a script to its scheduler, over a socket of its own in the process of the script's worker.

The script needs no Ray, and no other machine than its own. It may report for its own incarnation, wait for news of its
job and ask for its forecast. How it exits is the worker's to report: what it says of that is kept here.

While the scheduler's actor is away, calls fail as those of any client, and work again when it is back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from lightning_core.core.answers import Directive, End, Grant, JobForecast, JobStatus, JoinReply
from lightning_core.core.events import Checkpoint, Event, Report, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.protocols import JoinRefusedError
from lightning_core.server.access.people import Person
from lightning_core.server.clients.ray_client import CALL_TIMEOUT
from lightning_core.server.proxy import forward
from lightning_core.server.ray_settings import NAMESPACE
from lightning_core.server.server import SocketServer
from lightning_core.worker.assignment import Incarnation

Forward = Callable[..., Awaitable[Any]]
"""Calls a method of the scheduler, by its name and arguments."""

# Seconds of one call for news, and until the next one after it has failed.
WATCH_TIMEOUT, RETRY_INTERVAL = 10.0, 0.5
# Seconds within which the socket must be there, and gone.
OPEN_TIMEOUT = 10.0


class Relay:
    """Serves one script as a scheduler; implements :class:`~lightning_core.server.calls.ServedScheduler`.

    Args:
        incarnation: Incarnation that the script trains.
        devices: Devices that it trains on.
        forward: Calls the scheduler.

    Attributes:
        directive: The newest directive of the job; None before there is one.
        was_told_to_leave: Whether the script has ever been told to save and leave.
        has_reported: Whether the script has joined, by a first report.
        checkpoint: The newest checkpoint that the script has reported; None before there is one.
        last_word: Exit that the script has told before it ended itself; None if it has not.
    """

    def __init__(self, incarnation: Incarnation, devices: Sequence[int], forward: Forward) -> None:
        self.directive: Directive | None = None
        self.was_told_to_leave = False
        self.has_reported = False
        self.checkpoint: Checkpoint | None = None
        self.last_word: WorkerExited | None = None
        self._incarnation = incarnation
        self._devices = sorted(devices)
        self._forward = forward

    async def watch(self) -> None:
        """Wait for each newer directive, until cancelled: a script may not ask for them."""
        version = 0
        while True:
            try:
                news = await self._ask("wait", self._incarnation.job, version, WATCH_TIMEOUT, within=WATCH_TIMEOUT)
            except ConnectionError:
                await asyncio.sleep(RETRY_INTERVAL)
                continue
            if news is not None:
                version = max(news.version, version)
                self._note(news)

    async def join(self, job: Job, device: str, incarnation: int | None, connection: int, person: Person) -> JoinReply:
        raise JoinRefusedError(f"{job.name}: a launched script already belongs to its pool and cannot join one")

    async def report(self, report: Report, connection: int, person: Person) -> tuple[Directive | None, float]:
        self._check(report.job, report.incarnation)
        self.has_reported = True
        self.checkpoint = report.checkpoint or self.checkpoint
        directive, period = await self._ask("report", report)
        self._note(directive)
        return directive, float(period)

    async def event(self, event: Event, connection: int, person: Person) -> Directive | None:
        if not isinstance(event, WorkerExited):
            self._refuse()
        self._check(event.job, event.incarnation)
        self.last_word = event
        return None

    async def wait(self, job: str, version: int, timeout: float, person: Person) -> Directive | None:
        self._check(job, self._incarnation.number)
        directive: Directive | None = await self._ask("wait", job, version, timeout, within=timeout)
        self._note(directive)
        return directive

    async def job_forecast(self, job: str, person: Person) -> JobForecast | None:
        if job != self._incarnation.job:
            return None
        forecast: JobForecast | None = await self._ask("job_forecast", job)
        return forecast

    async def status(self) -> tuple[float, list[JobStatus]]:
        self._refuse()

    async def launch(self, specs: list[Any]) -> None:
        self._refuse()

    async def job(self, name: str, person: Person) -> Job:
        self._refuse()

    async def about(self) -> dict[str, Any]:
        self._refuse()

    async def counters(self) -> dict[str, Any]:
        self._refuse()

    async def disconnected(self, connection: int) -> None:
        """Do nothing: the worker sees the end of the process itself."""

    def _note(self, directive: Directive | None) -> None:
        """Keep a directive if it is the newest; that another incarnation has begun has no version, and is the last."""
        known = self.directive
        if directive is None or is_fenced(known):
            return
        if known is None or is_fenced(directive) or directive.version > known.version:
            self.directive = directive
        # The script may leave although it was told to stay in the meantime.
        self.was_told_to_leave |= self.is_told_to_leave(directive)

    def is_told_to_leave(self, directive: Directive | None) -> bool:
        """Return whether a directive says that the job has to save and leave, granted no devices, or others."""
        return isinstance(directive, Grant) and sorted(directive.devices) != self._devices

    def _check(self, job: str, incarnation: int) -> None:
        if (job, incarnation) != self._incarnation[:2]:
            name, number, _ = self._incarnation
            raise ValueError(f"this socket is for incarnation {number} of {name}, got {incarnation} of {job}")

    def _refuse(self) -> NoReturn:
        raise ValueError(f"this socket is for the reports of {self._incarnation.job} alone: ask the pool at its own")

    async def _ask(self, method: str, *args: Any, within: float = 0.0) -> Any:
        """Call the scheduler; whatever is wrong with it, the script is to call again."""
        try:
            async with asyncio.timeout(within + CALL_TIMEOUT):
                return await self._forward(method, *args)
        except Exception as error:
            raise ConnectionError(f"scheduler: {type(error).__name__}: {error}") from error


def is_fenced(directive: Directive | None) -> bool:
    """Return whether a directive says that another incarnation of the job has begun."""
    return isinstance(directive, End) and directive.version == 0


def to_actor(name: str) -> Forward:
    """Return what calls a scheduler that is a Ray actor of this name."""
    found: Any = None

    async def call(method: str, *args: Any) -> Any:
        nonlocal found
        import ray

        if found is None:
            found = await asyncio.to_thread(ray.get_actor, name, namespace=NAMESPACE)
        return await forward(found, method, *args)

    return call


@contextmanager
def serving(relay: Relay, path: Path) -> Iterator[None]:
    """Serve a relay at a socket, in a thread, during the block.

    Args:
        relay: The relay.
        path: Path of the socket, at most 107 characters.

    Raises:
        OSError: If the socket cannot be made.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="relay", daemon=True)
    thread.start()
    server, watch = SocketServer(relay, path), None
    try:
        asyncio.run_coroutine_threadsafe(server.open(), loop).result(OPEN_TIMEOUT)
        watch = asyncio.run_coroutine_threadsafe(relay.watch(), loop)
        yield
    finally:
        if watch is not None:
            watch.cancel()
        asyncio.run_coroutine_threadsafe(_wind_up(server), loop).result(OPEN_TIMEOUT)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(OPEN_TIMEOUT)
        if not thread.is_alive():
            loop.close()


async def _wind_up(server: SocketServer) -> None:
    """Close the server; its connections end by themselves then."""
    await server.close()
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others, timeout=OPEN_TIMEOUT / 2)
