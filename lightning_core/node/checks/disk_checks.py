"""Checks of the file systems on which a pool keeps its journal and the store of earlier runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lightning_core.core.limits import format_bytes
from lightning_core.node.checks.findings import Finding, error, ok, warning
from lightning_core.node.mounts import Mount, mount_of
from lightning_core.variables import NETWORK_DISK

FOR_UP = "use a folder on a local disk: lightning-core up --folder DIR, or LIGHTNING_CORE_HOME=DIR for all commands"
FOR_RUN = "name a folder on a local disk with --run-dir"
FOR_RESUME = "copy the folder to a local disk, and resume it there"


def check_journal_disk(
    folder: Path, mount: Mount | None, remedy: str = FOR_UP, *, shared: bool = False, allowed: bool = False
) -> Finding:
    """Check that a journal can be kept in a folder: not on a network disk.

    SQLite's write-ahead log needs memory that all processes with the database share (https://sqlite.org/wal.html), and
    locks that hold. The journal of a pool in a Ray cluster has no other place than a folder that all nodes see: it is
    written by one process, and read on that process's machine.

    Args:
        folder: Folder of the pool or the run.
        mount: Its file system; None if it is not known.
        remedy: What to do if it is on a network disk.
        shared: Whether all nodes of a cluster must see the folder.
        allowed: Whether the user accepts a network disk.
    """
    if mount is None:
        return ok("journal-disk", f"{folder}: of an unknown file system")
    if not mount.is_on_network:
        return ok("journal-disk", f"{folder} is on {mount.kind}")
    found = f"{folder} is on {mount.kind}, a network disk, on which SQLite cannot keep the journal safely"
    if not shared and not allowed:
        yes = f"{NETWORK_DISK}=yes, if no other machine has this disk, keeps it there all the same"
        return error("journal-disk", found, f"{remedy}; {yes}")
    return warning(
        "journal-disk",
        found,
        "run `status`, `why` and `report` on the machine of the scheduler only: on others they may read an old state",
    )


def check_history_disk(folder: Path | None, mount: Mount | None) -> Finding | None:
    """Check that earlier runs can be kept in the folder that ``LIGHTNING_CORE_HISTORY`` names; None if none is."""
    if folder is None:
        return None
    if mount is None or not mount.is_on_network:
        return ok("history-disk", f"{folder}: LIGHTNING_CORE_HISTORY")
    return warning(
        "history-disk",
        f"{folder} (LIGHTNING_CORE_HISTORY) is on {mount.kind}, a network disk: scripts on two machines that write "
        "there at once can damage history.db",
        "name a folder on a local disk, one on each machine",
    )


def check_disk_space(folder: Path, warnings: list[str]) -> Finding:
    """Check the room on the disk of a folder.

    Args:
        folder: The folder, or that above it which exists.
        warnings: What may go wrong there later, as text.
    """
    try:
        room, inodes = shutil.disk_usage(folder), os.statvfs(folder)
    except OSError as problem:
        return error("disk-space", f"{folder}: {os.strerror(problem.errno or 0)}", "name another folder with --folder")
    if (room.total and not room.free) or (inodes.f_files and not inodes.f_favail):  # /proc has no size
        what = "no room" if not room.free else "no room for another file"
        return error("disk-space", f"{folder}: {what} on its disk", "remove files there, or use another disk")
    if warnings:
        return warning("disk-space", "; ".join(warnings), "use a folder on a disk with more room: --folder DIR")
    return ok("disk-space", f"{format_bytes(room.free)} free in {folder}")


def is_read_only(folder: Path) -> bool:
    """Return whether the file system of a folder that exists is mounted read-only."""
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def nearest(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists; asking for it mounts it where that is automatic."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def disk_of(folder: Path) -> Mount | None:
    """Return the file system of a folder, which need not exist; None if it cannot be found out."""
    try:
        nearest(folder)
        return mount_of(folder.expanduser().resolve())
    except (OSError, RuntimeError):  # a loop of links
        return None
