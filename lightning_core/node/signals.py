"""Signals that ask to leave: the first one is noted, so that jobs can save; the second one leaves at once.

Nothing is raised out of a handler while Ray is at work: inside ``ray.get`` Ray would make an exit code of its own of
it. So a handler only notes, and whoever waits looks (:func:`lightning_core.cluster.cluster.answer`,
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

LEAVE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A terminal that is closed sends its signal twice, by the kernel and by the shell: that is one wish.
SAME_WISH = 0.5
_SHOW_CURSOR = "\x1b[?25h"
# What is being noted now, by whoever began first.
_noting: list[int] | None = None


class SignalReceivedError(KeyboardInterrupt):
    """A signal to exit was received before there was anything to save.

    It derives from :class:`KeyboardInterrupt` alone, so that ``except Exception`` does not swallow it.

    Args:
        number: Number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def signal_words(number: int) -> str:
    """How people call a signal.

    Example::

        >>> signal_words(signal.SIGINT), signal_words(signal.SIGTERM), signal_words(signal.SIGHUP)
        ('Ctrl-C', 'SIGTERM', 'a closed terminal')
    """
    known = signal.Signals(number)
    return {signal.SIGINT: "Ctrl-C", signal.SIGHUP: "a closed terminal"}.get(known, known.name)


@contextmanager
def signals(*, at_once: bool = False) -> Iterator[list[int]]:
    """Notes meanwhile the signals that ask to leave; within another such time the list is the outer one.

    What was ignored before (``nohup``, ``&`` in a script) stays ignored.

    Args:
        at_once: whether the second signal ends this process and all below it; otherwise it acts as ever.
    """
    global _noting
    if _noting is not None:
        yield _noting
        return
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = _heeded()
    last = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal last
        first, now = not received, time.monotonic()
        if not first and now - last < SAME_WISH:
            return
        last = now
        received.append(number)
        if at_once and not first:
            leave_at_once(128 + number)
        elif not at_once:
            _set(before)

    _set(dict.fromkeys(before, note))
    _noting = received
    try:
        yield received
    finally:
        _noting = None
        _set(before)


@contextmanager
def raising() -> Iterator[None]:
    """Signals that ask to leave raise :class:`SignalReceivedError` meanwhile: for what has no Ray below it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SignalReceivedError(number)

    before = _heeded()
    before.pop(signal.SIGINT, None)  # it does so anyway
    _set(dict.fromkeys(before, leave))
    try:
        yield
    finally:
        _set(before)


@contextmanager
def kept_from_ray() -> Iterator[None]:
    """Around ``ray.init``, which takes SIGTERM for itself, and whose processes a closed terminal must not end.

    Raises:
        SignalReceivedError: if SIGTERM came meanwhile: Ray's own handler exits.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    # A mask is inherited, and what came meanwhile is delivered when it is lifted.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    # What Ray's handler raises may be swallowed where it hits: each number that came is written here as well.
    came, noted = socket.socketpair()
    for side in (came, noted):
        side.setblocking(False)
    woken = signal.set_wakeup_fd(noted.fileno(), warn_on_full_buffer=False)
    try:
        yield
    except SystemExit as left:
        raise SignalReceivedError(signal.SIGTERM) from left
    finally:
        signal.set_wakeup_fd(woken)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if callable(before):
            signal.signal(signal.SIGTERM, before)
        with came, noted, suppress(BlockingIOError):
            if signal.SIGTERM in came.recv(1000):
                signal.alarm(0)  # Ray's crash handler has seen it, and would end this process three seconds later
                raise SignalReceivedError(signal.SIGTERM)


def leave_at_once(code: int) -> None:
    """Ends this process with an exit code, and by force all below it; nothing is put away."""
    if sys.stdout.isatty():  # a live view has hidden it
        os.write(sys.stdout.fileno(), _SHOW_CURSOR.encode())
    end(below())
    os._exit(code)


def below(mark: str = "") -> dict[int, int]:
    """The processes that this one has started and those that they have, parents first: when each of them was.

    Args:
        mark: what the command line of a process of our own must hold, or it and all below it are left out.
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


def end(processes: Mapping[int, int]) -> None:
    """Kills those that still run. Parents first: who is dead starts nobody."""
    for pid, when in processes.items():
        if started(pid) == when:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _command_line(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


Handler = Callable[[int, FrameType | None], Any] | int | None


def _heeded() -> dict[signal.Signals, Handler]:
    handlers = {number: signal.getsignal(number) for number in LEAVE}
    return {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}


def _set(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
