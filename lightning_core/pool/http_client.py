"""The client of a pool's API over HTTP (:mod:`lightning_core.web.api`), for a pool on another machine.

Rules

1. The token goes into a header of requests to the pool's own address, and nowhere else. Redirects are not followed, no
   proxy is asked, and no error repeats the token, or an address that might hold one.
2. Other machines are spoken to by TLS alone, unless the caller allows it otherwise; certificates are checked against
   those that the system trusts.
3. What changes something has an id of its own, so that it is done once though it may be sent twice.
"""

from __future__ import annotations

import ipaddress
import json
import math
import ssl
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

from lightning_core.bundle.problems import BundleError
from lightning_core.bundle.values import exact_duration
from lightning_core.core.answers import JobForecast, JobStatus, Verdict
from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline, SetDevices
from lightning_core.core.events import Event
from lightning_core.core.protocols import AccessRefusedError, JoinRefusedError
from lightning_core.pool.pool_errors import NotOnThisMachineError, UnknownJobError
from lightning_core.server.probe import PoolUnavailableError
from lightning_core.view.job_entry import job_of_entry
from lightning_core.view.text import clean
from lightning_core.view.why import Row

if TYPE_CHECKING:
    from lightning_core.bundle.bundle_file import BundleSpec

API = "/api/v1"
# Seconds that a request may take, and one that submits a bundle, whose configs are checked first.
TIMEOUT, SUBMIT_TIMEOUT = 10.0, 180.0
# Bytes of an answer: the jobs of a pool that has had ten thousand take some twenty million.
MAX_ANSWER_BYTES, MAX_WORDS = 2**28, 2000


class _Answer(NamedTuple):
    """What a server has answered."""

    status: int
    content: bytes


