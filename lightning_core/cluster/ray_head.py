"""The Ray of a pool that outlives the shell: a process group of its own, with its token and its temporary folder.

Ray reads its token from the environment when it is imported, so this module does not import it at the top.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_core.cluster.local_machines import HEALTH
from lightning_core.errors import LightningCoreError
from lightning_core.node.processes import is_alive, is_marked
from lightning_core.node.signals import SignalReceivedError, protected_from_ray
from lightning_core.server.probe import no_answer
from lightning_core.server.ray_settings import NAMESPACE, OBJECT_STORE_BYTES, PRIVATE_RAY
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.private_files import owner_only, read_own

# Seconds that the head may take to start, and to end.
START_TIMEOUT, END_TIMEOUT = 300.0, 15.0
# A socket's path has at most 107 characters; Ray needs the rest for its own names.
TEMP_PREFIX = "lc-"
MAX_TEMP_LENGTH = 40
# Variable and file with the mark of a head, and the pattern of a mark.
MARK, MARK_FILE = "LIGHTNING_CORE_HEAD", "mark"
_MARK = re.compile("[0-9a-f]{32}")


class HeadError(LightningCoreError, RuntimeError):
    """The pool cannot be started or ended; the message says why."""


class RayExitedError(HeadError):
    """Ray has ended before it was up; the message has its last words."""


def new_temp_folder() -> Path:
    """Return a new folder for the files of a head, readable by its user only, unlike the one that Ray would make.

    Raises:
        HeadError: If its path would be too long for Ray's sockets.
    """
    temp = Path(tempfile.mkdtemp(prefix=TEMP_PREFIX))
    if len(str(temp)) > MAX_TEMP_LENGTH:
        temp.rmdir()
        raise HeadError(f"{temp.parent} is too long a path for Ray's sockets; set TMPDIR to a shorter path")
    return temp


def new_head(devices: int, kind: str) -> dict[str, Any]:
    """Return the content of ``head.json`` before the head has started, with a new folder for its files.

    A random mark is in it, in a file of the folder and in the environment of the head's processes: :func:`end_ray` ends
    and removes nothing else.

    Raises:
        HeadError: If no such folder can be made.
    """
    temp, mark = new_temp_folder(), secrets.token_hex(16)
    with owner_only():
        write_whole(temp / MARK_FILE, mark)
    return {"pid": 0, "started": 0, "temp": str(temp), "socket": str(temp / "socket"), "token": str(temp / "token"),
            "devices": devices, "kind": kind, "mark": mark}  # fmt: skip


def start_ray(folder: Path, head: Mapping[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
    """Start the process of a head, with a token that this process takes as well.

    Args:
        folder: Folder of the pool, for the log.
        head: Content of its ``head.json``. Remains of an earlier start in its temporary folder are removed, but for the
            token: this process may have read it already.

    Returns:
        The process, and where in the log its words begin: those of earlier heads stand before.
    """
    token, files = Path(head["token"]), Path(head["temp"]) / "ray"
    shutil.rmtree(files, ignore_errors=True)
    if not token.exists():
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
    _take_token(head)  # before Ray is imported, which reads it once
    resources = {"device": head["devices"]} if head["kind"] == "cpu" and head["devices"] else {}
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0",
        f"--temp-dir={files}", "--include-dashboard=false", "--disable-usage-stats",
        "--no-monitor", "--include-log-monitor=false",  # no autoscaler and no log reader: neither is used
        "--node-ip-address=127.0.0.1", f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--resources={json.dumps(resources)}", *_client_port(),
    ]  # fmt: skip
    # When the head is told to end, its jobs have left: there is nothing to drain.
    quick = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
    if not head["devices"]:  # its nodes have them, and are missed within seconds
        quick |= HEALTH
    environment = os.environ | PRIVATE_RAY | quick | {MARK: head["mark"]}
    with owner_only(), (folder / "head.log").open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=0o077,
            env=environment,
        )
    return process, begin


def _client_port() -> list[str]:
    """Return the option that gives a free port to Ray's server for clients, which nothing here uses.

    Ray starts it where grpcio is installed, and a head ends at once if the port is taken: by default every Ray of a
    machine has the same. Without grpcio the option is refused.
    """
    spec = find_spec("grpc")
    if spec is None or spec.origin is None:
        return []
    with socket.socket() as probe:
        probe.bind(("", 0))
        return [f"--ray-client-server-port={probe.getsockname()[1]}"]


def await_address(
    process: subprocess.Popen[bytes], begin: int, head: Mapping[str, Any], folder: Path, received: list[int]
) -> str:
    """Return the address of a head, which :func:`start_ray` has started, as soon as it has one.

    Raises:
        RayExitedError: If Ray ends instead.
        HeadError: If it takes too long.
        SignalReceivedError: If a signal is received.
    """
    note = Path(head["temp"]) / "ray" / "ray_current_cluster"
    until = time.monotonic() + START_TIMEOUT
    while time.monotonic() < until:
        if received:
            raise SignalReceivedError(received[0])
        if note.exists() and (address := note.read_text().strip()):
            return address
        if process.poll() is not None:
            raise RayExitedError(f"Ray did not start: {_last_words(folder, begin)}; see {folder / 'head.log'}")
        time.sleep(0.1)
    raise HeadError(f"Ray has not started within {START_TIMEOUT:.0f} s; see {folder / 'head.log'}")


def _last_words(folder: Path, begin: int) -> str:
    """Return the last line that the head has written, or that it has written none."""
    lines = (folder / "head.log").read_bytes()[begin:].decode(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return said[-1] if said else "it said nothing"


def _take_token(head: Mapping[str, Any]) -> None:
    """Take the token of a head that was started here; that of a cluster which is joined is in the environment."""
    if not head["token"]:
        return
    os.environ.pop("RAY_AUTH_TOKEN", None)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": head["token"]}


@contextmanager
def joined(head: Mapping[str, Any]) -> Iterator[Any]:
    """Join this process to the Ray of a head.

    Raises:
        HeadError: If nothing answers at its address, for which Ray would wait for minutes.
    """
    _take_token(head)
    if why := no_answer(head["address"]):
        raise HeadError(why)
    import ray

    with protected_from_ray():
        ray.init(address=head["address"], namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


def end_ray(head: Mapping[str, Any]) -> None:
    """End the process group of the head, and remove its files; of a cluster that was joined nothing is ended.

    Raises:
        HeadError: If the process is not a head that this version has started; nothing is ended or removed then.
    """
    is_ours = not head.get("joined")
    if is_ours and is_alive(head):
        check_head(head)
    for number in (signal.SIGTERM, signal.SIGKILL) if is_ours else ():
        if not is_alive(head):
            break
        os.killpg(head["pid"], number)
        until = time.monotonic() + END_TIMEOUT
        while is_alive(head) and time.monotonic() < until:
            time.sleep(0.1)
    _remove_temp(Path(head["temp"]), _mark_of(head))


def check_head(head: Mapping[str, Any]) -> None:
    """Check that the process that ``head.json`` names is the head of a pool.

    Raises:
        HeadError: If it is not.
    """
    if head.get("joined"):
        return
    if not (mark := _mark_of(head)) or not is_marked(head["pid"], MARK, mark):
        raise HeadError(
            f"head.json names process {head['pid']}, which is not the head of this pool, or was started by another "
            "version of lightning_core: nothing was ended or removed; end it with that version, or remove head.json"
        )


def _mark_of(head: Mapping[str, Any]) -> str:
    mark = head.get("mark")
    return mark if isinstance(mark, str) and _MARK.fullmatch(mark) else ""


def _remove_temp(temp: Path, mark: str) -> None:
    """Remove the folder of a head's files, if it is one: ``head.json`` may hold anything."""
    if not os.path.lexists(temp):
        return
    try:
        if not temp.is_absolute() or not temp.name.startswith(TEMP_PREFIX) or not mark:
            raise ValueError("a head's folder has another name")
        parent = os.open(temp.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            status = os.stat(temp.name, dir_fd=parent, follow_symlinks=False)
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
                raise ValueError("it is not a private folder of this user")
            if read_own(temp, MARK_FILE, len(mark)).decode() != mark:
                raise ValueError("head.json belongs to another head process")
            shutil.rmtree(temp.name, ignore_errors=True, dir_fd=parent)
        finally:
            os.close(parent)
    except (OSError, ValueError) as error:
        print(f"{temp} was not removed: it was not made by this pool: {error}", file=sys.stderr)
