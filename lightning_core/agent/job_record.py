"""Record that a callback keeps of its job: its loss curve, its terms, and its last forecast.

The checkpoint of a script carries the curve and the terms, so that a resumed script has the same deadline, and its
scheduler knows the whole curve from the first report on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypedDict

from lightning_core.agent.reporting.joining import MIN_DEADLINE
from lightning_core.core.answers import JobForecast
from lightning_core.core.durations import format_duration
from lightning_core.core.jobs import Job
from lightning_core.core.limits import Deadline
from lightning_core.core.targets import Target, target_from_dict
from lightning_core.core.validation import checked
from lightning_core.scheduler.settings import Settings
from lightning_core.view.console_lines import inform, logger

log = logger(__name__)

FORMAT = 3
# Points of a curve that are kept, and how many of the newest are always kept because the scheduler averages over them.
MAX_POINTS, NEWEST_POINTS = 100, 10
# Points that an entry may have.
MAX_ENTRY_POINTS = 100 * MAX_POINTS


class CurvePoint(NamedTuple):
    """A loss cell or an evaluation."""

    batches: int
    value: float


class LossCurve:
    """A loss curve with a bounded number of points.

    Example::

        >>> curve = LossCurve()
        >>> for batches in range(1, 1001):
        ...     curve.add(batches, 1 / batches)
        >>> len(curve.points) <= 100, curve.points[0].batches, [point.batches for point in curve.points[-3:]]
        (True, 1, [998, 999, 1000])
    """

    def __init__(self) -> None:
        self.points: list[CurvePoint] = []

    def add(self, batches: int, value: float) -> None:
        """Add a point, unless it is not after the last one."""
        if not self.points or batches > self.points[-1].batches:
            self.points.append(CurvePoint(batches, value))
        if len(self.points) > MAX_POINTS:
            self._thin()

    def _thin(self) -> None:
        """Thin out the older points: keep the first in each interval of the square root of batches.

        A loss curve bends early, so intervals are shorter there. Their length only ever doubles, so that repeated
        thinning keeps the same points.
        """
        older, newest = self.points[:-NEWEST_POINTS], self.points[-NEWEST_POINTS:]
        interval = 2.0 ** math.ceil(math.log2(math.sqrt(older[-1].batches) / (MAX_POINTS - 3 * NEWEST_POINTS)))
        sqrt = math.sqrt  # in the training thread
        first = {int(sqrt(point[0]) / interval): point for point in reversed(older)}
        self.points = [*reversed(first.values()), *newest]


class CheckpointEntry(TypedDict):
    """The entry in a checkpoint, plain data."""

    format: int
    job: str
    deadline: str
    target: dict[str, Any]
    began_at: float
    ends_at: Deadline
    evaluated_in: str
    batches: list[int]
    values: list[float]


@dataclass
class JobRecord:
    """Record of one job of a script, across its fits.

    Args:
        job: Job as its user wants it.
        deadline: Deadline as it was written, by which a resumed script recognises it.
        began_at: Wall-clock time from which the deadline counts, in seconds since the epoch.
        ends_at: Wall-clock time of the deadline, in seconds since the epoch; inf for none.
        evaluated_in: Stage in which the target's metric is evaluated; empty if it is new after each batch.
        curve: Loss curve so far.
        job_forecast: Last forecast.
        resumed: Whether the job was resumed from a checkpoint with the same metric.
        best_model: Path of the best model; empty if there is none.
    """

    job: Job
    deadline: str
    began_at: float = 0.0
    ends_at: float = 0.0
    evaluated_in: str = ""
    curve: LossCurve = field(default_factory=LossCurve)
    job_forecast: JobForecast | None = None
    resumed: bool = False
    best_model: str = ""

    @classmethod
    def for_fit(cls, job: Job, deadline: str, entry: object) -> JobRecord:
        """Return the record of a fit that begins now.

        Args:
            job: Job as its user wants it.
            deadline: Deadline as it was written.
            entry: Entry of the checkpoint that the fit resumes from; None if there is none.
        """
        record, now = cls(job, deadline), time.time()
        record.take(entry, now)
        record.begin(now)
        return record

    @property
    def target(self) -> Target:
        """Target of the job."""
        return self.job.target

    def begin(self, now: float) -> None:
        """Note that a fit begins: the deadline counts from ``now`` unless it was taken from a checkpoint."""
        if not self.began_at:
            self.began_at, self.ends_at = now, now + self.job.deadline

    def to_entry(self) -> CheckpointEntry:
        """Return the entry for a checkpoint."""
        points = self.curve.points
        return CheckpointEntry(
            format=FORMAT,
            job=self.job.name,
            deadline=self.deadline,
            target=self.job.target.to_dict(),
            began_at=self.began_at,
            ends_at=self.ends_at,
            evaluated_in=self.evaluated_in,
            batches=[point.batches for point in points],
            values=[point.value for point in points],
        )

    def take(self, entry: object, now: float) -> None:
        """Resume from the entry of a checkpoint; anything invalid in it is ignored with a warning.

        With the same name, deadline and target, the deadline counts from when the job first began, time between the
        fits included. With other terms it counts from now. The curve is taken over if the metric is the same.

        Args:
            entry: Entry of the checkpoint; None if it has none.
            now: Wall-clock time, in seconds since the epoch.
        """
        if entry is None:
            return
        name = self.job.name
        try:
            found, target, points = _parse(entry)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            message = " ".join(str(error).split())[:200]
            log.warning("%s: the checkpoint's record of the job is ignored: %s", name, ascii(message))
            return
        if _metric_of(target) == _metric_of(self.target):
            self.evaluated_in, self.resumed = found["evaluated_in"], True
            for point in points:
                self.curve.add(*point)
        before = (found["job"], found["deadline"], target)
        if before != (name, self.deadline, self.target):
            was, new = (_describe(*terms) for terms in (before, (name, self.deadline, self.target)))
            log.warning("%s: the checkpoint has other terms (%s): the deadline of (%s) counts from now", name, was, new)
            return
        self.began_at, self.ends_at = min(found["began_at"], now), found["ends_at"]
        left = self.ends_at - now
        self.job = replace(self.job, deadline=max(left, MIN_DEADLINE))
        if left == math.inf:
            inform(f"{name}: resumed; it has no deadline")
        elif left > 0:
            whole = format_duration(self.ends_at - self.began_at)
            inform(f"{name}: resumed with its deadline: {format_duration(left)} of {whole} left")
        else:
            log.warning("%s: the deadline passed %s ago, before the job was resumed", name, format_duration(-left))


def notebook_card(record: JobRecord | None, job: Job, forecast: JobForecast | None, best: str, *, over: bool) -> str:
    """Return a card with verdict, forecast and curve as HTML.

    Args:
        record: Record of the job; None before its first fit.
        job: Job as its user wants it.
        forecast: Newest forecast; None if there is none.
        best: Path of the best model; empty if there is none.
        over: Whether no fit is going on.
    """
    from lightning_core.report.card import card  # not needed outside notebooks

    points = [] if record is None else record.curve.points
    window = 1 if record is None or record.evaluated_in else Settings().window
    rows = [("best model", best)] if best else []
    return card(job.name, job.target, points, forecast, window=window, over=over, rows=rows)


def _parse(entry: object) -> tuple[CheckpointEntry, Target, list[CurvePoint]]:
    """Return a checked entry, its target and its curve.

    Raises:
        ValueError, TypeError, KeyError: If the entry is invalid.
    """
    if not isinstance(entry, Mapping) or entry.get("format") != FORMAT:
        raise ValueError(f"expected an entry of format {FORMAT}")
    found: CheckpointEntry = checked(dict(entry), CheckpointEntry)
    if len(found["batches"]) != len(found["values"]) or len(found["values"]) > MAX_ENTRY_POINTS:
        raise ValueError(f"expected equal numbers of batches and values, at most {MAX_ENTRY_POINTS}")
    if found["evaluated_in"] not in ("", "validation", "epoch"):
        raise ValueError(f"evaluated_in must be 'validation', 'epoch' or empty, got {found['evaluated_in'][:40]!r}")
    if not 0 < found["began_at"] <= found["ends_at"]:
        raise ValueError(f"expected a deadline after the beginning, got {found['began_at']} and {found['ends_at']}")
    if min(found["batches"], default=1) < 1:
        raise ValueError(f"expected positive numbers of batches, got {min(found['batches'])}")
    points = [CurvePoint(batches, value) for batches, value in zip(found["batches"], found["values"], strict=True)]
    return found, target_from_dict(found["target"]), points


def _metric_of(target: Target) -> str:
    """Return the name of the metric that a target's curve shows."""
    return target.observed


def _describe(job: str, deadline: str, target: Target) -> str:
    return ascii(f"{job[:80]}, {deadline[:80]}, {target}")[1:-1]
