"""Answers: the output of the scheduler, and descriptions of a job for users and training processes.

A grant is a level with a version, not a change: a process that missed one is corrected by the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from lightning_core.core.control import Ask, Note, PartAnswer
from lightning_core.core.limits import Deadline
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import Target


class Verdict(StrEnum):
    """Expected outcome of a job, and in the end its outcome."""

    FEASIBLE = "feasible"
    AT_RISK = "at risk"
    INFEASIBLE = "infeasible"
    MET = "met"
    MISSED = "missed"
    CRASHED = "crashed"
    CANCELLED = "cancelled"

    @property
    def number(self) -> int:
        """Number for charts: higher is better; negative means that the job ended without reaching its target."""
        return _VERDICT_NUMBERS[self]


_VERDICT_NUMBERS = {
    Verdict.MET: 3,
    Verdict.FEASIBLE: 2,
    Verdict.AT_RISK: 1,
    Verdict.INFEASIBLE: 0,
    Verdict.MISSED: -1,
    Verdict.CRASHED: -2,
    Verdict.CANCELLED: -3,
}


class State(StrEnum):
    """Activity of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    HELD = "held"
    RELEASED = "released"
    RECOVERING = "recovering"
    """Its worker was lost, and the next one has not reported yet."""
    ENDED = "ended"


# Directives are tuples, not dataclasses: a round makes one for each changed job, and a tuple costs a third of a
# frozen dataclass to make.
class Grant(NamedTuple):
    """Devices that a job may hold from now on, and its share of them."""

    job: str
    version: int
    share: float
    """Share of its devices, in [0, 1]: at 0 it is held unless it trains beside others, at 1 it needs no turns."""
    devices: tuple[int, ...]
    """Devices on which it may keep its memory and train. If they differ from its present ones, it saves and exits."""
    reason: Reason
    capped: bool = False
    """Whether it must not exceed its share even if the rest is idle."""
    target: Target | None = None
    """Target that it was given since it was submitted, by which its process judges itself; None if it was not."""
    beside: int = 0
    """Number of the group of jobs that train within the same turns on its device; 0 if it takes turns of its own. With
    a number it trains at share 0 too: its time counts against no share."""
    pace: float = 1.0
    """Expected throughput in that group, as a fraction of its throughput alone."""

    @property
    def trains(self) -> bool:
        """Whether the job may train; it is held otherwise."""
        return self.share > 0 or self.beside > 0


class End(NamedTuple):
    """End of a job; its worker exits."""

    job: str
    version: int
    verdict: Verdict
    reason: Reason


class VerdictChanged(NamedTuple):
    """Change of the verdict on a job that has not ended; for users, not for workers."""

    job: str
    verdict: Verdict
    reason: Reason


class Alert(NamedTuple):
    """Warning about a training, for users; the verdict may be unchanged."""

    job: str
    reason: Reason


class Accepted(NamedTuple):
    """Accepted part of an event about a job. Views show this, so they need no rules of their own.

    A stale, repeated or refused event has none. Counts are totals of the run over all incarnations.
    """

    job: str
    batches: int | None = None
    """Batches done; None if the event is not a report."""
    busy: float = 0.0
    """Seconds spent in training, validation and saving."""
    cells: tuple[tuple[int, float], ...] = ()
    """Loss cells in order: batches done, and the value as logged."""
    rejected: int = 0
    """Number of losses that were NaN or infinite."""
    evaluated: bool = False
    """Whether each cell is a whole evaluation."""
    batches_at_start: int | None = None
    """Batches done when the worker began; None unless this is its first report."""
    fault: Reason | None = None
    """Fault after which the job restarts; its numbers are the batch that it resumes from and the batches it repeats."""
    restart: int = 0
    """Number of restarts of the job, including this one."""


class PartCall(NamedTuple):
    """What a part from outside the library returned while an event was handled.

    It stands in the journal beside the answers, and a replay uses it instead of asking again: so a part may draw random
    numbers, and a newer version of it may decide otherwise.
    """

    part: str
    """The part and its method: ``policy heaviest plan``."""
    returned: Any = None
    """What it returned, as JSON values."""
    raised: str = ""
    """The error that it raised; empty for none."""


Directive = Grant | End


JobAnswer = Grant | End | VerdictChanged | Alert | Ask | Note
Answer = JobAnswer | PartAnswer


