"""Where Lightning asks for callbacks for a Trainer or a Fabric; installed as ``lightning_core_entry_point``.

It stands apart, on the standard library alone: a script that wants nothing of the package imports nothing of it, and a
package that is broken or half installed costs the Trainer of a script nothing.
"""

from __future__ import annotations

import logging
import os
from typing import Any

PREFIX = "LIGHTNING_CORE_"


def callbacks() -> list[Any]:
    """Return the callbacks that the environment asks for; see :mod:`lightning_core.autojoin`.

    Raises:
        MisconfigurationException: If a variable is missing or invalid; the message names it and the rule.
    """
    return _asked("callbacks")


def fabric_callbacks() -> list[Any]:
    """Return the callbacks that the environment asks for, for a Fabric.

    Raises:
        MisconfigurationException: If a variable is missing or invalid; the message names it and the rule.
    """
    return _asked("fabric_callbacks")


def _asked(which: str) -> list[Any]:
    if not any(name.startswith(PREFIX) for name in os.environ):
        return []
    try:
        from lightning_core import autojoin

        return [*getattr(autojoin, which)()]
    except Exception as error:
        if type(error).__name__ == "MisconfigurationException":
            raise
        message = "training continues without lightning_core, which cannot be imported here: %s: %s"
        logging.getLogger("lightning_core").warning(message, type(error).__name__, error)
        return []