class HttpClient:
    """Speaks with a pool over HTTP.

    Args:
        url: Address of the page of the pool, such as ``https://pool.example.org``.
        token: Token of a person (``lightning-core token new``).
        allow_http: Whether another machine may be spoken to without TLS: all on the way can then read the token.

    Raises:
        ValueError: If the address or the token is not what it must be.
    """

    def __init__(self, url: str, token: str, *, allow_http: bool = False) -> None:
        parts, port = _parts(url)
        self._host, self._is_tls = parts.hostname or "", parts.scheme == "https"
        self._port = port if port is not None else (443 if self._is_tls else 80)
        self.path = f"{parts.scheme}://{parts.netloc}"
        """Address of the pool."""
        if not self._is_tls and not allow_http and not _is_this_machine(self._host):
            raise ValueError(
                f"{self.path}: without TLS all on the way can read the token; use https, or `ssh -L` and "
                "http://127.0.0.1, or connect with allow_http=True"
            )
        if not token:
            raise ValueError(
                f"{self.path} asks for a token: set LIGHTNING_CORE_TOKEN, or connect with token=...; "
                "`lightning-core token new` makes one on the pool's own machine"
            )
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ValueError("a token must be printable characters of ASCII without spaces; this one has others")
        self._token = token
        self._lock = threading.Lock()
        self._connection: HTTPConnection | None = None

    def about(self) -> dict[str, Any]:
        """Return a description of the pool: its settings, devices and folder."""
        body: dict[str, Any] = self._get("/pool")
        return body

    def counters(self) -> dict[str, Any]:
        """Return what the scheduler's process has counted since it started."""
        body: dict[str, Any] = self._get("/counters")
        return body

    def status(self) -> tuple[float, list[JobStatus]]:
        """Return the scheduler time and the status of every job; of reasons, only the words come from afar."""
        body = self._get("/jobs")
        with self._reading():
            return float(body["now"]), [job_of_entry(entry) for entry in body["jobs"]]

    def job_status(self, job: str) -> JobStatus:
        """Return the status of the newest job of a name.

        Raises:
            UnknownJobError: If there is none.
        """
        body = self._get(_path(job))
        with self._reading():
            return job_of_entry(body)

    def job_forecast(self, job: str) -> JobForecast | None:
        body = self._get(f"{_path(job)}/forecast")
        with self._reading():
            if (made := body["forecast"]) is None:
                return None
            verdict = None if made["verdict"] is None else Verdict(made["verdict"])
            return JobForecast(**{key: made[key] for key in JobForecast._fields} | {"verdict": verdict})

    def reasons(self, job: str) -> list[Row]:
        """Return everything that happened to a job."""
        body = self._get(f"{_path(job)}/story")
        with self._reading():
            return [
                Row(one["time"], clean(one["what"]), one["share"], one["devices"] and tuple(one["devices"]),
                    clean(one["reason"]))
                for one in body["moments"]
            ]  # fmt: skip

    def log_tail(self, job: str) -> list[str]:
        """Return the last lines of the log of a launched job."""
        body = self._get(f"{_path(job)}/log")
        with self._reading():
            return [clean(line) for line in body["lines"]]

    def event(self, event: Event) -> None:
        """Send a command about a job.

        Raises:
            NotOnThisMachineError: If it is one that only the pool's own machine can send.
            ValueError: If the pool refuses it; the message is the pool's.
        """
        match event:
            case SetDeadline(job, seconds) if not event.from_submission:
                self._post(f"{_path(job)}/deadline", deadline=None if seconds == math.inf else exact_duration(seconds))
            case SetDevices(job, devices):
                self._post(f"{_path(job)}/devices", devices=devices)
            case Pause(job, release):
                self._post(f"{_path(job)}/pause", release=release)
            case Resume(job):
                self._post(f"{_path(job)}/resume")
            case Cancel(job):
                self._post(f"{_path(job)}/cancel")
            case _:
                raise NotOnThisMachineError(f"{self.path} takes no {type(event).__name__}: do this on its own machine")

    def check(self, bundle: BundleSpec) -> None:
        """Let the pool check a bundle, without importing anything.

        Raises:
            BundleError: With every problem found.
        """
        body = self._post("/bundles/check", bundle=_text_of(bundle))
        with self._reading():
            found = _lines(body["problems"])
        if found:
            raise BundleError(found)

    def submit(self, bundle: BundleSpec) -> list[str]:
        """Submit a bundle whose points in time are settled, and return the names of its jobs.

        Raises:
            BundleError: With every problem found; then nothing is submitted.
            ValueError: If the pool refuses it; the message is the pool's.
        """
        body = self._post("/bundles", SUBMIT_TIMEOUT, bundle=_text_of(bundle))
        with self._reading():
            return [clean(name) for name in body["jobs"]]

    def close(self) -> None:
        with self._lock:
            self._hang_up()

    # ------------------------------------------------------------------------------------------------ requests

    def _get(self, path: str) -> Any:
        return self._ask("GET", path, TIMEOUT, {}, None)

    def _post(self, path: str, timeout: float = TIMEOUT, **body: Any) -> Any:
        headers = {"Content-Type": "application/json", "Request-Id": uuid.uuid4().hex}
        return self._ask("POST", path, timeout, headers, json.dumps(body, allow_nan=False).encode())

    def _ask(self, method: str, path: str, timeout: float, more: Mapping[str, str], body: bytes | None) -> Any:
        """Send a request and return what is answered.

        Raises:
            ConnectionError: If there is no answer, or one that is not of a pool.
            PoolUnavailableError: If its certificate is not trusted.
            ValueError: If the pool refuses, as one of the errors of a pool that fits.
        """
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json", **more}
        with self._lock:
            try:
                answer = self._sent(method, path, timeout, headers, body)
            except ssl.SSLCertVerificationError as error:
                self._hang_up()
                raise PoolUnavailableError(f"{self.path}: its certificate: {error.verify_message}") from None
            except (OSError, HTTPException) as error:
                self._hang_up()
                words = clean(str(error))[:MAX_WORDS] or type(error).__name__
                raise ConnectionError(f"the pool at {self.path} does not answer: {words}") from None
            except BaseException:  # Ctrl-C: the next request must not get the answer to this one
                self._hang_up()
                raise
        return self._understood(answer)

    def _sent(self, method: str, path: str, timeout: float, headers: Mapping[str, str], body: bytes | None) -> _Answer:
        """Send a request over the connection that there is, or over another one if the server has closed that."""
        if (open_before := self._connection) is not None:
            try:
                return self._over(open_before, method, path, timeout, headers, body)
            except (ConnectionError, HTTPException):  # RemoteDisconnected is one
                self._hang_up()
        made: HTTPConnection = (
            HTTPSConnection(self._host, self._port, timeout=timeout, context=ssl.create_default_context())
            if self._is_tls
            else HTTPConnection(self._host, self._port, timeout=timeout)
        )
        self._connection = made
        return self._over(made, method, path, timeout, headers, body)

    def _over(
        self, connection: HTTPConnection, method: str, path: str, timeout: float, headers: Mapping[str, str],
        body: bytes | None,
    ) -> _Answer:  # fmt: skip
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        connection.request(method, API + path, body, dict(headers))
        response: HTTPResponse = connection.getresponse()
        content = response.read(MAX_ANSWER_BYTES + 1)
        if len(content) > MAX_ANSWER_BYTES:
            raise ConnectionError(f"it answers with more than {MAX_ANSWER_BYTES:,} bytes")
        return _Answer(response.status, content)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _understood(self, answer: _Answer) -> Any:
        if 300 <= answer.status < 400:
            raise PoolUnavailableError(
                f"{self.path} sends elsewhere, which is not followed; name the pool's own address"
            )
        try:
            body = json.loads(answer.content)
        except (ValueError, RecursionError):
            body = None
        if answer.status == 200 and isinstance(body, dict):
            return body
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict):
            raise ConnectionError(f"{self.path} answers with status {answer.status}, and not as a pool does")
        words = clean(str(error.get("words", "")))[:MAX_WORDS]
        match error.get("rule"):
            case "token":
                raise AccessRefusedError(f"{self.path} knows no such token: it may have expired or been revoked")
            case "right":
                raise AccessRefusedError(words)
            case "unknown":
                raise UnknownJobError(words)
            case "conflict":
                raise JoinRefusedError(words)
            case "bundle":
                with self._reading():
                    found = _lines(error.get("problems", ()))
                raise BundleError(found or [words])
            case "pool" | "failed":
                raise ConnectionError(words)
            case _:
                raise ValueError(words)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Read an answer; what cannot be read is of another version, or of no pool."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            words = clean(repr(error))[:MAX_WORDS]
            raise PoolUnavailableError(f"{self.path} answers what this version cannot read: {words}") from None


