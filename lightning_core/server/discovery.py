"""Find a pool by its folder or its address, and connect to its server.

A pool that ``lightning-core up`` started writes the path of its server's socket into its folder. The server of a pool
on another machine is reached through a proxy process that has joined its Ray (:mod:`lightning_core.server.proxy`), so
that no script has to: Ray ends every process that has joined a cluster whose head is lost.
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
from lightning_core.server.access.groups import socket_in
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.probe import UNREACHABLE, UNUSABLE, PoolUnavailableError, check
from lightning_core.storage.private_files import NotOursError, read_own, this_user
from lightning_core.variables import AUTO, LOCAL

__all__ = ["AUTO", "LOCAL", "PoolUnavailableError", "connect", "home", "is_address", "read_head"]

log = logging.getLogger(__name__)

# Seconds that a proxy may take to join a Ray.
PROXY_START_SECONDS = 60.0
HEAD, MAX_HEAD_BYTES = "head.json", 2**16


class Proxy(NamedTuple):
    """A proxy process that has joined a Ray, and its folder."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def socket(self) -> Path:
        """Path of the proxy's socket."""
        return self.folder / "socket"


# By process and address: a forked child does not use the proxies of its parent.
_proxies: dict[tuple[int, str], Proxy] = {}


def home() -> Path:
    """Return the folder of the pool that ``lightning-core up`` starts by default.

    An account without a home folder, as containers have them, has its own folder among the temporary ones.
    """
    given = os.path.expanduser(os.environ.get("LIGHTNING_CORE_HOME") or "~/.lightning_core")
    return Path(f"/tmp/lightning_core-{this_user()}" if given.startswith("~") else given) / "pool"


def folder_here() -> Path:
    """Return the folder of the pool that ``LIGHTNING_CORE_POOL`` names, or else that of the default one.

    Raises:
        ValueError: If it names a pool by an address.
    """
    pool = os.environ.get("LIGHTNING_CORE_POOL") or AUTO
    if is_address(pool) or is_url(pool):
        raise ValueError(f"LIGHTNING_CORE_POOL={pool} is no folder: name the folder of a pool with --folder")
    return home() if pool in (AUTO, LOCAL) else Path(pool)


def connect(pool: str = AUTO) -> SocketClient | None:
    """Return a client of a pool, which has not sent anything yet.

    Args:
        pool: ``"auto"`` for the pool that ``LIGHTNING_CORE_POOL`` names, or else the one that runs on this machine;
            ``"local"`` for none; otherwise the folder of a pool, the folder that a pool of another account has opened
            to a group, or the address of a Ray, ``host:port``.

    Returns:
        The client; None if no pool was named and none is up, or with ``"local"``.

    Raises:
        PoolUnavailableError: If the named pool cannot be joined, and retrying will not help.
        ConnectionError: If the named pool cannot be reached.
    """
    if pool == AUTO:
        pool = os.environ.get("LIGHTNING_CORE_POOL") or AUTO
    if pool == LOCAL:
        return None
    if pool == AUTO:
        head = read_head(home())
        return _client(home(), head) if head is not None and is_alive(head) else None
    if is_url(pool):
        raise PoolUnavailableError("a pool cannot be joined over HTTP; name its folder, or host:port of its Ray")
    if is_address(pool):
        return SocketClient(_start_proxy(pool), pool=pool)
    folder = Path(pool).expanduser()
    head = read_head(folder)
    if head is None and (path := _group_socket(folder)) is not None:
        return SocketClient(path)
    if head is None:
        raise ConnectionError(f"{pool}: there is no pool; `lightning-core up --folder {pool}` starts one")
    if not is_alive(head):
        raise ConnectionError(f"{pool}: its pool is down")
    return _client(folder, head)


def _client(folder: Path, head: Mapping[str, Any]) -> SocketClient:
    return SocketClient(Path(head["socket"]), pool=str(folder.resolve()))


def _group_socket(folder: Path) -> Path | None:
    try:
        return socket_in(folder)
    except NotOursError as error:
        raise PoolUnavailableError(str(error)) from None


def is_found(pool: str) -> bool:
    """Return whether no pool was named: then the one that is up on this machine is used."""
    return pool == AUTO and os.environ.get("LIGHTNING_CORE_POOL", AUTO) == AUTO


