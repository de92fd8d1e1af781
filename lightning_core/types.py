"""The nouns: what goes into the core and what comes out of it.

Rules

1. Plain frozen data. Nothing here decides, reads a clock or touches a file.
2. All times are seconds of *scheduler time*: monotone, zero when the pool opened, always an argument.
3. Progress is cumulative and losses are numbered, so that a duplicate, a loss or a reordering does no harm.
4. A grant is a level with a version, never an order: whoever missed one is repaired by the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import pairwise
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lightning_core.reasons import Reason
from lightning_core.targets import STEP_LOSS as STEP_LOSS
from lightning_core.targets import BatchTarget as BatchTarget
from lightning_core.targets import LossTarget as LossTarget
from lightning_core.targets import Target as Target
from lightning_core.targets import as_target

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
ObjectArray = npt.NDArray[np.object_]

# A forecast is so many quantiles, at these levels: shape ``(20,)``, evenly spread.
LEVELS: FloatArray = (np.arange(20) + 0.5) / 20
# ... and so those of a standard normal distribution.
NORMAL: FloatArray = np.array([NormalDist().inv_cdf(level) for level in LEVELS.tolist()])


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
    RELEASED = "released"
    RECOVERING = "recovering"
    """Its worker was lost; the next one has not reported yet."""
    ENDED = "ended"


class OnMiss(StrEnum):
    """What becomes of a job whose deadline has passed before its target was met."""

    CONTINUE = "continue"
    """It goes on with what nobody else needs: a run at 99 % is not killed."""
    STOP = "stop"
    HOLD = "hold"
    """It is held until a person gives it a new deadline, or cancels it."""


class OnRefused(StrEnum):
    """What a script does when the pool on its device does not take its job."""

    HOLD = "hold"
    """Wait, and ask again: whoever shares the device was promised that it is shared."""
    ALONE = "alone"
    """Train at full speed beside the pool's jobs, with a scheduler of its own."""
    RENAME = "rename"
    """If only its name is taken, join as ``name-2``, ``name-3``, ...; else wait."""


class OnNan(StrEnum):
    """What becomes of a job whose losses are NaN or infinite for several loss cells in a row."""

    CONTINUE = "continue"
    """People are told; it goes on."""
    STOP = "stop"
    """It is over."""
    RESTART = "restart"
    """It goes back to the newest checkpoint from before, as often as its ``retries`` allow, and at least once."""


class Can(StrEnum):
    """What a training process is able to do for the others."""

    TURNS = "turns"
    """Take turns on its device."""
    HOLD = "hold"
    """Wait, its memory kept."""
    RELEASE = "release"
    """Save, leave, and come back later, on other devices too."""
    RESIZE = "resize"
    """Go on with another number of devices."""


class Cause(StrEnum):
    """Why a worker is gone. What becomes of the job depends on it."""

    DONE = "done"
    """Its training came to its end; the detail says by what: ``max_epochs=3``."""
    INTERRUPTED = "interrupted"
    """Somebody ended its process; the detail says how: ``Ctrl-C``, ``SIGTERM``."""
    RELEASED = "released"
    """It saved and left because it was granted no device, or others: a launched job may come back."""
    RAISED = "raised"
    """The user's code raised: it comes back as often as the job's ``retries`` say."""
    UNUSABLE = "unusable"
    """It cannot be built from what its config says: it never comes back."""
    LOST = "lost"
    """Its process or node died, hung or was cut off, or its ranks fell apart: it comes back, as ``restarts`` allows."""
    PREEMPTED = "preempted"
    """Its node was taken away: it comes back, and nobody counts."""


