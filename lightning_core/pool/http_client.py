"""The client of a pool's API over HTTP, for a pool on another machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from lightning_core.bundle.problems import BundleError
from lightning_core.bundle.values import exact_duration
from lightning_core.core.answers import JobForecast, JobStatus, Verdict
from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline, SetDevices
from lightning_core.core.events import Event
from lightning_core.core.validation import converted
from lightning_core.pool.api_connection import ApiConnection, problem_lines
from lightning_core.pool.pool_errors import NotOnThisMachineError
from lightning_core.server.access.people import Person
from lightning_core.view.job_entry import job_of_entry
from lightning_core.view.text import clean
from lightning_core.view.why import JobMoment

if TYPE_CHECKING:
    from lightning_core.bundle.bundle_file import BundleSpec
    from lightning_core.pool.shapes import CurveAnswer

# Seconds that a request may take which submits a bundle, whose configs are checked first.
SUBMIT_TIMEOUT = 180.0
# Jobs that are asked for at once, two million bytes of them, and how often.
PAGE, MAX_PAGES = 1000, 1000


class HttpClient:
    """Speaks with a pool over HTTP.

    Args:
        url: Address of the pool over HTTP, such as ``https://pool.example.org``.
        token: Token of a person (``lightning-core token new``).
        allow_http: Whether another machine may be spoken to without TLS: all on the way can then read the token.
        through: Program that asks for the person, which is noted with each change; empty for none.

    Raises:
        ValueError: If the address or the token is not what it must be.
    """

    def __init__(self, url: str, token: str, *, allow_http: bool = False, through: str = "") -> None:
        self._api = ApiConnection(url, token, allow_http=allow_http, through=through)
        self.path = self._api.path
        """Address of the pool."""

    def acting_for(self, person: Person, through: str = "") -> NoReturn:
        """Refuse to speak for another person.

        Raises:
            NotOnThisMachineError: Always.
        """
        raise NotOnThisMachineError(f"{self.path} knows one person by each token; connect with another one")

    def about(self) -> dict[str, Any]:
        """Return a description of the pool: its settings, devices and folder."""
        body: dict[str, Any] = self._api.get("/pool")
        return body

    def counters(self) -> dict[str, Any]:
        """Return what the scheduler's process has counted since it started."""
        body: dict[str, Any] = self._api.get("/counters")
        return body

    def status(self) -> tuple[float, list[JobStatus]]:
        """Return the scheduler time and the status of every job; of reasons, only the words come from afar.

        Raises:
            ConnectionError: If they never come to an end.
        """
        found, after = dict[tuple[str, float], JobStatus](), None
        for _ in range(MAX_PAGES):
            body = self._api.get("/jobs", limit=PAGE, after=after)
            with self._api.reading():
                for job in map(job_of_entry, body["jobs"]):
                    found.setdefault((job.name, job.submitted_at), job)  # some may be there twice
                now, after = float(body["now"]), body["next"]
            if after is None:
                return now, list(found.values())
        raise ConnectionError(f"the pool at {self.path} answers with more than {MAX_PAGES * PAGE:,} jobs")

    def job_status(self, job: str) -> JobStatus:
        """Return the status of the newest job of a name.

        Raises:
            UnknownJobError: If there is none.
        """
        body = self._api.get(_path(job))
        with self._api.reading():
            return job_of_entry(body)

    def job_forecast(self, job: str) -> JobForecast | None:
        body = self._api.get(f"{_path(job)}/forecast")
        with self._api.reading():
            if (made := body["forecast"]) is None:
                return None
            verdict = None if made["verdict"] is None else Verdict(made["verdict"])
            return JobForecast(**{key: made[key] for key in JobForecast._fields} | {"verdict": verdict})

    def best_model(self, job: str) -> str:
        """Return the path of a job's best model on the pool's machine; empty if none is kept."""
        body = self._api.get(_path(job))
        with self._api.reading():
            return clean(body.get("best_model", ""))

    def reasons(self, job: str) -> list[JobMoment]:
        """Return everything that happened to a job."""
        name, _, run = job.partition("@")
        body = self._api.get(f"{_path(name)}/story", run=run or None)
        with self._api.reading():
            return [
                JobMoment(one["time"], clean(one["what"]), one["share"], one["devices"] and tuple(one["devices"]),
                    clean(one["reason"]), clean(one["kind"]))
                for one in body["moments"]
            ]  # fmt: skip

    def curve(self, job: str, points: int) -> CurveAnswer:
        """Return the reported curve of a job."""
        from lightning_core.pool.shapes import CurveAnswer

        name, _, run = job.partition("@")
        body = self._api.get(f"{_path(name)}/curve", run=run or None, limit=points)
        with self._api.reading():
            made: CurveAnswer = converted(body, CurveAnswer)
            return made

    def log(self, job: str, last: int | None, ended: Callable[[], bool] | None) -> Iterator[str]:
        """Return the lines of the log of a launched job, of which the last ones come from afar.

        Args:
            job: Name of the job.
            last: Lines, counted from the end; None for all that come.
            ended: Must be None: a log is followed on the pool's own machine.

        Raises:
            NotOnThisMachineError: If it should be followed.
        """
        if ended is not None:
            raise NotOnThisMachineError(f"{self.path}: a log is followed on the pool's own machine alone")
        body = self._api.get(f"{_path(job)}/log")
        with self._api.reading():
            lines = [clean(line) for line in body["lines"]]
        return iter(lines if last is None else lines[max(len(lines) - last, 0) :])

    def event(self, event: Event) -> None:
        """Send a command about a job.

        Raises:
            NotOnThisMachineError: If it is one that only the pool's own machine can send.
            ValueError: If the pool refuses it; the message is the pool's.
        """
        match event:
            case SetDeadline(job, seconds) if not event.from_submission:
                self._api.post(
                    f"{_path(job)}/deadline", deadline=None if seconds == math.inf else exact_duration(seconds)
                )
            case SetDevices(job, devices):
                self._api.post(f"{_path(job)}/devices", devices=devices)
            case Pause(job, release):
                self._api.post(f"{_path(job)}/pause", release=release)
            case Resume(job):
                self._api.post(f"{_path(job)}/resume")
            case Cancel(job):
                self._api.post(f"{_path(job)}/cancel")
            case _:
                raise NotOnThisMachineError(f"{self.path} takes no {type(event).__name__}: do this on its own machine")

    def check(self, bundle: BundleSpec) -> None:
        """Let the pool check a bundle, without importing anything.

        Raises:
            BundleError: With every problem found.
        """
        body = self._api.post("/bundles/check", bundle=_text_of(bundle.submit(datetime.now())))
        with self._api.reading():
            found = problem_lines(body["problems"])
        if found:
            raise BundleError(found)

    def submit(self, bundle: BundleSpec) -> list[str]:
        """Submit a bundle whose points in time are settled, and return the names of its jobs.

        Raises:
            BundleError: With every problem found; then nothing is submitted.
            ValueError: If the pool refuses it; the message is the pool's.
        """
        body = self._api.post("/bundles", SUBMIT_TIMEOUT, bundle=_text_of(bundle))
        with self._api.reading():
            return [clean(name) for name in body["jobs"]]

    def close(self) -> None:
        self._api.close()


def _path(job: str) -> str:
    return f"/jobs/{quote(job, safe='')}"


def _text_of(bundle: BundleSpec) -> str:
    """Return the jobs of a bundle as a text with their configs inline; durations count from when it is read."""
    import yaml

    jobs = {spec.job.name: replace(spec, clock={}, submitted=None).to_dict() for spec in bundle.jobs}
    allowed = {} if bundle.allow_import is None else {"allow_import": list(bundle.allow_import)}
    return yaml.safe_dump({"jobs": jobs, **allowed}, sort_keys=False, allow_unicode=True)
