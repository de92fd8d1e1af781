"""What all fuzz targets share: the same inputs in each run of ``make test``, other ones for long in the nightly tests.

A target is a function of one value that raises if something is wrong. What a target finds becomes a fixture of the
target, ``FOUND``, so that it is tried in each run.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.examples import examples

# Seconds of a nightly target: five targets take an hour.
NIGHTLY_SECONDS = float(os.environ.get("LC_FUZZ_SECONDS", "720"))
# What a target may take of one value, with much room for a loaded machine.
MAX_SECONDS, MAX_MIB = 30, 512

Target = Callable[[Any], None]


def fuzz(target: Target, values: SearchStrategy[Any], number: int, found: Iterable[Any] = ()) -> None:
    """Try a target on what was found before, and on a number of values that are the same in each run."""
    for value in found:
        with bounded():
            target(value)
    _tried(target, values, examples(number), derandomize=True)()


def fuzz_for_long(target: Target, values: SearchStrategy[Any], seconds: float = NIGHTLY_SECONDS) -> None:
    """Try a target on other values each time; the error names the seed with which it can be repeated."""
    until, first = time.monotonic() + seconds, int(time.time())
    for number in range(10**9):
        if time.monotonic() > until:
            return
        seed(first + number)(_tried(target, values, 500, derandomize=False))()


def _tried(target: Target, values: SearchStrategy[Any], number: int, *, derandomize: bool) -> Callable[[], None]:
    def test(value: Any) -> None:
        with bounded():
            target(value)

    limits = settings(
        max_examples=number, deadline=None, derandomize=derandomize, database=None,
        suppress_health_check=list(HealthCheck), print_blob=True,
    )  # fmt: skip
    return limits(given(values)(test))


@contextmanager
def bounded(seconds: int = MAX_SECONDS, mib: int = MAX_MIB) -> Iterator[None]:
    """Fail if the block takes too long, or too much memory."""

    def too_long(*_: object) -> None:
        raise AssertionError(f"it takes longer than {seconds} s")

    before, peak = signal.signal(signal.SIGALRM, too_long), _peak()
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert _peak() - peak < mib, f"it takes {_peak() - peak} MiB"


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
