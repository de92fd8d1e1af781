"""Requests of users on the page of a job: read, checked against their rights, and passed on to the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.validation import checked
from lightning_core.parts.web.pool_watch import PoolWatch
from lightning_core.parts.web.refusals import REFUSALS, refusal
from lightning_core.pool.pool import Pool
from lightning_core.server.access.people import Person

Body = Mapping[str, Any]


def _deadline(pool: Pool, name: str, body: Body) -> str:
    text = checked(body.get("deadline"), str | None)
    deadline = None if text is None or text.strip().lower() in ("", "none") else text.strip()
    pool.set_deadline(name, deadline)
    return f"{name} has no deadline now." if deadline is None else f"{name} has the deadline {deadline}."


def _devices(pool: Pool, name: str, body: Body) -> str:
    devices = checked(body.get("devices"), int | None)
    pool.set_devices(name, devices)
    words = "as many devices as planned" if devices is None else f"{devices} device{'s' * (devices != 1)}"
    return f"{name} is to have {words}."


def _pause(pool: Pool, name: str, body: Body) -> str:
    pool.pause(name, release=(release := checked(body.get("release", False), bool)))
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

    async def act(self, person: Person, name: str, action: str, body: Any) -> str:
        """Carry out an action on a job, and return the text that confirms it.

        Raises:
            HTTPException: If there is no such action, a value is invalid, or the user or the pool does not allow it.
        """
        if action not in ACTIONS:
            raise HTTPException(404, f"There is no action {action[:40]!r}.")
        if not isinstance(body, dict):
            raise HTTPException(400, "a request must be a JSON object")
        try:
            return await asyncio.to_thread(self.ask, person, name, action, body)
        except REFUSALS as error:
            raise refusal(error) from None

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
