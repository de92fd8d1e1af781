"""Events: the input of the scheduler.

Rules:

1. Events are plain frozen data. Nothing here decides, reads a clock or touches a file.
2. Times are seconds of *scheduler time*, which never decreases, is 0 when the pool opens, and is always an argument.
3. Progress is cumulative and losses are numbered, so duplicated, lost and reordered reports do no harm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from lightning_core.core.commands import Command
from lightning_core.core.control import Ask, WallClock
from lightning_core.core.earlier_runs import MAX_EARLIER_RUNS, MAX_PACES, EarlierPace, EarlierRun, check_pace, check_run
from lightning_core.core.jobs import Job
from lightning_core.core.limits import MAX_DEVICES, MAX_ITEMS, MAX_TEXT, check_at_most, check_length
from lightning_core.core.parts import message_body, message_name, read_message
from lightning_core.core.reported import Hang, HyperParameters, LearningRates, MemoryUse
from lightning_core.core.targets import Met

# Characters of the body of a part's event: a plan of a day for a thousand jobs has some hundred thousand.
MAX_BODY = 2**20
# Earlier runs of one event: with 128 points each, a line of the journal has some megabytes.
MAX_RUNS_AT_ONCE = 1000


class ExitCause(StrEnum):
    """The cause of a worker's exit, which decides whether the job is retried."""

    DONE = "done"
    """Its training ended; the detail names the limit that ended it: ``max_epochs=3``."""
    INTERRUPTED = "interrupted"
    """Its process was interrupted; the detail says how: ``Ctrl-C``, ``SIGTERM``."""
    RELEASED = "released"
    """It saved a checkpoint and exited because it was granted no devices or other ones; a launched job may restart."""
    RAISED = "raised"
    """Its own code raised; it restarts as often as the job's ``retries`` allow."""
    UNUSABLE = "unusable"
    """It cannot be built from its config; it never restarts."""
    LOST = "lost"
    """Its process or node died, hung or lost its connection, or a rank failed; it restarts as ``restarts`` allows."""
    HUNG = "hung"
    """A step of its training hung while its process went on answering; it restarts a few times."""
    BROKEN = "broken"
    """Its worker can train no job, for example because this package cannot be imported there; it restarts a few times.
    """
    OUT_OF_MEMORY = "out_of_memory"
    """Its device or node ran out of memory; it restarts a few times, alone on its devices."""
    PREEMPTED = "preempted"
    """Its node was preempted; it restarts, and this counts against no limit."""


class BadLosses(NamedTuple):
    """The newest run of consecutive losses that are NaN or infinite."""

    since: int
    """Batches done at the first of them."""
    cells: int = 0
    """Number of loss cells that held no other losses."""
    over: bool = False
    """Whether a finite loss followed."""


class Cell(NamedTuple):
    """A smoothed observation of a target's metric: its mean over the batches since the previous cell."""

    number: int
    """Number of the cell within the run: 1, 2, 3, ..."""
    batches: int
    """Batches done when the cell closed."""
    value: float
    """Value as logged: a loss, or a metric that should grow."""


class Checkpoint(NamedTuple):
    """A checkpoint that is complete on disk. The scheduler decides whether a job may resume from it."""

    batches: int
    """Batches done when it was saved."""
    sha256: str
    """SHA-256 of the file, from its manifest."""


class Horizon(NamedTuple):
    """The end of a training by the Trainer's own limits, whether or not its target is met."""

    batches: int | None = None
    """Batches done at the end; None if no number of batches or epochs ends it, or if that number is unknown."""
    by: str = ""
    """Limit that ends it at ``batches``, such as ``max_epochs=3``."""
    seconds: float | None = None
    """Seconds until its ``max_time`` ends it, from the time of the report; None if it has none."""
    at_least: int = 0
    """Batches that the Trainer does even if the target is met before (``min_epochs``, ``min_steps``)."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Submission of the jobs of a bundle, which are planned together.

    Deadlines count from the time of this event. The name of a job that has ended can be used again. If a job of
    that name is still active, the new one is not added, and the answer is the directive of the active one.

    Args:
        jobs: Jobs to add, at most :data:`~lightning_core.core.limits.MAX_ITEMS`.

    Raises:
        ValueError: If there are more.
    """

    jobs: tuple[Job, ...]

    def __post_init__(self) -> None:
        check_at_most("jobs of one submission", len(self.jobs), MAX_ITEMS)


