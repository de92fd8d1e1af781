"""The endpoints of the API, each declared once; routes and the OpenAPI description are made from the declarations.

Every request is passed to the pool, in the name of its user: so the answer is current, and the pool itself checks that
user's rights.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from lightning_core.core.answers import JobStatus
from lightning_core.core.limits import shown
from lightning_core.history.job_history import JobHistory
from lightning_core.parts.web.pages.job_pages import log_tail
from lightning_core.parts.web.status_rows import key_of
from lightning_core.pool import shapes
from lightning_core.pool.api_answers import curve_answer, moment_entry, pool_answer
from lightning_core.pool.pool import Pool
from lightning_core.pool.pool_errors import UnknownJobError
from lightning_core.server.access.people import Person, Right
from lightning_core.view.job_entry import JobEntry, job_entry
from lightning_core.view.why import rows

if TYPE_CHECKING:
    from lightning_core.parts.web.job_controls import JobControls
    from lightning_core.parts.web.live_history import LiveHistory
    from lightning_core.parts.web.submission import Submission

VERSION = "v1"
T = TypeVar("T")


def page_of(jobs: Sequence[JobStatus], limit: int | None, after: str | None) -> tuple[Sequence[JobStatus], str | None]:
    """Return a page of jobs, and the ``after`` of the next page; None if there are no more.

    A job that comes meanwhile is on a later page. Where the last job of a page is forgotten before the next one is
    asked for, jobs that were submitted with it are given again rather than left out.

    Args:
        jobs: Jobs in the order of submission.
        limit: Jobs at most; None for all.
        after: The ``after`` that an earlier page returned for this one; None for the first page.

    Raises:
        ValueError: If ``after`` is nothing that was returned.
    """
    first = 0 if after is None else _first_after(jobs, after)
    last = len(jobs) if limit is None else min(first + limit, len(jobs))
    return jobs[first:last], key_of(jobs[last - 1]) if first < last < len(jobs) else None


def _first_after(jobs: Sequence[JobStatus], after: str) -> int:
    _, _, time = after.rpartition("@")
    try:
        submitted_at = float(time)
    except ValueError:
        raise ValueError(f"after must be the `next` of an answer, got {shown(after)}") from None
    first = bisect_left(jobs, submitted_at, key=lambda job: job.submitted_at)
    for place in range(first, len(jobs)):
        if jobs[place].submitted_at != submitted_at:
            break
        if key_of(jobs[place]) == after:
            return place + 1
    return first


class Sources(NamedTuple):
    """Data sources of the endpoints."""

    folder: Path
    """Folder of the pool."""
    history: LiveHistory
    steering: JobControls
    submission: Submission


class CheckedRequest(NamedTuple):
    """A request, read and checked."""

    person: Person
    pool: Pool
    """The pool, in the name of that person."""
    name: str
    """Name of the job that it is about; empty for none."""
    query: Any
    """Query of the address, of the endpoint's type."""
    body: dict[str, Any]
    """Body, with the keys of the endpoint's type."""


