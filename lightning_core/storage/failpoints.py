"""Named points in the code at which a test can make it fail, so that no test depends on the timing of a kill.

The environment variable ``LC_FAILPOINT`` holds the actions, for this process and those that it starts::

    LC_FAILPOINT=journal.before_commit:crash            # SIGKILL, at every pass
    LC_FAILPOINT=journal.before_commit:crash@3          # at the third pass
    LC_FAILPOINT=pool_manager.after_mark:raise,journal.after_commit:sleep=0.5

Unset, a failpoint costs one look-up in an empty dictionary.
"""

from __future__ import annotations

import os
import signal
import time
from typing import NamedTuple

from lightning_core.errors import LightningCoreError

VARIABLE = "LC_FAILPOINT"


class FailpointError(LightningCoreError, RuntimeError):
    """A failpoint with the action ``raise`` was reached."""


class Failure(NamedTuple):
    """An action at a failpoint."""

    action: str
    """``crash``, ``raise`` or ``sleep``."""
    seconds: float = 0.0
    at: int | None = None
    """Number of the pass at which it happens; every pass if None."""


def read(text: str) -> dict[str, Failure]:
    """Return the failures by failpoint.

    Args:
        text: Value of the environment variable.

    Raises:
        ValueError: If it is malformed.

    Example::

        >>> read("journal.before_commit:crash@3,pool_manager.after_mark:sleep=0.5")["pool_manager.after_mark"]
        Failure(action='sleep', seconds=0.5, at=None)
    """
    failures = {}
    for part in filter(None, text.split(",")):
        name, _, action = part.partition(":")
        action, _, at = action.partition("@")
        action, _, seconds = action.partition("=")
        if action not in ("crash", "raise", "sleep") or (action == "sleep") != bool(seconds):
            raise ValueError(f"a failpoint must be NAME:crash, NAME:raise or NAME:sleep=SECONDS, got {part!r}")
        failures[name] = Failure(action, float(seconds or 0.0), int(at) if at else None)
    return failures


_failures = read(os.environ.get(VARIABLE, ""))
_passes: dict[str, int] = {}


def reach(name: str) -> None:
    """Execute the failure at a failpoint, if there is one.

    Raises:
        FailpointError: If the failure's action is ``raise``.
    """
    if (failure := _failures.get(name)) is None:
        return
    _passes[name] = _passes.get(name, 0) + 1
    if failure.at not in (None, _passes[name]):
        return
    match failure.action:
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise FailpointError(f"at {name}")
        case _:
            time.sleep(failure.seconds)
