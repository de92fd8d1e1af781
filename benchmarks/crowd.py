"""Speak with a pool for hundreds of simulated trainings: one process of a crowd, outside the scheduler's.

Each training does what the mailbox of a real one does: it reports, obeys the newest directive, and reports again after
the period that the scheduler asks for; while it is held it waits for news instead. It also asks for its forecast now
and then. A second call waits for news all the time in a launched job, and in a script from when the scheduler first
asks for fewer reports. Scripts speak through sockets that processes of their own have opened, so that the server sees
as many processes as there are trainings. Launched jobs call the scheduler's actor.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lightning_core.core.answers import Directive, End, Grant
from lightning_core.core.codec import answer_from_dict, encode_event, job_to_dict
from lightning_core.core.events import Cell, Report
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import LossTarget
from lightning_core.node.unix_sockets import connect
from lightning_core.server.clients.socket_client import PROTOCOL
from lightning_core.server.ray_settings import NAMESPACE

# As in the mailbox: seconds between two reports, and of one call for news, while held and while training.
PERIOD, HOLD_TIMEOUT, LISTEN_TIMEOUT = 0.2, 10.0, 10.0
FORECAST_PERIOD, REPORTS_PER_FORECAST = 5.0, 10
# Batches between two reports.
BATCHES = 20
SCRIPT = frozenset({Capability.TIME_SLICE, Capability.HOLD})


class Seen(NamedTuple):
    """What a crowd has seen while it ran."""

    reports: int
    """Reports that were acknowledged."""
    answers: list[float]
    """Seconds that each took."""
    grants: list[tuple[str, float, float]]
    """Job, share and time of arrival of each grant, by the machine's monotonic clock."""
    cpu: float
    """CPU seconds of the process."""
    failed: int
    """Calls that failed."""


class Link(Protocol):
    """The connection of one training."""

    async def report(self, report: Report) -> tuple[Directive | None, float]:
        """Send a report; return the directive, and the period that is asked for."""

    async def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        """Wait for a newer directive."""

    async def forecast(self, job: str) -> None:
        """Ask for the forecast."""


