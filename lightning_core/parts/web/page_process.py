"""The page beside a pool, which ``up --serve`` starts and ``down`` ends.

The page is a process of its own, as with ``lightning-core serve``, so no fault of it reaches the pool. It outlives the
shell and restarts of the scheduler. A second process, its guard, restarts it when it dies
(:mod:`lightning_core.parts.web.page_guard`). A file in the pool's folder has the ids and start times of both.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lightning_core.bundle.problems import require
from lightning_core.core.limits import shown
from lightning_core.errors import LightningCoreError
from lightning_core.node.processes import is_alive
from lightning_core.parts.web import page_guard
from lightning_core.parts.web.page_guard import FILE, LINK, LOG
from lightning_core.storage.private_files import owner_only, read_own

# Packages that the page needs beside those of a pool.
NEEDS = ("starlette", "uvicorn", "prometheus_client")
# Port by default, and the largest.
PORT, MAX_PORT = 8710, 65535
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_BYTES = 2**16
# Seconds that it has to print its link, and to end.
START_TIMEOUT, END_TIMEOUT = 60.0, 5.0


class PageError(LightningCoreError, RuntimeError):
    """The page did not start; the message says why."""


def read_port(text: str) -> int:
    """Read the port of a page that can be served here; an empty text is the default one.

    Raises:
        ValueError: If it is no port.
        BundleError: If a package that the page needs is not installed.
    """
    require(*NEEDS, extra="serve")
    if not text:
        return PORT
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) > MAX_PORT:
        raise ValueError(f"--serve must be a port from 0 to {MAX_PORT}, got {shown(text)}")
    return int(text)


def start_page(folder: Path, port: int) -> str:
    """Start the page of a pool, after ending one that an earlier ``up`` left.

    Args:
        folder: Folder of the pool.
        port: Port to listen on; 0 for any that is free.

    Returns:
        Its own description, with its link.

    Raises:
        PageError: If it does not start.
    """
    folder = folder.expanduser().resolve()
    end_page(folder)
    command = [sys.executable, "-m", page_guard.__name__, str(folder), str(port)]
    with owner_only(), os.fdopen(os.open(folder / LOG, LOG_FLAGS, 0o600), "w") as log:
        guard = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    until = time.monotonic() + START_TIMEOUT
    while guard.poll() is None and time.monotonic() < until:
        if LINK.search(output := _output(folder)) and output.endswith("\n"):
            return output.rstrip()
        time.sleep(0.1)
    why = _output(folder).strip().rpartition("\n")[2] or f"no output within {START_TIMEOUT:.0f} s"
    guard.terminate()
    guard.wait()
    end_page(folder)
    raise PageError(f"the page did not start: {why}; `lightning-core serve` tries again")


def end_page(folder: Path) -> None:
    """End the page that :func:`start_page` started, and its guard, if they run."""
    folder = folder.expanduser().resolve()
    try:
        noted = json.loads(read_own(folder, FILE, MAX_BYTES))
        both = [{"pid": int(noted[name]["pid"]), "started": noted[name]["started"]} for name in ("guard", "page")]
        running = [process for process in both if is_alive(process)]
    except (OSError, ValueError, KeyError, TypeError):
        return
    # The guard first: it ends the page. A page whose guard was killed is still there.
    for process in running:
        _end(process)
    (folder / FILE).unlink(missing_ok=True)


def _end(process: Mapping[str, int]) -> None:
    with suppress(ProcessLookupError):
        if is_alive(process):
            os.kill(process["pid"], signal.SIGTERM)
        until = time.monotonic() + END_TIMEOUT
        while is_alive(process) and time.monotonic() < until:
            time.sleep(0.05)
        if is_alive(process):
            os.kill(process["pid"], signal.SIGKILL)


def _output(folder: Path) -> str:
    try:
        return read_own(folder, LOG, MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""
