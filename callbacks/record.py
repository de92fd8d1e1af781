"""What a callback keeps of its job: its curve, the promise it was given, and what was last believed of it.

The checkpoint of a script carries curve and promise, so that a training which is resumed goes on under the same
promise, and its scheduler knows the curve from the first report on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypedDict

from lightning_core.core.answers import JobForecast
from lightning_core.core.durations import format_duration
from lightning_core.core.jobs import Job
from lightning_core.core.targets import STEP_LOSS, LossTarget, Target, target_from_dict
from lightning_core.core.validation import checked
from lightning_core.view.console_lines import inform, logger

from .joining import LEAST

log = logger(__name__)

# Where it stands in a checkpoint. What a launched job adds to its own has another key.
KEY = "lightning_core_job"
FORMAT = 1
# Points of a curve that are kept, and how many of the newest are never left out: a scheduler takes means over them.
MOST, NEWEST = 100, 10
# An entry with more is none of ours.
LONGEST = 100 * MOST


class Point(NamedTuple):
    """A loss cell, or an evaluation, as logged."""

    batches: int
    value: float


class Curve:
    """A loss curve with a bounded number of points.

    Example::

        >>> curve = Curve()
        >>> for batches in range(1, 1001):
        ...     curve.add(batches, 1 / batches)
        >>> len(curve.points) <= 100, curve.points[0].batches, [point.batches for point in curve.points[-3:]]
        (True, 1, [998, 999, 1000])
    """

    def __init__(self) -> None:
        self.points: list[Point] = []

    def add(self, batches: int, value: float) -> None:
        """Add a point; one that is no further on than the last is left out."""
        if not self.points or batches > self.points[-1].batches:
            self.points.append(Point(batches, value))
        if len(self.points) > MOST:
            self._thin()

    def _thin(self) -> None:
        """Keep the first of the older points in each stretch of the square root of batches: a curve bends early.

        Stretches only ever double, so that what one thinning has kept the next does not take apart.
        """
        older, newest = self.points[:-NEWEST], self.points[-NEWEST:]
        stretch = 2.0 ** math.ceil(math.log2(math.sqrt(older[-1].batches) / (MOST - 3 * NEWEST)))
        first = {math.floor(math.sqrt(point.batches) / stretch): point for point in reversed(older)}
        self.points = [*reversed(first.values()), *newest]


class Entry(TypedDict):
    """What a checkpoint holds, plain data."""

    format: int
    job: str
    deadline: str
    target: dict[str, Any]
    began_at: float
    ends_at: float
    place: str
    batches: list[int]
    values: list[float]


@dataclass
class Record:
    """One job of a script, over all of its fits.

    Args:
        job: As its user wants it.
        deadline: The deadline as it was written, which tells whether it is the same.
        began_at: Wall-clock time from which the deadline counts, seconds since the epoch.
        ends_at: Wall-clock time of the deadline.
        place: Where a metric is evaluated, empty if it is none that is.
        curve: Values so far, as logged.
        job_forecast: What was last believed of the job.
        resumed: Whether it goes on from a checkpoint of the same metric.
        best_model: Path of the best model, empty if none is kept.
    """

    job: Job
    deadline: str
    began_at: float = 0.0
    ends_at: float = 0.0
    place: str = ""
    curve: Curve = field(default_factory=Curve)
    job_forecast: JobForecast | None = None
    resumed: bool = False
    best_model: str = ""

    @property
    def target(self) -> Target:
        """When the job counts as met."""
        return self.job.target

    def begins(self, now: float) -> None:
        """A fit begins; a deadline that does not go on from an earlier one counts from ``now``."""
        if not self.began_at:
            self.began_at, self.ends_at = now, now + self.job.deadline

    def to_entry(self) -> Entry:
        """Return what a checkpoint holds of the job."""
        points = self.curve.points
        return Entry(
            format=FORMAT,
            job=self.job.name,
            deadline=self.deadline,
            target=self.job.target.to_dict(),
            began_at=self.began_at,
            ends_at=self.ends_at,
            place=self.place,
            batches=[point.batches for point in points],
            values=[point.value for point in points],
        )

    def take(self, entry: object, now: float) -> None:
        """Go on with what a checkpoint held of the job; nothing in it can do harm, and what is no entry is left.

        Under the same name, deadline and target the deadline counts from when the job first began, the time away
        included. Other terms are a new promise, which counts from now. The curve is taken up wherever it is of the
        same metric.

        Args:
            entry: From the checkpoint; None if it holds none.
            now: Wall-clock time, seconds since the epoch.
        """
        if entry is None:
            return
        name = self.job.name
        try:
            found, target, points = _understood(entry)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            words = " ".join(str(error).split())[:200]
            log.warning("%s: what the checkpoint holds of its job is passed over: %s", name, ascii(words))
            return
        if _read_from(target) == _read_from(self.target):
            self.place, self.resumed = found["place"], True
            for point in points:
                self.curve.add(*point)
        before = (found["job"], found["deadline"], target)
        if before != (name, self.deadline, self.target):
            was, new = (_terms(*terms) for terms in (before, (name, self.deadline, self.target)))
            log.warning(
                "%s: the checkpoint is of another promise (%s): the new one (%s) counts from now", name, was, new
            )
            return
        self.began_at, self.ends_at = min(found["began_at"], now), found["ends_at"]
        gone, left = now - self.began_at, self.ends_at - now
        begin = max(self.job.begin - gone, 0.0)
        deadline = max(left, LEAST)
        self.job = replace(self.job, deadline=deadline, begin=begin if begin < deadline else 0.0)
        if left > 0:
            whole = format_duration(self.ends_at - self.began_at)
            inform(f"{name}: it goes on under its promise: {format_duration(left)} of {whole} are left")
        else:
            log.warning("%s: its deadline passed %s ago, while it was away", name, format_duration(-left))


def _understood(entry: object) -> tuple[Entry, Target, list[Point]]:
    """Return an entry that was looked at, its target and its curve.

    Raises:
        ValueError, TypeError, KeyError: If it is none.
    """
    if not isinstance(entry, Mapping) or entry.get("format") != FORMAT:
        raise ValueError(f"expected an entry of format {FORMAT}")
    found: Entry = checked(dict(entry), Entry)
    if len(found["batches"]) != len(found["values"]) or len(found["values"]) > LONGEST:
        raise ValueError(f"expected as many batches as values, at most {LONGEST}")
    if found["place"] not in ("", "validation", "epoch"):
        raise ValueError(f"expected a place of evaluation, got {found['place'][:40]!r}")
    if not 0 < found["began_at"] <= found["ends_at"]:
        raise ValueError(f"expected a deadline after its beginning, got {found['began_at']} and {found['ends_at']}")
    if min(found["batches"], default=1) < 1:
        raise ValueError(f"expected positive numbers of batches, got {min(found['batches'])}")
    points = [Point(batches, value) for batches, value in zip(found["batches"], found["values"], strict=True)]
    return found, target_from_dict(found["target"]), points


def _read_from(target: Target) -> str:
    """The name of what a target's curve shows."""
    return target.metric if isinstance(target, LossTarget) else STEP_LOSS


def _terms(job: str, deadline: str, target: Target) -> str:
    return ascii(f"{job[:80]}, {deadline[:80]}, {target}")[1:-1]
