"""A pool in virtual time whose losses follow power laws: it writes the journals with which views are tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lightning_core.core.answers import End, Grant
from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline, SetTerms
from lightning_core.core.events import Cell, Event, ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal

EVERY = 10
# Names that a page, a terminal or a formula could interpret.
HOSTILE = ("<script>alert(1)</script>", '"onload="x', "</title></script>", r"$\foo$", "a\x1b[2Jb", "&lt;", "x\u202ey")


@dataclass
class Curve:
    """A falling loss ``scale * batches ** -slope`` with noise, and its throughput; a factor on it by kind of device."""

    scale: float = 3.0
    slope: float = 0.4
    throughput: float = 50.0
    crash_after: int | None = None
    paces: Mapping[str, float] = field(default_factory=dict)

    def throughput_on(self, locations: Sequence[str], device: int) -> float:
        """Return the throughput on a device of a pool whose devices are at some locations."""
        return self.throughput * (self.paces.get(locations[device], 1.0) if locations else 1.0)


# Throughput of a job beside others, as a fraction of that alone.
PACE = 0.8


@dataclass
class _Worker:
    job: Job
    curve: Curve
    incarnation: int = 1
    number: int = 0
    cell: int = 0
    batches: float = 0.0
    busy: float = 0.0
    share: float = 0.0
    beside: int = 0
    devices: tuple[int, ...] = ()
    began: int = 0
    version: int = 0
    over: bool = False


def drive(
    path: Path,
    settings: Settings,
    jobs: Mapping[float, list[tuple[Job, Curve]]],
    seconds: float,
    *,
    step: float = 1.0,
    events: Mapping[float, Event] | None = None,
    seed: int = 0,
) -> Scheduler:
    """Write a journal.

    Args:
        path: Path of the new journal.
        settings: Settings of the scheduler.
        jobs: Jobs with their curves, by the time of their submission.
        seconds: Length of the run.
        step: Seconds between two reports of a job.
        events: Other events, by their time.
        seed: Seed of the noise.

    Returns:
        The scheduler at the end of the run.
    """
    draw = np.random.default_rng(seed)
    scheduler = Scheduler(settings)
    workers: dict[str, _Worker] = {}
    coming: list[tuple[float, Event]] = [(t, Submit(tuple(job for job, _ in many))) for t, many in jobs.items()]
    coming = sorted(coming + list((events or {}).items()), key=lambda pair: pair[0])
    curves = {job.name: curve for many in jobs.values() for job, curve in many}

    with Journal.create(path, settings) as journal:
        # It need not outlive a power cut, and a test has thousands of events.
        journal._connection.execute("PRAGMA synchronous = OFF")

        def handle(event: Event, now: float) -> None:
            answers = scheduler.handle(event, now)
            scheduler.check()
            journal.append(event, now, answers, scheduler.accepted)
            for answer in answers:
                worker = workers.get(answer.job)
                if worker is None or not isinstance(answer, Grant | End) or answer.version <= worker.version:
                    continue
                worker.version = answer.version
                if isinstance(answer, End):
                    worker.over = True
                else:
                    moved = worker.batches and answer.devices != worker.devices
                    worker.share, worker.devices, worker.beside = answer.share, answer.devices, answer.beside
                    if moved:
                        handle(WorkerExited(worker.job.name, worker.incarnation, ExitCause.RELEASED), now)
                        worker.incarnation += 1
                        worker.number = worker.cell = 0
                        worker.busy, worker.began = 0.0, int(worker.batches)

        for at in np.arange(0.0, seconds, step).tolist():
            while coming and coming[0][0] <= at:
                _, event = coming.pop(0)
                if isinstance(event, Submit):
                    for job in event.jobs:
                        workers[job.name] = _Worker(job, curves[job.name])
                        before = scheduler.directive(job.name)
                        if before is not None:
                            status = next(s for s in reversed(scheduler.status()) if s.name == job.name)
                            workers[job.name].version = before.version
                            workers[job.name].incarnation = status.incarnation + 1
                handle(event, at)
            if (wakeup := scheduler.wakeup()) is not None and wakeup <= at:
                handle(Tick(), at)
            for worker in list(workers.values()):
                group = [one for one in workers.values() if not one.over and one.beside == worker.beside > 0]
                share = sum(one.share for one in group) if group else worker.share
                if worker.over or not (share and worker.devices):
                    continue
                done = int(worker.batches)
                throughput = worker.curve.throughput_on(settings.locations, worker.devices[0])
                worker.batches += throughput * share * step * (PACE if len(group) > 1 else 1.0)
                worker.busy += share * step
                worker.number += 1
                if worker.curve.crash_after is not None and worker.batches > worker.curve.crash_after:
                    trace = 'Traceback (most recent call last):\n  File "<train>.py"\nValueError: \x1b[2J<b>$\\foo$'
                    handle(WorkerExited(worker.job.name, worker.incarnation, ExitCause.RAISED, detail=trace), at)
                    continue
                cells = []
                for batches in range(done // EVERY * EVERY + EVERY, int(worker.batches) + 1, EVERY):
                    worker.cell += 1
                    loss = worker.curve.scale * batches**-worker.curve.slope * draw.lognormal(0, 0.05)
                    cells.append(Cell(worker.cell, batches, worker.job.target.logged(float(loss))))
                known = tuple(cells) if isinstance(worker.job.target, LossTarget) else ()
                report = Report(
                    worker.job.name, worker.incarnation, worker.number, worker.version, int(worker.batches),
                    worker.busy, known, batches_at_start=worker.began,
                )  # fmt: skip
                handle(report, at)
    return scheduler


def drive_sample(path: Path) -> Scheduler:
    """Write the journal of six jobs on two devices: one crashes, one is steered and cancelled, one name is reused."""
    jobs = {
        0.0: [
            (Job("cnn", 60.0, LossTarget("loss", 0.4)), Curve(3.0, 0.4, 30.0)),
            (Job("acc", 90.0, LossTarget("val_acc", at_least=0.7)), Curve(1.0, 0.25, 20.0)),
            (Job("known", 70.0, BatchTarget(300)), Curve(throughput=30.0)),
            (Job("bad", 80.0, LossTarget("loss", 0.01)), Curve(throughput=60.0, crash_after=200)),
        ],
        30.0: [(Job("steered", 40.0, LossTarget("loss", 0.05)), Curve(3.0, 0.3, 30.0))],
        60.0: [(Job("cnn", 60.0, LossTarget("loss", 0.5)), Curve(3.0, 0.4, 30.0))],
    }
    events: dict[float, Event] = {
        35.0: Pause("steered"),
        40.0: Resume("steered"),
        45.0: SetDeadline("steered", 90.0),
        45.5: SetTerms("steered", weight=2.0),
        100.0: Cancel("steered"),
    }
    return drive(path, Settings(policy="edf", devices=2), jobs, 120.0, step=0.5, events=events)


def grant(version: int, share: float, job: str = "a") -> Grant:
    return Grant(job, version, share, (0,), Reason("first_in_line"))
