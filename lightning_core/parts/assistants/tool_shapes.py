"""Types of the tools' arguments and answers. Times are in seconds; null while unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypedDict

from msgspec import Meta

from lightning_core.core.answers import State, Verdict
from lightning_core.pool.shapes import BundleText, Forecast, HowToPause, Moment, NewDeadline, NewDevices, Words
from lightning_core.view.job_entry import JobEntry, says

MAX_ROWS, MAX_MOMENTS, MAX_LINES, MAX_POINTS = 200, 500, 400, 500

# ---------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class ListArguments:
    """Jobs to list."""

    owner: Annotated[Words | None, says("Jobs of this owner.")] = None
    verdict: Annotated[Verdict | None, says("Jobs with this verdict.")] = None
    ended: Annotated[bool, says("Whether to list jobs that have ended too.")] = False
    limit: Annotated[int, Meta(ge=1, le=MAX_ROWS), says("Jobs at most: those that are late first.")] = 50


@dataclass(frozen=True, kw_only=True)
class OfJob:
    """A job."""

    job: Annotated[
        str,
        Meta(min_length=1, max_length=80),
        says("Name of the job, as list_jobs gives it."),
    ]


@dataclass(frozen=True, kw_only=True)
class ExplainArguments(OfJob):
    """Part of a job's history to return."""

    limit: Annotated[int, Meta(ge=1, le=MAX_MOMENTS), says("Events at most, the newest.")] = 40


@dataclass(frozen=True, kw_only=True)
class LogArguments(OfJob):
    """Part of a log to return."""

    lines: Annotated[int, Meta(ge=1, le=MAX_LINES), says("Lines at most, the last.")] = 60


@dataclass(frozen=True, kw_only=True)
class CurveArguments(OfJob):
    """Part of a curve to return."""

    points: Annotated[int, Meta(ge=2, le=MAX_POINTS), says("Points at most, evenly spaced.")] = 40


@dataclass(frozen=True)
class DeadlineArguments(NewDeadline, OfJob):
    """Another deadline of a job."""


@dataclass(frozen=True)
class DevicesArguments(NewDevices, OfJob):
    """Another number of devices of a job."""


@dataclass(frozen=True)
class PauseArguments(HowToPause, OfJob):
    """A pause of a job."""


@dataclass(frozen=True)
class BundleArguments(BundleText):
    """A bundle, with paths relative to the folder in which this server runs."""


# ---------------------------------------------------------------------------------------------------- answers


class Remedy(TypedDict):
    """A change that would help a job."""

    words: str
    command: Annotated[str, says("Command line by which a user makes this change.")]


class JobLine(TypedDict):
    """A job in short."""

    name: str
    owner: Annotated[str, says("Name of the person to whom it belongs; empty if unknown.")]
    state: State
    paused: bool
    verdict: Annotated[Verdict | None, says("Expected outcome, in the end the outcome; null while too early to tell.")]
    reason: Annotated[str, says("Reason of the verdict.")]
    target: str
    value: Annotated[str, says("Newest value that the target compares; - for none.")]
    share: Annotated[float, says("Share of its devices, from 0 to 1.")]
    devices: Annotated[list[int], says("Devices on which it is.")]
    kind: Annotated[str, says("Kind of these devices, or of the last ones; empty where all are alike.")]
    submitted_seconds_ago: Annotated[float, says("Seconds since its submission.")]
    due_in_seconds: Annotated[float | None, says("Seconds until its deadline, negative after it; null for none.")]
    ends_in_seconds: Annotated[float | None, says("Seconds until its likely end by forecast; null beyond reach.")]
    spare_seconds: Annotated[
        float | None, says("Seconds from the likely end to the deadline; negative if it would be late.")
    ]
    alert: Annotated[str | None, says("Present problem of its training.")]
    would_do: Annotated[list[Remedy], says("Changes that would help it, for a job that is paused or expected late.")]


class JobList(TypedDict):
    """Jobs of the pool: those that are late first, then by deadline, then those that have ended."""

    pool: Annotated[str, says("The pool in words: its folder, devices and policy.")]
    user: Annotated[str, says("In whose name this server asks, with the rights beyond seeing one's own jobs.")]
    jobs: list[JobLine]
    left_out: Annotated[int, says("Number of jobs beyond the limit.")]
    ended: Annotated[int, says("Number of jobs that have ended, listed or not.")]


class JobInFull(TypedDict):
    """A job with its forecast."""

    now: Annotated[float, says("Scheduler time in seconds; times of the job are on the same clock.")]
    job: JobEntry
    forecast: Annotated[Forecast | None, says("Null while it is too early to tell.")]
    would_do: Annotated[list[Remedy], says("Changes that would help it, for a job that is paused or expected late.")]


class Explanation(TypedDict):
    """What happened to a job, each with its reason."""

    seen: Annotated[int, says("Number of all events.")]
    moments: Annotated[list[Moment], says("Events, the oldest first.")]


class BundleEstimate(TypedDict):
    """Problems of a bundle, and whether it fits the pool."""

    problems: Annotated[list[str], says("Problems, each with line and column; empty if the bundle can be read.")]
    fits: Annotated[
        bool | None,
        says("Whether all jobs of known work fit the pool if no other job is in it; null if there are problems."),
    ]
    estimate: Annotated[list[str], says("What each job needs, and what would make all of them fit.")]
