"""The process of a script, with all that it starts: its output, its end, and that nothing of it is left.

Rules

1. It has a session and a process group of its own, and a mark in its environment that what it starts inherits. At its
   end everything with the mark is told to end, and killed if it does not.
2. If this process dies, however it does, the orphan guard kills everything with the mark.
3. What it prints goes through this process into the log: a full disk costs lines of the log and fails no script.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from lightning_core.node.orphan_guard import ended_with_us, signal_marked
from lightning_core.variables import PREFIX

MARK = f"{PREFIX}SCRIPT"
# Seconds that a process has to end after SIGTERM.
TERMINATION_GRACE = 5.0
# Seconds between two looks whether all have ended, and seconds to wait for the last of the output.
END_INTERVAL, OUTPUT_TIMEOUT = 0.05, 5.0
# Seconds between two looks whether the output is over.
POLL_INTERVAL = 0.5
# Bytes that are read of the output at once, and kept of its end.
CHUNK_BYTES, TAIL_BYTES = 2**16, 2**16


class ScriptProcess:
    """A running script.

    Args:
        command: Command with its arguments.
        folder: Folder in which it runs.
        environment: Its variables.
        log: File to which its output is added.
        mark: Value of its mark.

    Raises:
        OSError: If it cannot be started; the file name is that of the command or the folder.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, mark: str
    ) -> None:
        self._mark = mark
        self._process = subprocess.Popen(
            command, cwd=folder, env={**environment, MARK: mark}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
        )  # fmt: skip
        assert self._process.stdout is not None  # it is a pipe
        self._output = _Output(self._process.stdout, log)
        self._watch = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        """Id of the process that was started."""
        return self._process.pid

    def has_ended(self, within: float) -> bool:
        """Return whether the process has ended, after at most some seconds."""
        ready = select.poll()
        ready.register(self._watch, select.POLLIN)
        return bool(ready.poll(1e3 * within))

    def end(self) -> int:
        """End everything that is left of the script.

        Returns:
            Exit code of its process; the negative number of a signal that has killed it.
        """
        # It is not reaped yet, so that the number of its group cannot be that of another one.
        self._signal(signal.SIGTERM)
        until = time.monotonic() + TERMINATION_GRACE
        while time.monotonic() < until and (not self.has_ended(0.0) or signal_marked(MARK, self._mark, 0)):
            time.sleep(END_INTERVAL)
        self._signal(signal.SIGKILL)
        code = self._process.wait()
        os.close(self._watch)
        self._output.finish()
        return code

    def tail(self) -> str:
        """Return the end of what it has printed."""
        return self._output.tail()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
        signal_marked(MARK, self._mark, number)


@contextmanager
def nothing_left(folder: Path) -> Iterator[str]:
    """Kill every marked process that is left, and remove a folder, when this process dies in the block.

    Args:
        folder: The folder.

    Yields:
        The mark.
    """
    with ended_with_us(MARK, str(folder)):
        try:
            yield str(folder)
        finally:
            signal_marked(MARK, str(folder), signal.SIGKILL)


class _Output(threading.Thread):
    """Adds what arrives in a pipe to a log, and keeps its end."""

    def __init__(self, pipe: IO[bytes], log: Path) -> None:
        super().__init__(name="output of a script", daemon=True)
        self._pipe, self._log, self._descriptor = pipe, log, -1
        self._tail = bytearray()
        self._is_over = False
        self.start()

    def run(self) -> None:
        ready = select.poll()
        ready.register(self._pipe, select.POLLIN)
        # A process that has cleared its environment may have survived, and keep the pipe open.
        while ready.poll(1e3 * POLL_INTERVAL) or not self._is_over:
            if not ready.poll(0):
                continue
            if not (chunk := self._pipe.read(CHUNK_BYTES)):
                break
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            self._write(chunk)
        self._pipe.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def finish(self) -> None:
        """Wait for the last of the output."""
        self._is_over = True
        self.join(OUTPUT_TIMEOUT)

    def tail(self) -> str:
        """Return the end of the output."""
        return bytes(self._tail).decode(errors="replace")

    def _write(self, chunk: bytes) -> None:
        """Add a chunk to the log, which may have no room."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with suppress(OSError):
            if self._descriptor < 0:
                self._log.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(self._log, flags, 0o600)
            while chunk:
                chunk = chunk[os.write(self._descriptor, chunk) :]