class JoinReply(NamedTuple):
    """Reply to a training process that has joined a pool."""

    incarnation: int
    arbiters: tuple[str, ...]
    """Path of the arbiter of each device on this node; empty for a device of another node."""
    again: bool = False
    """Whether the process continues an incarnation that the pool knows, so that its earlier reports still count."""
    cores: int = 1
    """CPU cores of each device, in a pool of CPUs."""


class JobForecast(NamedTuple):
    """Forecast of a job for its training process. Times are in seconds, None while unknown and beyond reach."""

    verdict: Verdict | None
    reason: str
    share: float
    left: float | None
    """Seconds until the likely end."""
    spare: float | None
    """Seconds from the likely end to the deadline; negative if it would be late."""
    early: float | None = None
    """Seconds until the end in a good case."""
    late: float | None = None
    """Seconds until the end in a bad case."""
    alert: str = ""
    """Present problem of its training, as text; empty if there is none."""


class Placement(NamedTuple):
    """A job that should have a worker on each of its devices."""

    job: str
    incarnation: int
    devices: tuple[int, ...]
    hangs: int = 0
    """Number of its incarnations in a row that hung, without a newer checkpoint in between."""


class Watched(NamedTuple):
    """The metric that a target watches while it counts epochs; values as logged."""

    batches: int
    """Batches done at the newest value."""
    value: float
    """Newest value."""
    best: float
    """Best value so far."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Status of a job, for users. Times are in seconds; None while unknown."""

    name: str
    state: State
    verdict: Verdict | None
    reason: Reason
    target: Target
    value: float | None
    """Value that its target compares: the newest evaluation, the mean of a training loss over its window, or batches.
    Of a job that met its target, the value that met it."""
    best: float | None
    """Best of these values so far; of a training loss, only whole windows count."""
    loss: float | None
    """Current loss, also for a target in batches; None for a metric that should grow."""
    batches: int
    cells: int
    rejected: int
    share: float
    throughput: float | None
    busy: float
    submitted_at: float
    deadline: Deadline
    """Deadline in scheduler time, not seconds from submission; inf for none."""
    finish: tuple[float, float, float] | None
    """Forecast end in scheduler time: early, likely and late."""
    finished_at: float | None
    detail: str
    """Traceback, if the job crashed."""
    grant_reason: Reason
    """Reason of its present grant."""
    devices: tuple[int, ...]
    incarnation: int
    weight: float
    paused: bool
    restarts: int
    """Number of restarts after a fault."""
    lost_batches: int
    """Total of batches repeated because of faults."""
    checkpoint_batches: int | None
    """Batches done at its last checkpoint; None for a job that was not launched."""
    fault: Reason | None
    """Newest of its faults."""
    alert: Reason | None
    """Present problem of its training, such as NaN losses; None if there is none."""
    notes: Mapping[str, Reason]
    """What controllers tell of it, by their names."""
    like: Reason | None = None
    """Earlier runs that its forecast rests on, and which part of the belief in it does; None for none."""
    memory: float | None = None
    """Bytes of a device's memory that its process had at its peak; None until it is reported."""
    memory_needed: float | None = None
    """Needed bytes of each device's memory: its peak, or the need stated by user or earlier runs; None if unknown."""
    owner: str = ""
    """Name of the person to whom it belongs; empty if unknown."""
    watched: Watched | None = None
    """Metric that its target watches; None before the first value, and for a target that watches none."""
    beside: tuple[str, ...] = ()
    """Names of the jobs that train at the same time on its device."""
    pace: float = 1.0
    """Expected throughput beside them, as a fraction of its throughput alone."""
    device_seconds: float = 0.0
    """Seconds of its devices that count as its own: time beside others is divided by the work that each does."""
    held_share: float = 0.0
    """Share of its devices' time that counts as its own now: of those that train at once, its part of theirs."""
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Data that parts keep with it, by the name of the part."""
    kind: str = ""
    """Kind of the devices that it is on, or was on last; empty where all devices are alike."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Batches per second on each kind of devices, measured or expected; empty while unknown, or where all are alike."""

    @property
    def trains(self) -> bool:
        """Whether it may train: also at share 0, beside others."""
        return self.share > 0 or bool(self.beside)
