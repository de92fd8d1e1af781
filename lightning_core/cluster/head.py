"""A Ray head with a pool that outlives the shell: ``lightning-core up`` starts it, ``down`` ends it.

Rules

1. The head is a process group of its own, identified by process id, start time and a random mark in its environment:
   ``down`` ends it, and nothing else. The folder of its files has the same mark.
2. Ray's token and all folders are readable by their user only. Ray listens on the machine's address in any case, so the
   token keeps others out.
3. The pool's folder outlives the head, with journal, specs and checkpoints. A pool that is started again resumes.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from lightning_core.cluster.joined_head import join_cluster
from lightning_core.cluster.ray_head import (
    HeadError,
    RayExitedError,
    await_address,
    check_head,
    end_ray,
    joined,
    new_head,
    start_ray,
)
from lightning_core.core.events import Close, WorkersLost
from lightning_core.core.parts import all_of, brought, guarded
from lightning_core.core.supplies import NodeSource
from lightning_core.node.processes import is_alive, started
from lightning_core.node.signals import SignalReceivedError, recorded_signals
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.access.groups import GroupSocket
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.discovery import HEAD, read_head
from lightning_core.server.proxy import name_of
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.journals.anchor import anchor_path
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.journals.recovery import HINT, finish, recover_folder
from lightning_core.storage.journals.replay import replay
from lightning_core.storage.private_files import owner_only, private_folder

# Seconds that the devices may take to start, jobs to write a checkpoint and leave, and actors to end.
UP_TIMEOUT, LEAVE_TIMEOUT, CLOSE_TIMEOUT = 60.0, 60.0, 15.0
# Seconds within which Ray ends whose start is wrong; one that was only slow has tried for longer.
AT_ONCE = 15.0
LOCK_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def up(
    folder: Path,
    settings: Settings,
    kind: str = "cpu",
    on_verdict: Mapping[str, Any] | None = None,
    nodes: NodeSource | None = None,
    ray_address: str | None = None,
    group: GroupSocket | None = None,
    *,
    recover_journal: bool = False,
) -> dict[str, Any]:
    """Start a head with a pool, or a pool in an existing Ray cluster.

    Args:
        folder: Folder of the pool. Jobs in it that have not ended resume, under the settings that they had.
        settings: Settings of a new pool; ``resident`` is the number of workers to keep warm.
        kind: Kind of the devices.
        on_verdict: Command that runs when a verdict changes.
        nodes: Nodes of the pool, if they come and go; None for devices of this machine.
        ray_address: Address of the cluster; None for a head of its own.
        group: Socket for the members of a group; None for none.
        recover_journal: Whether to continue a damaged journal from its last good event.

    Returns:
        The content of ``head.json`` in the folder.

    Raises:
        HeadError: If a pool is up already, or Ray does not start.
        SignalReceivedError: If a signal is received; nothing is left running.
    """
    folder = folder.expanduser().resolve()
    with _alone(folder):
        head = read_head(folder)
        if head is not None and is_alive(head):
            raise HeadError(f"{folder}: a pool is up already (process {head['pid']}); `lightning-core down` ends it")
        if head is not None:
            end_ray(head)  # files of a head that was killed
        if recover_journal:
            _recover(folder)
        resumes = _unfinished(folder)
        if resumes:  # its workers are those that its scheduler knows
            with Journal.open(folder / "journal.db", read_only=True) as journal:
                settings = journal.settings()
        else:
            settings = _as_left(folder, settings)
        with recorded_signals() as received:
            if ray_address is None:
                head = new_head(settings.devices if nodes is None else 0, kind)
            else:
                head = join_cluster(folder, ray_address, settings.devices, kind)
            try:
                if ray_address is None:
                    _start_head(folder, head, received)
                _write(folder, head)
                _open_pool(folder, head, settings, on_verdict, nodes, group, resumes, received)
            except BaseException:  # also for Ctrl-C: no partial pool is left
                _end_actors(folder, head)
                end_ray(head)
                raise
        return head


def _start_head(folder: Path, head: dict[str, Any], received: list[int]) -> None:
    """Start the process of a head, and note it.

    Ray gives up when its raylet takes more than 30 s to start, as it may on a busy machine, so there is a second try.
    A process that ends at once would end again. Ray's servers end with the process that started them.
    """
    began = time.monotonic()
    try:
        _start_ray(folder, head, received)
    except RayExitedError as error:
        if time.monotonic() - began < AT_ONCE:
            raise
        print(f"{error}; trying once more", file=sys.stderr)
        _start_ray(folder, head, received)


def _start_ray(folder: Path, head: dict[str, Any], received: list[int]) -> None:
    process, begin = start_ray(folder, head)
    head |= {"pid": process.pid, "started": started(process.pid) or 0}
    _write(folder, head)
    import lightning_core.cluster.pool_manager  # noqa: F401  # imports Ray while the head starts

    head["address"] = await_address(process, begin, head, folder, received)


def down(folder: Path, *, now: bool = False) -> None:
    """End the pool that :func:`up` started: jobs write a checkpoint and leave, then the actors end, then the head.

    Args:
        folder: Folder of the pool.
        now: Whether not to wait for jobs that can leave only at the end of their epoch.

    Raises:
        HeadError: If no pool is up.
        SignalReceivedError: If a signal is received: the wait is cut short, and the pool is down.
    """
    folder = folder.expanduser().resolve()
    if not folder.is_dir():
        raise HeadError(f"{folder}: no pool is up")
    with _alone(folder):
        head = read_head(folder)
        if head is None or not is_alive(head):
            raise HeadError(f"{folder}: no pool is up")
        check_head(head)
        with recorded_signals() as received:
            try:
                _close_pool(head, now, received)
            except Exception as error:  # whatever the error, the head must end
                print(f"the pool did not close cleanly: {type(error).__name__}: {error}", file=sys.stderr)
            finally:
                _end_actors(folder, head)
                end_ray(head)
            _leave(folder)
            if received:
                raise SignalReceivedError(received[0])


def _as_left(folder: Path, settings: Settings) -> Settings:
    """Return the settings of a new pool, which begins with what earlier ones have left in its folder."""
    found = None if settings.supply is None else brought("supplies", settings.supply)
    again: Settings = settings if found is None else found[0].again(folder, settings)
    return again


def _leave(folder: Path, scheduler: Scheduler | None = None) -> None:
    """Leave what later pools of a folder begin with."""
    for name, supply in all_of("supplies").items():
        guarded(f"what {name} leaves", partial(supply.left, folder, scheduler), lambda _: None)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder: only one process at a time starts or ends a pool.

    Raises:
        HeadError: If another process holds it, or the folder cannot be written to.
    """
    try:
        with owner_only():
            lock = os.fdopen(os.open(private_folder(folder) / "head.lock", LOCK_FLAGS, 0o600), "w")
    except ValueError as error:
        raise HeadError(str(error)) from None
    except OSError as error:
        raise HeadError(f"{folder}: cannot be written: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeadError(
                f"{folder}: another `up` or `down` is running for this folder; try again when it has ended"
            ) from None
        yield