def describe(about: Mapping[str, Any]) -> str:
    """Return a description of a pool as text.

    Example::

        >>> describe({"folder": "/pool", "devices": ["cpu0", "cpu1"], "settings": {"devices": 2, "policy": "triage"}})
        'the pool at /pool (2 cpu devices, triage)'
    """
    settings = about["settings"]
    many = settings["devices"]
    return f"the pool at {about['folder']} ({many} {kind_of(about)} device{'s' * (many > 1)}, {settings['policy']})"


def kind_of(about: Mapping[str, Any]) -> Literal["cpu", "gpu"]:
    """Return the kind of a pool's devices, from its own description."""
    if about["devices"]:
        return "cpu" if about["devices"][0].startswith("cpu") else "gpu"
    return "cpu" if about["settings"]["quantum"] < 1 else "gpu"  # devices are not known for a moment after a restart


def is_address(pool: str) -> bool:
    """Return whether a pool is named by an address, ``host:port``, and not by a path."""
    host, _, port = pool.rpartition(":")
    return bool(host) and port.isdigit() and "/" not in pool


def is_url(pool: str) -> bool:
    """Return whether a pool is named by its address over HTTP: it is watched and steered so, and not joined."""
    return pool.startswith(("http://", "https://"))


def read_head(folder: Path) -> dict[str, Any] | None:
    """Return the content of ``head.json`` in a pool's folder; None if there is no such file.

    Raises:
        PoolUnavailableError: If another user could have written it.
        ConnectionError: If it cannot be read, or is invalid.
    """
    path = folder / HEAD
    if not os.path.lexists(path):
        return None
    try:
        head = json.loads(read_own(folder, HEAD, MAX_HEAD_BYTES))
    except NotOursError as error:
        raise PoolUnavailableError(str(error)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConnectionError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    kinds = {"pid": int, "started": int, "temp": str, "socket": str, "token": str}
    if not isinstance(head, dict) or not all(isinstance(head.get(key), kind) for key, kind in kinds.items()):
        raise ConnectionError(f"{path} was not written by a pool: it must have {', '.join(kinds)}")
    return head


def _start_proxy(address: str) -> Path:
    key = os.getpid(), address
    known = _proxies.get(key)
    if known is not None:
        if known.process.poll() is None:
            return known.socket
        _close_proxy(key)
    check(address)
    if (mode := os.environ.get("RAY_AUTH_MODE", "token")) != "token":
        log.warning(
            "RAY_AUTH_MODE=%s: the Ray at %s may require no token; anyone who can reach it can run code there",
            mode,
            address,
        )
    folder = Path(tempfile.mkdtemp(prefix="lc-"))
    errors = folder / "errors"
    command = [sys.executable, "-m", "lightning_core.server.proxy", address, str(folder / "socket")]
    with errors.open("wb") as file:  # not a pipe, which nothing would read
        # In a session of its own: Ctrl-C, or what kills this process and its group, must not end it before it has told
        # the pool what has become of the jobs of this process.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=file, start_new_session=True)
    proxy = _proxies[key] = Proxy(process, folder)
    try:
        until = time.monotonic() + PROXY_START_SECONDS
        while not proxy.socket.exists():
            if process.poll() is not None:
                raise _why_ended(address, process.wait(), errors.read_text(errors="replace").strip())
            if time.monotonic() > until:
                raise ConnectionError(f"{address}: no answer within {PROXY_START_SECONDS:.0f} s")
            time.sleep(0.05)
    except BaseException:
        _close_proxy(key)
        raise
    return proxy.socket


def _why_ended(address: str, code: int, words: str) -> ConnectionError:
    """Return why a proxy has ended: its last message, or the first one of Ray before it ended the process."""
    if code in (UNREACHABLE, UNUSABLE):
        return (PoolUnavailableError if code == UNUSABLE else ConnectionError)(words.rsplit("\n", 1)[-1])
    first = words.split("\n", 1)[0][:200]
    return ConnectionError(
        f"{address}: the pool cannot be reached: the process that joins its Ray ended ({first or code})"
    )


def _close_proxy(key: tuple[int, str]) -> None:
    process, folder = _proxies.pop(key)
    process.kill()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


@atexit.register
def _close_proxies() -> None:
    for key in list(_proxies):
        if key[0] == os.getpid():
            _close_proxy(key)
