"""What the series of a job are made of: what was so at a time, or from then on. Times are scheduler time."""

from __future__ import annotations

from typing import NamedTuple

from lightning_core.core.answers import Verdict
from lightning_core.core.reasons import Reason


class Point(NamedTuple):
    """An observation of the target's metric."""

    time: float
    batches: int
    value: float
    """As logged."""


class Progress(NamedTuple):
    """What a worker had done."""

    time: float
    batches: int
    busy: float


class Held(NamedTuple):
    """What a job might hold from this time on."""

    time: float
    share: float
    devices: tuple[int, ...]
    reason: Reason


class Belief(NamedTuple):
    """What was believed of a job from this time on; in the end, what was known."""

    time: float
    verdict: Verdict
    reason: Reason


class Remark(NamedTuple):
    """What a person or a plan wanted of the job, or what befell its worker."""

    time: float
    by: str
    words: str


class Forecast(NamedTuple):
    """Made at a time, of the time at which the target would be reached; inf where it would not."""

    time: float
    early: float
    likely: float
    late: float
