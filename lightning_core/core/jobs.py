"""A job: its target, its deadline if it has one, and the terms under which it trains."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any

from lightning_core.core.durations import parse_duration
from lightning_core.core.limits import (
    MAX_COUNT,
    MAX_DEVICES,
    MAX_MEMORY,
    MAX_NAME,
    MAX_TEXT,
    MIN_SECONDS,
    Deadline,
    check_at_most,
    check_factor,
    check_length,
    check_seconds,
    shown,
)
from lightning_core.core.names import check_person
from lightning_core.core.targets import Target, as_target

# Stands between the model and the batch size in the name of a kind of training.
BATCH_MARK = " x"


class OnMiss(StrEnum):
    """Action for a job whose deadline passes before its target is met."""

    CONTINUE = "continue"
    """It continues on devices that no other job needs: a run at 99 % is not killed."""
    STOP = "stop"
    HOLD = "hold"
    """It is held until a user gives it a new deadline, or cancels it."""


class OnHold(StrEnum):
    """Treatment of a job's GPU memory while the job is held."""

    KEEP = "keep"
    """It stays there, and the job resumes at once."""
    OFFLOAD = "offload"
    """Its state is moved to the host's memory, and back before the job resumes."""
    SUSPEND = "suspend"
    """Its whole process is taken off the GPU by the driver, and back before the job resumes."""


class Beside(StrEnum):
    """Whether a job may train at the same time as others on its device."""

    NEVER = "never"
    AUTO = "auto"
    """While that does more than turns and makes no job late."""
    ALWAYS = "always"
    """While it makes no job late, whether it does more than turns or not."""


class Spread(StrEnum):
    """Where the devices of a job that has several of them may be."""

    MACHINE = "machine"
    """All on one machine."""
    POOL = "pool"
    """On one machine where there are enough, else on several."""


def as_beside(word: str) -> Beside:
    """Return whether jobs may train beside others; a ValueError names the possible words."""
    if word not in list(Beside):
        raise ValueError(f"beside must be one of {', '.join(Beside)}, got {shown(word)}")
    return Beside(word)


def as_spread(word: str) -> Spread:
    """Return where the devices of a job may be; a ValueError names the possible words."""
    if word not in list(Spread):
        raise ValueError(f"spread must be one of {', '.join(Spread)}, got {shown(word)}")
    return Spread(word)


class OnRefused(StrEnum):
    """Action of a script when the pool on its device refuses its job."""

    HOLD = "hold"
    """Wait, and ask again: the other jobs on the device were promised that it is shared."""
    ALONE = "alone"
    """Train at full speed next to the pool's jobs, with a scheduler of its own."""
    RENAME = "rename"
    """If only its name is taken, join as ``name-2``, ``name-3``, ...; else wait."""


class OnNan(StrEnum):
    """Action for a job whose losses are NaN or infinite for several loss cells in a row."""

    CONTINUE = "continue"
    """It continues, with an alert."""
    STOP = "stop"
    """It ends."""
    RESTART = "restart"
    """It goes back to the newest checkpoint from before, as often as its ``retries`` allow, and at least once."""


class Capability(StrEnum):
    """A capability of a training process."""

    TIME_SLICE = "time_slice"
    """Train in time slices on a device that it shares with other jobs."""
    HOLD = "hold"
    """Wait, its memory kept."""
    RELEASE = "release"
    """Save, leave, and come back later, on other devices too."""
    RESIZE = "resize_seconds"
    """Go on with another number of devices."""


