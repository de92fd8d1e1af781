"""A limit on the CPU time of a process and all its descendants, in cores: the kernel's control groups (cgroups).

Rules

1. A group lies in the one that its process was in, and is named after the process and the moment of its start, so that
   a number given again finds no stranger's group. A process that came into a group of ours with whoever started it gets
   its own beside that one, not below: each job has its own limit.
2. The whole tree moves: the process, and of its descendants all that were where it was. Who is forked later is born in
   the group.
3. What a killed process leaves behind is swept by the next that opens one there. Whether anybody lives in a group, the
   kernel decides: it removes none that is not empty.
4. Where no group can be had the answer is None, with a reason. What fails later is said once, and training goes on.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

QUANTUM = 0.05
"""The step in which quotas are given, cores."""

_OURS = re.compile(r"lightning_core-\d+-\d+")
# What the kernel takes at least, microseconds a period.
_LEAST = 1000
# What the kernel says of a group that is gone, and of one that is going.
_GONE = (errno.ENOENT, errno.ENODEV)
# How often something is tried that another process may undo or repeat meanwhile.
_TRIES = 20


class Quota:
    """A process tree's group; use :func:`open_quota`. It opens without a limit.

    Raises:
        OSError: if no group can be had.
    """

    def __init__(self, root: Path, pid: int) -> None:
        self._root = root
        self._pid = pid
        self._places = _places(root, pid)
        self._unified = self._places[0].hierarchy == ""
        self._limits = self._places[0].own  # the folders with the limit ...
        self._accounts = self._places[-1].own  # ... and with the time used
        self._quanta: int | None = None
        self._weighs = 1
        self._used = 0.0
        self._closed = False
        self._has_warned = False
        _sweep(self._places)
        try:
            for place in self._places:
                if self._unified:
                    _enable(place.above)
                self._enter(place)
            self._period = self._read_period()
            self._write_limit(None)  # it may have one from before
            self._began = self._read_used()
        except Exception:
            for place in self._places:
                with contextlib.suppress(OSError):
                    self._leave(place)
            raise

    def limit(self, cores: float | None) -> None:
        """How much of the CPUs the tree may use; takes 25 us, nothing if it has that limit already (measured).

        Args:
            cores: in steps of :data:`QUANTUM`, at least one of them; None: as much as there is.
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
        """CPU seconds that the tree has used since this was opened, or the last that was known of it."""
        if not self._closed:
            try:
                self._used = self._read_used() - self._began
            except OSError as error:
                self._warn(error)
        return self._used

    def close(self) -> None:
        """Takes the limit off, sends everybody back to where the process was, and removes the group."""
        if self._closed:
            return
        self.used()
        self.limit(None)
        self._closed = True
        for place in self._places:
            try:
                self._leave(place)
            except OSError as error:
                self._warn(error)

    def _enter(self, place: _Place) -> None:
        for left in reversed(range(_TRIES)):
            with contextlib.suppress(FileExistsError):  # opened before, by this very process
                place.own.mkdir()
            try:
                _write(place.own / "cgroup.procs", str(self._pid))
                break
            except OSError as error:
                if error.errno not in _GONE or not left:
                    raise
                # Swept by somebody while it was still empty.
        known = {self._pid}
        # A child that is forked while we look is found the next time round.
        while new := [p for p in _tree(self._root, self._pid) if p not in known and self._is_in(p, place)]:
            known.update(new)
            _move(new, place.own)

    def _is_in(self, pid: int, place: _Place) -> bool:
        try:
            return _groups(self._root, pid).get(place.hierarchy) == place.group
        except OSError:  # it is gone
            return False

    def _leave(self, place: _Place) -> None:
        try:
            for _ in range(_TRIES):  # who forks meanwhile has its child in the group
                members = _members(place.own)
                if not members:
                    break
                _move(members, place.home if place.home.is_dir() else place.above)
            place.own.rmdir()
        except OSError as error:
            if error.errno not in _GONE:  # swept by somebody as soon as it was empty
                raise

    def _read_period(self) -> int:
        if self._unified:
            return int((self._limits / "cpu.max").read_text().split()[1])
        return int((self._limits / "cpu.cfs_period_us").read_text())

    def _write_limit(self, quanta: int | None) -> None:
        quota = None if quanta is None else max(_LEAST, round(quanta * QUANTUM * self._period))
        if self._unified:
            _write(self._limits / "cpu.max", f"{'max' if quota is None else quota} {self._period}")
            return
        try:
            _write(self._limits / "cpu.cfs_quota_us", str(-1 if quota is None else quota))
        except OSError as error:
            if error.errno != errno.EINVAL or quota is None:
                raise
            # A group above has less. v1 refuses what v2 takes, and without one of its own that limit holds.
            _write(self._limits / "cpu.cfs_quota_us", "-1")

    def _write_weight(self, cores: int) -> None:
        """A group weighs as much as so many processes: else two threads of it had half of what another process gets."""
        if cores == self._weighs:
            return
        if self._unified:
            _write(self._limits / "cpu.weight", str(min(100 * cores, 10_000)))
        else:
            _write(self._limits / "cpu.shares", str(1024 * cores))
        self._weighs = cores

    def _read_used(self) -> float:
        if self._unified:
            figures = dict(line.split() for line in (self._accounts / "cpu.stat").read_text().splitlines())
            return int(figures["usage_usec"]) / 1e6
        return int((self._accounts / "cpuacct.usage").read_text()) / 1e9

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("the CPU time of process %d is not limited as wanted: %s", self._pid, error)


