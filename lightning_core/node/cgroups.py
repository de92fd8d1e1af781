"""The kernel's control groups (cgroups, v1 and v2): where groups lie, and moving processes between them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lightning_core.node.mounts import mounts

_OURS = re.compile(r"lightning_core-\d+-\d+")
# Errors of the kernel for a group that has been removed, and for one that is being removed.
REMOVED = (errno.ENOENT, errno.ENODEV)


class Cgroup(NamedTuple):
    """A process's group in one hierarchy, and the group of its own that it is moved to."""

    hierarchy: str
    """Controllers of the hierarchy as in ``/proc/PID/cgroup``; empty for the unified hierarchy (v2)."""
    group: str
    """Name of the group that the process came from and returns to."""
    home: Path
    """Folder of that group."""
    parent: Path
    """Folder that holds our groups: the home, unless the home is one of our groups itself."""
    own: Path
    """Folder of the process's own group."""


def cgroups_of(root: Path, pid: int) -> list[Cgroup]:
    """Return the groups that limit CPU time (the first) and count it (the last); they may be the same.

    Raises:
        OSError: If the kernel has no such groups, or they are not mounted.
    """
    groups = memberships(root, pid)
    of = {controller: hierarchy for hierarchy in groups for controller in hierarchy.split(",")}
    if "cpu" in of and "cpuacct" in of:
        hierarchies = [of["cpu"], of["cpuacct"]]
    elif "" in of and "cpu" not in of:
        hierarchies = [""]
    else:
        raise OSError("the kernel has no cgroups that limit and count CPU time")
    name = f"lightning_core-{pid}-{_process_stat(root, pid)[19].decode()}"
    found = []
    for hierarchy in dict.fromkeys(hierarchies):
        group = parent = Path(groups[hierarchy])
        while _OURS.fullmatch(parent.name):
            parent = parent.parent
        if group.name == name:
            group = parent
        folder = folder_of(root, hierarchy, parent)
        home = folder / group.relative_to(parent)
        found.append(Cgroup(hierarchy, str(group), home, folder, folder / name))
    return found


def memberships(root: Path, pid: int) -> dict[str, str]:
    """Return the path of a process's cgroup in each hierarchy."""
    lines = (root / "proc" / str(pid) / "cgroup").read_text(errors="surrogateescape").splitlines()
    return {hierarchy: group for _, hierarchy, group in (line.split(":", 2) for line in lines)}


def enable_cpu(parent: Path) -> None:
    """Enable the cpu controller for the groups below a v2 group.

    Raises:
        OSError: If the group has no cpu controller, or holds processes without being the root.
    """
    if "cpu" not in (parent / "cgroup.controllers").read_text().split():
        raise OSError(f"{parent} has no cpu controller")
    if "cpu" not in (parent / "cgroup.subtree_control").read_text().split():
        write(parent / "cgroup.subtree_control", "+cpu")


def sweep(root: Path = Path("/")) -> None:
    """Remove our empty groups beside this process's own."""
    with contextlib.suppress(OSError):
        remove_empty(cgroups_of(root, os.getpid()))


def remove_empty(groups: Iterable[Cgroup]) -> None:
    """Remove our empty groups beside these."""
    for group in groups:
        for folder in group.parent.glob("lightning_core-*"):
            if _OURS.fullmatch(folder.name):
                with contextlib.suppress(OSError):  # it holds processes
                    folder.rmdir()


def members(group: Path) -> list[int]:
    """Return the ids of the processes in a group."""
    # Processes that this one cannot see are listed as 0, which would mean this one.
    return [pid for pid in map(int, (group / "cgroup.procs").read_text().split()) if pid]


def move(pids: Iterable[int], group: Path) -> None:
    """Move processes into a group; those that have ended are skipped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            write(group / "cgroup.procs", str(pid))


def process_tree(root: Path, pid: int) -> list[int]:
    """Return a process and its descendants, without orphans, which the kernel gives to another parent."""
    children: dict[int, list[int]] = {}
    for folder in (root / "proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            children.setdefault(int(_process_stat(root, int(folder.name))[1]), []).append(int(folder.name))
    tree = [pid]
    for parent in tree:
        tree.extend(children.get(parent, ()))
    return tree


def write(path: Path, text: str) -> None:
    """Write to a file that exists, in a single call: in a cgroup one write is one command."""
    file = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(file, text.encode())
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(file)


def folder_of(root: Path, hierarchy: str, group: Path) -> Path:
    """Return the folder of a group among the mounted file systems.

    Raises:
        OSError: If it is not mounted.
    """
    controllers = set(hierarchy.split(",")) if hierarchy else set()
    for mount in reversed(mounts(root)):  # a later mount may hide an earlier one
        if mount.kind != ("cgroup" if hierarchy else "cgroup2") or not controllers <= mount.options:
            continue
        # In a container the mount may begin at the container's group, or not include the group at all.
        if group.is_relative_to(mount.top) and ".." not in group.parts:
            folder = root / mount.point.lstrip("/") / group.relative_to(mount.top)
            if folder.is_dir():
                return folder
    raise OSError(f"the cgroup {group} ({hierarchy or 'v2'}) is not mounted")


def folders_of(root: Path, pid: int, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of a process's group for a controller and of the groups above it, as far as they are mounted.

    Args:
        root: Folder of the file system.
        pid: Process.
        controller: Name of the controller, such as ``"memory"``.

    Yields:
        The folder, and whether it is of the unified hierarchy (v2), whose files have other names.

    Raises:
        OSError: If the process has no group, or cannot be read.
    """
    groups = memberships(root, pid)
    hierarchy = next((name for name in groups if controller in name.split(",")), "")
    group = Path(groups.get(hierarchy, "/"))
    for above in (group, *group.parents):
        with contextlib.suppress(OSError):
            yield folder_of(root, hierarchy, above), not hierarchy


def _process_stat(root: Path, pid: int) -> list[bytes]:
    """Return the fields of ``/proc/PID/stat`` after the name: state, parent, ..., and the start time at index 19."""
    return (root / "proc" / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
