"""Targets of a known amount of work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from lightning_core.core.limits import MAX_COUNT, shown
from lightning_core.core.targets.base import STEP_LOSS, CountedTarget, is_whole, line_int
from lightning_core.core.validation import positive_int

_LINE = re.compile(r"\s*(?P<batches>\S+)\s+batch(?:es)?\s*")


@dataclass(frozen=True, slots=True)
class BatchTarget(CountedTarget):
    """A number of batches.

    Args:
        batches: Number of batches from the beginning of the run.

    Raises:
        ValueError: If it is not a whole number from 1 to 10**12.
    """

    KEY: ClassVar[str] = "batches"
    KEYS: ClassVar[tuple[str, ...]] = ("batches",)
    FORMS: ClassVar[tuple[str, ...]] = ("2000 batches",)
    MAPPINGS: ClassVar[tuple[str, ...]] = ("{batches: N}",)

    batches: int

    def __post_init__(self) -> None:
        if not is_whole(self.batches, MAX_COUNT):
            rule = f"a whole number from 1 to {MAX_COUNT}" if is_whole(self.batches) else "a whole number of at least 1"
            raise ValueError(f"target batches must be {rule}, got {shown(self.batches)}")
        object.__setattr__(self, "batches", int(self.batches))

    @classmethod
    def from_line(cls, text: str) -> Self | None:
        match = _LINE.fullmatch(text)
        return None if match is None else cls(line_int(match["batches"], "before batches"))

    @classmethod
    def from_terms(cls, terms: Mapping[str, Any]) -> Self | None:
        if terms.keys() == {"batches", "for_evaluations"}:
            raise ValueError("for_evaluations needs a metric, and this target counts batches; remove it")
        return cls(positive_int(terms["batches"])) if terms.keys() == {"batches"} else None

    @property
    def work(self) -> int:
        return self.batches

    @property
    def observed(self) -> str:
        """The step's loss, which is shown beside the batches."""
        return STEP_LOSS

    @property
    def goal(self) -> float:
        return float(self.batches)

    @property
    def axis(self) -> str:
        return "batches done"

    def show(self, value: float) -> str:
        return f"{value:,.0f}"

    def describe_progress(self, batches: int, value: float | None) -> str:
        return f"{self.show(batches)} / {self.show(self.goal)} batches"

    def to_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def __str__(self) -> str:
        return f"{self.batches} batches"