def _recover(folder: Path) -> None:
    try:
        recovered = recover_folder(folder)
    except JournalError as error:
        raise HeadError(str(error)) from None
    print(recovered or f"{folder}: the journal is not damaged", file=sys.stderr)


def _unfinished(folder: Path) -> bool:
    """Return whether the journal must continue: it has unfinished jobs, or a record of expenses.

    Any other one is moved to ``old``.
    """
    path = folder / "journal.db"
    finish(path)
    if not path.exists():
        return False
    try:
        with Journal.open(path) as journal:
            scheduler = replay(journal).scheduler
    except Exception as error:  # whatever the damage, it must not be overwritten
        problem = str(error) if isinstance(error, JournalError) else f"{path}: damaged journal: {error}"
        raise HeadError(f"{problem}; its jobs cannot resume; {HINT}; or move it away to start a new one") from None
    if scheduler.names(active=True) or scheduler.must_continue:
        return True
    _leave(folder, scheduler)
    old = folder / "old"
    old.mkdir(exist_ok=True)
    path.rename(archived := old / f"journal-{datetime.now():%Y%m%d-%H%M%S-%f}.db")
    with suppress(FileNotFoundError):
        anchor_path(path).rename(anchor_path(archived))
    return False


def _open_pool(
    folder: Path,
    head: Mapping[str, Any],
    settings: Settings,
    on_verdict: Mapping[str, Any] | None,
    nodes: NodeSource | None,
    group: GroupSocket | None,
    resumes: bool,
    received: list[int],
) -> None:
    from lightning_core.cluster import config_checker
    from lightning_core.cluster.pool_manager import start_pool_manager
    from lightning_core.cluster.ray_calls import answer
    from lightning_core.server.start_scheduler import start_scheduler

    name = name_of(head)
    with joined(head) as ray:
        scheduler = start_scheduler(f"{name}-scheduler", settings, folder, head["socket"], on_verdict, group)
        temp = Path(head["temp"])
        pool_manager = start_pool_manager(
            name, settings.devices, settings.slots_per_device or 1, head["kind"], settings.cores,
            temp / "manager.json", settings.locations, None if nodes is None else 0,
            checker=temp / config_checker.SOCKET_NAME,
        )  # fmt: skip
        try:
            answer(scheduler.pid.remote(), received)
            answer(pool_manager.open.remote(warm=False), received)
            if resumes:
                answer(scheduler.event.remote(WorkersLost()), received)
            answer(pool_manager.serve.remote(f"{name}-scheduler", str(folder), warm=False), received)
            if nodes is not None:
                answer(nodes.start(name, f"{name}-scheduler", folder).pid.remote(), received)
        except ray.exceptions.RayError as error:
            raise HeadError(" ".join(str(getattr(error, "cause", None) or error).split())) from None
    client = SocketClient(Path(head["socket"]))
    until = time.monotonic() + UP_TIMEOUT
    while not client.about()["devices"]:
        if received:
            raise SignalReceivedError(received[0])
        if time.monotonic() > until:
            raise HeadError(f"the pool's devices did not start within {UP_TIMEOUT:.0f} s; see {folder / 'head.log'}")
        time.sleep(0.1)


