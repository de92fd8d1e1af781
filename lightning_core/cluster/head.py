"""A Ray head that outlives the shell, with one pool on it: what ``lightning-core up`` starts and ``down`` ends.

Rules

1. The head is a process group of its own, known by its process id and start time: ``down`` ends that, and no other Ray.
2. Ray's token and all folders are the user's alone. Ray listens on the machine's address whatever one asks: the token
   keeps strangers out.
3. The pool's folder outlives the head: journal, specs and what jobs saved. Brought up again, the pool goes on.
"""

from __future__ import annotations

import fcntl
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
from datetime import datetime
from pathlib import Path
from typing import Any

from lightning_core.core.events import Close, WorkersLost
from lightning_core.errors import LightningCoreError
from lightning_core.node.processes import is_alive, started
from lightning_core.node.signals import SignalReceivedError, protected_from_ray, recorded_signals
from lightning_core.scheduler.settings import Settings
from lightning_core.server.client import SocketClient
from lightning_core.server.discovery import read_head
from lightning_core.server.proxy import POOL
from lightning_core.server.ray_settings import NICE
from lightning_core.storage.journal import Journal, JournalError, replay
from lightning_core.storage.private_files import owner_only, private_folder

# How long the head may take to come up, jobs to save and leave, and processes to end, seconds.
UP, LEAVE, END = 60.0, 60.0, 15.0
# A socket's path has 107 characters at most; Ray needs the rest for its own.
TEMP = "lc-"
LONGEST_TEMP = 40


class HeadError(LightningCoreError, RuntimeError):
    """The pool cannot be brought up or taken down; the message says why."""


