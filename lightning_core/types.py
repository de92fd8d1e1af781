"""The nouns: what goes into the core and what comes out of it.

Rules

1. Plain frozen data. Nothing here decides, reads a clock or touches a file.
2. All times are seconds of *scheduler time*: monotone, zero when the pool opened, always an argument.
3. Progress is cumulative and losses are numbered, so that a duplicate, a loss or a reordering does no harm.
4. A grant is a level with a version, never an order: whoever missed one is repaired by the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lightning_core.reasons import Reason

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# The loss that training_step returned, as opposed to a metric that was logged under a name.
STEP_LOSS = "loss"


class Verdict(StrEnum):
    """What the scheduler believes of a job, and in the end knows."""

    FEASIBLE = "feasible"
    AT_RISK = "at risk"
    INFEASIBLE = "infeasible"
    MET = "met"
    MISSED = "missed"
    CRASHED = "crashed"
    CANCELLED = "cancelled"


class State(StrEnum):
    """What a job is doing."""

    QUEUED = "queued"
    RUNNING = "running"
    HELD = "held"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class LossTarget:
    """A loss, averaged over its last cells, of at most ``at_most``.

    Args:
        metric: name under which the loss is logged, or ``"loss"`` for what ``training_step`` returns.
        at_most: the threshold (the papers' epsilon), positive.

    Raises:
        ValueError: if the threshold is not a positive number or the metric has no name.

    Example::

        >>> str(LossTarget("train_loss", 0.35))
        'train_loss <= 0.35'
    """

    metric: str
    at_most: float

    def __post_init__(self) -> None:
        if not self.metric:
            raise ValueError("target metric must have a name, got ''")
        if not (self.at_most > 0 and math.isfinite(self.at_most)):
            raise ValueError(f"target loss must be positive and finite, got {self.at_most}")

    def __str__(self) -> str:
        return f"{self.metric} <= {self.at_most:.4g}"


@dataclass(frozen=True, slots=True)
class BatchTarget:
    """A known amount of work: so many batches.

    Raises:
        ValueError: if the number of batches is not positive.
    """

    batches: int

    def __post_init__(self) -> None:
        if self.batches < 1:
            raise ValueError(f"target batches must be positive, got {self.batches}")

    def __str__(self) -> str:
        return f"{self.batches} batches"


Target = LossTarget | BatchTarget


@dataclass(frozen=True, slots=True)
class Job:
    """A training run with a target and a deadline.

    Args:
        name: unique in its pool.
        deadline: seconds from submission.
        target: when it counts as met.

    Raises:
        ValueError: if the name is empty or the deadline is not positive.
    """

    name: str
    deadline: float
    target: Target

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("job must have a name, got ''")
        if not (self.deadline > 0 and math.isfinite(self.deadline)):
            raise ValueError(f"deadline must be positive and finite, got {self.deadline}")


class Cell(NamedTuple):
    """One smoothed loss observation: the mean over the batches since the cell before it."""

    number: int
    """1, 2, 3, ... in the order of the run."""
    batches: int
    """Batches done when the cell closed."""
    loss: float


@dataclass(frozen=True, slots=True)
class Submit:
    """A bundle asks for the pool, planned together. Its deadlines count from the time of this event."""

    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker has done so far.

    Args:
        job: its name.
        incarnation: which life of the job speaks; an older one is refused.
        number: 1, 2, 3, ... of this incarnation; a number seen before changes nothing.
        version: of the grant that the worker runs under; if it is old, the answer is the newer grant.
        batches: done since the job began.
        busy: seconds spent in training, validation and saving since the job began.
        cells: loss observations not yet known to have arrived.
        rejected: losses kept out so far because they were NaN, infinite, zero or negative.
        began: batches that were done before this incarnation began, of a run that was resumed.
    """

    job: str
    incarnation: int
    number: int
    version: int
    batches: int
    busy: float
    cells: tuple[Cell, ...] = ()
    rejected: int = 0
    began: int = 0


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """A worker is gone: its training came to its end, was told to leave, or raised.

    Args:
        job: its name.
        incarnation: which life of the job it was.
        crashed: whether it left by an error.
        detail: the traceback, its last line the error; empty otherwise.
    """

    job: str
    incarnation: int
    crashed: bool = False
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A person wants the job to end."""

    job: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: the scheduler asked to be woken (or the driver woke it)."""


Event = Submit | Report | WorkerLeft | Cancel | Tick


# Directives are tuples, not dataclasses: a round makes one for each changed job, and a tuple costs a third of a
# frozen dataclass to make.
class Grant(NamedTuple):
    """What a job may hold from now on."""

    job: str
    version: int
    duty: float
    """Its part of the device's turns, 0 (held) to 1 (alone)."""
    devices: tuple[int, ...]
    reason: Reason


class End(NamedTuple):
    """The job is over; the worker leaves."""

    job: str
    version: int
    verdict: Verdict
    reason: Reason


Directive = Grant | End


@dataclass(frozen=True, slots=True)
class JobView:
    """The active jobs as a policy sees them, one row a job in the order of submission: arrays of shape ``(n,)``.

    Attributes:
        place: of the job among all that were ever submitted, 0, 1, ...
        deadline: scheduler time in seconds.
        batches: done so far.
        cells: loss observations so far.
        exact: whether the work left is known, not forecast (a target in batches).
        remaining: batches left to the target; inf if the curve is not falling towards it, NaN while unknown.
        throughput: batches per busy second alone on the device, NaN while unknown.
        work: seconds left alone on the device, ``remaining / throughput``; at least one batch's worth.
    """

    place: IntArray
    deadline: FloatArray
    batches: IntArray
    cells: IntArray
    exact: BoolArray
    remaining: FloatArray
    throughput: FloatArray
    work: FloatArray

    def __len__(self) -> int:
        return len(self.deadline)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy wants each job to hold: arrays of shape ``(n,)``, rows as in the :class:`JobView`.

    Attributes:
        duty: part of the device, each 0 to 1, at most 1 in all.
        finish: when the policy expects the target to be reached, scheduler time; inf if not, NaN if it cannot say.
        codes: reasons, indices into :data:`lightning_core.reasons.CODES`.
        numbers: what the reasons' words speak of, shape ``(n, 2)``.
    """

    duty: FloatArray
    finish: FloatArray
    codes: IntArray
    numbers: FloatArray


class Passage(NamedTuple):
    """When a loss curve is forecast to pass a threshold: batches since the run began, arrays of shape ``(n,)``.

    ``low`` to ``high`` is one standard error of the log either way; inf where the curve does not get there, NaN
    where too little has been seen.
    """

    low: FloatArray
    mid: FloatArray
    high: FloatArray


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job, for people to look at. Times are seconds; ``None`` where nothing can be said yet."""

    name: str
    state: State
    verdict: Verdict | None
    reason: Reason
    target: Target
    loss: float | None
    batches: int
    cells: int
    rejected: int
    share: float
    throughput: float | None
    busy: float
    submitted_at: float
    deadline: float
    """Scheduler time, not seconds from submission."""
    finish: tuple[float, float, float] | None
    """Forecast end, early, likely and late, in scheduler time."""
    finished_at: float | None
    detail: str
    """The traceback of a job that crashed."""