def open_quota(
    root: Path = Path("/"), pid: int | None = None, tell: Callable[[str], object] = log.debug
) -> Quota | None:
    """A group for a process and its descendants; takes 10 to 60 ms (measured). None where none can be had.

    A group has the weight of one process when there are fewer CPUs than wanted, with however many processes in it and
    whatever their priority, and also if it has no limit.

    Args:
        root: of the file system.
        pid: of the process; None: this one.
        tell: is told why there is none.
    """
    try:
        return Quota(root, os.getpid() if pid is None else pid)
    except (OSError, LookupError, ValueError) as error:  # a kernel may also say it otherwise than we know
        tell(f"CPU time cannot be limited here: {error}")
        return None


def sweep(root: Path = Path("/")) -> None:
    """Removes the groups of ours in which nobody lives, of those that lie where this process is."""
    with contextlib.suppress(OSError):
        _sweep(_places(root, os.getpid()))


class _Place(NamedTuple):
    """One hierarchy of groups, and a process in it."""

    hierarchy: str
    """Its controllers as in ``/proc/PID/cgroup``; empty: the unified one (v2)."""
    group: str
    """That the process goes back to."""
    home: Path
    """The folder of that group."""
    above: Path
    """The folder in which groups of ours lie: also the home, unless that is one of ours itself."""
    own: Path
    """The folder of the process's own group."""


def _places(root: Path, pid: int) -> list[_Place]:
    """Where limits are set and where CPU time is counted: the first and the last, which may be the same."""
    groups = _groups(root, pid)
    of = {controller: hierarchy for hierarchy in groups for controller in hierarchy.split(",")}
    if "cpu" in of and "cpuacct" in of:
        hierarchies = [of["cpu"], of["cpuacct"]]
    elif "" in of and "cpu" not in of:
        hierarchies = [""]
    else:
        raise OSError("the kernel has no cgroups that limit and count it")
    name = f"lightning_core-{pid}-{_stat(root, pid)[19].decode()}"
    places = []
    for hierarchy in dict.fromkeys(hierarchies):
        group = above = Path(groups[hierarchy])
        while _OURS.fullmatch(above.name):
            above = above.parent
        if group.name == name:
            group = above
        folder = _folder(root, hierarchy, above)
        home = folder / group.relative_to(above)
        places.append(_Place(hierarchy, str(group), home, folder, folder / name))
    return places


def _folder(root: Path, hierarchy: str, group: Path) -> Path:
    """Where a group is to be found among what is mounted."""
    controllers = set(hierarchy.split(",")) if hierarchy else set()
    mounts = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    for mount in reversed(mounts):  # a later one may hide an earlier one
        place, _, what = mount.partition(" - ")
        top, point = (re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), part) for part in place.split(" ")[3:5])
        kind, _, options = what.split(" ", 2)
        if kind != ("cgroup" if hierarchy else "cgroup2") or not controllers <= set(options.split(",")):
            continue
        # In a container the mount may begin at its own group, or the group lie outside of what it sees.
        if group.is_relative_to(top) and ".." not in group.parts:
            folder = root / point.lstrip("/") / group.relative_to(top)
            if folder.is_dir():
                return folder
    raise OSError(f"the cgroup {group} ({hierarchy or 'v2'}) is not mounted")


def _enable(above: Path) -> None:
    """Lets the groups below a v2 group have limits: refused where processes live in that one, unless it is the root."""
    if "cpu" not in (above / "cgroup.controllers").read_text().split():
        raise OSError(f"{above} has no cpu controller")
    if "cpu" not in (above / "cgroup.subtree_control").read_text().split():
        _write(above / "cgroup.subtree_control", "+cpu")


def _sweep(places: Iterable[_Place]) -> None:
    for place in places:
        for folder in place.above.glob("lightning_core-*"):
            if _OURS.fullmatch(folder.name):
                with contextlib.suppress(OSError):  # somebody lives there
                    folder.rmdir()


def _groups(root: Path, pid: int) -> dict[str, str]:
    """The group that a process is in, by hierarchy."""
    lines = (root / "proc" / str(pid) / "cgroup").read_text(errors="surrogateescape").splitlines()
    return {hierarchy: group for _, hierarchy, group in (line.split(":", 2) for line in lines)}


def _members(group: Path) -> list[int]:
    # Processes that this one cannot see are listed as 0, which would be this one.
    return [pid for pid in map(int, (group / "cgroup.procs").read_text().split()) if pid]


def _move(pids: Iterable[int], group: Path) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            _write(group / "cgroup.procs", str(pid))


def _tree(root: Path, pid: int) -> list[int]:
    """A process and its descendants: not those whose parent has died, whom the kernel gives to somebody else."""
    children: dict[int, list[int]] = {}
    for folder in (root / "proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is gone
            children.setdefault(int(_stat(root, int(folder.name))[1]), []).append(int(folder.name))
    tree = [pid]
    for parent in tree:
        tree.extend(children.get(parent, ()))
    return tree


def _stat(root: Path, pid: int) -> list[bytes]:
    """What the kernel says of a process, after its name: state, parent, and at 19 when it was started."""
    return (root / "proc" / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()


def _write(path: Path, text: str) -> None:
    """Into a file that exists: in a cgroup one write is one command."""
    file = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(file, text.encode())
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(file)