@dataclass(frozen=True, slots=True)
class Job:
    """A training run with a target, and with a deadline or none: then it is a best-effort job.

    Args:
        name: Name, unique among the jobs of its pool that have not ended.
        deadline: Seconds from submission; inf for none. This and every other time may be text, such as ``"1h30m"``.
        target: Condition under which it counts as met; also as one line, such as ``"val_acc>=0.9"``.
        begin: Seconds from submission before which it does not start.
        weight: Relative importance when not all deadlines can be met.
        min_devices: Minimum number of devices that it trains on.
        max_devices: Maximum number of devices. Unless the job can be resized, the scheduler settles on one size at
            submission: as many as the pool has, up to ``max_devices``.
        on_miss: Action when its deadline passes.
        can: Capabilities of its process. A plain script cannot be released.
        device: Number of the pool's device that its process runs on and cannot leave; None where the scheduler chooses.
        work: Seconds that it is expected to need alone on its devices, until its throughput is measured.
        restarts: Limit of restarts after a lost worker; None for no limit.
        retries: Limit of restarts after an error of its own code.
        sizes: Numbers of devices that it can train on, increasing; empty if it cannot be resized.
        throughputs: Batches per second on each of ``sizes``, if known beforehand; empty to measure them.
        resize_seconds: Seconds lost when it is moved or resized, if known beforehand.
        location: Location of the pool that it trains at, as its settings spell it; empty for any.
        kinds: Kinds of devices that it may train on, as the pool names them; empty for any.
        spread: Where its devices may be if it has several: on one machine, or on several.
        on_nan: Action when its losses are NaN or infinite.
        spec_sha256: SHA-256 of the text of its spec, if the pool launches it: no other spec is launched.
        like: Name or tag of earlier runs with a similar loss curve; empty to select them by model, metric and batch
            size.
        model: Class path of its LightningModule; empty if unknown.
        batch_size: Samples in a batch of one device; None if unknown.
        save_every: Seconds of training between two periodic checkpoints; None if unknown.
        memory: Bytes that it needs at least of each device's memory; None to estimate and measure it.
        on_hold: Treatment of its GPU memory while it is held.
        beside: Whether it may train at the same time as others on its device.
        owner: Name of the person to whom it belongs, set by the server; empty if unknown.
        parts: Data that parts keep with it, by the name of the part; at most
            :data:`~lightning_core.core.limits.MAX_TEXT` characters as JSON.

    Raises:
        ValueError: If the name is empty, the target or a time cannot be read, or a number is out of its range.

    Example::

        >>> job = Job("a", "1h30m", "loss<=0.1")
        >>> job.deadline, str(job.target)
        (5400.0, 'loss <= 0.1')
    """

    name: str
    deadline: Deadline
    target: Target
    begin: float = 0.0
    weight: float = 1.0
    min_devices: int = 1
    max_devices: int = 1
    on_miss: OnMiss = OnMiss.CONTINUE
    can: frozenset[Capability] = frozenset({Capability.TIME_SLICE, Capability.HOLD, Capability.RELEASE})
    device: int | None = None
    work: float | None = None
    restarts: int | None = None
    retries: int = 0
    sizes: tuple[int, ...] = ()
    throughputs: tuple[float, ...] = ()
    resize_seconds: float | None = None
    location: str = ""
    kinds: tuple[str, ...] = ()
    spread: Spread = Spread.MACHINE
    on_nan: OnNan = OnNan.CONTINUE
    spec_sha256: str = ""
    like: str = ""
    model: str = ""
    batch_size: int | None = None
    save_every: float | None = None
    memory: int | None = None
    on_hold: OnHold = OnHold.KEEP
    beside: Beside = Beside.AUTO
    owner: str = ""
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("job must have a name, got ''")
        check_length("job name", self.name, MAX_NAME)
        for name in ("location", "like", "model"):
            check_length(name, getattr(self, name))
        for name in self.kinds:
            check_length("a kind of devices", name)
        if self.owner:
            check_person(self.owner)
        if self.parts:
            object.__setattr__(self, "parts", _data_of_parts(self.parts))
        object.__setattr__(self, "target", as_target(self.target))
        object.__setattr__(self, "beside", as_beside(self.beside))
        object.__setattr__(self, "spread", as_spread(self.spread))
        for name in _TIMES:
            if isinstance(value := getattr(self, name), str | timedelta):
                object.__setattr__(self, name, _seconds(name, value))
        for name in _RULES:
            check_term(name, getattr(self, name))
        if not self.begin < self.deadline:
            raise ValueError(f"begin must be before the deadline {self.deadline}, got {self.begin}")
        self._check_devices()
        if not self.is_launched:
            self._check_script()

    @property
    def is_best_effort(self) -> bool:
        """Whether it has no deadline: it trains on devices that no job with a deadline needs."""
        return self.deadline == math.inf

    @property
    def family(self) -> str:
        """Kind of its training: trainings of one kind are expected to be as fast beside others.

        Example::

            >>> Job("run-7", 60.0, "loss<=0.1", model="nets.ResNet", batch_size=32).family
            'nets.ResNet x32'
            >>> Job("run-7", 60.0, "loss<=0.1").family
            'run'
        """
        return family_of(self.name, self.like, self.model, self.batch_size)

    @property
    def is_launched(self) -> bool:
        """Whether the pool starts its process, and can start it again on any of its devices."""
        return self.device is None and Capability.RELEASE in self.can

    def _check_devices(self) -> None:
        if not 1 <= self.min_devices <= self.max_devices:
            raise ValueError(
                f"min_devices must be at least 1 and at most max_devices {self.max_devices}, got {self.min_devices}"
            )
        for name in ("max_devices", "device"):
            check_at_most(name, getattr(self, name), MAX_DEVICES)
        sizes = (self.min_devices - 1, *self.sizes, self.max_devices + 1) if self.sizes else ()
        if any(one >= next_one for one, next_one in pairwise(sizes)):
            raise ValueError(
                f"sizes must increase and lie within {self.min_devices} to {self.max_devices} devices, got {self.sizes}"
            )
        if self.sizes and Capability.RESIZE not in self.can:
            raise ValueError(f"sizes are for a job that can be resized, got {self.sizes}")
        if self.throughputs and len(self.throughputs) != len(self.sizes):
            raise ValueError(
                f"throughputs must be one for each of {len(self.sizes)} sizes, got {len(self.throughputs)}"
            )

    def _check_script(self) -> None:
        if self.sizes:
            raise ValueError(f"sizes are for a job that can be released on any device, got {self.sizes}")
        if self.on_nan is OnNan.RESTART:
            raise ValueError(
                "on_nan must be 'continue' or 'stop' for a script, got 'restart': only a job that was launched can go "
                "back to a checkpoint"
            )
        if self.location:
            raise ValueError(f"location is for a job that can be released on any device, got {self.location!r}")


