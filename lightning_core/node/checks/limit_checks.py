"""Checks of what this process may have of the machine: cores, memory, threads, open files and shared memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lightning_core.core.limits import format_bytes
from lightning_core.node.cgroups import cgroups_of, folders_of
from lightning_core.node.checks.findings import Finding, error, note, ok, warning
from lightning_core.node.memory import free_on_host

MIB = 2**20
# Open files below which connections of jobs and callers become few: the arbiter and the server need two for each.
FEW_FILES = 1024


class PoolSize(NamedTuple):
    """What a pool takes of its machine.

    Measured with pools of one and three CPU devices on 2026-11-29 (Ray 2.60, torch 2.13, OMP_NUM_THREADS=1), as the
    proportional set size and the threads of all its processes, and the open files of the process of Ray that has the
    most. Trainings come on top.
    """

    devices: int
    workers: int
    """Processes that are kept warm."""

    @property
    def memory(self) -> int:
        """Memory of its processes before anything is trained, in bytes."""
        return (820 + 66 * self.devices + 390 * self.workers) * MIB

    @property
    def threads(self) -> int:
        """Threads of its processes."""
        return 167 + 25 * self.devices + 24 * self.workers

    @property
    def files(self) -> int:
        """Open files of one process."""
        return 53 + 9 * self.devices

    def __str__(self) -> str:
        """Return the size as text."""
        return f"a pool of {self.devices} device{'s' * (self.devices > 1)} with {self.workers} warm workers"

    def fitting(self, fits: Callable[[PoolSize], bool]) -> int:
        """Return the most devices, with as many workers on each, of a pool that fits; at least one."""
        each = max(1, self.workers // self.devices)
        return next((n for n in range(self.devices, 1, -1) if fits(PoolSize(n, n * each))), 1)


def check_cores(seen: int, root: Path, pid: int) -> Finding:
    """Check that as many cores may be used as are seen.

    Args:
        seen: Cores that the process may run on, which are those that a pool of CPUs takes.
        root: Folder of the file system.
        pid: Process.
    """
    quota = cpu_limit(root, pid)
    if quota is None or quota >= seen:
        return ok("cores", f"{seen}, all of which may be used")
    few = max(1, math.floor(quota))
    return warning(
        "cores",
        f"{seen} are seen, and the cgroup allows the time of {quota:g}: jobs on more devices slow each other down",
        f"say how many there are: lightning-core up --devices {few}",
    )


def cpu_limit(root: Path, pid: int) -> float | None:
    """Return the cores whose time a process may use by its cgroups; None if there is no limit."""
    limits = []
    for folder, is_unified in _folders(root, pid, "cpu"):
        try:
            if is_unified:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{word}_us").read_text() for word in ("quota", "period"))
            limits.append(int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):  # a root group has no file, and "max" is no limit
            continue
    return min((limit for limit in limits if limit > 0), default=None)


def check_memory(size: PoolSize, root: Path, pid: int) -> Finding:
    """Check that there is memory for the processes of a pool."""
    try:
        free = free_on_host(root, pid)
    except (OSError, ValueError, LookupError) as problem:
        return _unreadable("memory", problem)
    found = f"{format_bytes(free)} free"
    if free >= size.memory:
        return ok("memory", found)
    few = size.fitting(lambda other: other.memory <= free)
    smaller = f"bring up a smaller one: lightning-core up --devices {few}, or with" if few < size.devices else "keep"
    return warning(
        "memory",
        f"{found}, by the machine and its cgroups, and {size} takes about {format_bytes(size.memory)} before it trains",
        f"{smaller} fewer workers (`resident` in its file); or end what uses the memory",
    )


def check_processes(size: PoolSize, limit: int | None, root: Path, pid: int) -> Finding:
    """Check that a pool may have the threads that it needs, which count as processes.

    Args:
        size: Size of the pool.
        limit: Processes that this user may have; None for no limit.
        root: Folder of the file system.
        pid: Process.
    """
    room = limit
    for folder, _ in _folders(root, pid, "pids"):
        try:
            left = int((folder / "pids.max").read_text()) - int((folder / "pids.current").read_text())
        except (OSError, ValueError):  # a root group has no file, and "max" is no limit
            continue
        room = left if room is None else min(room, left)
    if room is None:
        return ok("processes", "no limit")
    if room >= size.threads:
        return ok("processes", f"{room:,} more")
    smallest = PoolSize(1, 1)
    severe = error if room < smallest.threads else warning
    few = size.fitting(lambda other: other.threads <= room)
    smaller = f"; or bring up a smaller one: lightning-core up --devices {few}" if few < size.devices else ""
    return severe(
        "processes",
        f"{room:,} more processes or threads are allowed, and {size} has about {size.threads:,}",
        f"raise the limit: docker run --pids-limit=-1, `ulimit -u`, or the pids.max of the cgroup{smaller}",
    )


def check_files(size: PoolSize, soft: int, hard: int) -> Finding:
    """Check how many files a process may open.

    Args:
        size: Size of the pool.
        soft: Limit of this process; -1 for none.
        hard: Limit up to which the process may raise it; -1 for none.
    """
    if soft < 0 or soft >= max(FEW_FILES, size.files):
        return ok("descriptors", f"{'any number of' if soft < 0 else f'{soft:,}'} open files")
    wanted = 65536 if hard < 0 else min(hard, 65536)
    remedy = f"raise the limit: ulimit -n {wanted}"
    if 0 <= hard < max(FEW_FILES, size.files):
        remedy = "raise the hard limit: docker run --ulimit nofile=65536, or `nofile` in /etc/security/limits.conf"
    found = f"a process may open {soft:,} files"
    if soft < size.files:
        return error("descriptors", f"{found}, and Ray needs {size.files:,} for {size}", remedy)
    return warning("descriptors", f"{found}: a pool has two for each job and each command that waits", remedy)


def check_shared_memory(folder: Path, needed: int) -> Finding:
    """Check the shared memory of this machine, which Ray and the workers of loaders use.

    Args:
        folder: ``/dev/shm``.
        needed: Bytes of Ray's object store.
    """
    more = "docker run --shm-size=2g, in Kubernetes an emptyDir with `medium: Memory` at /dev/shm"
    try:
        status = os.statvfs(folder)
    except OSError as problem:
        found = f"{folder}: {os.strerror(problem.errno or 0)}: Ray does not start without it"
        return error("shared-memory", found, f"mount a tmpfs there: {more}")
    if not os.access(folder, os.W_OK | os.X_OK) or status.f_flag & os.ST_RDONLY:
        found = f"{folder} cannot be written to: Ray does not start without it"
        return error("shared-memory", found, f"mount it so that this user can write there: {more}")
    free = status.f_bavail * status.f_frsize
    if free >= needed:
        return ok("shared-memory", f"{format_bytes(free)} free in {folder}")
    return warning(
        "shared-memory",
        f"{format_bytes(free)} free in {folder}: Ray uses a disk instead, and workers of a DataLoader die with a bus "
        "error where their batches do not fit",
        f"make it larger: {more}, or mount -o remount,size=2g {folder}; or remove what fills it",
    )


def check_cpu_shares(root: Path, pid: int) -> Finding:
    """Check whether the kernel can limit a job to its part of a CPU device."""
    try:
        for group in cgroups_of(root, pid):
            if not os.access(group.parent, os.W_OK | os.X_OK):
                raise PermissionError(f"{group.parent} cannot be written to")
            if not group.hierarchy:
                _check_unified(group.parent)
    except (OSError, LookupError, ValueError) as problem:
        return note(
            "cpu-shares",
            f"the kernel cannot limit jobs of less than a whole CPU device ({problem}): pauses do it instead",
            "nothing, unless jobs have fixed shares of less than a device: let this user write to its cgroup",
        )
    return ok("cpu-shares", "the kernel can limit jobs of less than a whole CPU device")


def _check_unified(group: Path) -> None:
    """Check that groups with limits can be made in a group of the unified hierarchy, without making any.

    Raises:
        OSError: If not: only the root group may hold processes beside groups with limits.
    """
    if "cpu" not in (group / "cgroup.controllers").read_text().split():
        raise OSError(f"{group} has no cpu controller")
    is_enabled = "cpu" in (group / "cgroup.subtree_control").read_text().split()
    if not is_enabled and (group / "cgroup.type").exists() and (group / "cgroup.procs").read_text().strip():
        raise OSError(f"{group} holds processes")


def _folders(root: Path, pid: int, controller: str) -> list[tuple[Path, bool]]:
    try:
        return list(folders_of(root, pid, controller))
    except (OSError, ValueError):
        return []


def _unreadable(name: str, problem: Exception) -> Finding:
    return note(name, f"cannot be found out: {problem}", "mount /proc and the cgroups where this process runs")
