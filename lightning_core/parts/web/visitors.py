"""Links that open the page, and the sessions of browsers that have used one.

Rules

1. A link holds a secret of 256 random bits. The one that is printed at the start works once; one for other users works
   until it expires, and lets them see, not act.
2. A browser that has signed in has a cookie that no script can read and no other site can send. Programs send a user's
   token (`lightning-core token`) with every request.
3. Only digests of secrets are kept, and compared in constant time. All of this ends with the process.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from lightning_core.server.access.people import ALL_RIGHTS, Person, Right

# Seconds after which the first link no longer works, and a session ends.
LINK_SECONDS, SESSION_SECONDS = 3600.0, 7 * 86400.0
# Sessions at the same time: beyond it, the one that was used longest ago ends. And links for others.
MAX_SESSIONS, MAX_LINKS = 1000, 100

TokenHolder = Callable[[str], Person | None]
"""Returns the user of a token; None if it is not valid."""


@dataclass
class _SignInLink:
    person: Person
    expires: float
    once: bool


@dataclass
class _Session:
    person: Person
    expires: float
    used: float
    holds: Callable[[], bool]


class Visitors:
    """Links and sessions of the page.

    Args:
        holder_of: Function that returns the user of a token.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, holder_of: TokenHolder, clock: Callable[[], float] = time.monotonic) -> None:
        self._holder_of, self._clock = holder_of, clock
        self._links: dict[bytes, _SignInLink] = {}
        self._sessions: dict[bytes, _Session] = {}

    def link(self, person: Person, seconds: float = LINK_SECONDS, *, once: bool = True) -> str:
        """Return the secret of a new link.

        Args:
            person: User as whom it signs a browser in.
            seconds: Seconds for which it works.
            once: Whether it works once.

        Raises:
            ValueError: If there are too many links already.
        """
        self._forget()
        if len(self._links) >= MAX_LINKS:
            raise ValueError(f"there are {MAX_LINKS} links, which is the limit; they expire in time")
        secret = secrets.token_urlsafe(32)
        self._links[_digest(secret)] = _SignInLink(person, self._clock() + seconds, once)
        return secret

    def enter(self, secret: str) -> tuple[str, Person] | None:
        """Begin a session by the secret of a link, or by a token.

        Returns:
            The session's own secret, for a cookie, and its user; None if the secret is not accepted.
        """
        self._forget()
        digest = _digest(secret)
        link = self._links.get(digest)
        if link is not None:
            if link.once:
                del self._links[digest]
            return self._begin(link.person, lambda: True)
        person = self._holder_of(secret)
        # A token that is revoked ends the sessions that were begun by it.
        return None if person is None else self._begin(person, lambda: self._holder_of(secret) == person)

    def of_cookie(self, secret: str) -> Person | None:
        """Return the user of a session; None if there is no such session, or it has ended."""
        session = self._sessions.get(digest := _digest(secret))
        if session is None:
            return None
        now = self._clock()
        if now >= session.expires or not session.holds():
            del self._sessions[digest]
            return None
        session.used = now
        return session.person

    def of_token(self, token: str) -> Person | None:
        """Return the user of a token; None if it is not valid."""
        return self._holder_of(token)

    def leave(self, secret: str) -> None:
        """End a session."""
        self._sessions.pop(_digest(secret), None)

    def _begin(self, person: Person, holds: Callable[[], bool]) -> tuple[str, Person]:
        if len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda digest: self._sessions[digest].used)]
        secret, now = secrets.token_urlsafe(32), self._clock()
        self._sessions[_digest(secret)] = _Session(person, now + SESSION_SECONDS, now, holds)
        return secret, person

    def _forget(self) -> None:
        now = self._clock()
        self._links = {digest: link for digest, link in self._links.items() if link.expires > now}
        self._sessions = {digest: one for digest, one in self._sessions.items() if one.expires > now}


def reader(name: str) -> Person:
    """Return a user who may see every job, and change nothing."""
    return Person(name, frozenset({Right.SEE}))


def account(name: str) -> Person:
    """Return the user of the account that the pool runs as, who may do everything."""
    return Person(name, ALL_RIGHTS)


def _digest(secret: str) -> bytes:
    """Return the digest under which a secret is kept: looking it up tells nothing of the secret by its duration."""
    return hashlib.sha256(secret.encode()).digest()