def _data_of_parts(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return data of parts as the JSON values that a journal holds."""
    if not isinstance(parts, Mapping) or not all(isinstance(one, Mapping) for one in parts.values()):
        raise ValueError(f"parts must be a mapping of values for each part, got {shown(parts)}")
    try:
        text = json.dumps(parts, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"parts must be JSON values: {error}") from None
    check_at_most("characters of parts", len(text), MAX_TEXT)
    return json.loads(text)  # type: ignore[no-any-return]


# Terms that are seconds.
_TIMES = ("deadline", "begin", "work", "resize_seconds", "save_every")


def _seconds(name: str, value: str | timedelta) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _is_positive(value: float) -> bool:
    return 0 < value < math.inf


def _is_count(value: int | None) -> bool:
    return value is None or value >= 0


# Check of each term on its own, with its rule as text.
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "deadline": (lambda value: value > 0, "positive"),
    "begin": (lambda value: 0 <= value < math.inf, "at least 0 and finite"),
    "weight": (_is_positive, "positive and finite"),
    "work": (lambda value: value is None or _is_positive(value), "positive and finite"),
    "restarts": (_is_count, "at least 0"),
    "retries": (_is_count, "at least 0"),
    "batch_size": (lambda value: value is None or value >= 1, "at least 1"),
    "memory": (lambda value: value is None or value >= 1, "at least 1 byte"),
    "throughputs": (lambda values: all(map(_is_positive, values)), "positive and finite"),
    "spec_sha256": (lambda value: re.fullmatch("([0-9a-f]{64})?", value) is not None, "64 hexadecimal digits or empty"),
    "resize_seconds": (lambda value: value is None or 0 <= value < math.inf, "at least 0 and finite"),
    "save_every": (lambda value: value is None or 0 <= value < math.inf, "at least 0 and finite"),
}


def _check_span(name: str, value: float | None) -> None:
    check_seconds(name, value, MIN_SECONDS)


def _check_deadline(name: str, value: float) -> None:
    if value != math.inf:
        _check_span(name, value)


def _check_count(name: str, value: int | None) -> None:
    check_at_most(name, value, MAX_COUNT)


def _unbounded(name: str, value: Any) -> None:
    """Accept a term that is no number."""


# The bounds of numbers that are valid but for their size.
_BOUNDS: dict[str, Callable[[str, Any], None]] = {
    "deadline": _check_deadline,
    "begin": check_seconds,
    "weight": check_factor,
    "work": _check_span,
    "restarts": _check_count,
    "retries": _check_count,
    "batch_size": _check_count,
    "throughputs": check_factor,
    "resize_seconds": check_seconds,
    "save_every": check_seconds,
    "memory": lambda name, value: check_at_most(name, value, MAX_MEMORY),
}


def check_term(name: str, value: Any) -> None:
    """Check one term of a job by itself.

    Raises:
        ValueError: If it is out of its range; the message names the term, the rule and the value.
    """
    is_valid, rule = _RULES.get(name, (lambda _: True, ""))
    if not is_valid(value):
        raise ValueError(f"{name} must be {rule}, got {value}")
    for one in value if isinstance(value, tuple) else (value,):
        _BOUNDS.get(name, _unbounded)(name, one)


@lru_cache(2**15)
def family_of(name: str, like: str, model: str, batch_size: int | None) -> str:
    """Return the kind of a training; see :attr:`Job.family`."""
    kind = model or like or re.sub(r"[-_. ]?\d+$", "", name) or name
    return kind if batch_size is None else f"{kind}{BATCH_MARK}{batch_size}"
