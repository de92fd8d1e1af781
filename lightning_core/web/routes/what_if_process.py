"""Simulates futures in a process of its own: neither the scheduler nor the page waits for it.

The simulation starts from the journal: its newest snapshot, and the events after it, which a restart could handle again
in half a second. The file is only read, so the scheduler is not involved. The status that the page has already would
not do: it has three quantiles of a forecast, no policy, and no grants.

Measured by ``python -m benchmarks.what_if``.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from contextlib import suppress
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from pathlib import Path

from lightning_core.errors import LightningCoreError
from lightning_core.scheduler.asking.prospects import Prospects
from lightning_core.simulation.what_if import Assumption, Chances, chances
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay

# Seconds from the question after which no further future begins, seconds for which they are played in any case, and
# seconds after which a process that has not answered is ended.
SECONDS, MIN_SECONDS, PATIENCE = 1.5, 0.5, 30.0
# Futures beyond which nothing more is learnt.
MAX_FUTURES = 200
# Limits of the process: bytes of memory, seconds of processor.
MAX_BYTES, MAX_CPU = 4 << 30, 30
# Seconds for which the state read from the journal is reused, and number of cached answers.
FRESH, MAX_ANSWERS = 20.0, 200


class NoFutureError(LightningCoreError, ValueError):
    """The futures of a pool cannot be simulated; the message says why."""


class WhatIf:
    """Simulates which jobs finish in time after a change.

    Args:
        journal: Path of the pool's journal.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._read: tuple[float, Prospects] | None = None
        self._answers: dict[tuple[float, Assumption], Chances] = {}

    def ask(self, change: Assumption) -> Chances:
        """Return in how many futures each job is in time; takes some seconds.

        Raises:
            NoFutureError: If the pool, or the change, cannot be simulated.
            TimeoutError: If the simulation does not end.
        """
        with self._lock:
            read = self._read
            fresh = read is not None and time.monotonic() - read[0] < FRESH
            if read is not None and fresh and (known := self._answers.get((read[1].now, change))) is not None:
                return known
        prospects, answer = simulated(read[1] if read is not None and fresh else self._journal, change)
        with self._lock:
            if not fresh:
                self._read, self._answers = (time.monotonic(), prospects), {}
            elif read is not None and read is self._read and len(prospects.played) > len(read[1].played):
                self._read = read[0], prospects  # futures as things are need not be played again
            if len(self._answers) < MAX_ANSWERS:
                self._answers[prospects.now, change] = answer
        return answer


def warm_up() -> None:
    """Start the process from which simulations are forked: its imports take a second or two."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    forkserver.ensure_running()


def simulated(source: Path | Prospects, change: Assumption) -> tuple[Prospects, Chances]:
    """Simulate futures in a process of its own.

    Args:
        source: Path of the journal, or the state read from it.
        change: The change.

    Raises:
        NoFutureError: If the pool, or the change, cannot be simulated.
        TimeoutError: If the simulation does not end.
    """
    warm_up()
    context = get_context("forkserver")  # a fork of a process with threads is no safe thing
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, source, change, time.monotonic() + SECONDS), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(PATIENCE):
            raise TimeoutError(f"the simulation took longer than {PATIENCE:.0f} s and was ended")
        answer = ours.recv()
    except EOFError:
        raise NoFutureError("the simulation ended without an answer: it may have lacked memory") from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if isinstance(answer, str):
        raise NoFutureError(answer)
    found: tuple[Prospects, Chances] = answer
    return found


def _answer(pipe: Connection, source: Path | Prospects, change: Assumption, until: float) -> None:
    """Simulate until some time of the monotonic clock, and send the result, or an error message."""
    with suppress(OSError):
        os.nice(10)
    _limit(resource.RLIMIT_AS, MAX_BYTES)
    _limit(resource.RLIMIT_CPU, MAX_CPU)
    try:
        prospects = source if isinstance(source, Prospects) else read_prospects(source)
        until = max(until, time.monotonic() + MIN_SECONDS)
        found = chances(prospects, change, lambda played: played < MAX_FUTURES and time.monotonic() < until)
        pipe.send((prospects, found))
    except KeyError as error:
        pipe.send(f"there is no job {error.args[0]} that has not ended")
    except (LightningCoreError, ValueError, OSError, MemoryError) as error:
        pipe.send(str(error) or type(error).__name__)


def read_prospects(journal: Path) -> Prospects:
    """Return the expectations of a pool's scheduler at the end of its journal.

    Raises:
        JournalError: If it is missing or damaged.
    """
    with Journal.open(journal, read_only=True) as opened:
        return replay(opened, strict=False).scheduler.prospects()


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
