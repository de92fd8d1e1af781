"""Guard of targets from outside the library: one whose code raises is not met, and its training goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

log = logging.getLogger(__name__)

ERRORS: dict[str, str] = {}
"""The first error of each kind of target that has raised in this process, by the path of its class."""

# What stands in for methods that the base class leaves open.
_PLAIN: dict[str, Any] = {
    "goal": float("nan"), "grows": False, "quantity": "value", "is_met": False, "reaches": False,
    "__str__": "a target that has failed",
}  # fmt: skip
_GUARDED = (
    "observes", "work", "epoch_batches", "resolved", "quantity", "observed", "watches", "lower_is_better", "goal",
    "grows", "evaluations", "threshold", "axis", "falling", "logged", "reached", "is_met", "reaches", "better", "show",
    "describe_progress", "__str__",
)  # fmt: skip


def guard(kind: type[Any], base: type[Any]) -> None:
    """Put a guard around what a class defines of its own: where it raises, what the base class would do holds.

    Args:
        kind: Class of targets from outside the library.
        base: :class:`~lightning_core.core.targets.Target`.
    """
    for name in _GUARDED:
        own = vars(kind).get(name)
        if isinstance(own, property) and own.fget is not None:
            setattr(kind, name, property(_guarded(kind, name, own.fget, vars(base)[name].fget), doc=own.__doc__))
        elif callable(own):
            setattr(kind, name, _guarded(kind, name, own, vars(base)[name]))


def _guarded(kind: type[Any], name: str, own: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    path = f"{kind.__module__}.{kind.__qualname__}"

    @wraps(own)
    def call(*arguments: Any) -> Any:
        try:
            return own(*arguments)
        except Exception as error:  # code from outside may raise anything
            if path not in ERRORS:
                ERRORS[path] = f"{name}: {type(error).__name__}: {error}"
                log.warning("the target %s raised, and counts as not met: %s", path, ERRORS[path])
            return _PLAIN[name] if name in _PLAIN else plain(*arguments)

    return call
