"""A policy, a target and a controller with an event of its own, for pools of lightning_core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from lightning_core import Part
from lightning_core.core.control import Ask, Rights
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import Reason
from lightning_core.core.saved_state import Stateful
from lightning_core.core.targets import Target
from lightning_core.planning.sequencing import one_by_one


class HeaviestFirst(Stateful):
    """The heaviest job first, each until it ends."""

    def plan(self, jobs: JobView, now: float) -> Plan:
        return one_by_one(jobs, np.argsort(-jobs.weight, kind="stable"), now)


@dataclass(frozen=True)
class Perplexity(Target):
    """A perplexity to reach, of a training whose loss is a mean cross-entropy in nats.

    Args:
        perplexity: The perplexity, above 1.

    Raises:
        ValueError: If it is not.
    """

    KEY: ClassVar[str] = "perplexity"
    KEYS: ClassVar[tuple[str, ...]] = ("perplexity",)
    FORMS: ClassVar[tuple[str, ...]] = ("perplexity 20",)
    MAPPINGS: ClassVar[tuple[str, ...]] = ("{perplexity: P}",)

    perplexity: float

    def __post_init__(self) -> None:
        if not self.perplexity > 1:
            raise ValueError(f"perplexity must be above 1, got {self.perplexity}")

    @classmethod
    def from_line(cls, text: str) -> Self | None:
        name, _, value = text.strip().partition(" ")
        return cls(float(value)) if name == cls.KEY else None

    @classmethod
    def from_terms(cls, terms: Mapping[str, Any]) -> Self | None:
        return cls(float(terms[cls.KEY])) if terms.keys() == {cls.KEY} else None

    def to_dict(self) -> dict[str, Any]:
        return {"perplexity": self.perplexity}

    def __str__(self) -> str:
        return f"perplexity {self.perplexity:g}"

    @property
    def quantity(self) -> str:
        return "loss"

    @property
    def goal(self) -> float:
        return float(np.log(self.perplexity))

    @property
    def grows(self) -> bool:
        return False


@dataclass(frozen=True)
class Maintenance:
    """Event: maintenance begins, or ends.

    Args:
        on: Whether it begins.
    """

    on: bool


class Pausing(Stateful):
    """Holds every job while there is maintenance.

    Args:
        except_for: Name of a job that trains on.
    """

    STATE = ("is_on",)
    rights: ClassVar[Rights] = Rights("the maintenance", holds=True)

    def __init__(self, except_for: str = "") -> None:
        self._except_for = except_for
        self.is_on = False

    def handle(self, event: Any, now: float, pool: Any) -> Sequence[Ask]:
        if isinstance(event, Maintenance):
            self.is_on = event.on
        names = [name for name in pool.names() if name != self._except_for]
        if not self.is_on:
            return [Ask(name) for name in names]
        return [Ask(name, hold=True, reason=Reason("my_part.maintenance")) for name in names]

    def wakeup(self) -> float | None:
        return None


part = Part(
    policies={"heaviest": HeaviestFirst},
    targets=[Perplexity],
    controllers={"maintenance": Pausing},
    events={"maintenance": Maintenance},
    reasons={"maintenance": "maintenance"},
)
