"""A job: its target, its deadline, and the terms under which it trains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from lightning_core.core.targets import Target, as_target


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


class Capability(StrEnum):
    """What a training process is able to do for the others."""

    TIME_SLICE = "time_slice"
    """Train in time slices on a device that it shares with other jobs."""
    HOLD = "hold"
    """Wait, its memory kept."""
    RELEASE = "release"
    """Save, leave, and come back later, on other devices too."""
    RESIZE = "resize"
    """Go on with another number of devices."""


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
    can: frozenset[Capability] = frozenset({Capability.TIME_SLICE, Capability.HOLD, Capability.RELEASE})
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
        if self.sizes and not (self.device is None and {Capability.RELEASE, Capability.RESIZE} <= self.can):
            raise ValueError(f"sizes are of a job that can be released and resized anywhere, got {self.sizes}")
        if self.rates and len(self.rates) != len(self.sizes):
            raise ValueError(f"rates must be one for each of {len(self.sizes)} sizes, got {len(self.rates)}")
        if not all(0 < rate < math.inf for rate in self.rates):
            raise ValueError(f"rates must be positive and finite, got {self.rates}")
        if self.resize is not None and not 0 <= self.resize < math.inf:
            raise ValueError(f"resize must be at least 0 seconds and finite, got {self.resize}")
        if self.on_nan is OnNan.RESTART and not (self.device is None and Capability.RELEASE in self.can):
            raise ValueError(
                "on_nan must be 'continue' or 'stop' for a script, got 'restart': only a job that was launched can go "
                "back to a checkpoint"
            )
        if self.location and not (self.device is None and Capability.RELEASE in self.can):
            raise ValueError(f"location is of a job that can be released anywhere, got {self.location!r}")
