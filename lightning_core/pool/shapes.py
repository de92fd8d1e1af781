"""Types of the API's requests and responses. Times are in seconds; null while unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from lightning_core.core.answers import Verdict
from lightning_core.server.access.people import Right
from lightning_core.view.job_entry import JobEntry, says

MAX_JOBS, MAX_POINTS, MAX_MOMENTS, MAX_LINES = 10_000, 10_000, 10_000, 400
Run = Annotated[
    Annotated[int, Meta(ge=1)] | None,
    says("Number of the job among those of its name; the newest by default."),
]
Words = Annotated[str, Meta(max_length=200)]


# ---------------------------------------------------------------------------------------------------- questions


@dataclass(frozen=True)
class Nothing:
    """Nothing."""


@dataclass(frozen=True)
class JobsQuery:
    """Jobs to return, and how many at once; all by default."""

    owner: Annotated[Words | None, says("Jobs of this owner.")] = None
    outcome: Annotated[Verdict | None, says("Jobs with this verdict.")] = None
    name: Annotated[Words | None, says("Jobs of this name, earlier ones too.")] = None
    limit: Annotated[Annotated[int, Meta(ge=1, le=MAX_JOBS)] | None, says("Jobs at most.")] = None
    after: Annotated[Words | None, says("The `next` of an answer: the jobs that come after that one's.")] = None


@dataclass(frozen=True)
class CurveQuery:
    """Part of a curve to return."""

    run: Run = None
    limit: Annotated[int, Meta(ge=2, le=MAX_POINTS), says("Points at most, evenly spaced.")] = 1000


@dataclass(frozen=True)
class StoryQuery:
    """Part of a story to return."""

    run: Run = None
    limit: Annotated[int, Meta(ge=1, le=MAX_MOMENTS), says("Moments at most, the newest.")] = MAX_MOMENTS


@dataclass(frozen=True)
class LogQuery:
    """Part of a log to return."""

    lines: Annotated[int, Meta(ge=1, le=MAX_LINES), says("Lines at most, the last.")] = MAX_LINES


@dataclass(frozen=True)
class NewDeadline:
    """Another deadline."""

    deadline: Annotated[
        str | None,
        says(
            "A duration from now such as 45m, or a time on the clock of the pool's machine such as 18:00 "
            "or 2026-11-23T18:00; null or none for none."
        ),
    ]


@dataclass(frozen=True)
class NewDevices:
    """Another number of devices."""

    devices: Annotated[int | None, says("Number of devices; 0 to hold none, null for as many as planned.")]


@dataclass(frozen=True)
class HowToPause:
    """Options of a pause."""

    release: Annotated[bool, says("Whether to save the job and free its memory too.")] = False


@dataclass(frozen=True)
class BundleText:
    """A bundle, with paths relative to the folder in which the server runs."""

    bundle: Annotated[str, says("Content as of a bundle file, in YAML.")]


# ---------------------------------------------------------------------------------------------------- answers


class PersonEntry(TypedDict):
    """A person."""

    name: str
    rights: Annotated[list[Right], says("Rights of that user beyond seeing their own jobs.")]


class UnavailableDevice(TypedDict):
    """A device that is not planned on, because no worker can run there."""

    device: Annotated[int, says("Its number.")]
    why: Annotated[str, says("Reason; empty if unknown.")]


class PoolAnswer(TypedDict):
    """The pool and its user."""

    pid: Annotated[int, says("Id of the scheduler's process.")]
    folder: Annotated[str, says("Its folder, on its own machine.")]
    kind: Literal["cpu", "gpu"]
    devices: list[str]
    kinds: Annotated[list[str], says("Kind of each device; empty while all are alike.")]
    unavailable: Annotated[list[UnavailableDevice], says("Devices that are not planned on.")]
    manager_silent: Annotated[float, says("Seconds for which the pool manager has not called; 0 if it calls.")]
    settings: Annotated[dict[str, Any], says("Policy, estimator, number of devices and constants.")]
    failed: Annotated[dict[str, str], says("Error of each part that is asked no more, by its kind and name.")]
    controllers: Annotated[dict[str, Any], says("What its controllers say of themselves, by name.")]
    shares: Annotated[list[dict[str, Any]], says("Shares and limits of each group of jobs, such as those of an owner.")]
    waiting: Annotated[
        list[dict[str, Any]],
        says("Scripts that hold until the name of their job is free: `job` and `owner`."),
    ]
    person: Annotated[PersonEntry, says("The user.")]
    takes_bundles: Annotated[bool, says("Whether that user may submit here.")]


class JobsAnswer(TypedDict):
    """Jobs in the order of submission."""

    now: Annotated[float, says("Scheduler time.")]
    jobs: list[JobEntry]
    next: Annotated[str | None, says("Value of `after` for the next page; null if there are no more jobs.")]


class Forecast(TypedDict):
    """Forecast of the time at which a job reaches its target."""

    verdict: Verdict | None
    reason: str
    share: float
    left: Annotated[
        float | None,
        says("Seconds until the likely end; null if it is unknown or beyond reach, as the others."),
    ]
    spare: Annotated[float | None, says("Seconds from the likely end to the deadline; negative if it would be late.")]
    early: Annotated[float | None, says("Seconds until the end in a good case.")]
    late: Annotated[float | None, says("Seconds until the end in a bad case.")]
    alert: Annotated[str, says("Present problem of its training; empty if there is none.")]


class ForecastAnswer(TypedDict):
    """The forecast of a job."""

    forecast: Annotated[Forecast | None, says("Null while it is too early to tell.")]


class Point(TypedDict):
    """A point of a curve."""

    time: Annotated[float, says("Seconds since the submission of the job.")]
    value: Annotated[
        float, says("Value that counts against the target: a mean of losses, a metric, or batches trained.")
    ]


class CurveAnswer(TypedDict):
    """Reported curve of a job."""

    run: Annotated[int, says("Number of the job among those of its name.")]
    metric: Annotated[str, says("Quantity that its target compares.")]
    goal: Annotated[float, says("Value at which the target is met.")]
    seen: Annotated[int, says("Number of all points.")]
    points: Annotated[list[Point], says("Points in order; some are left out if there are too many.")]


class Moment(TypedDict):
    """An event of a job."""

    time: Annotated[float, says("Seconds since its submission.")]
    what: Annotated[str, says("submitted, grant, fault, a verdict, or the source: command, plan, worker, pool.")]
    share: Annotated[float | None, says("Share of its devices, if a grant changed it.")]
    devices: list[int] | None
    kind: Annotated[str, says("Kind of these devices; empty where all are alike.")]
    reason: str


class StoryAnswer(TypedDict):
    """Events of a job with their reasons."""

    run: Annotated[int, says("Number of the job among those of its name.")]
    seen: Annotated[int, says("Number of all moments.")]
    moments: Annotated[list[Moment], says("Moments, the oldest first.")]


class LogAnswer(TypedDict):
    """The end of a job's log."""

    lines: list[str]


class Done(TypedDict):
    """Confirmation of a change."""

    words: str


class Submitted(TypedDict):
    """Jobs that were submitted."""

    jobs: Annotated[list[str], says("Their names.")]


class ProblemEntry(TypedDict):
    """Problems of a bundle."""

    line: Annotated[
        int | None,
        says("Line of the text, from 1; null for a problem elsewhere, such as in a config file."),
    ]
    column: int | None
    words: str


class CheckAnswer(TypedDict):
    """Problems of a bundle, found without importing anything."""

    problems: list[ProblemEntry]


class ErrorWords(TypedDict):
    """Reason of a refusal."""

    rule: Annotated[str, says("Code of the broken rule.")]
    words: str
    problems: NotRequired[Annotated[list[ProblemEntry], says("Problems of a bundle.")]]


class ErrorAnswer(TypedDict):
    """An error."""

    error: ErrorWords
