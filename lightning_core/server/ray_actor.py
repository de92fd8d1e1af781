"""The scheduler in a Ray actor, and the client that speaks with it.

Rules

1. A plain async actor without concurrency groups: one event loop, so one call at a time touches the scheduler.
2. Its process imports neither torch nor lightning: after a kill it answers again in seconds.
3. ``__init__`` does not raise, or Ray would never start the actor again: a journal that cannot be read, or that
   somebody else writes, is told to whoever asks. It is the only one to write its journal: it holds a lock.
4. Whoever calls may call again: a report is known by (job, incarnation, number), a submission by its names.
5. The actor owns nothing: no placement group, no worker. If it dies, the training does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lightning_core.core.answers import (
    Alert,
    Answer,
    Directive,
    JobForecast,
    JobStatus,
    JoinReply,
    Placement,
    VerdictChanged,
)
from lightning_core.core.commands import Command
from lightning_core.core.events import (
    Checkpoint,
    DevicesUnavailable,
    Event,
    Report,
    SelectorFeedback,
    Submit,
    WorkerExited,
    WorkersLost,
)
from lightning_core.core.jobs import Job
from lightning_core.core.names import did_you_mean
from lightning_core.core.protocols import JoinRefusedError
from lightning_core.scheduler.market_jobs import CounterfactualReplay, ReplayableJob
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import EventNotPersistedError, Host
from lightning_core.server.notifications import Notifier
from lightning_core.server.ray_settings import NAMESPACE
from lightning_core.server.server import SocketServer
from lightning_core.server.sessions import Sessions
from lightning_core.storage.job_specs import Spec, store
from lightning_core.storage.journal import JournalError

log = logging.getLogger(__name__)

# Ray makes the methods of a handle when it runs: no checker knows them.
Actor = Any
# A call that takes longer than this is given up and repeated; the actor is back from a kill well within it.
CALL_TIMEOUT = 10.0
# How long the actor before this one may take to die and let go of the journal, and a pause after trouble, seconds.
LET_GO = 10.0
PAUSE = 1.0


class SchedulerActor:
    """Hosts the scheduler. Create it with :func:`start_scheduler`.

    Args:
        settings: of the scheduler, as a dictionary.
        folder: of the pool: holds the journal (if there is one, the actor goes on where it ends) and the jobs' specs.
        socket: path of the door for scripts and people; empty for none.
        on_verdict: what to run when a verdict changes.
    """

    def __init__(
        self, settings: Mapping[str, Any], folder: str, socket: str = "", on_verdict: Mapping[str, Any] | None = None
    ) -> None:
        self._folder = Path(folder)
        self._trouble: str | None = None
        self._news: dict[str, asyncio.Event] = {}
        self._moves = asyncio.Event()
        self._woken = asyncio.Event()
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._door = SocketServer(self, Path(socket)) if socket else None
        self._notifier = Notifier(on_verdict or {})
        self._launching = asyncio.Lock()
        self._lessons: CounterfactualReplay | None = None
        self._teaching: asyncio.Task[None] | None = None
        self._scripts = Sessions(lambda: self._host.scheduler, self._handle)
        try:
            self._lock = _lock(self._folder / "journal.lock")
            self._host = Host(Settings(**settings), self._folder / "journal.db")
        except JournalError as error:
            self._trouble = str(error)
        except Exception as error:
            self._trouble = f"{type(error).__name__}: {error}"
        if self._trouble is None:
            try:
                self._lessons = CounterfactualReplay.of(self._host.scheduler.settings)
            except (OSError, ValueError) as error:  # its recording is gone: jobs get policies, and nobody learns
                log.warning("no job will teach which spot policy is best: %s", error)
        # Ray starts it again without a word, and scripts can speak only to a door that is open.
        if ray.is_initialized():
            with contextlib.suppress(RuntimeError):  # no actor: whoever made it asks it
                ray.get_runtime_context().current_actor.pid.remote()

    # ------------------------------------------------------------------------------------------------ for workers

    async def event(self, event: Event, line: int | None = None) -> Directive | None:
        """Takes in an event; the newest directive of its job if that is news to it."""
        await self._ready()
        if line is not None and isinstance(event, Report | WorkerExited):
            self._scripts.speak(event, line)
        if isinstance(event, Report):
            answer = self._handle(event)
            # A job that is not known, or an incarnation that is over, is answered and not remembered.
            unknown = [d for d in answer if isinstance(d, Directive) and d.job == event.job and d.version == 0]
            return unknown[0] if unknown else self._host.newer(event.job, event.version)
        if isinstance(event, Command):
            self._known(event.job)
            self._host.scheduler.check_command(event, self._host.now())
        self._handle(event)
        return None

    async def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        await self._ready()
        if self._host.scheduler.directive(job) is None:
            raise RuntimeError(f"no job {job!r}")  # it may join again
        news = self._news.setdefault(job, asyncio.Event())
        directive = self._host.newer(job, version)
        if directive is None:
            news.clear()
            try:
                async with asyncio.timeout(timeout):
                    await news.wait()
            except TimeoutError:
                return None
            directive = self._host.newer(job, version)
        return directive

    async def job_forecast(self, job: str) -> JobForecast | None:
        await self._ready()
        return self._host.scheduler.job_forecast(job)

    # ------------------------------------------------------------------------------------------------ for scripts

    async def join(self, job: Job, device: str, incarnation: int | None, line: int) -> JoinReply:
        """Adds the job of a script, or knows it again.

        Args:
            job: as it is submitted.
            device: ``"cpu"``, or the UUID of the GPU that the script trains on.
            incarnation: that the script was given before, if it comes back.
            line: the connection that speaks for it from now on.

        Raises:
            JoinRefusedError: if its name is taken, or its device is not one of the pool's.
        """
        await self._ready()
        return self._scripts.join(job, device, incarnation, line)

    async def hung_up(self, line: int) -> None:
        """A connection has closed."""
        self._scripts.hung_up(line)

    async def here(self, first: int) -> None:
        """A bridge lives, whose lines begin at ``first``."""
        await self._ready()
        self._scripts.here(first)

    # ------------------------------------------------------------------------------------------------ for people

    async def submit(self, jobs: tuple[Job, ...]) -> None:
        """Adds jobs."""
        await self._ready()
        self._handle(Submit(jobs))

    async def launch(self, specs: Sequence[Spec]) -> None:
        """Submits jobs that the pool manager launches from their specs.

        Args:
            specs: each with the job and what a worker needs to know.

        Raises:
            ValueError: if a name is taken or a spec is none; then none of them is submitted.
            OSError: if the specs cannot be written; nor then.
        """
        await self._ready()
        async with self._launching:  # a disk may be slow: not on the loop
            taken = set(self._host.scheduler.names(active=True))
            self._handle(Submit(await asyncio.to_thread(store, specs, self._folder, taken)))

    async def status(self) -> tuple[float, list[JobStatus]]:
        """Scheduler time, and every job as of the last event."""
        await self._ready()
        return self._host.now(), self._host.scheduler.status()

    async def job(self, name: str) -> Job:
        """A job with its terms as they are now."""
        await self._ready()
        self._known(name)
        return self._host.scheduler.job(name)

    async def rates(self, name: str) -> dict[int, float]:
        """Batches a second that a job is believed to do on each number of devices; none while nothing is known."""
        await self._ready()
        self._known(name)
        speed = self._host.scheduler.speedup(name)
        return {size: speed.rate(size) for size in speed.sizes} if speed.known else {}

    async def about(self) -> dict[str, Any]:
        """The pool, for those who look at it."""
        await self._ready()
        settings = self._host.scheduler.settings
        return {"pid": os.getpid(), "folder": str(self._folder), "devices": [name for name, _ in self._scripts.devices],
                "settings": settings.to_dict()}  # fmt: skip

    async def pid(self) -> int:
        """Of the actor's process. By this it wakes itself: whatever is asked first opens the door."""
        await self._ready()
        return os.getpid()

    # ------------------------------------------------------------------------------------------------ for the pool manager

    async def shares(self, devices: Sequence[tuple[str, str]]) -> None:
        """The pool's devices: of each its name and the path of its turnstile. Told again and again: it may be new."""
        await self._ready()
        self._scripts.devices = list(devices)

    async def gone(self, devices: Sequence[tuple[int, str]]) -> None:
        """On which devices no worker can be had, by their numbers, and why."""
        await self._ready()
        scheduler = self._host.scheduler
        ours = {number: words for number, words in devices if number < scheduler.settings.devices}
        if ours.keys() != scheduler.unavailable_devices:
            self._handle(
                DevicesUnavailable(tuple(ours), "; ".join(f"device {k}: {words}" for k, words in ours.items()))
            )

    async def over(self, lives: Sequence[tuple[str, int]]) -> list[bool]:
        """Of each job and incarnation, whether nobody should train it any more."""
        await self._ready()
        scheduler = self._host.scheduler
        active = set(scheduler.names(active=True))
        return [job not in active or scheduler.incarnation(job) != incarnation for job, incarnation in lives]

    async def checkpoints(self, job: str) -> tuple[Checkpoint, ...]:
        """What a job may go on from, the newest first."""
        await self._ready()
        return self._host.scheduler.checkpoints(job)

    async def placements(self, known: Sequence[Placement] | None, timeout: float) -> list[Placement]:
        """Which job should have workers where; returns when that is not what is ``known``, or after ``timeout``."""
        await self._ready()
        until = self._host.now() + timeout
        while (now := self._host.scheduler.placements()) == known and (left := until - self._host.now()) > 0:
            self._moves.clear()
            try:
                async with asyncio.timeout(left):
                    await self._moves.wait()
            except TimeoutError:
                break
        return now

    async def close(self) -> None:
        """Ends the timer and closes the journal; the actor is of no use afterwards."""
        if self._timer is not None:
            self._timer.cancel()
        if self._door is not None:
            await self._door.close()
        self._scripts.close()
        if self._trouble is None:
            self._trouble = "the scheduler is closed"
            self._host.close()
            os.close(self._lock)

    # ------------------------------------------------------------------------------------------------ within

    async def _ready(self) -> None:
        if self._trouble is None:
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open())
            await asyncio.shield(self._opening)  # whoever asked may hang up
        if self._trouble is not None:
            raise RuntimeError(self._trouble)

    async def _open(self) -> None:
        try:
            if self._door is not None:
                await self._door.open()
        except OSError as error:
            self._trouble = f"the door cannot be opened: {error}"
            return
        self._timer = asyncio.get_running_loop().create_task(self._keep_time())
        self._scripts.expect_all()

    def _known(self, job: str) -> None:
        names = self._host.scheduler.names()
        if job not in names:
            raise JoinRefusedError(f"no job {job!r}{did_you_mean(job, names)}")

    def _handle(self, event: Event) -> list[Answer]:
        if self._trouble is not None:
            raise RuntimeError(self._trouble)
        answers = self._host.handle(event)
        self._tell(answers)
        self._woken.set()
        if isinstance(event, WorkerExited | WorkersLost):
            self._moves.set()
        return answers

    def _tell(self, answers: list[Answer]) -> None:
        self._notifier.tell(answers)
        for answer in answers:
            if isinstance(answer, VerdictChanged | Alert):
                continue
            self._moves.set()
            if (news := self._news.get(answer.job)) is not None:
                news.set()

    async def _keep_time(self) -> None:
        """Wakes the scheduler when it wants to be woken."""
        while True:
            try:
                self._tell(self._host.catch_up())
                self._teach()
            except Exception:  # a full disk, say; time goes on
                log.exception("the scheduler could not be woken")
                await asyncio.sleep(PAUSE)
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_to_wakeup()):
                    await self._woken.wait()

    def _seconds_to_wakeup(self) -> float | None:
        times = [self._host.seconds_to_wakeup()]
        if self._lessons is not None and self._teaching is None:
            lesson = self._lessons.next(self._host.scheduler)
            times.append(None if lesson is None else max(lesson - self._host.now(), 0.0))
        return min((seconds for seconds in times if seconds is not None), default=None)

    def _teach(self) -> None:
        """Has jobs that are over teach, apart: nobody waits for what might have been."""
        if self._lessons is None or self._teaching is not None:
            return
        if lectures := self._lessons.due(self._host.scheduler, self._host.now()):
            self._teaching = asyncio.get_running_loop().create_task(self._hear(self._lessons, lectures))

    async def _hear(self, lessons: CounterfactualReplay, lectures: Sequence[ReplayableJob]) -> None:
        try:
            for replayable in lectures:
                try:
                    lesson = await asyncio.to_thread(lessons.feedback, replayable)
                except Exception:  # it is not asked again
                    log.exception("job %s cannot teach", replayable.name)
                    lesson = SelectorFeedback(replayable.name, ())
                await self._keep(lesson)
        finally:
            self._teaching = None
            self._woken.set()

    async def _keep(self, lesson: SelectorFeedback) -> None:
        """As often as it takes: the journal may be full."""
        while True:
            try:
                self._handle(lesson)
                return
            except EventNotPersistedError:
                await asyncio.sleep(PAUSE)


