"""The guard of the page beside a pool: starts the page, restarts it when it dies, and ends it when terminated.

The guard is a small process of its own, so that a fault of the page does not end it too. A page that dies repeatedly
is restarted after growing pauses, and given up after :data:`MAX_STARTS` starts in a row. It restarts on the same port,
with a new link, which is in the log; users sign in again by that link.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from lightning_core.core.durations import format_duration
from lightning_core.node.processes import started
from lightning_core.storage.atomic_files import write_whole

# File with the ids of both processes, and their log, which is private: it has the link that works once.
FILE, LOG = "page.json", "page.log"
LINK = re.compile(r":(?P<port>[0-9]+)/enter\?key=")
# Seconds before a page that has died is started again: the first pause, which doubles up to the longest.
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0
# Starts in a row after which it is given up, and seconds of service that reset the count.
MAX_STARTS, STEADY = 10, 600.0
# Seconds that the page has to end before it is killed.
END_TIMEOUT = 4.0


def serving(folder: Path, port: int) -> list[str]:
    """Return the command that serves the page of a pool."""
    return [sys.executable, "-m", "lightning_core", "serve", "--pool", str(folder), "--port", str(port)]


def guard(
    folder: Path,
    port: int,
    command: Callable[[Path, int], Sequence[str]] = serving,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Guard the page of a pool until it is given up.

    Args:
        folder: Folder of the pool.
        port: Port to listen on; 0 for any that is free, which is kept.
        command: Returns the command that serves the page of a folder on a port.
        sleep: Waits for some seconds.
        clock: Monotonic time in seconds.

    Returns:
        How the page ended last: its exit code, negative for a signal.
    """
    starts = 0
    while True:
        began, starts = clock(), starts + 1
        code = _serve(folder, command(folder, port))
        link = LINK.search((folder / LOG).read_text(errors="replace"))
        if link is None:  # it never started, and has said why
            return code
        port = port or int(link["port"])
        starts = 1 if clock() - began >= STEADY else starts
        ended = f"the page ended with {code}"
        if starts == MAX_STARTS:
            print(f"{ended}, {starts} times in a row: giving up; `lightning-core serve` starts one", flush=True)
            return code
        pause = min(FIRST_PAUSE * 2 ** (starts - 1), MAX_PAUSE)
        words = f"it is started again in {format_duration(pause)} ({starts} of {MAX_STARTS - 1})"
        print(f"{ended}; {words}, with a new link", flush=True)
        sleep(pause)


def _serve(folder: Path, command: Sequence[str]) -> int:
    """Serve the page until it ends; end it when this process is terminated."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as page:
        try:
            known = [{"pid": pid, "started": started(pid) or 0} for pid in (os.getpid(), page.pid)]
            write_whole(folder / FILE, json.dumps({"guard": known[0], "page": known[1]}))
            return page.wait()
        finally:
            page.terminate()
            with suppress(subprocess.TimeoutExpired):
                page.wait(END_TIMEOUT)
            page.kill()


def _end(*_: object) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(abs(guard(Path(sys.argv[1]), int(sys.argv[2]))))
