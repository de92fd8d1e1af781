"""A pool in virtual time: the real scheduler, and workers whose losses are made up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.core.answers import Grant, JobStatus, State
from lightning_core.core.commands import Command
from lightning_core.core.events import BadLosses, Cell, Checkpoint, Event, ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.pool.pool_errors import JobEndedError, UnknownJobError
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.probe import PoolUnavailableError

# Batches of an epoch, and seconds of a batch alone on its device.
PER_EPOCH, BATCH = 10, 0.1
STEP = 0.25
RATE = "model.init_args.lr"


@dataclass
class Worker:
    """A training: how far it is, and what it has told."""

    rate: float
    batches: float = 0.0
    began: int = 0
    numbers: dict[int, int] = field(default_factory=dict)
    cells: dict[int, int] = field(default_factory=dict)
    home: tuple[int, ...] = ()


class MadeUpPool:
    """A pool whose jobs train as their learning rate says, and whose clock goes on when a search sleeps.

    Args:
        devices: Number of its devices.
        value: Value of the metric after an epoch, by learning rate and epoch.
        policy: Its policy.
    """

    is_far = False

    def __init__(
        self, devices: int = 2, value: Callable[[float, float], float] | None = None, policy: str = "triage"
    ) -> None:
        self.settings = Settings(policy, devices=devices)
        self.scheduler = Scheduler(self.settings)
        self.workers = dict[str, Worker]()
        self.value = value or (lambda rate, epoch: float(epoch**-rate))
        self.fails, self.diverges = set[str](), set[str]()
        self.now, self.start = 0.0, 1e9
        self.configs = list[Any]()
        self.running = list[list[str]]()
        """Jobs that trained, at each step."""
        self.away = False
        """Whether it does not answer; its jobs wait meanwhile."""
        self.at = dict[float, Callable[[], None]]()
        """What is done at a time."""

    def clock(self) -> SimpleNamespace:
        """Return what stands for the module ``time``."""
        return SimpleNamespace(time=lambda: self.start + self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        """Train for so long."""
        until = self.now + max(seconds, STEP)
        while self.now < until - 1e-9:
            self.now += STEP
            for due in [due for due in self.at if due <= self.now]:
                self.at.pop(due)()
            if self.away:
                continue
            self._handle(Tick())
            self.running.append([name for name in list(self.workers) if self._train(name)])

    # What a search does with a pool.

    def check(self, bundle: BundleSpec) -> None:
        self.configs = [spec.config for spec in bundle.jobs]

    def submit(self, bundle: BundleSpec, *, checked: bool = False) -> list[str]:
        assert checked
        self._answer()
        for spec in bundle.jobs:
            self.add(spec.identified, spec.config["model"]["init_args"]["lr"])
        return [spec.job.name for spec in bundle.jobs]

    def look(self) -> tuple[float, list[JobStatus]]:
        self._answer()
        return self.now, self.scheduler.status()

    def jobs(self) -> list[JobStatus]:
        return self.scheduler.status()

    def send(self, command: Command) -> None:
        self._answer()
        if command.job not in self.workers:
            raise UnknownJobError(command.job)
        if self.scheduler.last(command.job).state is State.ENDED:
            raise JobEndedError(command.job)
        self._handle(command)

    def close(self) -> None:
        pass

    # What happens in it.

    def add(self, job: Job, rate: float = 1.0) -> None:
        self.workers[job.name] = Worker(rate)
        self._handle(Submit((job,)))

    def _answer(self) -> None:
        if self.away:
            raise PoolUnavailableError("the pool does not answer")

    def _handle(self, event: Event) -> None:
        self.scheduler.handle(event, self.now)

    def _train(self, name: str) -> bool:
        """Train a job for a step where it is to be; return whether it trained."""
        worker, directive = self.workers[name], self.scheduler.directive(name)
        incarnation = self.scheduler.incarnation(name)
        if not isinstance(directive, Grant):
            worker.home = ()
            return False
        if worker.home and directive.devices != worker.home:
            worker.home, worker.began = (), int(worker.batches)
            saved = Checkpoint(worker.began, "0" * 64)
            self._handle(WorkerExited(name, incarnation, ExitCause.RELEASED, checkpoint=saved))
            return False
        if not directive.share or not directive.devices:
            return False
        worker.home = directive.devices
        before, target = worker.batches, self.scheduler.last(name).target
        worker.batches += directive.share * STEP / BATCH
        cells = []
        for epoch in range(int(before // PER_EPOCH) + 1, int(worker.batches // PER_EPOCH) + 1):
            worker.cells[incarnation] = worker.cells.get(incarnation, 0) + 1
            cells.append(Cell(worker.cells[incarnation], epoch * PER_EPOCH, self.value(worker.rate, epoch)))
        if name in self.fails:
            self._handle(WorkerExited(name, incarnation, ExitCause.RAISED, detail="Traceback\nOverflowError: too much"))
            return True
        if name in self.diverges:
            bad = Report(name, incarnation, 1, directive.version, 5, 0.5, bad_losses=BadLosses(1, 10))
            self._handle(bad)
            return True
        number = worker.numbers[incarnation] = worker.numbers.get(incarnation, 0) + 1
        done, most = int(worker.batches), target.work or math.inf
        busy = (min(done, most) - worker.began) * BATCH
        self._handle(
            Report(
                name, incarnation, number, directive.version, int(min(done, most)), busy,
                tuple(cells) if target.watches else (), batches_at_start=worker.began, evaluated=target.watches,
                epoch_batches=PER_EPOCH if number == 1 else None,
            )
        )  # fmt: skip
        return True