def _lock(path: Path) -> int:
    """Two writers would ruin a journal: a head's actor may outlive it, and people start things twice."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + LET_GO
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(lock)
                raise JournalError(f"{path.parent}: another scheduler writes the journal here") from None
            time.sleep(0.1)


def here() -> NodeAffinitySchedulingStrategy:
    """On this node and no other: the pool's folder is here, and nodes that come and go must not take them along."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def start_scheduler(
    name: str, settings: Settings, folder: Path, socket: str = "", on_verdict: Mapping[str, Any] | None = None
) -> Actor:
    """A named, detached scheduler that Ray starts again whenever it dies; the one of that name if there is one."""
    actor: Any = ray.remote(SchedulerActor)
    return actor.options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        num_cpus=0,
        scheduling_strategy=here(),
    ).remote(settings.to_dict(), str(folder), socket, on_verdict)


class RayClient:
    """Speaks with a scheduler in a Ray actor, from a worker inside the cluster.

    Args:
        name: of the actor.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._actor: Actor | None = None

    def join(self, job: Job, device: str) -> JoinReply:
        raise JoinRefusedError(f"{job.name}: a launched job is in its pool already")

    def report(self, report: Report) -> Directive | None:
        answer: Directive | None = self._call("event", report)
        return answer

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        answer: Directive | None = self._call("wait", job, version, timeout, patience=timeout + CALL_TIMEOUT)
        return answer

    def job_forecast(self, job: str) -> JobForecast | None:
        answer: JobForecast | None = self._call("job_forecast", job)
        return answer

    def left(self, event: WorkerExited) -> None:
        self._call("event", event)

    def close(self) -> None:
        """The worker stays in the cluster."""

    def _call(self, method: str, *args: Any, patience: float = CALL_TIMEOUT) -> Any:
        try:
            if self._actor is None:
                self._actor = ray.get_actor(self._name, namespace=NAMESPACE)
            return ray.get(getattr(self._actor, method).remote(*args), timeout=patience)
        except (RayError, GetTimeoutError, ValueError) as error:
            raise ConnectionError(f"scheduler {self._name}: {type(error).__name__}: {error}") from error
