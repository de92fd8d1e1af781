"""Settings of a scheduler."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from lightning_core.controllers import CONTROLLERS, Controller
from lightning_core.core.control import RIGHTS, Asker, Rights, declare_rights, rights_of
from lightning_core.core.jobs import Beside, Job, as_beside
from lightning_core.core.limits import (
    MAX_CELLS,
    MAX_CORES,
    MAX_COUNT,
    MAX_DEVICES,
    MAX_MEMORY,
    MAX_RESIDENT,
    check_arguments,
    check_at_most,
    check_length,
    check_seconds,
    shown,
)
from lightning_core.core.parts import AbsentPartError, allow_classes, brought
from lightning_core.core.protocols import Estimator, Policy
from lightning_core.core.reasons import Reason
from lightning_core.core.specs import Family
from lightning_core.core.targets import Target
from lightning_core.estimators import ESTIMATORS
from lightning_core.planning.best_effort import TURN
from lightning_core.policies import POLICIES
from lightning_core.scheduler.divider import DIVIDERS, Divider

T = TypeVar("T")

# Estimator of policies that do not name their own.
DEFAULT_ESTIMATOR = "posterior"
# Jobs that have ended and are remembered by default, beside those of the last day.
REMEMBERED = 250
# Seconds for which the files of ended jobs are kept by default, and at least: a worker may leave late.
KEEP_ENDED, MIN_KEEP_ENDED = 30 * 86400.0, 3600.0
# Minimum seconds between two rounds, and minimum share of a device.
MIN_PERIOD, MIN_QUANTUM = 1e-3, 1e-6


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides how a scheduler behaves; kept in the journal, so that a replay builds the same one.

    Args:
        policy: Name in :data:`lightning_core.policies.POLICIES` or of a policy that another package brings, or the path
            of a class; in Python a class or an object too.
        policy_args: Arguments of the policy.
        estimator: The same of an estimator (:data:`lightning_core.estimators.ESTIMATORS`); empty for the policy's own.
        estimator_args: Arguments of the estimator.
        period: Seconds between two rounds.
        window: Number of loss cells whose mean must reach a target loss.
        judge_after: Number of loss cells after which a job is given a verdict.
        devices: Number of devices of the pool.
        resident: Maximum number of launched jobs that stay in memory, over all devices; None for no limit.
        stay: Seconds that a job trains on its devices before it may be moved; long compared with what a move costs.
        cores: Cores of each device, in a pool of CPUs.
        quantum: Smallest share of a device that can be granted; 1 if devices are granted whole.
        resize: Seconds that a resize is assumed to cost until one has been measured.
        locations: Name of the location of each device; empty if locations make no difference.
        stall: Minimum seconds without a batch after which a training is reported as stalled; None for never.
        keep_all: Whether the journal keeps all events, for audits; otherwise old ones are thinned to what reports and
            ``why`` need.
        keep_ended: Seconds for which logs, spec and resume checkpoints of a job are kept after its end; None for ever.
        best_effort: Part of the time of all devices that is kept for jobs without a deadline, together, while there are
            any; at least 0 and below 1. With 0 they have what the others leave.
        beside: Whether jobs may train at the same time as others on their device; a job may say otherwise.
        device_memory: Bytes of each device's memory that jobs may have; None if unknown: then all are let in.
        share_history: Whether jobs are given the earlier runs of other users of the pool's machine too.
        controllers: Arguments of each controller, by its name in :data:`lightning_core.controllers.CONTROLLERS`, or of
            one that another package brings, or by the path of a class.
        remember: Jobs that have ended whose outcome is remembered, beside all of the last day. A run and a simulation
            remember all that are in them.
        divider: Terms of what divides the pool among groups of jobs, under its name: ``{"owners": {"ann": {"devices":
            2}}}``; empty for a pool whose jobs are all planned together.
        packages: Package and version of each part from outside the library, by its kind and name, as they were when
            the journal began; found here where not given.

    Upper bounds are those of :mod:`lightning_core.core.limits`.

    Raises:
        ValueError: If a name is unknown or an argument out of range.
    """

    policy: str = "triage"
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    estimator: str = ""
    estimator_args: Mapping[str, Any] = field(default_factory=dict)
    period: float = 1.0
    window: int = 5
    judge_after: int = 10
    devices: int = 1
    resident: int | None = None
    stay: float = 10.0
    cores: int = 1
    quantum: float = 1.0
    resize: float = 1.0
    locations: tuple[str, ...] = ()
    stall: float | None = 60.0
    keep_all: bool = False
    keep_ended: float | None = KEEP_ENDED
    best_effort: float = 0.0
    beside: Beside = Beside.AUTO
    device_memory: int | None = None
    share_history: bool = False
    controllers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    divider: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    remember: int = REMEMBERED
    packages: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", POLICIES.name_of(self.policy))
        object.__setattr__(self, "estimator", ESTIMATORS.name_of(self.estimator))
        object.__setattr__(self, "beside", as_beside(self.beside))
        if not self.period > 0:
            raise ValueError(f"period must be positive, got {self.period}")
        if self.window < 1:
            raise ValueError(f"window must be at least 1 cell, got {self.window}")
        if self.judge_after < 0:
            raise ValueError(f"judge_after must be at least 0 cells, got {self.judge_after}")
        if self.devices < 1:
            raise ValueError(f"devices must be at least 1, got {self.devices}")
        object.__setattr__(self, "locations", tuple(self.locations))
        if self.locations and not (len(self.locations) == self.devices and all(self.locations)):
            raise ValueError(
                f"locations must name one location for each of {self.devices} devices, got {self.locations}"
            )
        if self.resident is not None and self.resident < self.devices:
            raise ValueError(f"resident must be at least one job per device ({self.devices}), got {self.resident}")
        if not self.stay >= 0:
            raise ValueError(f"stay must be at least 0 seconds, got {self.stay}")
        if self.cores < 1:
            raise ValueError(f"cores must be at least 1 per device, got {self.cores}")
        if not 0 < self.quantum <= 1:
            raise ValueError(f"quantum must be above 0 and at most 1 device, got {self.quantum}")
        if not 0 <= self.resize < math.inf:
            raise ValueError(f"resize must be at least 0 seconds and finite, got {self.resize}")
        if self.stall is not None and not 0 < self.stall < math.inf:
            raise ValueError(f"stall must be positive and finite, got {self.stall}")
        self._check_bounds()
        self._check_parts()

    def _check_parts(self) -> None:
        self.allow_classes()
        if self.packages and self.absent_parts():
            return  # of a journal, which can be read without them; a scheduler cannot be made
        self.make_policy()
        self.make_estimator()
        self.make_controllers()
        self.make_divider()
        here = self.packages_here()  # only of parts that are named: these settings may be a copy that names others
        object.__setattr__(self, "packages", {part: self.packages.get(part, one) for part, one in here.items()})

    def _check_bounds(self) -> None:
        """Check what nothing but its size makes wrong."""
        if not 0 <= self.best_effort < 1:
            raise ValueError(f"best_effort must be at least 0 and below 1, got {self.best_effort}")
        if self.device_memory is not None and not 1 <= self.device_memory <= MAX_MEMORY:
            raise ValueError(f"device_memory must be 1 to {MAX_MEMORY} bytes, got {shown(self.device_memory)}")
        if self.period < MIN_PERIOD:
            raise ValueError(f"period must be at least {MIN_PERIOD} seconds, got {self.period}")
        if self.quantum < MIN_QUANTUM:
            raise ValueError(f"quantum must be at least {MIN_QUANTUM} devices, got {self.quantum}")
        if self.remember < 1:
            raise ValueError(f"remember must be at least 1 job, got {self.remember}")
        bounds = {"window": MAX_CELLS, "judge_after": MAX_CELLS, "devices": MAX_DEVICES, "resident": MAX_RESIDENT,
                  "cores": MAX_CORES, "remember": MAX_COUNT}  # fmt: skip
        for name, maximum in bounds.items():
            check_at_most(name, getattr(self, name), maximum)
        for name in ("period", "stay", "resize", "stall"):
            check_seconds(name, getattr(self, name))
        check_seconds("keep_ended", self.keep_ended, MIN_KEEP_ENDED)
        for name in self.locations:
            check_length("a location", name)
        check_arguments("policy", self.policy_args)
        check_arguments("estimator", self.estimator_args)
        for name, args in self.controllers.items():
            check_arguments(f"controller {shown(name)}", args)
        if len(self.divider) > 1:
            raise ValueError(f"a pool must have at most one divider, got {', '.join(self.divider)}")

    def make_policy(self) -> Policy:
        """Return a new instance of the policy.

        Raises:
            AbsentPartError: If it is not installed here.
        """
        return self._made(POLICIES, self.policy, self.policy_args)

    def make_estimator(self) -> Estimator:
        """Return a new instance of the estimator; see :meth:`make_policy`."""
        return self._made(ESTIMATORS, self.estimator_used, self.estimator_args)

    def make_controllers(self) -> dict[Asker, Controller]:
        """Return a new instance of each controller, the one whose word stands above the others' first."""
        made = {Asker(name): self._made(CONTROLLERS, name, args) for name, args in self.controllers.items()}
        for by, controller in made.items():
            if by not in RIGHTS:
                declare_rights(by, getattr(controller, "rights", Rights(str(by))))
        return {by: made[by] for by in sorted(made, key=lambda by: (rights_of(by).rank, by))}

    def make_divider(self) -> Divider | None:
        """Return a new instance of what divides the pool among groups of jobs; None if nothing does."""
        for name, terms in self.divider.items():
            divider = self._made(DIVIDERS, name, {"terms": terms})
            divider.join(self)
            return divider
        return None

    def _made(self, family: Family[T], name: str, arguments: Mapping[str, Any]) -> T:
        try:
            return family.build(name, arguments)
        except AbsentPartError as error:
            if (package := self.packages.get(f"{family.kind} {name}")) is None:
                raise
            words = f"the {family.kind} {name} is from {package}, which cannot be loaded here"
            raise AbsentPartError(f"{words}; install it to go on with this journal ({error})") from None

    def _named(self) -> Iterator[tuple[Family[Any], str]]:
        """Yield each part that is named, with its family."""
        yield POLICIES, self.policy
        if self.estimator:
            yield ESTIMATORS, self.estimator
        yield from ((DIVIDERS, name) for name in self.divider)
        yield from ((CONTROLLERS, name) for name in self.controllers)
        for name, arguments in self.controllers.items():
            # A controller may itself choose among parts by name; it says which.
            named = getattr(CONTROLLERS.factory(name), "named_parts", None) if CONTROLLERS.has(name) else None
            yield from () if named is None else named(arguments)

    def allow_classes(self) -> None:
        """Let the classes that are named by their paths be imported, unless only a file names them."""
        allow_classes(name for _, name in self._named() if "." in name)

    def absent_parts(self) -> list[str]:
        """Return the kind and name of each part that is not installed here."""
        return [f"{family.kind} {name}" for family, name in self._named() if not family.has(name)]

    def packages_here(self) -> dict[str, str]:
        """Return the package and version that each part from outside the library has here, by its kind and name."""
        found = {f"{family.kind} {name}": family.package(name) for family, name in self._named()}
        return {part: package for part, package in found.items() if package}

    def beside_of(self, job: Job) -> Beside:
        """Return whether a job may train beside others: as the pool says, or as the job does where that is stricter."""
        said = self.beside, job.beside
        if Beside.NEVER in said:
            return Beside.NEVER
        return Beside.ALWAYS if Beside.ALWAYS in said else Beside.AUTO

    def refusal(self, target: Target) -> Reason | None:
        """Return why a job with this target cannot run under these settings; None if it can.

        Published estimators and policies require positive losses; those that do not say so.
        """
        if not target.observes or target.threshold > 0:
            return None
        if getattr(POLICIES.factory(self.policy), "positive_losses", False):
            return Reason("positive_losses", (target.threshold,), f"the policy {self.policy}")
        if not getattr(self.make_estimator(), "any_loss", False):
            return Reason("positive_losses", (target.threshold,), f"the estimator {self.estimator_used}")
        return None

    def memory_refusal(self, memory: int | None) -> Reason | None:
        """Return why a job that needs so many bytes of a device can never be on one; None if it can."""
        if memory is None or self.device_memory is None or memory <= self.device_memory:
            return None
        return Reason("too_much_memory", (float(memory), float(self.device_memory)))

    @property
    def estimator_used(self) -> str:
        """Name of the estimator, also where the policy's own is used."""
        return self.estimator or getattr(POLICIES.factory(self.policy), "estimator", DEFAULT_ESTIMATOR)

    @property
    def save_every(self) -> float | None:
        """Seconds between two checkpoints of a job that does not say, from the supply; None for the default."""
        return None if self.supply is None else self.controllers[self.supply].get("save_every")

    @property
    def supply(self) -> str | None:
        """Name of the supply whose nodes the pool has, which come and go; None if its devices stay."""
        return next((name for name in self.controllers if brought("supplies", name) is not None), None)

    @property
    def turn(self) -> float:
        """Seconds of a turn: long compared with what it costs to change over."""
        return max(self.stay, TURN * self.resize)

    @property
    def slots_per_device(self) -> int | None:
        """Launched jobs that may be resident on one device; None for any number."""
        return None if self.resident is None else self.resident // self.devices

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each device, where the settings name several; else empty."""
        return self.locations if len({*self.locations}) > 1 else ()

    def devices_at(self, location: str) -> tuple[int, ...]:
        """Return the devices at a location; all devices for an empty name."""
        if not location:
            return tuple(range(self.devices))
        return tuple(k for k in range(self.devices) if self.locations[k : k + 1] == (location,))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; the estimator is named, so that a replay uses the same one whatever the default."""
        body = {f.name: dict(v) if isinstance(v := getattr(self, f.name), Mapping) else v for f in fields(self)}
        return body | {"estimator": self.estimator_used}
