"""Schedulers of which futures are asked."""

from __future__ import annotations

from lightning_core.core.events import Report, Submit, Tick
from lightning_core.core.jobs import Capability, Job
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.what_if import Assumption, Chances, chances

HOUR = 3600.0
ELASTIC = frozenset({Capability.HOLD, Capability.RELEASE, Capability.RESIZE})


def known(settings: Settings, jobs: list[Job], throughputs: list[float]) -> Scheduler:
    """A scheduler that has heard of one batch of each job, so that it knows how fast each is."""
    scheduler = Scheduler(settings)
    scheduler.handle(Submit(tuple(jobs)), 0.0)
    for job, throughput in zip(jobs, throughputs, strict=True):
        scheduler.handle(Report(job.name, 1, number=1, version=9, batches=1, busy=1 / throughput), 0.0)
    scheduler.handle(Tick(), 0.0)
    return scheduler


def asked(scheduler: Scheduler, change: Assumption, futures: int = 8) -> tuple[dict[str, float], dict[str, float]]:
    found: Chances = chances(scheduler.prospects(), change, lambda played: played < futures)
    assert found.futures == futures
    return dict(zip(found.names, found.before, strict=True)), dict(zip(found.names, found.after, strict=True))
