"""The page beside a pool: a process that ``up --serve`` starts, and ``down`` ends.

It is a process of its own, as is that of ``lightning-core serve``: what becomes of it does not matter to the pool. It
outlives the shell, and a restart of the scheduler. If it ends, ``lightning-core serve`` starts another one. It is known
by its id and start time, in a file of the pool's folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from lightning_core.errors import LightningCoreError
from lightning_core.node.processes import is_alive, started
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.private_files import owner_only, read_own

# What is known of the process, and what it prints: the link that works once is in it, so it is the user's alone.
FILE, LOG = "page.json", "page.log"
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_BYTES = 2**16
# Seconds until its link is there, and that it has to end.
START_TIMEOUT, END_TIMEOUT = 60.0, 5.0


class PageError(LightningCoreError, RuntimeError):
    """The page did not start; the message says why."""


def start_page(folder: Path, port: int) -> str:
    """Start the page of a pool, after ending the one that an earlier ``up`` has left.

    Args:
        folder: Folder of the pool.
        port: Port to listen on; 0 for any that is free.

    Returns:
        What it says of itself, with its link.

    Raises:
        PageError: If it does not start.
    """
    folder = folder.expanduser().resolve()
    end_page(folder)
    command = [sys.executable, "-m", "lightning_core", "serve", "--pool", str(folder), "--port", str(port)]
    with owner_only(), os.fdopen(os.open(folder / LOG, LOG_FLAGS, 0o600), "w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        noted = json.dumps({"pid": process.pid, "started": started(process.pid) or 0})
        write_whole(folder / FILE, noted)
    until = time.monotonic() + START_TIMEOUT
    while process.poll() is None and time.monotonic() < until:
        if "/enter?key=" in (told := _told(folder)) and told.endswith("\n"):
            return told.rstrip()
        time.sleep(0.1)
    why = _told(folder).strip().rpartition("\n")[2] or f"it said nothing within {START_TIMEOUT:.0f} s"
    end_page(folder)
    process.wait()
    raise PageError(f"the page did not start: {why}")


def end_page(folder: Path) -> None:
    """End the page that :func:`start_page` started, if it runs."""
    folder = folder.expanduser().resolve()
    try:
        noted = json.loads(read_own(folder, FILE, MAX_BYTES))
        pid, is_there = int(noted["pid"]), is_alive(noted)
    except (OSError, ValueError, KeyError, TypeError):
        return
    if is_there:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + END_TIMEOUT
        while is_alive(noted) and time.monotonic() < until:
            time.sleep(0.05)
        if is_alive(noted):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    (folder / FILE).unlink(missing_ok=True)


def _told(folder: Path) -> str:
    try:
        return read_own(folder, LOG, MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""
