"""The one door to other people's code: what raises there costs one piece of information, and nothing else.

Modules, loaders, loggers, callbacks and schedulers of users are asked through it. Whatever they do, the training draws
the same random numbers as without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lightning_core.agent.user_code.random_state import RandomStateKept
from lightning_core.view.console_lines import logger

log = logger(__name__)
T = TypeVar("T")


class Guarded:
    """Asks code of others for what a job wants to know; logs once for each thing that cannot be known.

    Args:
        job: Name of the job, for log messages.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._logged: set[str] = set()

    def __call__(self, what: str, ask: Callable[[], T], otherwise: T) -> T:
        """Return what ``ask`` returns; if it raises, return ``otherwise``.

        Args:
            what: What is asked for, as the log names it.
            ask: Function that runs code of others.
            otherwise: What stands for an unknown answer.
        """
        try:
            with RandomStateKept():
                return ask()
        except Exception as error:
            self.tell(what, error)
            return otherwise

    def tell(self, what: str, error: Exception) -> None:
        """Log, once for each thing, that it cannot be had."""
        if what not in self._logged:
            self._logged.add(what)
            message = " ".join(str(error).split())[:200]
            log.warning("%s: training continues without %s: %s: %s", self._job, what, type(error).__name__, message)
