"""Kills the processes of a pool; the same seed and schedule repeat the same faults in the same order."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

from tests.faults.trace import Action

# Causes a fault; returns the process that it hit, or None if there was none.
Fault = Callable[[random.Random], str | None]
Pids = Callable[[], list[int]]
# Stands for the process of a fault that hit none.
NO_PROCESS = "no process"


def kill(pids: Pids) -> Fault:
    """Return a fault that kills one of the processes."""

    def fault(draw: random.Random) -> str | None:
        return _signalled(pids, draw, signal.SIGKILL)

    return fault


def stop(pids: Pids, seconds: float) -> Fault:
    """Return a fault that stops one of the processes for a while, as if it were hung or cut off."""

    def fault(draw: random.Random) -> str | None:
        if (whom := _signalled(pids, draw, signal.SIGSTOP)) is not None:
            threading.Timer(seconds, _continue, [int(whom)]).start()
        return whom

    return fault


class Killer:
    """Causes one fault after another in its own thread; a context manager.

    Args:
        seed: Seed of the schedule.
        faults: Faults by name.
        pause: Minimum and maximum seconds between two faults.
        most: Maximum number of faults.
    """

    def __init__(self, seed: int, faults: Mapping[str, Fault], pause: tuple[float, float], most: int) -> None:
        draw = random.Random(seed)
        self.seed = seed
        self.schedule = [(draw.uniform(*pause), draw.choice(sorted(faults))) for _ in range(most)]
        """Seconds to wait, and the fault that follows."""
        self.actions: list[Action] = []
        """Faults so far."""
        self._draw, self._faults = draw, faults
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join(60.0)

    def _run(self) -> None:
        began = time.monotonic()
        for wait, what in self.schedule:
            if self._enough.wait(wait):
                return
            whom = self._faults[what](self._draw)
            self.actions.append(Action(time.monotonic() - began, what, whom or NO_PROCESS))


def _signalled(pids: Pids, draw: random.Random, what: signal.Signals) -> str | None:
    try:
        pid = draw.choice(sorted(pids()))
        os.kill(pid, what)
    except (IndexError, ProcessLookupError):
        return None
    return str(pid)


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it was given up and ended meanwhile
        os.kill(pid, signal.SIGCONT)
