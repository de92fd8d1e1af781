"""A connection to a pool's API over HTTP: where it goes, what it carries, and what an answer means.

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
import ssl
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlencode, urlsplit

from lightning_core.bundle.problems import BundleError
from lightning_core.core.protocols import AccessRefusedError, JoinRefusedError
from lightning_core.pool.pool_errors import UnknownJobError
from lightning_core.server.probe import PoolUnavailableError
from lightning_core.view.text import clean

API = "/api/v1"
# Header of the program through which a person asks for a change.
THROUGH = "Asked-Through"
# Seconds that a request may take.
TIMEOUT = 10.0
# Bytes of an answer: the story of a job of ten thousand moments takes some two million. Characters of an error.
MAX_ANSWER_BYTES, MAX_WORDS = 2**28, 2000


class _Answer(NamedTuple):
    """What a server has answered."""

    status: int
    content: bytes


class ApiConnection:
    """A connection to the API of a pool, which is made anew where the server has closed it.

    Args:
        url: Address of the pool over HTTP, such as ``https://pool.example.org``.
        token: Token of a person (``lightning-core token new``).
        allow_http: Whether another machine may be spoken to without TLS: all on the way can then read the token.
        through: Program that asks for the person, which is noted with each change; empty for none.

    Raises:
        ValueError: If the address or the token is not what it must be.
    """

    def __init__(self, url: str, token: str, *, allow_http: bool = False, through: str = "") -> None:
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
        self._token, self._through = token, {THROUGH: through} if through else {}
        self._lock = threading.Lock()
        self._connection: HTTPConnection | None = None

    def get(self, path: str, **query: Any) -> Any:
        """Return what is answered to a question; values of the query that are None are left out."""
        given = urlencode({key: value for key, value in query.items() if value is not None})
        return self._ask("GET", f"{path}?{given}" if given else path, TIMEOUT, {}, None)

    def post(self, path: str, timeout: float = TIMEOUT, **body: Any) -> Any:
        """Send what changes something, done once, and return what is answered.

        Args:
            path: Path below that of the version.
            timeout: Seconds that it may take.
            body: Content of the request.
        """
        headers = {"Content-Type": "application/json", "Request-Id": uuid.uuid4().hex, **self._through}
        return self._ask("POST", path, timeout, headers, json.dumps(body, allow_nan=False).encode())

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._hang_up()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read an answer; what cannot be read is of another version, or of no pool."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            words = clean(repr(error))[:MAX_WORDS]
            raise PoolUnavailableError(f"{self.path} answers what this version cannot read: {words}") from None

    # ------------------------------------------------------------------------------------------------ within

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
                with self.reading():
                    found = problem_lines(error.get("problems", ()))
                raise BundleError(found or [words])
            case "pool" | "failed":
                raise ConnectionError(words)
            case _:
                raise ValueError(words)


def problem_lines(problems: Any) -> list[str]:
    """Return problems as lines, as of a bundle that was read here."""
    found = []
    for one in problems:
        place = "" if one["line"] is None else f"bundle:{one['line']}:{one['column']}: "
        found.append(clean(f"{place}{one['words']}")[:MAX_WORDS])
    return found


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