def _close_pool(head: Mapping[str, Any], now: bool, received: list[int]) -> None:
    client = SocketClient(Path(head["socket"]))
    client.event(Close("`lightning-core down`"))
    until = time.monotonic() + (CLOSE_TIMEOUT if now else LEAVE_TIMEOUT)
    with joined(head) as ray:
        from lightning_core.server.ray_settings import NAMESPACE

        name = name_of(head)
        pool_manager = ray.get_actor(f"{name}-manager", namespace=NAMESPACE)
        scheduler = ray.get_actor(f"{name}-scheduler", namespace=NAMESPACE)
        try:
            while (
                not received
                and time.monotonic() < until
                and any(ray.get([pool_manager.busy.remote(), scheduler.stopping.remote()], timeout=CLOSE_TIMEOUT))
            ):
                time.sleep(0.2)
            _give_nodes_back(ray, name)
            ray.get(pool_manager.close.remote(), timeout=CLOSE_TIMEOUT)
            ray.get(scheduler.close.remote(), timeout=CLOSE_TIMEOUT)
        except ray.exceptions.RayError as error:
            raise HeadError(str(error)) from None
        ray.kill(pool_manager)
        ray.kill(scheduler)


def _give_nodes_back(ray: Any, name: str) -> None:
    """Have the provisioner return all nodes, if the pool has one, and print a warning if some remain."""
    from lightning_core.cluster.nodes_back import give_nodes_back, still_billed
    from lightning_core.server.ray_settings import NAMESPACE

    try:
        provisioner = ray.get_actor(f"{name}-provisioner", namespace=NAMESPACE)
    except ValueError:
        return
    if not give_nodes_back(provisioner):
        print(still_billed(provisioner), file=sys.stderr)
    ray.kill(provisioner)


def _end_actors(folder: Path, head: Mapping[str, Any]) -> None:
    """End the actors of a pool in a cluster that was joined, since they would not end with its head."""
    if not head.get("joined"):
        return
    (folder / HEAD).unlink(missing_ok=True)  # the cluster lives on, the pool does not
    from lightning_core.cluster.device_groups import DeviceGroups
    from lightning_core.server.ray_settings import NAMESPACE

    with suppress(Exception), joined(head) as ray:  # whatever the error, the one that led here is reported
        for part in ("provisioner", "manager", "scheduler"):
            with suppress(ValueError):
                ray.kill(ray.get_actor(f"{name_of(head)}-{part}", namespace=NAMESPACE))
        groups = DeviceGroups(name_of(head), head["devices"], "GPU" if head["kind"] == "gpu" else "device")
        for device in range(head["devices"]):  # they would keep their devices from all others of the cluster
            groups.remove(device)


def _write(folder: Path, head: Mapping[str, Any]) -> None:
    with owner_only():
        write_whole(folder / HEAD, json.dumps(head, indent=2))