@dataclass(frozen=True, slots=True)
class Report:
    """Progress of a worker.

    Args:
        job: Name of the job.
        incarnation: Incarnation of the job that reports; a report of an older one is refused.
        number: Number of the report within the incarnation: 1, 2, 3, ...; a repeated number changes nothing.
        version: Version of the grant that the worker runs under; if it is old, the answer is the newer grant.
        batches: Batches done since the job began.
        busy: Seconds that this incarnation has spent in training, validation and saving.
        cells: Loss cells that the scheduler has not yet acknowledged.
        rejected: Number of losses left out so far because they were NaN or infinite.
        batches_at_start: Batches done before this incarnation began; positive in a resumed run.
        evaluated: Whether each cell is a whole evaluation (a validation metric), which needs no smoothing.
        checkpoint: Newest checkpoint of this incarnation.
        horizon: End of the training by its own limits; None if it has none.
        bad_losses: Newest run of losses that are NaN or infinite; None if there was none.
        in_slow_phase: Whether the worker is in a phase that may take much longer than a batch: validation, saving, its
            first batch.
        hang: Step that hangs, as it was noticed; None if none does.
        learning_rates: Learning rates of the training, once they are known and whenever they change; None if the
            scheduler has them, or they are constant or unknown.
        epoch_batches: Batches of an epoch, for a target in epochs; None if the scheduler has it, or it is unknown.
        memory: Memory of its process on each device, once it has trained and whenever its peak has grown; None if the
            scheduler has it, or it is unknown.
        hyper_parameters: Hyper-parameters, sent once; None if the scheduler has them, or there are none.
        met: Value that met its target, judged by the training process with the scheduler's rule; None if it is not met,
            or batches are counted.
        used: Seconds of its device that this incarnation has used: on CPUs the seconds for which its threads needed a
            core, divided by the cores of the device; on a GPU the seconds in which a kernel ran there. None where that
            is unknown.
    """

    job: str
    incarnation: int
    number: int
    version: int
    batches: int
    busy: float
    cells: tuple[Cell, ...] = ()
    rejected: int = 0
    batches_at_start: int = 0
    evaluated: bool = False
    checkpoint: Checkpoint | None = None
    horizon: Horizon | None = None
    bad_losses: BadLosses | None = None
    in_slow_phase: bool = False
    hang: Hang | None = None
    learning_rates: LearningRates | None = None
    epoch_batches: int | None = None
    memory: MemoryUse | None = None
    hyper_parameters: HyperParameters | None = None
    met: Met | None = None
    used: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """Exit of a worker.

    Args:
        job: Name of the job.
        incarnation: Incarnation of the job that exited.
        cause: Cause of the exit.
        detail: Traceback, with the error in its last line; for a training that ended or was interrupted, the cause. A
            long detail keeps its end.
        checkpoint: Newest checkpoint of this incarnation.
    """

    job: str
    incarnation: int
    cause: ExitCause = ExitCause.DONE
    detail: str = ""
    checkpoint: Checkpoint | None = None

    def __post_init__(self) -> None:
        _shorten_detail(self)


@dataclass(frozen=True, slots=True)
class LaunchTimedOut:
    """Failed launch: not all workers of a job were ready in time on its devices, so none of them has begun.

    Args:
        job: Name of the job.
        incarnation: Incarnation of the job that was to begin.
        detail: Workers that were missing, and why.
    """

    job: str
    incarnation: int
    detail: str

    def __post_init__(self) -> None:
        _shorten_detail(self)


@dataclass(frozen=True, slots=True)
class DevicesUnavailable:
    """Devices of the pool on which no worker can run at present; replaces the previous such event.

    Args:
        devices: Numbers of the devices; empty if all are available.
        detail: Reason, as text.
    """

    devices: tuple[int, ...]
    detail: str = ""

    def __post_init__(self) -> None:
        _shorten_detail(self)


@dataclass(frozen=True, slots=True)
class DevicesFound:
    """Kinds and machines of the devices of a pool, as it has found them; sent whenever they change.

    Args:
        kinds: Kind of each device, such as the type of its accelerator: an empty name if it is unknown now. Empty if
            nothing is known.
        machines: Machine of each device, by any name, likewise; empty if they are all on one.

    Raises:
        ValueError: If a name is too long, or there are more devices than a pool may have.
    """

    kinds: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for names in (self.kinds, self.machines):
            check_at_most("devices", len(names), MAX_DEVICES)
            for name in names:
                check_length("name of a kind or a machine", name)


@dataclass(frozen=True, slots=True)
class WorkersLost:
    """Loss of all workers because the pool was down. Launched jobs resume from checkpoints, scripts join again."""


