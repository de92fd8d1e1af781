"""Sessions of scripts: which connection reports for which job, and when a job is declared lost.

Rules

1. A script reports for its job while its connection is open; no other connection may.
2. When the connection closes, the script has a grace period to reconnect; after it the job's worker counts as lost.
   After a restart of the pool it joins again, as the next incarnation of its job.
3. Grace periods count only while the scheduler's process runs: a stall of it makes no script count as lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from lightning_core.core.answers import Directive, End, Grant, JoinReply, State
from lightning_core.core.events import Event, ExitCause, Report, Submit, WorkerExited
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.names import check_name
from lightning_core.core.protocols import DeviceNotSharedError, JoinRefusedError, NameTakenError
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.server import clocks

# Seconds that a script has to reconnect: after its connection has closed, and after the scheduler has restarted.
RECONNECT_GRACE = 1.0
RESTART_GRACE = 20.0
# Seconds since it last asked for which a script counts as waiting for a name; it asks every three.
WAITS_FOR = 10.0
# Seconds between two heartbeats of a proxy, and of silence after which it counts as lost.
PROXY_HEARTBEAT, PROXY_TIMEOUT = 5.0, 30.0
PROCESS_EXITED = "its process has exited"


def is_cancelled(directive: Directive | None) -> bool:
    """Return whether a user has cancelled a job, so that its script stops."""
    return isinstance(directive, End) and directive.reason.code.startswith("cancelled")


class Sessions:
    """The sessions of the scripts that have joined a scheduler.

    Args:
        scheduler: Function that returns the current scheduler, a new object after an error of the journal.
        handle: Function that hands an event to the scheduler.
    """

    def __init__(self, scheduler: Callable[[], Scheduler], handle: Callable[[Event], object]) -> None:
        self.devices: Sequence[tuple[str, str]] = ()
        """Name and arbiter path of each device of the pool."""
        self.reporters: dict[str, int] = {}
        """For each job, the number of the connection that reports for it."""
        self._scheduler = scheduler
        self._handle = handle
        # Time and account of the last script that was refused because its name is taken.
        self._waiting: dict[str, tuple[float, str]] = {}
        # Number of the first connection of each, and time of its last heartbeat.
        self._proxies: dict[int, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def join(
        self, job: Job, device: str, incarnation: int | None, connection: int, may_continue: Callable[[], bool]
    ) -> JoinReply:
        """Add the job of a script, or recognise it when the script reconnects.

        Args:
            job: Job to submit.
            device: ``"cpu"``, or the UUID of the GPU that the script trains on.
            incarnation: Incarnation that the script was given before, if it reconnects.
            connection: Number of the connection that reports for the job from now on.
            may_continue: Function that returns whether the script may take up a job of that name that has not ended.

        Raises:
            JoinRefusedError: If its name is taken, or its device is not one of the pool's.
        """
        scheduler = self._scheduler()
        check_name(job.name)
        able = job.can - {Capability.RELEASE, Capability.RESIZE}
        job = replace(job, can=able, device=self._device_number(device), sizes=(), throughputs=())
        if job.min_devices > (have := scheduler.settings.devices):
            raise JoinRefusedError(f"{job.name} trains on {job.min_devices} devices, the pool has {have}")
        if (refusal := scheduler.settings.refusal(job.target)) is not None:
            raise JoinRefusedError(refusal)
        again = False
        if is_cancelled(scheduler.directive(job.name)) and incarnation == scheduler.incarnation(job.name):
            self.reporters[job.name] = connection  # of a process that has not heard of it
            return self._reply(job.name, again=True)
        if job.name in scheduler.names(active=True):
            if self._has_other_reporter(job.name, connection) or not may_continue():
                self._waiting[job.name] = time.monotonic(), job.owner
                raise NameTakenError(f"the name {job.name!r} is taken by a job that has not ended; choose another")
            current = scheduler.incarnation(job.name)
            again = incarnation == current
            joins_again = incarnation == current - 1 and scheduler.last(job.name).state is State.RECOVERING
            if not (again or joins_again):  # another process had the name and has exited
                self._report_lost(job.name, current)
        self._waiting.pop(job.name, None)
        self.reporters[job.name] = connection
        self._handle(Submit((job,)))
        return self._reply(job.name, again=again)

    def _reply(self, job: str, *, again: bool) -> JoinReply:
        scheduler, paths = self._scheduler(), tuple(path for _, path in self.devices)
        return JoinReply(scheduler.incarnation(job), paths, again, scheduler.settings.cores)

    def stopping(self) -> list[str]:
        """Return the jobs that were cancelled and whose script has not stopped yet."""
        return [job for job in self.reporters if is_cancelled(self._scheduler().directive(job))]

    def waiting(self) -> list[dict[str, str]]:
        """Return the names that scripts wait for, each with the owner of the script."""
        since = time.monotonic() - WAITS_FOR
        self._waiting = {name: found for name, found in self._waiting.items() if found[0] > since}
        return [{"job": name, "owner": owner} for name, (_, owner) in self._waiting.items()]

    def check_reporter(self, event: Report | WorkerExited, connection: int) -> None:
        """Check that the connection of an event may report for its job.

        Raises:
            RuntimeError: If another connection reports for it; a script that has just reconnected should retry.
        """
        scheduler, job = self._scheduler(), event.job
        if not isinstance(scheduler.directive(job), Grant) or event.incarnation != scheduler.incarnation(job):
            return  # the event changes nothing, and the answer says so
        if self._has_other_reporter(job, connection):
            raise RuntimeError(f"another process reports for {job}")
        self.reporters[job] = connection
        if isinstance(event, WorkerExited):
            del self.reporters[job]

    def _has_other_reporter(self, job: str, connection: int) -> bool:
        """Return whether a launched worker or another connection reports for a job."""
        launched = Capability.RELEASE in self._scheduler().job(job).can
        return launched or self.reporters.get(job, connection) != connection

    def disconnected(self, connection: int) -> None:
        """Give the jobs of a closed connection a grace period to reconnect."""
        for job in [job for job, reporter in self.reporters.items() if reporter == connection]:
            del self.reporters[job]
            self._await_reconnection(job, RECONNECT_GRACE)

    def heartbeat(self, first: int) -> None:
        """Note a heartbeat of a proxy, whose connections are numbered from ``first``; its silence closes them all."""
        known = first in self._proxies
        self._proxies[first] = time.monotonic()
        if not known:
            self._spawn(self._watch_proxy(first))

    def await_reconnections(self) -> None:
        """Give all scripts a grace period to reconnect after a restart of the scheduler, or of the whole pool."""
        scheduler = self._scheduler()
        for job in scheduler.names(active=True):
            if Capability.RELEASE not in scheduler.job(job).can:
                self._await_reconnection(job, RESTART_GRACE)

    def close(self) -> None:
        """Cancel all grace periods."""
        for task in self._tasks:
            task.cancel()

    def _device_number(self, device: str) -> int | None:
        known = [name for name, _ in self.devices]
        if not known:
            raise RuntimeError("the pool is starting up; try again in some seconds")
        if device in known:
            return known.index(device)
        if device == "cpu" and all(name.startswith("cpu") for name in known):
            return None  # any core
        raise DeviceNotSharedError(f"this process trains on {device}, but the pool manages {', '.join(known)}")

    def _await_reconnection(self, job: str, within: float) -> None:
        """Declare the current incarnation of a job lost unless a connection reports for it in time."""
        incarnation = self._scheduler().incarnation(job)

        async def declare_lost_after_grace() -> None:
            await clocks.sleep(within)
            while not self.devices:  # nothing can join yet
                await clocks.sleep(within)
            if job not in self.reporters:
                self._report_lost(job, incarnation)

        self._spawn(declare_lost_after_grace())

    def _report_lost(self, job: str, incarnation: int) -> None:
        self._handle(WorkerExited(job, incarnation, ExitCause.LOST, PROCESS_EXITED))

    async def _watch_proxy(self, first: int) -> None:
        heard = None
        while heard != self._proxies[first]:
            heard = self._proxies[first]
            await clocks.sleep(heard + PROXY_TIMEOUT - time.monotonic())
        del self._proxies[first]
        for connection in {connection for connection in self.reporters.values() if connection >> 32 == first >> 32}:
            self.disconnected(connection)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task and hold a reference to it, since the event loop holds only a weak one."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
