"""Two trainings and a third one that share a device, in virtual time, and keep 85 % of their throughput in a pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_core.core.answers import JobStatus
from lightning_core.core.events import Event
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Outcome, SimulatedJob
from lightning_core.simulation.simulation import Simulation

PACE = 0.85
# Time at which the status is taken: by then the companies are settled.
SETTLED = 90.0


def simulated(name: str, deadline: float, batches: int, **terms: Any) -> SimulatedJob:
    """Return a job of ten batches a second."""
    position = list(range(10, batches + 1, 10))
    losses = [1.0 / (1.0 + at / 50) for at in position]
    return SimulatedJob(Job(name, deadline, BatchTarget(batches), **terms), position, losses, 10.0)


def pair(**terms: Any) -> list[SimulatedJob]:
    """Return two jobs; terms are those of both."""
    return [simulated("resnet", 500.0, 1500, **terms), simulated("bert", 700.0, 1000, **terms)]


class Pairs(Simulation):
    """A simulation in which two at once keep most of their throughput, and three do not.

    Attributes:
        settled: Jobs as they are once the companies are settled.
    """

    def __init__(self, jobs: Sequence[SimulatedJob], journal: Path | None = None, **settings: Any) -> None:
        super().__init__(Settings(**settings), jobs, journal=journal, check=True, pace=self._kept)
        self.settled: list[JobStatus] = []

    @staticmethod
    def _kept(_: str, others: Sequence[str]) -> float:
        return PACE if len(others) == 1 else 0.5

    def _handle(self, event: Event) -> None:
        super()._handle(event)
        if not self.settled and self._queue.now >= SETTLED:
            self.settled = self._scheduler.status()


def play(jobs: Sequence[SimulatedJob], journal: Path | None = None, **settings: Any) -> tuple[Outcome, list[JobStatus]]:
    """Play jobs to their ends; return the outcome, and the jobs as they were once their companies were settled."""
    simulation = Pairs(jobs, journal, **settings)
    return simulation.run(), simulation.settled
