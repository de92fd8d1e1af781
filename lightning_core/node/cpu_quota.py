"""A limit on the CPU time of a process and its descendants, in cores, by the kernel's control groups (cgroups).

Rules

1. A group lies in the group that its process was in. Its name holds the process id and start time, so that a reused id
   does not find another process's group. A process that inherited one of our groups gets its own beside that group, not
   below it: each job has its own limit.
2. The whole tree moves: the process, and those of its descendants that were in the same group. Children forked later
   start in the group.
3. The group of a killed process is removed by the next process that opens one there. Whether a group is empty is the
   kernel's decision: it removes no group that holds processes.
4. Where no group can be created, the result is None, with a reason. A later failure is logged once, and training
   continues.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path

from lightning_core.node import cgroups
from lightning_core.node.cgroups import Cgroup

log = logging.getLogger(__name__)

QUANTUM = 0.05
"""Granularity of quotas, in cores."""

# Smallest quota that the kernel accepts, in microseconds per period.
_MIN_QUOTA = 1000
# Attempts at something that another process may undo or repeat meanwhile.
_MAX_TRIES = 20


class Quota:
    """The group of a process tree; created by :func:`open_quota`, without a limit.

    Raises:
        OSError: If no group can be created.
    """

    def __init__(self, root: Path, pid: int) -> None:
        self._root = root
        self._pid = pid
        self._groups = cgroups.cgroups_of(root, pid)
        self._unified = self._groups[0].hierarchy == ""
        self._limits = self._groups[0].own  # the folder that sets the limit
        self._accounts = self._groups[-1].own  # the folder that counts the time used
        self._quanta: int | None = None
        self._weight = 1
        self._used = 0.0
        self._closed = False
        self._has_warned = False
        cgroups.remove_empty(self._groups)
        try:
            for group in self._groups:
                if self._unified:
                    cgroups.enable_cpu(group.parent)
                self._enter(group)
            self._period = self._read_period()
            self._write_limit(None)  # the group may have one from an earlier process
            self._began = self._read_used()
        except Exception:
            for group in self._groups:
                with contextlib.suppress(OSError):
                    self._leave(group)
            raise

    def limit(self, cores: float | None) -> None:
        """Limit the CPU time of the tree; takes 25 us, and nothing if the limit is unchanged (measured).

        Args:
            cores: Cores, rounded to multiples of :data:`QUANTUM`, at least one of them; None removes the limit.
        """
        quanta = None if cores is None else max(1, round(cores / QUANTUM))
        if self._closed or quanta == self._quanta:
            return
        try:
            self._write_limit(quanta)
            self._quanta = quanta
            self._write_weight(1 if cores is None else max(math.ceil(cores - 1e-9), 1))
        except OSError as error:
            self._warn(error)

    def used(self) -> float:
        """Return the CPU seconds that the tree has used since the quota was opened, or the last known value."""
        if not self._closed:
            try:
                self._used = self._read_used() - self._began
            except OSError as error:
                self._warn(error)
        return self._used

    def close(self) -> None:
        """Remove the limit, move the processes back to their former group, and remove the group."""
        if self._closed:
            return
        self.used()
        self.limit(None)
        self._closed = True
        for group in self._groups:
            try:
                self._leave(group)
            except OSError as error:
                self._warn(error)

    def _enter(self, group: Cgroup) -> None:
        for left in reversed(range(_MAX_TRIES)):
            with contextlib.suppress(FileExistsError):  # this process opened one before
                group.own.mkdir()
            try:
                cgroups.write(group.own / "cgroup.procs", str(self._pid))
                break
            except OSError as error:
                if error.errno not in cgroups.REMOVED or not left:
                    raise
                # Another process removed it while it was still empty.
        known = {self._pid}
        # A child that is forked during one pass is found in the next.
        while new := [
            p for p in cgroups.process_tree(self._root, self._pid) if p not in known and self._is_in(p, group)
        ]:
            known.update(new)
            cgroups.move(new, group.own)

    def _is_in(self, pid: int, group: Cgroup) -> bool:
        try:
            return cgroups.memberships(self._root, pid).get(group.hierarchy) == group.group
        except OSError:  # it has ended
            return False

    def _leave(self, group: Cgroup) -> None:
        try:
            for _ in range(_MAX_TRIES):  # a process that forks meanwhile has its child in the group
                members = cgroups.members(group.own)
                if not members:
                    break
                cgroups.move(members, group.home if group.home.is_dir() else group.parent)
            group.own.rmdir()
        except OSError as error:
            if error.errno not in cgroups.REMOVED:  # another process removed it as soon as it was empty
                raise

    def _read_period(self) -> int:
        if self._unified:
            return int((self._limits / "cpu.max").read_text().split()[1])
        return int((self._limits / "cpu.cfs_period_us").read_text())

    def _write_limit(self, quanta: int | None) -> None:
        quota = None if quanta is None else max(_MIN_QUOTA, round(quanta * QUANTUM * self._period))
        if self._unified:
            cgroups.write(self._limits / "cpu.max", f"{'max' if quota is None else quota} {self._period}")
            return
        try:
            cgroups.write(self._limits / "cpu.cfs_quota_us", str(-1 if quota is None else quota))
        except OSError as error:
            if error.errno != errno.EINVAL or quota is None:
                raise
            # A parent group has less. v1 refuses what v2 accepts; without a limit of its own, the parent's applies.
            cgroups.write(self._limits / "cpu.cfs_quota_us", "-1")

    def _write_weight(self, cores: int) -> None:
        """Weigh the group as that many processes: otherwise two threads would get half the time of one process."""
        if cores == self._weight:
            return
        if self._unified:
            cgroups.write(self._limits / "cpu.weight", str(min(100 * cores, 10_000)))
        else:
            cgroups.write(self._limits / "cpu.shares", str(1024 * cores))
        self._weight = cores

    def _read_used(self) -> float:
        if self._unified:
            figures = dict(line.split() for line in (self._accounts / "cpu.stat").read_text().splitlines())
            return int(figures["usage_usec"]) / 1e6
        return int((self._accounts / "cpuacct.usage").read_text()) / 1e9

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("cannot limit the CPU time of process %d as requested: %s", self._pid, error)


def open_quota(
    root: Path = Path("/"), pid: int | None = None, tell: Callable[[str], object] = log.debug
) -> Quota | None:
    """Open a quota for a process and its descendants; takes 10 to 60 ms (measured).

    When CPUs are scarce, a group has the weight of one process, whatever the number and priority of its processes, and
    also if it has no limit.

    Args:
        root: Root of the file system.
        pid: Id of the process; this one if None.
        tell: Called with the reason if there is no quota.

    Returns:
        None where CPU time cannot be limited.
    """
    try:
        return Quota(root, os.getpid() if pid is None else pid)
    except (OSError, LookupError, ValueError) as error:  # other kernels may fail in other ways
        tell(f"CPU time cannot be limited here: {error}")
        return None