@dataclass(frozen=True, slots=True)
class Job:
    """A training run with a target and a deadline.

    Args:
        name: unique among the jobs of its pool that have not ended.
        deadline: seconds from submission.
        target: when it counts as met; also as one line, such as ``"val_acc>=0.9"``.
        begin: seconds from submission before which it does not start.
        weight: how many jobs of weight 1 it counts for when not all can make it.
        min_devices: it never trains on fewer.
        max_devices: nor on more. Unless it can be resized the scheduler settles on one size when the job is submitted:
            as many as the pool has, up to ``max_devices``.
        on_miss: what becomes of it when its deadline passes.
        can: what its process is able to do; plans respect it. A plain script cannot be released.
        device: the pool's device that its process lives on and cannot leave; None where the scheduler chooses.
        work: seconds that a person expects it to need alone on its devices, until better is known.
        restarts: how often it comes back after its worker was lost; None for always.
        retries: how often it comes back after its own code raised.
        sizes: numbers of devices that it can train on, growing; empty if it cannot be resized.
        rates: batches a second on each of ``sizes``, if they are known before; empty: they are learned.
        resize: seconds that it loses when it is moved or resized, if they are known before.
        location: of the pool that it trains at, as its settings call them; empty for any.
        on_nan: what becomes of it when its losses are NaN or infinite.

    Raises:
        ValueError: if the name is empty, the target none, or a number out of its range.
    """

    name: str
    deadline: float
    target: Target
    begin: float = 0.0
    weight: float = 1.0
    min_devices: int = 1
    max_devices: int = 1
    on_miss: OnMiss = OnMiss.CONTINUE
    can: frozenset[Can] = frozenset({Can.TURNS, Can.HOLD, Can.RELEASE})
    device: int | None = None
    work: float | None = None
    restarts: int | None = None
    retries: int = 0
    sizes: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    resize: float | None = None
    location: str = ""
    on_nan: OnNan = OnNan.CONTINUE

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("job must have a name, got ''")
        object.__setattr__(self, "target", as_target(self.target))
        if not (self.deadline > 0 and math.isfinite(self.deadline)):
            raise ValueError(f"deadline must be positive and finite, got {self.deadline}")
        if not 0 <= self.begin < self.deadline:
            raise ValueError(f"begin must be at least 0 and before the deadline {self.deadline}, got {self.begin}")
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ValueError(f"weight must be positive and finite, got {self.weight}")
        if not 1 <= self.min_devices <= self.max_devices:
            raise ValueError(
                f"min_devices must be at least 1 and at most max_devices {self.max_devices}, got {self.min_devices}"
            )
        if self.work is not None and not (self.work > 0 and math.isfinite(self.work)):
            raise ValueError(f"work must be positive and finite, got {self.work}")
        for rule, count in (("restarts", self.restarts), ("retries", self.retries)):
            if count is not None and count < 0:
                raise ValueError(f"{rule} must be at least 0, got {count}")
        sizes = (self.min_devices - 1, *self.sizes, self.max_devices + 1) if self.sizes else ()
        if any(one >= next_one for one, next_one in pairwise(sizes)):
            raise ValueError(
                f"sizes must grow and lie within {self.min_devices} to {self.max_devices} devices, got {self.sizes}"
            )
        if self.sizes and not (self.device is None and {Can.RELEASE, Can.RESIZE} <= self.can):
            raise ValueError(f"sizes are of a job that can be released and resized anywhere, got {self.sizes}")
        if self.rates and len(self.rates) != len(self.sizes):
            raise ValueError(f"rates must be one for each of {len(self.sizes)} sizes, got {len(self.rates)}")
        if not all(0 < rate < math.inf for rate in self.rates):
            raise ValueError(f"rates must be positive and finite, got {self.rates}")
        if self.resize is not None and not 0 <= self.resize < math.inf:
            raise ValueError(f"resize must be at least 0 seconds and finite, got {self.resize}")
        if self.on_nan is OnNan.RESTART and not (self.device is None and Can.RELEASE in self.can):
            raise ValueError(
                "on_nan must be 'continue' or 'stop' for a script, got 'restart': only a job that was launched can go "
                "back to a checkpoint"
            )
        if self.location and not (self.device is None and Can.RELEASE in self.can):
            raise ValueError(f"location is of a job that can be released anywhere, got {self.location!r}")


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


class Save(NamedTuple):
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
    saved: Save | None = None
    horizon: Horizon | None = None
    bad: BadLosses | None = None
    aside: bool = False


