"""Events: what goes into the scheduler.

Rules

1. Plain frozen data. Nothing here decides, reads a clock or touches a file.
2. Times are seconds of *scheduler time*: monotone, zero when the pool opened, always an argument.
3. Progress is cumulative and losses are numbered, so that duplicates, lost reports and reordering do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from lightning_core.core.commands import Command
from lightning_core.core.jobs import Job


class ExitCause(StrEnum):
    """Why a worker is gone. What becomes of the job depends on it."""

    DONE = "done"
    """Its training came to its end; the detail says by what: ``max_epochs=3``."""
    INTERRUPTED = "interrupted"
    """A person ended its process; the detail says how: ``Ctrl-C``, ``SIGTERM``."""
    RELEASED = "released"
    """It saved and left because it was granted no device, or others: a launched job may come back."""
    RAISED = "raised"
    """The user's code raised: it comes back as often as the job's ``retries`` say."""
    UNUSABLE = "unusable"
    """It cannot be built from what its config says: it never comes back."""
    LOST = "lost"
    """Its process or node died, hung or was cut off, or its ranks fell apart: it comes back, as ``restarts`` allows."""
    PREEMPTED = "preempted"
    """Its node was preempted: it comes back, and the restart is not counted."""


class BadLosses(NamedTuple):
    """Losses that are NaN or infinite, one after the other: the newest run of them."""

    since: int
    """Batches done with the first of them."""
    cells: int = 0
    """Loss cells that held nothing else."""
    over: bool = False
    """Whether a loss that is a number came after them."""


class Cell(NamedTuple):
    """One smoothed observation of a target's metric: the mean over the batches since the cell before it."""

    number: int
    """1, 2, 3, ... in the order of the run."""
    batches: int
    """Batches done when the cell closed."""
    value: float
    """As logged: a loss, or a metric that grows."""


class Checkpoint(NamedTuple):
    """A checkpoint that is whole on the disk. Whether a job may go on from it, the scheduler says."""

    batches: int
    """Done when it was saved."""
    sha256: str
    """Of the file, as its manifest says."""


class Horizon(NamedTuple):
    """Where a training ends by itself, whether or not its target is met: a Trainer has limits of its own."""

    batches: int | None = None
    """Done in all when it ends; None if no number of batches or epochs ends it, or it is not known which."""
    by: str = ""
    """Limit that ends it then, such as ``max_epochs=3``."""
    seconds: float | None = None
    """Until its ``max_time`` ends it, from when this is said; None if it has none."""


@dataclass(frozen=True, slots=True)
class Submit:
    """A bundle asks for the pool, planned together. Its deadlines count from the time of this event.

    A name whose job has ended may be used again; one whose job has not keeps the job it has.
    """

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
        busy: seconds that this incarnation has spent in training, validation and saving.
        cells: loss observations not yet known to have arrived.
        rejected: losses kept out so far because they were NaN or infinite.
        began: batches that were done before this incarnation began, of a run that was resumed.
        evaluated: whether each cell is a whole evaluation (a validation metric), which needs no smoothing.
        saved: the newest checkpoint of this incarnation.
        horizon: where its training ends by itself; None if it does not.
        bad: the newest run of losses that are NaN or infinite; None if there was none.
        aside: whether it is at something else than its batches, which may take long: validation, saving, its first
            batch.
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
    evaluated: bool = False
    saved: Checkpoint | None = None
    horizon: Horizon | None = None
    bad: BadLosses | None = None
    aside: bool = False


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker is gone.

    Args:
        job: its name.
        incarnation: which life of the job it was.
        cause: why it is gone.
        detail: the traceback, its last line the error; of a training that came to its end, or was interrupted, what
            ended it.
        saved: the newest checkpoint of this incarnation.
    """

    job: str
    incarnation: int
    cause: ExitCause = ExitCause.DONE
    detail: str = ""
    saved: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class LaunchTimedOut:
    """The workers of a job were not all ready in time on the devices that it was granted; none of them has begun.

    Args:
        job: its name.
        incarnation: which life of the job was to begin.
        detail: who was missing, and why.
    """

    job: str
    incarnation: int
    detail: str


@dataclass(frozen=True, slots=True)
class DevicesUnavailable:
    """On these devices of the pool no worker can be had for now; replaces what was said of that before.

    Args:
        devices: their numbers; none if all are there.
        detail: why, in words.
    """

    devices: tuple[int, ...]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WorkersLost:
    """All workers of this pool are gone (it was down): launched jobs come back from what they saved."""


@dataclass(frozen=True, slots=True)
class Close:
    """The pool is being taken down: launched jobs save and leave. They come back with :class:`WorkersLost`.

    Args:
        by: What asked for it, such as ``"Ctrl-C"``; empty if a fault took the pool down.
    """

    by: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: the scheduler asked to be woken (or the driver woke it)."""


@dataclass(frozen=True, slots=True)
class SelectorFeedback:
    """What each spot policy would have made of a job that is over.

    Args:
        job: its name.
        utilities: 0 to 1, in the order of the market's policies; none: it teaches nothing.
    """

    job: str
    utilities: tuple[float, ...]


Event = (
    Submit | Report | WorkerExited | LaunchTimedOut | DevicesUnavailable | WorkersLost | Close | Command
    | SelectorFeedback | Tick
)  # fmt: skip
