"""Where the pool is: found by its folder or its address, spoken to through its door.

A pool that ``lightning-core up`` brought up notes in its folder where its door is. The door of a pool on another
machine is brought here by a helper process that has joined its Ray (:mod:`lightning_core.server.proxy`), so that no
script has to: Ray ends every process that has joined a cluster whose head is lost.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lightning_core.node.processes import is_alive
from lightning_core.server.client import SocketClient
from lightning_core.server.probe import UNUSABLE, PoolUnavailableError, check

__all__ = ["AUTO", "LOCAL", "PoolUnavailableError", "connect", "home", "is_address", "read_head"]

log = logging.getLogger(__name__)

# How long the helper may take to join a Ray, seconds.
BRIDGE_PATIENCE = 60.0
AUTO, LOCAL = "auto", "local"


class Proxy(NamedTuple):
    """A helper process that has joined a Ray, and its folder."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def door(self) -> Path:
        """Of the pool, here."""
        return self.folder / "door"


# By process and address: a forked child has no part in its parent's.
_bridges: dict[tuple[int, str], Proxy] = {}


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
        PoolUnavailableError: if a pool was named that cannot be joined, however often one tries.
        ConnectionError: if a pool was named and cannot be reached.
    """
    if pool == AUTO:
        pool = os.environ.get("LIGHTNING_CORE_POOL") or AUTO
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


def is_found(pool: str) -> bool:
    """Whether a pool is meant that nobody has named: the one that is up on this machine."""
    return pool == AUTO and os.environ.get("LIGHTNING_CORE_POOL", AUTO) == AUTO


def describe(about: Mapping[str, Any]) -> str:
    """Say which pool it is, from what it says of itself.

    Example::

        >>> describe({"folder": "/pool", "devices": ["cpu0", "cpu1"], "settings": {"devices": 2, "policy": "triage"}})
        'the pool at /pool (2 cpu devices, triage)'
    """
    settings = about["settings"]
    many = settings["devices"]
    return f"the pool at {about['folder']} ({many} {kind_of(about)} device{'s' * (many > 1)}, {settings['policy']})"


def kind_of(about: Mapping[str, Any]) -> Literal["cpu", "gpu"]:
    """Return the kind of a pool's devices, from what it says of itself."""
    if about["devices"]:
        return "cpu" if about["devices"][0].startswith("cpu") else "gpu"
    return "cpu" if about["settings"]["quantum"] < 1 else "gpu"  # they are not known for a moment after a restart


def is_address(pool: str) -> bool:
    """Whether it is ``host:port`` and no path."""
    host, _, port = pool.rpartition(":")
    return bool(host) and port.isdigit() and "/" not in pool


def read_head(folder: Path) -> dict[str, Any] | None:
    """What the pool in a folder noted of itself; None if there is none.

    Raises:
        ConnectionError: if the note cannot be understood.
    """
    note = folder / "head.json"
    try:
        head = json.loads(note.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConnectionError(f"{note} cannot be read: {error}") from None
    kinds = {"pid": int, "started": int, "temp": str, "socket": str, "token": str}
    if not isinstance(head, dict) or not all(isinstance(head.get(key), kind) for key, kind in kinds.items()):
        raise ConnectionError(f"{note} is no note of a pool")
    return head


def _bridge(address: str) -> Path:
    key = os.getpid(), address
    known = _bridges.get(key)
    if known is not None:
        if known.process.poll() is None:
            return known.door
        _close_bridge(key)
    check(address)
    if (mode := os.environ.get("RAY_AUTH_MODE", "token")) != "token":
        log.warning(
            "RAY_AUTH_MODE=%s: the Ray at %s may ask nobody for a token; whoever reaches it owns it", mode, address
        )
    folder = Path(tempfile.mkdtemp(prefix="lc-"))
    errors = folder / "errors"
    command = [sys.executable, "-m", "lightning_core.server.proxy", address, str(folder / "door")]
    with errors.open("wb") as file:  # not a pipe: nobody would empty it
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=file)
    bridge = _bridges[key] = Proxy(process, folder)
    try:
        until = time.monotonic() + BRIDGE_PATIENCE
        while not bridge.door.exists():
            if process.poll() is not None:
                words = errors.read_text(errors="replace").strip().rsplit("\n", 1)[-1]
                kind = PoolUnavailableError if process.poll() == UNUSABLE else ConnectionError
                raise kind(words or f"{address}: the pool cannot be reached")
            if time.monotonic() > until:
                raise ConnectionError(f"{address}: no answer within {BRIDGE_PATIENCE:.0f} s")
            time.sleep(0.05)
    except BaseException:
        _close_bridge(key)
        raise
    return bridge.door


def _close_bridge(key: tuple[int, str]) -> None:
    process, folder = _bridges.pop(key)
    process.kill()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


@atexit.register
def _close_bridges() -> None:
    for key in list(_bridges):
        if key[0] == os.getpid():
            _close_bridge(key)