@dataclass(frozen=True, slots=True)
class WorkerLeft:
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
    cause: Cause = Cause.DONE
    detail: str = ""
    saved: Save | None = None


@dataclass(frozen=True, slots=True)
class Unready:
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
class DevicesGone:
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
        by: who asked for it, in words such as ``"Ctrl-C"``; empty if nobody did, and a fault takes it down.
    """

    by: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A person wants the job to end."""

    job: str


@dataclass(frozen=True, slots=True)
class Pause:
    """A person wants the job to stand still until :class:`Resume`; ``release`` frees its memory too."""

    job: str
    release: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """A paused job may go on."""

    job: str


@dataclass(frozen=True, slots=True)
class Amend:
    """A person, or the plan of a market or of places, gives a job that has not ended other terms.

    Args:
        job: under its name, as it should have been submitted. What its process can do stays as it is.
        deadline: seconds from now; None leaves it counted from submission.
        devices: that it trains on from now on, of those numbers that it can the largest that is not above it; 0: on
            none until another number is said; None leaves that as it is.

    Raises:
        ValueError: if the deadline is not positive, or the number of devices negative.
    """

    job: Job
    deadline: float | None = None
    devices: int | None = None

    def __post_init__(self) -> None:
        if self.deadline is not None and not (self.deadline > 0 and math.isfinite(self.deadline)):
            raise ValueError(f"deadline must be positive and finite, got {self.deadline}")
        if self.devices is not None and self.devices < 0:
            raise ValueError(f"devices must be at least 0, got {self.devices}")


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: the scheduler asked to be woken (or the driver woke it)."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What each spot policy would have made of a job that is over.

    Args:
        job: its name.
        utilities: 0 to 1, in the order of the market's policies; none: it teaches nothing.
    """

    job: str
    utilities: tuple[float, ...]


Event = (
    Submit | Report | WorkerLeft | Unready | DevicesGone | WorkersLost | Close | Cancel | Pause | Resume | Amend
    | Lesson | Tick
)  # fmt: skip


# Directives are tuples, not dataclasses: a round makes one for each changed job, and a tuple costs a third of a
# frozen dataclass to make.
class Grant(NamedTuple):
    """What a job may hold from now on."""

    job: str
    version: int
    duty: float
    """Its part of its devices' turns, 0 (held) to 1 (alone)."""
    devices: tuple[int, ...]
    """Where it may keep its memory and train. None, or others than it is on: it saves and leaves."""
    reason: Reason
    capped: bool = False
    """Whether it must not take more than its duty, though nobody else may need it."""


class End(NamedTuple):
    """The job is over; the worker leaves."""

    job: str
    version: int
    verdict: Verdict
    reason: Reason


class Notice(NamedTuple):
    """What is believed of a job has changed. Nobody obeys it; people are told."""

    job: str
    verdict: Verdict
    reason: Reason


class Alert(NamedTuple):
    """Something about a training that people should know at once: what is believed of it may be the same as before."""

    job: str
    reason: Reason


Directive = Grant | End
Answer = Grant | End | Notice | Alert


class Welcome(NamedTuple):
    """A training process has joined a pool."""

    incarnation: int
    turnstiles: tuple[str, ...]
    """Path of each device's turnstile on this machine; empty for a device of another machine."""
    again: bool = False
    """Whether it is the life that the pool knew: what was reported before still counts."""
    cores: int = 1
    """Of each device, in a pool of CPUs."""


class Outlook(NamedTuple):
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


def _nothing() -> FloatArray:
    return np.zeros(0)


def _nobody() -> ObjectArray:
    return np.zeros(0, np.object_)


