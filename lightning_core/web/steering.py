"""What people ask of a job on its page: read, checked against their rights, and passed on to the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from starlette.exceptions import HTTPException

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.commands import Cancel, Command, Pause, Resume, SetDeadline, SetDevices
from lightning_core.core.durations import format_duration, parse_when, seconds_until
from lightning_core.core.protocols import AccessRefusedError, JoinRefusedError
from lightning_core.core.validation import checked
from lightning_core.pool.pool import Pool
from lightning_core.server.access.people import Person
from lightning_core.web.pool_watch import PoolWatch


def _deadline(name: str, body: Mapping[str, Any]) -> tuple[Command, str]:
    text = checked(body.get("deadline"), str | None)
    if text is None or text.strip().lower() in ("", "none"):
        return SetDeadline(name, float("inf")), f"{name} has no deadline now."
    seconds = seconds_until(parse_when(text.strip()), datetime.now())
    return SetDeadline(name, seconds), f"{name} has {format_duration(seconds)} from now."


def _devices(name: str, body: Mapping[str, Any]) -> tuple[Command, str]:
    devices = checked(body.get("devices"), int | None)
    words = "as many devices as planned" if devices is None else f"{devices} device{'s' * (devices != 1)}"
    return SetDevices(name, devices), f"{name} is to have {words}."


def _pause(name: str, body: Mapping[str, Any]) -> tuple[Command, str]:
    release = checked(body.get("release", False), bool)
    return Pause(name, release), f"{name} is paused" + (", and saves and leaves its devices." if release else ".")


ACTIONS: dict[str, Callable[[str, Mapping[str, Any]], tuple[Command, str]]] = {
    "deadline": _deadline,
    "devices": _devices,
    "pause": _pause,
    "resume": lambda name, _: (Resume(name), f"{name} goes on."),
    "cancel": lambda name, _: (Cancel(name), f"{name} is cancelled."),
}
"""What can be asked of a job, each with what makes the command of it, and the words that confirm it."""


class Steering:
    """Passes on what people ask.

    Args:
        pool: The pool.
        watch: Where the pool is looked at: it looks again at once when something was asked.
    """

    def __init__(self, pool: Pool, watch: PoolWatch) -> None:
        self._pool, self._watch = pool, watch

    def allowed(self, person: Person, job: JobStatus | None) -> bool:
        """Return whether a person may steer a job; not one that has ended."""
        if job is None or job.state is State.ENDED:
            return False
        return person.steers(job.owner)

    async def act(self, person: Person, name: str, action: str, body: Any) -> str:
        """Ask something of a job, and return in words what was asked.

        Raises:
            HTTPException: If there is no such action, a value is invalid, or the person or the pool does not allow it.
        """
        job = self._watch.view.newest(name)
        if action not in ACTIONS:
            raise HTTPException(404, f"There is no action {action[:40]!r}.")
        if job is None or job.state is State.ENDED:
            raise HTTPException(409, f"{name} has ended." if job else f"There is no job {name}.")
        if not self.allowed(person, job):
            raise HTTPException(403, f"You may not steer {name}.")
        if not isinstance(body, dict):
            raise HTTPException(400, "a request must be a JSON object")
        try:
            command, words = ACTIONS[action](name, body)
            await asyncio.to_thread(self._send, person, command)
        except AccessRefusedError as error:
            raise HTTPException(403, str(error)) from None
        except JoinRefusedError as error:
            raise HTTPException(409, str(error)) from None
        except (ValueError, TypeError) as error:
            raise HTTPException(400, str(error)) from None
        except ConnectionError as error:
            raise HTTPException(503, str(error)) from None
        except (LookupError, RuntimeError) as error:
            raise HTTPException(409, str(error)) from None
        self._watch.look_soon()
        return words

    def _send(self, person: Person, command: Command) -> None:
        with self._pool.acting_for(person) as acting:
            acting.send(command)
