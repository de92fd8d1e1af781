"""A target of a part that is not installed here: it can be shown, and not judged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from lightning_core.core.targets.base import Target


@dataclass(frozen=True, slots=True)
class UnknownTarget(Target):
    """What a pool says of a target whose part is missing here.

    Args:
        terms: Its keys and their values.
    """

    KEY: ClassVar[str] = ""
    KEYS: ClassVar[tuple[str, ...]] = ()
    FORMS: ClassVar[tuple[str, ...]] = ()
    MAPPINGS: ClassVar[tuple[str, ...]] = ()

    terms: tuple[tuple[str, Any], ...]

    @classmethod
    def from_line(cls, text: str) -> Self | None:
        return None

    @classmethod
    def from_terms(cls, terms: Mapping[str, Any]) -> Self | None:
        return None

    def to_dict(self) -> dict[str, Any]:
        return dict(self.terms)

    def __str__(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in self.terms)

    @property
    def quantity(self) -> str:
        return "value"

    @property
    def goal(self) -> float:
        return math.nan

    @property
    def grows(self) -> bool:
        return False

    def reached(self, batches: int, values: Sequence[float], evaluated: bool, window: int) -> float | None:
        """Return None: only its part can say."""
        return None

    def is_met(self, batches: int, values: Sequence[float], evaluated: bool, window: int) -> bool:
        """Return False: only its part can say."""
        return False

    def describe_progress(self, batches: int, value: float | None) -> str:
        return f"{'-' if value is None else self.show(value)} / {self}"
