"""Bundles that users send as text: read, checked, and submitted in their name.

A bundle is code that runs as the pool's account. So it takes the right ``submit``, and a server that was started with
``--allow-submit``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lightning_core.bundle.problems import BundleError
from lightning_core.core.protocols import AccessRefusedError
from lightning_core.parts.web.pool_watch import PoolWatch
from lightning_core.pool.pool import Pool
from lightning_core.server.access.people import Person, Right

_PLACE = re.compile(r"bundle:(\d+):(\d+): (.*)", re.DOTALL)


class Problem(NamedTuple):
    """A problem of a bundle."""

    line: int | None
    """Line of the text, counted from 1; None for a problem elsewhere, such as in a config that it names."""
    column: int | None
    words: str


class Submission:
    """Takes bundles for a pool.

    Paths in a bundle, and modules that are not installed, are looked up in the folder in which the server runs.

    Args:
        pool: The pool.
        watch: Watcher of the pool, which looks again at once after a change.
        allowed: Whether bundles are taken at all.
    """

    def __init__(self, pool: Pool, watch: PoolWatch, *, allowed: bool) -> None:
        self._pool, self._watch, self._allowed = pool, watch, allowed

    def allows(self, person: Person) -> bool:
        """Return whether a user may submit here."""
        return self._allowed and person.may(Right.SUBMIT)

    def check(self, person: Person, text: str) -> list[Problem]:
        """Return all problems of a bundle. Nothing that it names is imported.

        Raises:
            AccessRefusedError: If the user may not submit.
            ConnectionError: If the pool does not answer.
        """
        self._check_right(person)
        try:
            with self._pool.acting_for(person) as acting:
                acting.read_text(text)
        except BundleError as error:
            return problems_of(error)
        return []

    def submit(self, person: Person, text: str) -> list[str]:
        """Submit a bundle and return the names of its jobs; imports the classes that its configs name.

        Raises:
            AccessRefusedError: If the user may not submit.
            BundleError: With every problem found; then nothing is submitted.
            ValueError: If the pool refuses a job; then nothing is submitted.
            ConnectionError: If the pool does not answer.
        """
        self._check_right(person)
        with self._pool.acting_for(person) as acting:
            names = [job.name for job in acting.submit(acting.read_text(text))]
        self._watch.look_soon()
        return names

    def _check_right(self, person: Person) -> None:
        person.check(Right.SUBMIT)
        if not self._allowed:
            raise AccessRefusedError(
                "bundles are not taken here: a bundle is code; `lightning-core serve --allow-submit` takes them"
            )


def problems_of(error: BundleError) -> list[Problem]:
    """Return the problems of a bundle that was sent as text, each with its place in it.

    Example::

        >>> problems_of(BundleError(["bundle:2:5: jobs.a: is missing"]))
        [Problem(line=2, column=5, words='jobs.a: is missing')]
    """
    places = [(problem, _PLACE.fullmatch(problem)) for problem in error.problems]
    return [
        Problem(None, None, words) if found is None else Problem(int(found[1]), int(found[2]), found[3])
        for words, found in places
    ]