@dataclass(frozen=True, slots=True)
class Close:
    """Shutdown of the pool: launched jobs save a checkpoint and exit. They resume at the next :class:`WorkersLost`.

    Args:
        by: Source of the request, such as ``"Ctrl-C"``; empty if a fault causes it.
    """

    by: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Passing of time: the scheduler asked for a wakeup, or the driver sent one."""


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """Earlier runs of the same tasks that were found for jobs, right after they were submitted; and earlier paces.

    A job that is unknown, or already has loss cells or earlier runs, is not changed; nor is a pace that is known.

    Args:
        runs: The runs, each once, at most :data:`MAX_RUNS_AT_ONCE`.
        found: Names of jobs, each with the places of its runs in ``runs``, the most relevant first; at most
            :data:`~lightning_core.core.earlier_runs.MAX_EARLIER_RUNS` for each job.
        paces: How fast trainings of their kinds were beside others, at most
            :data:`~lightning_core.core.earlier_runs.MAX_PACES`.

    Raises:
        ValueError: If there are more, a run or a pace is invalid, or a place has no run.
    """

    runs: tuple[EarlierRun, ...]
    found: tuple[tuple[str, tuple[int, ...]], ...]
    paces: tuple[EarlierPace, ...] = ()

    def __post_init__(self) -> None:
        check_at_most("earlier runs at once", len(self.runs), MAX_RUNS_AT_ONCE)
        check_at_most("jobs with earlier runs", len(self.found), MAX_ITEMS)
        check_at_most("earlier paces", len(self.paces), MAX_PACES)
        for run in self.runs:
            check_run(run)
        for pace in self.paces:
            check_pace(pace)
        for job, places in self.found:
            check_at_most(f"{job}: earlier runs", len(places), MAX_EARLIER_RUNS)
            if not all(0 <= place < len(self.runs) for place in places):
                raise ValueError(f"{job}: places must be those of {len(self.runs)} runs, got {places}")

    def of(self, places: tuple[int, ...]) -> tuple[EarlierRun, ...]:
        """Return the runs at places."""
        return tuple(self.runs[place] for place in places)


@dataclass(frozen=True, slots=True)
class PartEvent:
    """An event of a part; the scheduler passes it on to the controllers.

    Args:
        name: ``PART.EVENT``, where ``PART`` is the name of the part.
        body: Its JSON values; at most :data:`MAX_BODY` characters as text.
        who: Name of the user who sent it; empty if no user did.

    Raises:
        ValueError: If the name or the body has another form.

    Example::

        >>> PartEvent("quiet.night_began", {"until": 8})
        PartEvent(name='quiet.night_began', body={'until': 8}, who='')
        >>> PartEvent("night_began", {})
        Traceback (most recent call last):
        ...
        ValueError: name of an event must be PART.EVENT, got 'night_began'
    """

    name: str
    body: Mapping[str, Any]
    who: str = ""

    def __post_init__(self) -> None:
        check_length("name of an event", self.name)
        if not all(self.name.partition(".")):
            raise ValueError(f"name of an event must be PART.EVENT, got {self.name!r}")
        try:
            size = len(json.dumps(self.body, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"event {self.name}: its body must be JSON values: {error}") from None
        check_at_most(f"event {self.name}: characters of its body", size, MAX_BODY)

    @classmethod
    def of(cls, event: Any) -> PartEvent:
        """Return the event of a part that an object of one of its classes stands for.

        Raises:
            ValueError: If no registered part brings the class, or a value is none of JSON.
        """
        return cls(message_name(type(event), "events"), message_body(event))

    def decoded(self) -> Any:
        """Return the object that the part makes of it; the event itself where no part knows it.

        Raises:
            ValueError: If the part knows it, and its body is of another form.
        """
        return read_message(self, "events")


Event = (
    Submit | EarlierRuns | Report | WorkerExited | LaunchTimedOut | DevicesUnavailable | DevicesFound | WorkersLost
    | Close | Command | Ask | WallClock | PartEvent | Tick
)  # fmt: skip


def _shorten_detail(event: WorkerExited | LaunchTimedOut | DevicesUnavailable) -> None:
    """Keep the end of a long detail, without halves of characters: the last line has the error."""
    if isinstance(event.detail, str):
        detail = event.detail if len(event.detail) <= MAX_TEXT else f"[...]{event.detail[5 - MAX_TEXT :]}"
        object.__setattr__(event, "detail", detail.encode(errors="replace").decode())