Answer = Callable[[Sources, CheckedRequest], Any]


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of the API.

    Args:
        method: HTTP method; POST for every change.
        path: Path below that of the version.
        summary: One sentence about its effect.
        answer: Type of its answer.
        run: Function that answers, in a thread.
        query: Dataclass of its query parameters.
        body: Dataclass of its body.
    """

    method: Literal["GET", "POST"]
    path: str
    summary: str
    answer: Any
    run: Answer
    query: type = shapes.Nothing
    body: type = shapes.Nothing


def _pool(sources: Sources, asked: CheckedRequest) -> shapes.PoolAnswer:
    takes_bundles = sources.submission.allows(asked.person)
    return pool_answer(asked.pool.about(), asked.person, takes_bundles=takes_bundles)


def _jobs(sources: Sources, asked: CheckedRequest) -> shapes.JobsAnswer:
    now, jobs = asked.pool.look()
    wanted: shapes.JobsQuery = asked.query
    found = [
        job
        for job in jobs
        if wanted.owner in (None, job.owner)
        and wanted.outcome in (None, job.verdict)
        and wanted.name in (None, job.name)
    ]
    page, after = page_of(found, wanted.limit, wanted.after)
    return {"now": now, "jobs": [job_entry(job, sources.folder) for job in page], "next": after}


def _job(sources: Sources, asked: CheckedRequest) -> JobEntry:
    return job_entry(asked.pool.status(asked.name), sources.folder)


def _forecast(_: Sources, asked: CheckedRequest) -> shapes.ForecastAnswer:
    made = asked.pool.forecast(asked.name)
    return {"forecast": None if made is None else made._asdict()}  # type: ignore[typeddict-item]


def _curve(sources: Sources, asked: CheckedRequest) -> shapes.CurveAnswer:
    return _of_history(sources, asked, lambda job: curve_answer(job, asked.query.limit))


def _story(sources: Sources, asked: CheckedRequest) -> shapes.StoryAnswer:
    def read(job: JobHistory) -> shapes.StoryAnswer:
        found = rows(job)
        moments = list(map(moment_entry, found[-asked.query.limit :]))
        return {"run": job.run_number, "seen": len(found), "moments": moments}

    return _of_history(sources, asked, read)


def _log(sources: Sources, asked: CheckedRequest) -> shapes.LogAnswer:
    _of_history(sources, asked, lambda _: None)  # a log is that of the newest job of a name
    return {"lines": log_tail(sources.folder, asked.name).splitlines()[-asked.query.lines :]}


def _of_history(sources: Sources, asked: CheckedRequest, read: Callable[[JobHistory], T]) -> T:
    """Return data read from the history of a job.

    Raises:
        UnknownJobError: If the user sees no such job.
        TimeoutError: If the journal has not been read in time.
    """
    with sources.history.reading(fresh=0.0) as history:
        run = getattr(asked.query, "run", None)
        found = sources.history.job(history, asked.name, run, asked.person.sees)
        if found is None:
            raise UnknownJobError(f"no job {asked.name!r}" + ("" if run is None else f" of the number {run}"))
        return read(found[1])


def _counters(_: Sources, asked: CheckedRequest) -> dict[str, Any]:
    asked.person.check(Right.SEE)
    return dict(asked.pool.counters())


def _steer(action: str) -> Answer:
    def run(sources: Sources, asked: CheckedRequest) -> shapes.Done:
        return {"words": sources.steering.ask(asked.pool, asked.name, action, asked.body)}

    return run


def _check(sources: Sources, asked: CheckedRequest) -> shapes.CheckAnswer:
    found = sources.submission.check(asked.person, asked.body["bundle"])
    return {"problems": [{"line": line, "column": column, "words": words} for line, column, words in found]}


def _submit(sources: Sources, asked: CheckedRequest) -> shapes.Submitted:
    return {"jobs": sources.submission.submit(asked.person, asked.body["bundle"])}


ENDPOINTS = (
    Endpoint("GET", "/pool", "The pool and the user.", shapes.PoolAnswer, _pool),
    Endpoint("GET", "/counters", "Counters of the scheduler's process since its start; requires the right see.",
             dict[str, Any], _counters),
    Endpoint("GET", "/jobs", "The jobs that may be seen, in the order of submission.", shapes.JobsAnswer, _jobs,
             query=shapes.JobsQuery),
    Endpoint("GET", "/jobs/{name}", "The newest job of a name.", JobEntry, _job),
    Endpoint("GET", "/jobs/{name}/forecast", "Forecast of the time at which a job reaches its target.",
             shapes.ForecastAnswer, _forecast),
    Endpoint("GET", "/jobs/{name}/curve", "The reported curve of a job.", shapes.CurveAnswer, _curve,
             query=shapes.CurveQuery),
    Endpoint("GET", "/jobs/{name}/story", "Everything that happened to a job, each with its reason.",
             shapes.StoryAnswer, _story, query=shapes.StoryQuery),
    Endpoint("GET", "/jobs/{name}/log", "The end of the log of a launched job.", shapes.LogAnswer, _log,
             query=shapes.LogQuery),
    Endpoint("POST", "/jobs/{name}/deadline", "Give a job another deadline, or none.", shapes.Done,
             _steer("deadline"), body=shapes.NewDeadline),
    Endpoint("POST", "/jobs/{name}/devices", "Train a job on another number of devices.", shapes.Done,
             _steer("devices"), body=shapes.NewDevices),
    Endpoint("POST", "/jobs/{name}/pause", "Let a job stand still until it is resumed.", shapes.Done, _steer("pause"),
             body=shapes.HowToPause),
    Endpoint("POST", "/jobs/{name}/resume", "Resume a paused job.", shapes.Done, _steer("resume")),
    Endpoint("POST", "/jobs/{name}/cancel", "End a job; a launched one is saved first.", shapes.Done,
             _steer("cancel")),
    Endpoint("POST", "/bundles/check", "Check a bundle and list its problems; imports nothing that it names.",
             shapes.CheckAnswer, _check, body=shapes.BundleText),
    Endpoint("POST", "/bundles", "Submit a bundle; takes the right submit, and `serve --allow-submit`.",
             shapes.Submitted, _submit, body=shapes.BundleText),
)  # fmt: skip
"""All that can be asked, in the order in which it is described."""
