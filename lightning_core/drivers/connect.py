"""Where the pool is: found by its folder or its address, spoken to through its door.

A pool that ``lightning-core up`` brought up notes in its folder where its door is. The door of a pool on another
machine is brought here by a helper process that has joined its Ray (:mod:`lightning_core.drivers.bridge`), so that no
script has to: Ray ends every process that has joined a cluster whose head is lost.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lightning_core.drivers.wire import SocketClient

# How long the helper may take to join a Ray, seconds.
BRIDGE_PATIENCE = 60.0
AUTO, LOCAL = "auto", "local"
_bridges: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}


def home() -> Path:
    """The folder of the pool that ``lightning-core up`` brings up unless told otherwise."""
    return Path(os.environ.get("LIGHTNING_CORE_HOME", "~/.lightning_core")).expanduser() / "pool"


def connect(pool: str = AUTO) -> SocketClient | None:
    """A client of the pool; nothing has been sent yet.

    Args:
        pool: ``"auto"`` for the one whose place ``LIGHTNING_CORE_POOL`` names, else the one that runs on this machine;
            ``"local"`` for none; else the folder of a pool or the address of a Ray, ``host:port``.

    Returns:
        None if there is none, or none is wanted.

    Raises:
        ConnectionError: if a pool was named and cannot be reached.
    """
    if pool == AUTO:
        pool = os.environ.get("LIGHTNING_CORE_POOL", AUTO)
    if pool == LOCAL:
        return None
    if pool == AUTO:
        head = read_head(home())
        return SocketClient(Path(head["socket"])) if head is not None and is_alive(head) else None
    if is_address(pool):
        return SocketClient(_bridge(pool))
    head = read_head(Path(pool).expanduser())
    if head is None:
        raise ConnectionError(f"{pool}: there is no pool; `lightning-core up --folder {pool}` brings one up")
    if not is_alive(head):
        raise ConnectionError(f"{pool}: its pool is down")
    return SocketClient(Path(head["socket"]))


def is_address(pool: str) -> bool:
    """Whether it is ``host:port`` and no path."""
    host, _, port = pool.rpartition(":")
    return bool(host) and port.isdigit() and "/" not in pool


def read_head(folder: Path) -> dict[str, Any] | None:
    """What the pool in a folder noted of itself; None if there is none."""
    try:
        head = json.loads((folder / "head.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConnectionError(f"{folder / 'head.json'} cannot be read: {error}") from None
    return head if isinstance(head, dict) else None


def is_alive(head: dict[str, Any]) -> bool:
    """Whether the head's process runs, and is the one that was started then."""
    return bool(started(head["pid"]) == head["started"])


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None if there is none. Process ids come again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state == "Z" else int(rest[18])


def _bridge(address: str) -> Path:
    process, path = _bridges.get(address, (None, None))
    if process is not None and path is not None and process.poll() is None:
        return path
    folder = Path(tempfile.mkdtemp(prefix="lc-"))
    path = folder / "door"
    command = [sys.executable, "-m", "lightning_core.drivers.bridge", address, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    _bridges[address] = process, path
    atexit.register(_close_bridge, process, folder)
    until = time.monotonic() + BRIDGE_PATIENCE
    while not path.exists():
        if process.poll() is not None:
            words = process.stderr.read().decode(errors="replace").strip() if process.stderr is not None else ""
            raise ConnectionError(words.rsplit("\n", 1)[-1] or f"{address}: the pool cannot be reached")
        if time.monotonic() > until:
            process.kill()
            raise ConnectionError(f"{address}: no answer within {BRIDGE_PATIENCE:.0f} s")
        time.sleep(0.05)
    return path


def _close_bridge(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
