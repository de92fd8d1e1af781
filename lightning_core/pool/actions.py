"""Actions on a job that users ask for over HTTP, or an assistant for them; each returns the text that confirms it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning_core.pool.pool import Pool

Body = Mapping[str, Any]
"""Values of a request whose types have been checked."""


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
