"""The Ray of a pool that outlives the shell: a process group of its own, with its token and its temporary folder.

Ray reads its token from the environment when it is imported, so this module does not import it at the top.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_core.errors import LightningCoreError
from lightning_core.node.processes import is_alive
from lightning_core.node.signals import SignalReceivedError, protected_from_ray
from lightning_core.server.ray_settings import NAMESPACE, WORKER_NICENESS
from lightning_core.storage.private_files import owner_only

# Seconds that the head may take to start, and to end.
START_TIMEOUT, END_TIMEOUT = 60.0, 15.0
# A socket's path has at most 107 characters; Ray needs the rest for its own names.
TEMP_PREFIX = "lc-"
MAX_TEMP_LENGTH = 40


class HeadError(LightningCoreError, RuntimeError):
    """The pool cannot be started or ended; the message says why."""


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


def start_ray(folder: Path, head: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """Start the process of a head, with a new token that this process takes as well.

    Args:
        folder: Folder of the pool, for the log.
        head: Content of its ``head.json``.
    """
    token = Path(head["token"])
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    _take_token(head)  # before Ray is imported, which reads it once
    resources = {"device": head["devices"]} if head["kind"] == "cpu" else {}
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0",
        f"--temp-dir={Path(head['temp']) / 'ray'}", "--include-dashboard=false", "--disable-usage-stats",
        "--no-monitor", "--include-log-monitor=false",  # no autoscaler and no log reader: neither is used
        "--node-ip-address=127.0.0.1", f"--object-store-memory={100 * 2**20}", f"--resources={json.dumps(resources)}",
    ]  # fmt: skip
    # When the head is told to end, its jobs have left: there is nothing to drain.
    environment = os.environ | WORKER_NICENESS | {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
    with owner_only(), (folder / "head.log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=0o077,
            env=environment,
        )


def await_address(process: subprocess.Popen[bytes], head: Mapping[str, Any], folder: Path, received: list[int]) -> str:
    """Return the address of a head as soon as it has one.

    Raises:
        HeadError: If Ray does not start.
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
            break
        time.sleep(0.1)
    raise HeadError(f"Ray did not start; see {folder / 'head.log'}")


def _take_token(head: Mapping[str, Any]) -> None:
    os.environ.pop("RAY_AUTH_TOKEN", None)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": head["token"]}


@contextmanager
def joined(head: Mapping[str, Any]) -> Iterator[Any]:
    """Join this process to the Ray of a head."""
    _take_token(head)
    import ray

    with protected_from_ray():
        ray.init(address=head["address"], namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


def end_ray(head: Mapping[str, Any]) -> None:
    """End the process group of the head, and remove its files."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not is_alive(head):
            break
        os.killpg(head["pid"], number)
        until = time.monotonic() + END_TIMEOUT
        while is_alive(head) and time.monotonic() < until:
            time.sleep(0.1)
    if Path(head["temp"]).name.startswith(TEMP_PREFIX):  # head.json may hold anything
        shutil.rmtree(head["temp"], ignore_errors=True)
