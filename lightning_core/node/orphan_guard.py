"""Ends what a process has started, however that process ends: a program of its own, with the standard library alone.

Ray's processes end with their parent only where one thread starts them all. So this one waits at a pipe, which closes
even if its parent is killed; then it kills whoever has the parent's mark in its environment, and removes the folder.
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

TRIES, AGAIN = 5, 0.2


@contextmanager
def ended_with_us(name: str, folder: str) -> Iterator[None]:
    """Whoever is started in the block with ``name=folder`` in its environment does not outlive this process.

    Who ends the block in time cleans up by himself.
    """
    words = [sys.executable, "-I", "-S", __file__, name, folder]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as reaper:
        try:
            yield
        finally:
            reaper.kill()


def main(name: str, folder: str) -> None:
    """Waits for the end of standard input, then kills all that have the mark."""
    sys.stdin.buffer.read()
    mark = f"{name}={folder}".encode()
    for _ in range(TRIES):  # who is just being started is seen the next time
        for pid in _marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(AGAIN)
    shutil.rmtree(folder, ignore_errors=True)


def _marked(mark: bytes) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has just ended, or is somebody else's
            if path.parent.name != str(os.getpid()) and mark in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
