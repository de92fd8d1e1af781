"""Named places in our own code at which a test makes it fail: what a kill can hit, no test need leave to luck.

The variable ``LC_FAILPOINT`` says which of them does what, in this process and in those that it starts::

    LC_FAILPOINT=journal.before_commit:crash            # SIGKILL, as often as a process comes by
    LC_FAILPOINT=journal.before_commit:crash@3          # the third time that it comes by
    LC_FAILPOINT=keeper.after_mark:raise,journal.after_commit:sleep=0.5

Unset, a place costs one look into an empty dictionary.
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


class Plan(NamedTuple):
    """What happens at a place: ``crash``, ``raise`` or ``sleep``."""

    what: str
    seconds: float = 0.0
    at: int | None = None
    """The how manieth pass it happens at; None at each."""


def read(text: str) -> dict[str, Plan]:
    """What is to happen where.

    Args:
        text: as in the variable.

    Raises:
        ValueError: if it is not understood.

    Example::

        >>> read("journal.before_commit:crash@3,keeper.after_mark:sleep=0.5")["keeper.after_mark"]
        Plan(what='sleep', seconds=0.5, at=None)
    """
    plans = {}
    for part in filter(None, text.split(",")):
        name, _, action = part.partition(":")
        action, _, at = action.partition("@")
        what, _, seconds = action.partition("=")
        if what not in ("crash", "raise", "sleep") or (what == "sleep") != bool(seconds):
            raise ValueError(f"a failpoint must be NAME:crash, NAME:raise or NAME:sleep=SECONDS, got {part!r}")
        plans[name] = Plan(what, float(seconds or 0.0), int(at) if at else None)
    return plans


_plans = read(os.environ.get(VARIABLE, ""))
_passes: dict[str, int] = {}


def reach(name: str) -> None:
    """The code has come to this place.

    Raises:
        FailpointError: if a test wants it to.
    """
    if (plan := _plans.get(name)) is None:
        return
    _passes[name] = _passes.get(name, 0) + 1
    if plan.at not in (None, _passes[name]):
        return
    match plan.what:
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise FailpointError(f"at {name}")
        case _:
            time.sleep(plan.seconds)