def _parts(url: str) -> tuple[SplitResult, int | None]:
    """Return the parts of an address, and its port. What else it holds may be a secret, and is not repeated."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = SplitResult("", "", "", "", ""), None
    more = parts.username or parts.password or parts.query or parts.fragment or parts.path not in ("", "/")
    if not parts.hostname or more or not parts.netloc.isascii() or not parts.netloc.isprintable():
        raise ValueError(
            "the address of a pool must be such as https://pool.example.org or http://127.0.0.1:8710, without a user, "
            "a path or a query"
        )
    return parts, port


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _path(job: str) -> str:
    return f"/jobs/{quote(job, safe='')}"


def _text_of(bundle: BundleSpec) -> str:
    """Return the jobs of a bundle as a text with their configs inline; durations count from when it is read."""
    import yaml

    jobs = {spec.job.name: replace(spec, clock={}, submitted=None).to_dict() for spec in bundle.jobs}
    allowed = {} if bundle.allow_import is None else {"allow_import": list(bundle.allow_import)}
    return yaml.safe_dump({"jobs": jobs, **allowed}, sort_keys=False, allow_unicode=True)


def _lines(problems: Any) -> list[str]:
    """Return problems as lines, as of a bundle that was read here."""
    found = []
    for one in problems:
        place = "" if one["line"] is None else f"bundle:{one['line']}:{one['column']}: "
        found.append(clean(f"{place}{one['words']}")[:MAX_WORDS])
    return found
