"""Calls of Ray actors: repeated while an actor restarts, or interrupted by a signal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from lightning_core.node.signals import SignalReceivedError
from lightning_core.run.follow import POLL
from lightning_core.server.ray_settings import Actor

# Seconds for which the scheduler may not answer; it restarts in seconds.
CALL_TIMEOUT = 60.0


def call(actor: Actor, method: str, *args: Any, until: float | None = None) -> Any:
    """Call an actor until it answers: one that died is back within seconds, and may be called twice.

    Args:
        actor: Actor to call.
        method: Name of its method.
        args: Arguments of the method.
        until: Monotonic time at which to give up; None for a minute from now.
    """
    until = time.monotonic() + CALL_TIMEOUT if until is None else until
    while True:
        try:
            return ray.get(getattr(actor, method).remote(*args), timeout=max(min(10.0, until - time.monotonic()), 1.0))
        except RayTaskError:
            raise
        except (RayError, GetTimeoutError):
            if time.monotonic() > until:
                raise
            time.sleep(POLL)


def answer(asked: Any, received: list[int], meanwhile: Callable[[], None] | None = None) -> Any:
    """Return the answer of an actor, however long it takes.

    Args:
        asked: Reference of the call.
        received: Numbers of the signals received so far.
        meanwhile: Called now and then, and once more before the answer is returned.

    Raises:
        SignalReceivedError: If a signal is received while waiting.
    """
    while not ray.wait([asked], timeout=POLL)[0]:
        if received:
            raise SignalReceivedError(received[0])
        if meanwhile is not None:
            meanwhile()
    found = ray.get(asked)
    if meanwhile is not None:
        meanwhile()
    return found
