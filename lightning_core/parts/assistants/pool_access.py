"""The pool as the user of a server reaches it, anew for each call: so a pool that was down is found again.

A request has the rights of the user who started the server, or of a token, and never more: the pool itself checks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lightning_core.core.protocols import AccessRefusedError
from lightning_core.pool.pool import Pool
from lightning_core.server.access.authenticators import Authenticators
from lightning_core.server.access.people import Person
from lightning_core.server.discovery import AUTO

# Seconds to wait for a scheduler that is being restarted: a user waits for the answer of an assistant.
PATIENCE = 5.0


class PoolAccess:
    """Reaches a pool.

    Args:
        where: The pool, as in :meth:`.Pool.connect`.
        token: Token of the user; empty for the account of this process.
    """

    def __init__(self, where: str = AUTO, token: str = "") -> None:
        self._where, self._token = where, token

    @contextmanager
    def pool(self, program: str = "", person: Person | None = None) -> Iterator[Pool]:
        """Connect to the pool in the name of the user.

        Args:
            program: Name of the program through which the user asks; empty for none.
            person: User whose request this is; None for the user of the server.

        Raises:
            ConnectionError: If no pool is up, or it does not answer.
            AccessRefusedError: If the token is not valid.
        """
        with Pool.connect(self._where, patience=PATIENCE, token=self._token or None, through=program) as pool:
            if person is None and self._token and not pool.is_far:
                person = Authenticators(pool.folder).person(self._token)
                if person is None:
                    raise AccessRefusedError(f"the token is none of {pool.folder}: it may have expired or been revoked")
            if person is None:
                yield pool
            else:
                with pool.acting_for(person, program) as acting:
                    yield acting