def up(
    folder: Path, settings: Settings, kind: str = "cpu", on_verdict: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Brings up a head with a pool; what it noted of itself in ``folder/head.json``.

    Args:
        folder: of the pool. If jobs in it have not ended, they go on, under the settings that they had.
        settings: of a new pool; ``resident`` says how many workers it keeps warm.
        kind: of the devices.
        on_verdict: what to run when a verdict changes.

    Raises:
        HeadError: if one is up already, or Ray does not come up.
        SignalReceivedError: if a signal came; nothing is up then.
    """
    folder = folder.expanduser().resolve()
    with _alone(folder):
        head = read_head(folder)
        if head is not None and is_alive(head):
            raise HeadError(f"{folder}: a pool is up already (process {head['pid']}); `lightning-core down` ends it")
        if head is not None:
            _end(head)  # of one that was killed, the files are left
        goes_on = _unfinished(folder)
        temp = Path(tempfile.mkdtemp(prefix=TEMP))  # the user's alone; Ray opens its own folder to everybody
        if len(str(temp)) > LONGEST_TEMP:
            temp.rmdir()
            raise HeadError(f"{temp.parent} is too long a path for Ray's sockets; set TMPDIR to a shorter one")
        head = {"pid": 0, "started": 0, "temp": str(temp), "socket": str(temp / "door"), "token": str(temp / "token"),
                "devices": settings.devices, "kind": kind}  # fmt: skip
        try:
            with recorded_signals() as received:
                process = _start_ray(folder, head)
                head |= {"pid": process.pid, "started": started(process.pid) or 0}
                _write(folder, head)
                import lightning_core.cluster.pool_manager  # noqa: F401  # with Ray, while the head comes up

                head["address"] = _address(process, temp, folder, received)
                _write(folder, head)
                _open_pool(folder, head, settings, on_verdict, goes_on, received)
        except BaseException:  # Ctrl-C too: half a pool is none
            _end(head)
            raise
        return head


def _start_ray(folder: Path, head: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    token = Path(head["token"])
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    _take_token(head)  # before Ray is imported here, which looks once
    resources = {"device": head["devices"]} if head["kind"] == "cpu" else {}
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0",
        f"--temp-dir={Path(head['temp']) / 'ray'}", "--include-dashboard=false", "--disable-usage-stats",
        "--no-monitor", "--include-log-monitor=false",  # an autoscaler and a reader of logs, which nobody here asks
        "--node-ip-address=127.0.0.1", f"--object-store-memory={100 * 2**20}", f"--resources={json.dumps(resources)}",
    ]  # fmt: skip
    # When the head is told to end, its jobs have left: nothing is to be drained.
    told = os.environ | NICE | {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
    with owner_only(), (folder / "head.log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, umask=0o077, env=told
        )


def down(folder: Path, *, now: bool = False) -> None:
    """Ends the pool that :func:`up` brought up: jobs save and leave, then our actors, then the head.

    Args:
        folder: of the pool.
        now: not to wait for jobs to leave at the end of their epoch.

    Raises:
        HeadError: if there is none.
        SignalReceivedError: if a signal came: nobody was waited for any longer, and the pool is down.
    """
    folder = folder.expanduser().resolve()
    if not folder.is_dir():
        raise HeadError(f"{folder}: no pool is up")
    with _alone(folder):
        head = read_head(folder)
        if head is None or not is_alive(head):
            raise HeadError(f"{folder}: no pool is up")
        with recorded_signals() as received:
            try:
                _close_pool(head, now, received)
            except Exception as error:  # whatever it is: the head must end
                print(f"the pool did not close by itself: {type(error).__name__}: {error}", file=sys.stderr)
            finally:
                _end(head)
            if received:
                raise SignalReceivedError(received[0])


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One at a time brings a pool up or takes it down.

    Raises:
        HeadError: if somebody else is at it, or the folder cannot be written.
    """
    try:
        with owner_only():
            lock = (private_folder(folder) / "head.lock").open("w")
    except ValueError as error:
        raise HeadError(str(error)) from None
    except OSError as error:
        raise HeadError(f"{folder}: cannot be written: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeadError(f"{folder}: another `up` or `down` is at work here") from None
        yield


def _unfinished(folder: Path) -> bool:
    """Whether jobs of an earlier time wait in the journal; one in which none does is put away."""
    path = folder / "journal.db"
    if not path.exists():
        return False
    try:
        with Journal.open(path) as journal:
            waiting = replay(journal).scheduler.names(active=True)
    except Exception as error:  # whatever is wrong with it, nothing is begun over it
        words = str(error) if isinstance(error, JournalError) else f"{path}: damaged journal: {error}"
        raise HeadError(f"{words}; its jobs cannot go on: move it away to begin anew") from None
    if waiting:
        return True
    attic = folder / "old"
    attic.mkdir(exist_ok=True)
    path.rename(attic / f"journal-{datetime.now():%Y%m%d-%H%M%S-%f}.db")
    return False


def _address(process: subprocess.Popen[bytes], temp: Path, folder: Path, received: list[int]) -> str:
    note = temp / "ray" / "ray_current_cluster"
    until = time.monotonic() + UP
    while time.monotonic() < until:
        if received:
            raise SignalReceivedError(received[0])
        if note.exists() and (address := note.read_text().strip()):
            return address
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise HeadError(f"Ray did not come up; see {folder / 'head.log'}")


def _take_token(head: Mapping[str, Any]) -> None:
    os.environ.pop("RAY_AUTH_TOKEN", None)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": head["token"]}


@contextmanager
def joined(head: Mapping[str, Any]) -> Iterator[Any]:
    """This process in the Ray of a head."""
    _take_token(head)
    import ray

    from lightning_core.server.ray_settings import NAMESPACE

    with protected_from_ray():
        ray.init(address=head["address"], namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


def _open_pool(
    folder: Path,
    head: Mapping[str, Any],
    settings: Settings,
    on_verdict: Mapping[str, Any] | None,
    goes_on: bool,
    received: list[int],
) -> None:
    from lightning_core.cluster import config_checker
    from lightning_core.cluster.cluster import answer
    from lightning_core.cluster.pool_manager import start_pool_manager
    from lightning_core.server.ray_actor import start_scheduler

    with joined(head) as ray:
        scheduler = start_scheduler(POOL, settings, folder, head["socket"], on_verdict)
        temp = Path(head["temp"])
        pool_manager = start_pool_manager(
            "pool", settings.devices, settings.slots_per_device or 1, head["kind"], settings.cores,
            temp / "keeper.json",
            checker=temp / config_checker.NAME,
        )  # fmt: skip
        try:
            answer(scheduler.pid.remote(), received)
            answer(pool_manager.open.remote(warm=False), received)
            if goes_on:
                answer(scheduler.event.remote(WorkersLost()), received)
            answer(pool_manager.serve.remote(POOL, str(folder), warm=False), received)
        except ray.exceptions.RayError as error:
            raise HeadError(" ".join(str(getattr(error, "cause", None) or error).split())) from None
    client = SocketClient(Path(head["socket"]))
    until = time.monotonic() + UP
    while not client.about()["devices"]:
        if received:
            raise SignalReceivedError(received[0])
        if time.monotonic() > until:
            raise HeadError("the pool's devices did not come up")
        time.sleep(0.1)


def _close_pool(head: Mapping[str, Any], now: bool, received: list[int]) -> None:
    client = SocketClient(Path(head["socket"]))
    client.event(Close("`lightning-core down`"))
    until = time.monotonic() + (END if now else LEAVE)
    with joined(head) as ray:
        from lightning_core.server.ray_settings import NAMESPACE

        pool_manager = ray.get_actor("pool-keeper", namespace=NAMESPACE)
        scheduler = ray.get_actor(POOL, namespace=NAMESPACE)
        try:
            while not received and ray.get(pool_manager.busy.remote(), timeout=END) and time.monotonic() < until:
                time.sleep(0.2)
            ray.get(pool_manager.close.remote(), timeout=END)
            ray.get(scheduler.close.remote(), timeout=END)
        except ray.exceptions.RayError as error:
            raise HeadError(str(error)) from None
        ray.kill(pool_manager)
        ray.kill(scheduler)


def _end(head: Mapping[str, Any]) -> None:
    """Ends the head's process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not is_alive(head):
            break
        os.killpg(head["pid"], number)
        until = time.monotonic() + END
        while is_alive(head) and time.monotonic() < until:
            time.sleep(0.1)
    if Path(head["temp"]).name.startswith(TEMP):  # a note can be anything
        shutil.rmtree(head["temp"], ignore_errors=True)


def _write(folder: Path, head: Mapping[str, Any]) -> None:
    beside = folder / "head.json.new"
    beside.touch(mode=0o600)
    beside.write_text(json.dumps(head, indent=2))
    os.replace(beside, folder / "head.json")