class SocketLink:
    """A connection to the pool's socket.

    Args:
        path: Path of the socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=open_socket(self._path))
        self._reading = asyncio.create_task(self._read())

    async def report(self, report: Report) -> tuple[Directive | None, float]:
        answer = await self._ask("event", event=encode_event(report))
        return _directive(answer["value"]), answer.get("period", 0.0)

    async def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        return _directive(await self.call("wait", job=job, version=version, timeout=timeout))

    async def forecast(self, job: str) -> None:
        await self.call("job_forecast", job=job)

    async def call(self, call: str, **args: Any) -> Any:
        """Send a request and return the answer."""
        return (await self._ask(call, **args))["value"]

    async def _ask(self, call: str, **args: Any) -> dict[str, Any]:
        self._number += 1
        request = {"id": self._number, "protocol": PROTOCOL, "call": call, "args": args}
        answered = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")
        answer: dict[str, Any] = await answered
        if "value" not in answer:
            raise ConnectionError(str(answer))
        return answer

    async def _read(self) -> None:
        while line := await self._reader.readline():
            answer = json.loads(line)
            self._waiting.pop(answer["id"]).set_result(answer)
        for answered in self._waiting.values():
            answered.set_exception(ConnectionError("it closed the connection"))


class ActorLink:
    """Calls of the scheduler's actor.

    Args:
        name: Name of the actor.
    """

    def __init__(self, name: str) -> None:
        import ray

        self._actor = ray.get_actor(name, namespace=NAMESPACE)

    async def report(self, report: Report) -> tuple[Directive | None, float]:
        answer: tuple[Directive | None, float] = await self._actor.report.remote(report)
        return answer

    async def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        directive: Directive | None = await self._actor.wait.remote(job, version, timeout)
        return directive

    async def forecast(self, job: str) -> None:
        await self._actor.job_forecast.remote(job)


class Training:
    """A simulated training.

    Args:
        name: Name of its job.
        link: Its connection.
        listens: Whether a second call waits for news all the time.
    """

    def __init__(self, name: str, link: Link, listens: bool) -> None:
        self.job = Job(name, 1e6, LossTarget("loss", 1e-3), can=SCRIPT)
        self.link, self.listens = link, listens
        self.incarnation, self.version, self.share = 1, -1, 1.0
        self.answers: list[float] = []
        self.grants: list[tuple[str, float, float]] = []
        self.failed = self._number = 0
        self._news = asyncio.Event()

    async def join(self) -> None:
        """Join the pool as a script."""
        assert isinstance(self.link, SocketLink)
        await self.link.open()
        reply = await self.link.call("join", job=job_to_dict(self.job), device="cpu", incarnation=None)
        self.incarnation = reply[0]

    async def run(self, until: float, period: float) -> None:
        """Report until a time.

        Args:
            until: Monotonic time.
            period: Seconds between two reports, at least; with 0 they do not care what the scheduler asks for.
        """
        listening = asyncio.create_task(self._listen(until)) if self.listens else None
        asked, forecast_at = 0.0, time.monotonic() + random.random() * FORECAST_PERIOD
        await asyncio.sleep(random.random() * period)
        while (now := time.monotonic()) < until:
            try:
                directive, asked = await self.link.report(self._report())
                self._take(directive)
                self.answers.append(time.monotonic() - now)
                if self.share == 0.0:
                    left = max(min(HOLD_TIMEOUT, until - time.monotonic()), 0.0)
                    self._take(await self.link.wait(self.job.name, self.version, left))
                if period and time.monotonic() > forecast_at:
                    await self.link.forecast(self.job.name)
                    forecast_at = time.monotonic() + max(FORECAST_PERIOD, REPORTS_PER_FORECAST * asked)
                if listening is None and asked > period > 0.0:
                    listening = asyncio.create_task(self._listen(until))
                if period and self.share > 0.0:
                    await self._sleep(max(period, asked), until)
            except ConnectionError:
                self.failed += 1
                await asyncio.sleep(0.5)
        if listening is not None:
            await listening

    async def _sleep(self, seconds: float, until: float) -> None:
        """Wait for the next report, or for news."""
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, max(until - time.monotonic(), 0.0))):
                await self._news.wait()

    async def _listen(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            self._take(await self.link.wait(self.job.name, self.version, min(left, LISTEN_TIMEOUT)))

    def _take(self, directive: Directive | None) -> None:
        if isinstance(directive, End):
            raise RuntimeError(f"no training of this benchmark ends, got {directive}")
        if isinstance(directive, Grant) and directive.version > self.version:
            self.version, self.share = directive.version, directive.share
            self.grants.append((directive.job, directive.share, time.monotonic()))
            self._news.set()

    def _report(self) -> Report:
        self._number += 1
        number = self._number
        batches, loss = BATCHES * number, 2.0 * number**-0.3 * random.lognormvariate(0.0, 0.03)
        return Report(
            self.job.name, self.incarnation, number, self.version, batches, PERIOD * number,
            (Cell(number, batches, loss),), in_slow_phase=number == 1,
        )  # fmt: skip


class Crowd:
    """Trainings that run in this process."""

    def __init__(self, trainings: list[Training]) -> None:
        self._trainings = trainings

    async def join(self) -> None:
        """Let all join the pool as scripts, one after the other."""
        for training in self._trainings:
            await training.join()

    async def run(self, seconds: float, period: float) -> Seen:
        """Let all report for some seconds; return what they have seen."""
        for training in self._trainings:
            training.answers, training.grants, training.failed = [], [], 0
        before, until = _cpu(), time.monotonic() + seconds
        await asyncio.gather(*(training.run(until, period) for training in self._trainings))
        answers = [took for training in self._trainings for took in training.answers]
        grants = [grant for training in self._trainings for grant in training.grants]
        return Seen(len(answers), answers, grants, _cpu() - before, sum(one.failed for one in self._trainings))


class ActorCrowd(Crowd):
    """A crowd of launched jobs, as an actor of its own.

    Args:
        scheduler: Name of the scheduler's actor.
        names: Names of the jobs.
    """

    def __init__(self, scheduler: str, names: list[str]) -> None:
        super().__init__([Training(name, ActorLink(scheduler), listens=True) for name in names])


def _directive(value: dict[str, Any] | None) -> Directive | None:
    directive = None if value is None else answer_from_dict(value)
    assert isinstance(directive, Grant | End | None)
    return directive


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def open_socket(path: Path) -> socket.socket:
    """Return a socket that another process has opened, which lives as long as this one."""
    ours, theirs = socket.socketpair()
    alive, _held = os.pipe()
    if os.fork():
        theirs.close()
        os.close(alive)
        _, [descriptor], _, _ = socket.recv_fds(ours, 1, 1)
        ours.close()
        return socket.socket(fileno=descriptor)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.close(_held)
        with connect(path, 60.0) as connection:
            socket.send_fds(theirs, [b"."], [connection.fileno()])
        theirs.close()
        ours.close()
        os.read(alive, 1)  # until the other end is gone
    finally:
        os._exit(0)


def main(path: str, *names: str) -> None:
    """Obey the lines of standard input: ``join``, or seconds and period of a run; answer each with a line of JSON."""
    crowd = Crowd([Training(name, SocketLink(Path(path)), listens=False) for name in names])
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            if line == "join\n":
                answer: Any = runner.run(crowd.join())
            else:
                answer = runner.run(crowd.run(*map(float, line.split())))
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
