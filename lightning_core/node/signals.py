"""Signals to exit: the first one is recorded, so that jobs can save; the second one exits at once.

Handlers raise nothing while Ray is working: ``ray.get`` would turn the exception into its own exit code. A handler
only records the signal, and the code that waits checks for it (:func:`lightning_core.cluster.ray_calls.answer`,
:func:`lightning_core.run.follow.follow`).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from lightning_core.node.processes import started

EXIT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A terminal that is closed sends its signal twice, by the kernel and by the shell; signals within this many seconds
# count as one.
DEBOUNCE = 0.5
_SHOW_CURSOR = "\x1b[?25h"
# The list of the outermost block that records signals.
_recording: list[int] | None = None


class SignalReceivedError(KeyboardInterrupt):
    """A signal to exit was received before there was anything to save.

    It derives from :class:`KeyboardInterrupt` alone, so that ``except Exception`` does not swallow it.

    Args:
        number: Number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def describe_signal(number: int) -> str:
    """Return the usual name of a signal.

    Example::

        >>> describe_signal(signal.SIGINT), describe_signal(signal.SIGTERM), describe_signal(signal.SIGHUP)
        ('Ctrl-C', 'SIGTERM', 'a closed terminal')
    """
    known = signal.Signals(number)
    return {signal.SIGINT: "Ctrl-C", signal.SIGHUP: "a closed terminal"}.get(known, known.name)


@contextmanager
def recorded_signals(*, at_once: bool = False) -> Iterator[list[int]]:
    """Record the signals to exit that arrive in the block; a nested block shares the list of the outer one.

    Signals that were ignored before (``nohup``, ``&`` in a script) stay ignored.

    Args:
        at_once: Whether the second signal ends this process and its descendants; otherwise it has its usual effect.
    """
    global _recording
    if _recording is not None:
        yield _recording
        return
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = _handled()
    last = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal last
        first, now = not received, time.monotonic()
        if not first and now - last < DEBOUNCE:
            return
        last = now
        received.append(number)
        if at_once and not first:
            exit_at_once(128 + number)
        elif not at_once:
            _set(before)

    _set(dict.fromkeys(before, note))
    _recording = received
    try:
        yield received
    finally:
        _recording = None
        _set(before)


@contextmanager
def raising_signals() -> Iterator[None]:
    """Raise :class:`SignalReceivedError` for signals to exit in the block, which must not use Ray."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise SignalReceivedError(number)

    before = _handled()
    before.pop(signal.SIGINT, None)  # it raises KeyboardInterrupt anyway
    _set(dict.fromkeys(before, interrupt))
    try:
        yield
    finally:
        _set(before)


@contextmanager
def protected_from_ray() -> Iterator[None]:
    """Protect signal handling around ``ray.init``.

    Ray installs its own handler of SIGTERM, and the processes that it starts must survive a closed terminal.

    Raises:
        SignalReceivedError: If SIGTERM arrived in the block, where Ray's own handler exits.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    # A mask is inherited, and a signal that arrived meanwhile is delivered when the mask is lifted.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    # The exception of Ray's handler may be swallowed where it is raised: every signal is written to this socket too.
    received, written = socket.socketpair()
    for side in (received, written):
        side.setblocking(False)
    before_fd = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    try:
        yield
    except SystemExit as left:
        raise SignalReceivedError(signal.SIGTERM) from left
    finally:
        signal.set_wakeup_fd(before_fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if callable(before):
            signal.signal(signal.SIGTERM, before)
        with received, written, suppress(BlockingIOError):
            if signal.SIGTERM in received.recv(1000):
                signal.alarm(0)  # Ray's crash handler saw it too, and would end this process after three seconds
                raise SignalReceivedError(signal.SIGTERM)


def exit_at_once(code: int) -> None:
    """End this process with an exit code and kill its descendants, without any clean-up."""
    if sys.stdout.isatty():  # a live view has hidden the cursor
        os.write(sys.stdout.fileno(), _SHOW_CURSOR.encode())
    kill_all(descendants())
    os._exit(code)


def descendants(mark: str = "") -> dict[int, int]:
    """Return the descendants of this process, parents first, with their start times.

    Args:
        mark: Text that the command line of a child must contain; other children and their descendants are left out.
    """
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found: dict[int, int] = {}
    ahead = [pid for pid in children.get(os.getpid(), []) if mark in _command_line(pid)]
    while ahead:
        pid = ahead.pop(0)
        if (when := started(pid)) is not None:
            found[pid] = when
        ahead += children.get(pid, [])
    return found


def kill_all(processes: Mapping[int, int]) -> None:
    """Kill the processes that still run, parents first: a dead parent starts no more children."""
    for pid, when in processes.items():
        with suppress(ProcessLookupError):
            process = os.pidfd_open(pid)  # stands for this process even if its id is used again
            try:
                if started(pid) == when:
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)


def _command_line(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


Handler = Callable[[int, FrameType | None], Any] | int | None


def _handled() -> dict[signal.Signals, Handler]:
    handlers = {number: signal.getsignal(number) for number in EXIT_SIGNALS}
    return {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}


def _set(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
