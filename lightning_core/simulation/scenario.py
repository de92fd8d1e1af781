"""The input and the outcome of a simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.jobs import Job
from lightning_core.core.reported import LearningRates
from lightning_core.core.targets import is_loss
from lightning_core.scheduler.summary import Summary


@dataclass(frozen=True, slots=True)
class Delays:
    """Everything that takes time other than training, in seconds.

    Args:
        report: Time that a message takes from a worker to the scheduler, or back.
        switch: Time that a device loses when it passes from one job to another. Jobs that share it are each switched to
            once per ``turn_unit``.
        release: Time that a worker takes to save and leave; if it was training, its devices are idle meanwhile.
        start: Time from a job's placement until its worker can train.
        report_every: Minimum time between two reports of a worker; it reports when a cell closes.
        turn_unit: Time in which every job that shares a device has had its quantum.

    Raises:
        ValueError: If one is negative or not finite, or ``turn_unit`` is 0.
    """

    report: float = 0.0
    switch: float = 0.0
    release: float = 0.0
    start: float = 0.0
    report_every: float = 0.2
    turn_unit: float = 1.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 <= value < math.inf:
                raise ValueError(f"delay {one.name} must be at least 0 seconds and finite, got {value}")
        if not self.turn_unit > 0:
            raise ValueError(f"delay turn_unit must be positive, got {self.turn_unit}")


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedJob:
    """A job and the course of its training.

    Args:
        job: Job, as submitted.
        position: Whole batches done when each cell closes, positive and growing; shape ``(n,)``.
        loss: Loss of each cell; of a metric that should grow, its distance from the best. Shape ``(n,)``.
        throughput: Batches per second alone on its devices.
        submitted: Time of submission, scheduler time.
        throughputs: Batches per second on each of the job's ``sizes``, if it can be resized.
        restart: Seconds until it trains again after a restart; None for the ``start`` of the pool's delays.
        learning_rates: Learning rates that it reports when it begins; None if they are constant or not known.
        earlier: Earlier runs of its task, which the scheduler is given with its submission.
        evaluated: Whether each cell is a whole evaluation (a validation metric).
        paces: Factor on its throughput on devices of each kind that is not as fast as the first, by name.
        apart: Factor on its throughput on devices of several machines.

    Raises:
        ValueError: If there is no cell, or a number is out of range.
    """

    job: Job
    position: FloatArray | IntArray | Sequence[float]
    loss: FloatArray | Sequence[float]
    throughput: float
    submitted: float = 0.0
    throughputs: Sequence[float] = ()
    restart: float | None = None
    learning_rates: LearningRates | None = None
    earlier: Sequence[EarlierRun] = ()
    evaluated: bool = False
    paces: Mapping[str, float] = field(default_factory=dict)
    apart: float = 1.0

    def __post_init__(self) -> None:
        name = self.job.name
        if len(self.throughputs) != len(self.job.sizes):
            raise ValueError(
                f"{name}: needs a throughput for each of {len(self.job.sizes)} sizes, got {len(self.throughputs)}"
            )
        if not all(0 < one < math.inf for one in self.throughputs):
            raise ValueError(f"{name}: throughputs must be positive and finite, got {self.throughputs}")
        if not all(0 < one < math.inf for one in (*self.paces.values(), self.apart)):
            raise ValueError(
                f"{name}: paces and apart must be positive and finite, got {(dict(self.paces), self.apart)}"
            )
        if self.restart is not None and not 0 <= self.restart < math.inf:
            raise ValueError(f"{name}: restart must be at least 0 seconds and finite, got {self.restart}")
        if not 0 < self.throughput < math.inf:
            raise ValueError(f"{name}: throughput must be positive and finite, got {self.throughput}")
        if not 0 <= self.submitted < math.inf:
            raise ValueError(f"{name}: submitted must be at least 0 and finite, got {self.submitted}")
        if self.learning_rates is not None and not self.learning_rates.are_valid:
            raise ValueError(f"{name}: learning rates must be in [0, 1] at growing batches, got {self.learning_rates}")
        if not 0 < len(self.position) == len(self.loss):
            raise ValueError(f"{name}: needs a loss for each position, got {len(self.loss)} for {len(self.position)}")
        before = 0.0
        for position, loss in zip(map(float, self.position), map(float, self.loss), strict=True):
            if not (before < position < math.inf and position.is_integer()):
                raise ValueError(f"{name}: positions must be whole batches that grow, got {position} after {before}")
            if not is_loss(loss):
                raise ValueError(f"{name}: losses must be finite, got {loss} at {position}")
            before = position


class GivenVerdict(NamedTuple):
    """A verdict on a job that had not ended."""

    at: float
    """Scheduler time at which it was given."""
    batches: int
    """Batches that the job had done by then."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The outcome of one job.

    Args:
        name: Name of the job.
        verdict: Verdict at the end.
        finished_at: Scheduler time; None if it has not ended.
        batches: Batches that it has done.
        busy: Seconds that it has trained.
        switches: Number of times that a device passed to it.
        verdicts: Verdicts on it before it ended, in their order.
    """

    name: str
    verdict: Verdict | None
    finished_at: float | None
    batches: int
    busy: float
    switches: int
    verdicts: tuple[GivenVerdict, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a simulated run.

    Args:
        jobs: Outcome of each job, in the order in which the jobs were given.
        switches: Number of times that a device passed from one job to another, as counted by
            :class:`~lightning_core.simulation.virtual_workers.Device`.
        events: Number of events that the scheduler handled.
        rounds: Number of events after which it planned.
        deciding: Seconds of real time spent in the scheduler.
        summary: Summary as of a live run.
        nodes: Record of the nodes that came and went; None if all devices stayed.
        failed: Error of each part from outside the library that failed and was replaced, by its kind and name.
    """

    jobs: tuple[JobOutcome, ...]
    switches: int
    events: int
    rounds: int
    deciding: float
    summary: Summary
    nodes: Any = None
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def met(self) -> int:
        """Number of jobs that met their target in time."""
        return self.summary.met
