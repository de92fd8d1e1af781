"""Kills what a pool is made of, seeded: the same seed and schedule do the same deeds in the same order."""

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

# Does something to somebody; says whom, or None if there was nobody.
Deed = Callable[[random.Random], str | None]
Pids = Callable[[], list[int]]


def kill(pids: Pids) -> Deed:
    """SIGKILL for one of them."""

    def deed(draw: random.Random) -> str | None:
        return _signalled(pids, draw, signal.SIGKILL)

    return deed


def stop(pids: Pids, seconds: float) -> Deed:
    """One of them stands still for a while: hung, or cut off."""

    def deed(draw: random.Random) -> str | None:
        if (whom := _signalled(pids, draw, signal.SIGSTOP)) is not None:
            threading.Timer(seconds, _continue, [int(whom)]).start()
        return whom

    return deed


class Killer:
    """Does one deed after the other in a thread of its own; use it in ``with``.

    Args:
        seed: of what comes when.
        deeds: by name.
        pause: shortest and longest time between two of them, seconds.
        most: how many, at the most.
    """

    def __init__(self, seed: int, deeds: Mapping[str, Deed], pause: tuple[float, float], most: int) -> None:
        draw = random.Random(seed)
        self.seed = seed
        self.schedule = [(draw.uniform(*pause), draw.choice(sorted(deeds))) for _ in range(most)]
        """Seconds to wait, and what to do then."""
        self.actions: list[Action] = []
        """What was done."""
        self._draw, self._deeds = draw, deeds
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
            whom = self._deeds[what](self._draw)
            self.actions.append(Action(time.monotonic() - began, what, whom or "nobody"))


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
