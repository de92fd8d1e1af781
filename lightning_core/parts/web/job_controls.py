"""Requests of users about a job: checked, and passed on to the pool, which checks their rights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning_core.core.answers import JobStatus, State
from lightning_core.parts.web.pool_watch import PoolWatch
from lightning_core.pool.pool import Pool
from lightning_core.server.access.people import Person

Body = Mapping[str, Any]
"""Body of a request whose types the API has checked."""


def _deadline(pool: Pool, name: str, body: Body) -> str:
    text = body["deadline"]
    deadline = None if text is None or text.strip().lower() in ("", "none") else text.strip()
    pool.set_deadline(name, deadline)
    return f"{name} has no deadline now." if deadline is None else f"{name} has the deadline {deadline}."


def _devices(pool: Pool, name: str, body: Body) -> str:
    devices = body["devices"]
    pool.set_devices(name, devices)
    words = "as many devices as planned" if devices is None else f"{devices} device{'s' * (devices != 1)}"
    return f"{name} is to have {words}."


def _pause(pool: Pool, name: str, body: Body) -> str:
    pool.pause(name, release=(release := body.get("release", False)))
    return f"{name} is paused" + (", and saves and leaves its devices." if release else ".")


def _resume(pool: Pool, name: str, _: Body) -> str:
    pool.resume(name)
    return f"{name} resumes."


def _cancel(pool: Pool, name: str, _: Body) -> str:
    pool.cancel(name)
    return f"{name} is cancelled."


ACTIONS: dict[str, Callable[[Pool, str, Body], str]] = {
    "deadline": _deadline, "devices": _devices, "pause": _pause, "resume": _resume, "cancel": _cancel,
}  # fmt: skip
"""Actions on a job; each returns the text that confirms it."""


class JobControls:
    """Passes on requests of users.

    Args:
        pool: The pool.
        watch: Watcher of the pool, which looks again at once after a change.
    """

    def __init__(self, pool: Pool, watch: PoolWatch) -> None:
        self._pool, self._watch = pool, watch

    def allowed(self, person: Person, job: JobStatus | None) -> bool:
        """Return whether a user may steer a job; not one that has ended."""
        if job is None or job.state is State.ENDED:
            return False
        return person.steers(job.owner)

    def ask(self, person: Person, name: str, action: str, body: Body) -> str:
        """Carry out an action on a job, and return the text that confirms it; the pool checks the user's rights.

        Raises:
            ValueError: If a value is invalid, or the pool refuses it.
            LookupError: If there is no such job.
            RuntimeError: If it has ended.
            ConnectionError: If the pool does not answer.
        """
        with self._pool.acting_for(person) as acting:
            words = ACTIONS[action](acting, name, body)
        self._watch.look_soon()
        return words
