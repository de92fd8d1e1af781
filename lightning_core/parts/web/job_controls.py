"""Requests of users about a job: checked, and passed on to the pool, which checks their rights."""

from __future__ import annotations

from lightning_core.core.answers import JobStatus, State
from lightning_core.parts.web.pool_watch import PoolWatch
from lightning_core.pool.actions import ACTIONS, Body
from lightning_core.pool.pool import Pool
from lightning_core.server.access.people import Person


class JobControls:
    """Passes on requests of users.

    Args:
        watch: Watcher of the pool, which looks again at once after a change.
    """

    def __init__(self, watch: PoolWatch) -> None:
        self._watch = watch

    def allowed(self, person: Person, job: JobStatus | None) -> bool:
        """Return whether a user may steer a job; not one that has ended."""
        if job is None or job.state is State.ENDED:
            return False
        return person.steers(job.owner)

    def ask(self, pool: Pool, name: str, action: str, body: Body) -> str:
        """Carry out an action on a job, and return the text that confirms it; the pool checks the user's rights.

        Args:
            pool: The pool, in the name of the user.
            name: Name of the job.
            action: Name of the action.
            body: Its values.

        Raises:
            ValueError: If a value is invalid, or the pool refuses it.
            LookupError: If there is no such job.
            RuntimeError: If it has ended.
            ConnectionError: If the pool does not answer.
        """
        words = ACTIONS[action](pool, name, body)
        self._watch.look_soon()
        return words
