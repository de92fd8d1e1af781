"""Orphan guard: ends a process's children however that process ends. A separate program, standard library only.

Ray's processes end with their parent only where one thread starts them all. This program waits on a pipe, which closes
even if its parent is killed; then it kills every process with the parent's mark in its environment and removes the
parent's folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Passes over the processes, and seconds between two of them.
PASSES, PASS_INTERVAL = 5, 0.2


@contextmanager
def ended_with_us(name: str, folder: str) -> Iterator[None]:
    """End every process started in the block with ``name=folder`` in its environment when this process dies.

    On a normal exit the caller cleans up.

    Args:
        name: Name of the environment variable that marks the processes.
        folder: Its value: a folder, which is removed.
    """
    command = [sys.executable, "-I", "-S", __file__, name, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            yield
        finally:
            guard.kill()


def main(name: str, folder: str) -> None:
    """Wait for the end of standard input, then kill every process with the mark."""
    sys.stdin.buffer.read()
    for _ in range(PASSES):  # a process that is just being started is seen in the next pass
        signal_marked(name, folder, signal.SIGKILL)
        time.sleep(PASS_INTERVAL)
    shutil.rmtree(folder, ignore_errors=True)


def signal_marked(name: str, value: str, number: int) -> int:
    """Send a signal to every other process of this user with a variable of this value; return how many there are.

    Args:
        name: Name of the environment variable that marks the processes.
        value: Its value.
        number: Number of the signal; 0 to send none.
    """
    mark = f"{name}={value}".encode()
    found = 0
    for pid in _processes():
        with suppress(OSError):  # it has just ended, or is another user's
            found += _signal_if_marked(pid, mark, number)
    return found


def _processes() -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*"):
        if path.name != str(os.getpid()):
            yield int(path.name)


def _signal_if_marked(pid: int, mark: bytes, number: int) -> bool:
    process = os.pidfd_open(pid)  # stands for this process even if its id is used again
    try:
        folder = Path(f"/proc/{pid}")
        if folder.stat().st_uid != os.geteuid() or mark not in (folder / "environ").read_bytes().split(b"\0"):
            return False
        signal.pidfd_send_signal(process, number)
        return True
    finally:
        os.close(process)


if __name__ == "__main__":
    main(*sys.argv[1:])
