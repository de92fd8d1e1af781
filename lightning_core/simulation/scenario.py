"""What goes into a simulation and what comes out of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.jobs import Job
from lightning_core.core.targets import is_loss
from lightning_core.scheduler.summary import Summary


@dataclass(frozen=True, slots=True)
class Delays:
    """What takes time beside training, in seconds.

    Args:
        report: from a worker to the scheduler, and as long from the scheduler back.
        switch: lost of a device's time each time it passes from one job to another. Where several share it by turns,
            each of them is switched to once in a ``turn_unit``.
        release: from a worker's being told to leave until it has saved and left; if it was training, its devices are
            lost for so long.
        start: from a job's being placed somewhere until its worker can train there.
        report_every: a worker reports at the first cell that closes at least so long after its last report.
        turn_unit: in which all who share a device have had their turns.

    Raises:
        ValueError: if one is negative or not finite, or ``turn_unit`` is 0.
    """

    report: float = 0.0
    switch: float = 0.0
    release: float = 0.0
    start: float = 0.0
    report_every: float = 0.2
    turn_unit: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < math.inf:
                raise ValueError(f"delay {field.name} must be at least 0 seconds and finite, got {value}")
        if not self.turn_unit > 0:
            raise ValueError(f"delay turn_unit must be positive, got {self.turn_unit}")


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedJob:
    """A job and what its training will be like.

    Args:
        job: as it is submitted.
        position: whole batches done when each cell closes, positive and growing, shape ``(n,)``.
        loss: of each cell; of a metric that should grow, how far it is from its best. Shape ``(n,)``.
        throughput: batches a second alone on its devices.
        submitted: when, scheduler time.
        throughputs: batches a second on each of the job's ``sizes``, if it can be resized.
        restart: seconds that it takes to train again wherever it comes back; None for the pool's usual ``start``.

    Raises:
        ValueError: if there is no cell, or a number is out of its range.
    """

    job: Job
    position: FloatArray | IntArray | Sequence[float]
    loss: FloatArray | Sequence[float]
    throughput: float
    submitted: float = 0.0
    throughputs: Sequence[float] = ()
    restart: float | None = None

    def __post_init__(self) -> None:
        name = self.job.name
        if len(self.throughputs) != len(self.job.sizes):
            raise ValueError(
                f"{name}: needs a throughput for each of {len(self.job.sizes)} sizes, got {len(self.throughputs)}"
            )
        if not all(0 < one < math.inf for one in self.throughputs):
            raise ValueError(f"{name}: throughputs must be positive and finite, got {self.throughputs}")
        if self.restart is not None and not 0 <= self.restart < math.inf:
            raise ValueError(f"{name}: restart must be at least 0 seconds and finite, got {self.restart}")
        if not 0 < self.throughput < math.inf:
            raise ValueError(f"{name}: throughput must be positive and finite, got {self.throughput}")
        if not 0 <= self.submitted < math.inf:
            raise ValueError(f"{name}: submitted must be at least 0 and finite, got {self.submitted}")
        if not 0 < len(self.position) == len(self.loss):
            raise ValueError(f"{name}: needs a loss for each position, got {len(self.loss)} for {len(self.position)}")
        before = 0.0
        for position, loss in zip(map(float, self.position), map(float, self.loss), strict=True):
            if not (before < position < math.inf and position.is_integer()):
                raise ValueError(f"{name}: positions must be whole batches that grow, got {position} after {before}")
            if not is_loss(loss):
                raise ValueError(f"{name}: losses must be finite, got {loss} at {position}")
            before = position


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of one job.

    Args:
        name: of the job.
        verdict: at the end.
        finished_at: scheduler time; None if it has not ended.
        batches: that it has done.
        busy: seconds that it has trained.
        switches: how often a device passed to it.
    """

    name: str
    verdict: Verdict | None
    finished_at: float | None
    batches: int
    busy: float
    switches: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a simulated run.

    Args:
        jobs: in the order in which they were given.
        switches: how often a device passed from one job to another, as
            :class:`~lightning_core.simulation.virtual_workers.Device` counts.
        events: that moved the scheduler.
        rounds: how many of them made it plan.
        deciding: seconds of real time spent in the scheduler.
        summary: as of a live run.
    """

    jobs: tuple[JobOutcome, ...]
    switches: int
    events: int
    rounds: int
    deciding: float
    summary: Summary

    @property
    def met(self) -> int:
        """How many jobs met their target in time."""
        return self.summary.met
