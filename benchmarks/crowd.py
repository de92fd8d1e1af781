"""Speak with a pool for hundreds of simulated trainings: one process of a crowd, outside the scheduler's.

Each training does what the mailbox of a real one does, one call in flight at a time: it reports, obeys the newest
directive, and waits for the next report; while it is held it waits for news instead. Scripts speak through sockets that
processes of their own have opened, so that the server sees as many processes as there are trainings. Launched jobs call
the scheduler's actor, and a second call waits for news all the time.
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
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lightning_core.core.answers import Directive, End, Grant
from lightning_core.core.codec import answer_from_dict, encode_event, job_to_dict
from lightning_core.core.events import Cell, Event, Report
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import LossTarget
from lightning_core.node.unix_sockets import connect
from lightning_core.server.clients.socket_client import PROTOCOL
from lightning_core.server.ray_settings import NAMESPACE

# As in the mailbox: seconds between two reports, and of one call for news, while held and while training.
PERIOD, HOLD_TIMEOUT, LISTEN_TIMEOUT = 0.2, 10.0, 2.0
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

    async def event(self, event: Event) -> Directive | None:
        """Send an event."""

    async def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        """Wait for a newer directive."""


class SocketLink:
    """A connection to the pool's socket.

    Args:
        path: Path of the socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=open_socket(self._path))

    async def event(self, event: Event) -> Directive | None:
        return _read(await self.call("event", event=encode_event(event)))

    async def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        return _read(await self.call("wait", job=job, version=version, timeout=timeout))

    async def call(self, call: str, **args: Any) -> Any:
        """Send a request and return the answer."""
        self._number += 1
        request = {"id": self._number, "protocol": PROTOCOL, "call": call, "args": args}
        self._writer.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")
        answer = json.loads(await self._reader.readline() or '{"failed": "it closed the connection"}')
        if "value" not in answer:
            raise ConnectionError(str(answer))
        return answer["value"]


class ActorLink:
    """Calls of the scheduler's actor.

    Args:
        name: Name of the actor.
    """

    def __init__(self, name: str) -> None:
        import ray

        self._actor = ray.get_actor(name, namespace=NAMESPACE)

    async def event(self, event: Event) -> Directive | None:
        directive: Directive | None = await self._actor.event.remote(event)
        return directive

    async def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        directive: Directive | None = await self._actor.wait.remote(job, version, timeout)
        return directive


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
            period: Seconds between an answer and the next report.
        """
        listening = asyncio.create_task(self._listen(until)) if self.listens else None
        await asyncio.sleep(random.random() * period)
        while (now := time.monotonic()) < until:
            try:
                self._take(await self.link.event(self._report()))
                self.answers.append(time.monotonic() - now)
                if self.share == 0.0:
                    left = max(min(HOLD_TIMEOUT, until - time.monotonic()), 0.0)
                    self._take(await self.link.wait(self.job.name, self.version, left))
                else:
                    await asyncio.sleep(period)
            except ConnectionError:
                self.failed += 1
                await asyncio.sleep(0.5)
        if listening is not None:
            await listening

    async def _listen(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            self._take(await self.link.wait(self.job.name, self.version, min(left, LISTEN_TIMEOUT)))

    def _take(self, directive: Directive | None) -> None:
        if isinstance(directive, End):
            raise RuntimeError(f"no training of this benchmark ends, got {directive}")
        if isinstance(directive, Grant) and directive.version > self.version:
            self.version, self.share = directive.version, directive.share
            self.grants.append((directive.job, directive.share, time.monotonic()))

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


def _read(value: dict[str, Any] | None) -> Directive | None:
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
