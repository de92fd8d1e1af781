"""Checks of the system: what it shows of processes, its clock, and its loopback interface."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from lightning_core.core.durations import format_duration
from lightning_core.node.checks.findings import Finding, error, ok, warning

# No clock that is right shows an earlier year.
FIRST_YEAR = 2025
# Seconds by which a clock may differ: between two looks, and since a pool wrote its journal.
JUMP, TOLERANCE = 0.5, 60.0
SET = "keep it in step with chrony or systemd-timesyncd (as root: timedatectl set-ntp true)"
# Seconds that a message on this machine may take.
LOOPBACK_TIMEOUT = 1.0


class ClockReading(NamedTuple):
    """Both clocks at one moment."""

    wall: float
    """Wall-clock time, in seconds since the epoch."""
    steady: float
    """Time on a clock that cannot be set, in seconds."""


class LastWrite(NamedTuple):
    """When a pool last wrote its journal."""

    wall: float
    """Wall-clock time then, in seconds since the epoch."""
    age: float | None = None
    """Seconds since then on a clock that cannot be set; None if the machine was restarted since."""


def check_proc(root: Path) -> Finding:
    """Check that the kernel shows processes, by which pools and workers are told apart from others.

    Args:
        root: Folder of the file system.
    """
    if (root / "proc/self/stat").exists():
        return ok("proc", "the kernel shows processes in /proc")
    return error("proc", "/proc shows no processes: no pool could be found again", "mount it: mount -t proc proc /proc")


def check_clock(before: ClockReading, after: ClockReading, last: LastWrite | None = None) -> Finding:
    """Check the wall clock, by which people name deadlines and calendars are kept.

    Args:
        before: The clocks at one moment.
        after: The clocks later on.
        last: When the pool last wrote; None if it has not.
    """
    now = _utc(after.wall)
    if datetime.fromtimestamp(after.wall, UTC).year < FIRST_YEAR:
        return error("clock", f"it shows {now}: deadlines such as 18:00 would be years away", f"set it, and {SET}")
    jump = (after.wall - before.wall) - (after.steady - before.steady)
    if abs(jump) > JUMP:
        return warning("clock", f"it jumped by {_signed(jump)} just now: it shows {now}", SET)
    if last is not None and last.age is not None and abs(drift := after.wall - last.wall - last.age) > TOLERANCE:
        found = f"it was set by {_signed(drift)} since the pool last wrote: it shows {now}"
        return warning(
            "clock", found, f"look at deadlines that were given as a time of day (lightning-core why JOB); {SET}"
        )
    if last is not None and last.age is None and after.wall < last.wall - TOLERANCE:
        behind = format_duration(last.wall - after.wall)
        found = f"it shows {now}, {behind} before the pool last wrote: the time in between counts for no deadline"
        return warning("clock", found, f"set it before `up`, and {SET}")
    return ok("clock", now)


def check_loopback(send: Callable[[], None] | None = None) -> Finding:
    """Check that processes of this machine reach each other at 127.0.0.1, and that there are free ports.

    Args:
        send: Function that tries it and raises OSError; None for the real one.
    """
    try:
        (send or _send)()
    except OSError as problem:
        return error(
            "loopback",
            f"nothing can be sent to 127.0.0.1: {problem.strerror or problem}: Ray would wait for minutes",
            "as root: ip link set lo up; if no port is free, end what holds them (ss -tanp)",
        )
    return ok("loopback", "127.0.0.1 answers, on any free port; a pool needs no fixed ones")


def _send() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        socket.create_connection(listener.getsockname(), LOOPBACK_TIMEOUT).close()


def _utc(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '-'}{format_duration(abs(seconds))}"
