"""Entries of the series of a job. Times are seconds of scheduler time."""

from __future__ import annotations

from typing import NamedTuple

from lightning_core.core.answers import Verdict
from lightning_core.core.control import Asker
from lightning_core.core.reasons import Reason


class MetricPoint(NamedTuple):
    """An observation of the target's metric."""

    time: float
    batches: int
    value: float
    """The value as it was logged."""


class Progress(NamedTuple):
    """Batches and busy seconds of a job, over all its incarnations."""

    time: float
    batches: int
    busy: float


class Holding(NamedTuple):
    """Share and devices that a job holds from this time on."""

    time: float
    share: float
    devices: tuple[int, ...]
    reason: Reason


class Belief(NamedTuple):
    """Verdict of a job from this time on; the last one is its end."""

    time: float
    verdict: Verdict
    reason: Reason


class Remark(NamedTuple):
    """A command, or something that a worker or the pool did."""

    time: float
    by: str
    words: str

    @property
    def kind(self) -> str:
        """``command`` if a user sent it; otherwise the source: ``plan``, ``market``, ``worker``, ..."""
        return "command" if self.by == Asker.PERSON else self.by


class FinishForecast(NamedTuple):
    """Forecast, made at a time, of when the target will be reached; inf for never."""

    time: float
    early: float
    likely: float
    late: float
    like: str = ""
    """Earlier runs that it rests on, and which part of the belief in it does; empty for none."""
