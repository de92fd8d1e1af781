"""Authenticators: they know the user of a secret that comes with a request.

Any part may bring some, as members of the family ``authenticators``: the part ``owners`` brings the tokens of
``lightning-core token``, and another package may know the users of its own directory. They fail closed: where one
raises, or returns anything but a person, its users are refused; the others are asked all the same.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from lightning_core.core.parts import brought, names_of
from lightning_core.server.access.people import Person, person_from_dict

log = logging.getLogger(__name__)


class Authenticator(Protocol):
    """Knows users by their secrets; made of the folder of a pool.

    Example::

        >>> from lightning_core.server.access.people import Right
        >>> class OfFile:
        ...     '''Admits the user whose secret is in a file of the pool's folder.'''
        ...     def __init__(self, folder: Path) -> None:
        ...         self.file = folder / "secret"
        ...     def person(self, secret: str) -> Person | None:
        ...         return Person("ann", frozenset({Right.SEE})) if secret == self.file.read_text() else None
    """

    def person(self, secret: str) -> Person | None:
        """Return the user of a secret; None if it is unknown here.

        It is asked with each request, and again by each session that the secret began: a secret that is not valid any
        more ends them. So it must return within milliseconds, and compare in constant time.

        Args:
            secret: What the request gives as its token; from anybody, and of any length.
        """


class Authenticators:
    """All authenticators that parts bring, for one pool.

    Args:
        folder: Folder of the pool.
    """

    def __init__(self, folder: Path) -> None:
        self._known: dict[str, Authenticator] = {}
        for name in names_of("authenticators"):
            try:
                if (found := brought("authenticators", name)) is not None:
                    self._known[name] = found[0](folder)
            except Exception as error:  # code from outside may raise anything
                log.warning("authenticator %s refuses its users: %s: %s", name, type(error).__name__, error)

    def person(self, secret: str) -> Person | None:
        """Return the user of a secret; None if no authenticator knows it."""
        for name, authenticator in self._known.items():
            try:
                if (found := authenticator.person(secret)) is not None:
                    return person_from_dict({"name": found.name, "rights": sorted(found.rights)})
            except Exception as error:  # code from outside may raise anything
                log.warning("authenticator %s refuses its users: %s: %s", name, type(error).__name__, error)
        return None
