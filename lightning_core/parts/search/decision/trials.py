"""A trial of a search."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Trial:
    """A trial: its values, its training time, and whether it runs."""

    steps: list[int] = field(default_factory=list)
    """Steps at which it reported."""
    values: list[float] = field(default_factory=list)
    """Value at each, finite."""
    seconds: float = 0.0
    """Seconds of training until the last report."""
    running: bool = True
    over: bool = False
    """Whether it has ended, been stopped or diverged, so that it will not train again."""
    compared_at: int = 1
    """Step at which it is next compared with the others."""

    @property
    def step(self) -> int:
        """Return the step of the last report; 0 before the first."""
        return self.steps[-1] if self.steps else 0

    @property
    def seconds_per_step(self) -> float:
        """Return the mean seconds of a step, at least a microsecond; NaN before the first report."""
        return max(self.seconds / self.step, 1e-6) if self.steps else math.nan

    def report(self, step: int, value: float, seconds: float) -> None:
        """Record a value.

        Args:
            step: Steps trained so far, above that of the last report.
            value: Value there; a trial whose value is not finite has diverged and ends.
            seconds: Seconds of training so far; an estimate, which may become smaller.

        Raises:
            ValueError: Steps go backwards, or the seconds are not finite or below 0.
        """
        if step <= self.step:
            raise ValueError(f"step must be above that of the last report ({self.step}), got {step}")
        if not (math.isfinite(seconds) and seconds >= 0.0):
            raise ValueError(f"seconds must be finite and at least 0, got {seconds:g}")
        if not math.isfinite(value):
            self.over = True
            return
        self.steps.append(step)
        self.values.append(value)
        self.seconds = seconds


def usual_pace(trials: Iterable[Trial]) -> float:
    """Return the median seconds of a step; NaN if none has reported."""
    paces = [trial.seconds_per_step for trial in trials if trial.steps]
    return statistics.median(paces) if paces else math.nan
