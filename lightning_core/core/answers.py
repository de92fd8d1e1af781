"""Answers: what comes out of the scheduler, and what people and training processes are told of a job.

A grant is a level with a version, never an order: a process that missed one is repaired by the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from lightning_core.core.reasons import Reason
from lightning_core.core.targets import Target


class Verdict(StrEnum):
    """What the scheduler expects of a job, and in the end its outcome."""

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
    RELEASED = "released"
    RECOVERING = "recovering"
    """Its worker was lost and the next one has not reported yet."""
    ENDED = "ended"


# Directives are tuples, not dataclasses: a round makes one for each changed job, and a tuple costs a third of a
# frozen dataclass to make.
class Grant(NamedTuple):
    """What a job may hold from now on."""

    job: str
    version: int
    share: float
    """Share of its devices, in [0, 1]: 0 is held, 1 is alone."""
    devices: tuple[int, ...]
    """Devices on which it may keep its memory and train. If empty, or others than it is on, it saves and leaves."""
    reason: Reason
    capped: bool = False
    """Whether it must not use more than its share, even if the rest is idle."""


class End(NamedTuple):
    """The job is over; the worker leaves."""

    job: str
    version: int
    verdict: Verdict
    reason: Reason


class VerdictChanged(NamedTuple):
    """The verdict on a job that has not ended has changed; for people, not for workers."""

    job: str
    verdict: Verdict
    reason: Reason


class Alert(NamedTuple):
    """Something about a training that people should know at once: what is believed of it may be the same as before."""

    job: str
    reason: Reason


class Accepted(NamedTuple):
    """What the scheduler took in of an event about a job. Views show this, and need no rules of their own.

    A stale, repeated or refused event has none. Counts are of the whole run, over all incarnations.
    """

    job: str
    batches: int | None = None
    """Batches done; None if the event is not a report."""
    busy: float = 0.0
    """Seconds spent in training, validation and saving."""
    cells: tuple[tuple[int, float], ...] = ()
    """Loss cells in their order: batches done, and the value as logged."""
    rejected: int = 0
    """Losses that were NaN or infinite."""
    evaluated: bool = False
    """Whether each cell is a whole evaluation."""
    began: int | None = None
    """Batches with which a worker began; None unless this is its first report."""
    fault: Reason | None = None
    """Fault for which the job lost its worker and restarts: its numbers are the batches that it restarts from, and the
    batches that are repeated."""
    restart: int = 0
    """How often the job has restarted, this time included."""


Directive = Grant | End


Answer = Grant | End | VerdictChanged | Alert


class JoinReply(NamedTuple):
    """A training process has joined a pool."""

    incarnation: int
    arbiters: tuple[str, ...]
    """Path of each device's arbiter on this node; empty for a device of another node."""
    again: bool = False
    """Whether it is the incarnation that the pool knew: what was reported before still counts."""
    cores: int = 1
    """Of each device, in a pool of CPUs."""


class JobForecast(NamedTuple):
    """What a training process may tell its user about its job. Times are seconds, None where nothing can be said."""

    verdict: Verdict | None
    reason: str
    share: float
    left: float | None
    """Until the forecast end."""
    spare: float | None
    """From the forecast end to the deadline; negative if it would be late."""
    early: float | None = None
    """Until the end if all goes well; ``left`` is the likely one."""
    late: float | None = None
    """Until the end if little does."""
    alert: str = ""
    """What is wrong with its training for now, in words; empty if nothing is."""


class Placement(NamedTuple):
    """A job that should have a worker on each of its devices."""

    job: str
    incarnation: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job, for people to look at. Times are seconds; ``None`` where nothing can be said yet."""

    name: str
    state: State
    verdict: Verdict | None
    reason: Reason
    target: Target
    value: float | None
    """What it has reached, in its target's own sense: the newest evaluation, the mean over the window of a step's loss,
    or batches. Of a job that is met, what counted."""
    best: float | None
    """The best of these values so far; of a step's loss, of whole windows alone."""
    loss: float | None
    """The current loss, also of a target in batches; None of a metric that should grow."""
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
    why: Reason
    """Of its grant: why it holds what it holds."""
    devices: tuple[int, ...]
    incarnation: int
    weight: float
    paused: bool
    restarts: int
    """How often it had to come back after a fault."""
    lost: int
    """Batches that had to be done again because of faults, in all."""
    saved: int | None
    """Batches that were done when it was last saved; of a launched job."""
    fault: Reason | None
    """The newest of its faults."""
    alert: Reason | None
    """What is wrong with its training for now, such as losses that are NaN; None if nothing is."""
    spot: Reason | None
    """Which spot policy was chosen for it, and how sure that choice was; of a pool with a market."""
