"""Waiting for what must happen: the limit is for hangs, far beyond what a busy machine takes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

# Seconds after which what is waited for counts as hung.
PATIENCE = 300.0
# Seconds between two looks: at first, and at most, so that a long wait does not load what it looks at.
PAUSE, MAX_PAUSE = 0.005, 0.1


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait until a condition returns something true, and return that."""
    pauses = _pauses(seconds)
    while not (found := condition()):
        time.sleep(next(pauses))
    return found


async def until_async(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait as :func:`until` does, while the other tasks of the event loop go on."""
    pauses = _pauses(seconds)
    while not (found := condition()):
        await asyncio.sleep(next(pauses))
    return found


def join(thread: threading.Thread, seconds: float = PATIENCE) -> None:
    """Wait until a thread has ended."""
    thread.join(seconds)
    assert not thread.is_alive(), f"not within {seconds:g} s"


def _pauses(seconds: float) -> Iterator[float]:
    end, pause = time.monotonic() + seconds, PAUSE
    while time.monotonic() < end:
        yield pause
        pause = min(1.2 * pause, MAX_PAUSE)
    raise AssertionError(f"not within {seconds:g} s")