@dataclass(frozen=True, slots=True)
class JobView:
    """The jobs to plan as a policy sees them, one row a job in the order of submission: arrays of shape ``(n,)``.

    Attributes:
        place: of the job among all that were ever submitted, 0, 1, ...
        deadline: scheduler time in seconds; the end of its training if its ``max_time`` comes first.
        batches: done so far.
        cells: loss observations so far.
        exact: whether the work left is known, not forecast (a target in batches).
        remaining: batches left to the target; inf if the curve is not falling towards it, NaN while unknown.
        throughput: batches per busy second alone on its devices, NaN while unknown.
        work: seconds left alone on its devices, ``remaining / throughput``; at least one batch's worth.
        quantiles: of that work at :data:`LEVELS`, shape ``(n, 20)``: what is believed with how much doubt. inf where
            the target is not reached, NaN while unknown.
        loss: the current loss, the mean over the last cells; NaN before the first.
        goal: what the loss must come down to; NaN for a target in batches.
        position: batches that were done when the last cell closed, 0 before the first.
        obeys: whether its worker has reported under its newest grant, or there is none.
        weight: how many jobs of weight 1 it counts for.
        size: devices that it trains on, all of them whole if more than one.
        devices: of the pool, one number.
        ends_at: batches at which its training ends by itself, inf if it does not. What is forecast beyond is never
            reached: ``remaining``, ``work`` and ``quantiles`` say so.

    Only for a policy that chooses sizes (:class:`~lightning_core.protocols.ChoosesSizes`), else empty:

    Attributes:
        speedup: how fast each is on how many devices, :class:`~lightning_core.speedup.SpeedUp` objects.
        submitted: scheduler time.
        heard: when its progress was last heard of, scheduler time.
        holds: devices that it trains on now, as a number: a part of one, or several; 0 if none.
        stint: since when it has trained where it is, scheduler time; inf if it does not.
        resize: seconds that a resize costs it.
        fixed: the only number of devices that it may train on for now, 0 if it may choose.
        goes_on: whether it goes on after its deadline.
        quantum: the least part of a device that can be metered out, one number; 1 where devices are given whole.
    """

    place: IntArray
    deadline: FloatArray
    batches: IntArray
    cells: IntArray
    exact: BoolArray
    remaining: FloatArray
    throughput: FloatArray
    work: FloatArray
    quantiles: FloatArray
    loss: FloatArray
    goal: FloatArray
    position: FloatArray
    obeys: BoolArray
    weight: FloatArray
    size: IntArray
    devices: int = 1
    ends_at: FloatArray = field(default_factory=_nothing)
    speedup: ObjectArray = field(default_factory=_nobody)
    submitted: FloatArray = field(default_factory=_nothing)
    heard: FloatArray = field(default_factory=_nothing)
    holds: FloatArray = field(default_factory=_nothing)
    stint: FloatArray = field(default_factory=_nothing)
    resize: FloatArray = field(default_factory=_nothing)
    fixed: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    goes_on: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    quantum: float = 1.0

    def __len__(self) -> int:
        return len(self.deadline)

    def only(self, rows: IntArray) -> JobView:
        """These rows alone."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        some = {name: x[rows] for name, x in columns.items() if isinstance(x, np.ndarray) and len(x)}
        return JobView(**columns | some)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy wants: arrays of shape ``(n,)``, rows as in the :class:`JobView`.

    The scheduler deals the devices out: it goes through ``order`` and gives each job as much of its ``duty`` as is
    left, on devices that the job can use (:mod:`lightning_core.dealing`). So a policy that runs jobs one after the
    other wants a duty of 1 for each of them.

    Attributes:
        order: all rows, the first to be served first: a permutation.
        duty: part of its devices that each should have, 0 to 1. A job with 0 gets what nobody else needs.
        finish: when the policy expects the target to be reached, scheduler time; inf if not, NaN if it cannot say.
        codes: why a job that is served holds what it holds, indices into :data:`lightning_core.reasons.CODES`.
        waiting: why a job that is not served waits.
        numbers: what the reasons' words speak of, shape ``(n, 2)``.
        fill: whether what is left over goes to whoever can use it.
        size: devices that each should train on, at least 1; None for as many as they do.
        capped: who must not take more than its duty; None for nobody.
        again: when the policy wants to be asked again, scheduler time, if that is before the next round.
    """

    order: IntArray
    duty: FloatArray
    finish: FloatArray
    codes: IntArray
    waiting: IntArray
    numbers: FloatArray
    fill: bool = True
    size: IntArray | None = None
    capped: BoolArray | None = None
    again: float = math.inf


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
