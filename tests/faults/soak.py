"""What the processes of a pool take of memory, descriptors and threads over hours, and whether it grows."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lightning_core.node.processes import started

# Most growth from the second quarter to the last one.
MAX_GROWTH, MAX_GROWTH_MB, MAX_MORE = 0.1, 10.0, 2
# Name of the threads of gRPC's pool.
GRPC_POOL = "event_engine"
# Words in the command line of each process that lasts as long as its pool, by its name in the figures.
SCHEDULER, POOL_MANAGER, WORKER = "ray::SchedulerActor", "ray::PoolManager", "ray::Worker"
OURS = {
    "scheduler": SCHEDULER,
    "pool manager": POOL_MANAGER,
    "device arbiter": "ray::ArbiterActor",
    "config checker": "lightning_core.cluster.config_checker",
    "head": "ray.scripts.scripts start",
}
RAYS = {"gcs": "gcs_server", "raylet": "raylet/raylet"}


class Process(NamedTuple):
    """A process: ids are used again."""

    pid: int
    started: int


class Usage(NamedTuple):
    """What a process takes."""

    mb: float
    """Resident memory of its own, MB; not what it shares with others."""
    descriptors: float
    threads: float
    """Without those of gRPC's own pool, which grows with the load of the machine, to as many as there is work for."""


class Sample(NamedTuple):
    """What every process takes at a time."""

    at: float
    """Seconds since the beginning."""
    usages: dict[Process, Usage]
    names: dict[Process, str]


def tree(root: int) -> list[int]:
    """Return the ids of a process and of its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def title(pid: int) -> str:
    """Return the command line of a process, in words; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def titled(root: int, words: str) -> Callable[[], list[int]]:
    """Return a function that returns the ids of the processes of a tree whose command line has the words."""
    return lambda: [pid for pid in tree(root) if words in title(pid)]


def usage(pid: int) -> Usage:
    """Return what a process takes now.

    Raises:
        OSError: If it has ended.
    """
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kb = int(lines["VmRSS"].split()[0]) - int(lines["RssShmem"].split()[0])
    threads = [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return Usage(kb / 1024, descriptors, len(threads) - threads.count(GRPC_POOL))


def sample(at: float, root: int) -> Sample:
    """Return what the processes of a tree that have a name here take now."""
    taken = Sample(at, {}, {})
    for pid in tree(root):
        words, began = title(pid), started(pid)
        for name, part in (OURS | RAYS).items():
            if part in words and began is not None:
                try:
                    taken.usages[Process(pid, began)] = usage(pid)
                except (OSError, KeyError):  # it has just ended
                    continue
                taken.names[Process(pid, began)] = name
    return taken


class Growth(NamedTuple):
    """Medians of a process in the second and in the last quarter of a run."""

    name: str
    before: Usage
    after: Usage

    @property
    def is_flat(self) -> bool:
        """Whether it takes no more than it did, but for noise."""
        mb = self.after.mb - self.before.mb
        more = max(self.after.descriptors - self.before.descriptors, self.after.threads - self.before.threads)
        return mb <= MAX_GROWTH_MB and mb <= MAX_GROWTH * self.before.mb and more <= MAX_MORE

    def __str__(self) -> str:
        (mb, descriptors, threads), after = self.before, self.after
        return (
            f"{self.name} {mb:.1f} to {after.mb:.1f} MB, {descriptors:.0f} to {after.descriptors:.0f} descriptors, "
            f"{threads:.0f} to {after.threads:.0f} threads"
        )


def growths(samples: Sequence[Sample], seconds: float) -> list[Growth]:
    """Return the growth of each process that was there all the time after the first quarter, by name.

    Args:
        samples: Samples of a run.
        seconds: Length of the run.
    """
    lasting = [one for one in samples if one.at >= seconds / 4]
    second = [one.usages for one in lasting if one.at < seconds / 2]
    last = [one.usages for one in lasting if one.at >= seconds * 3 / 4]
    always = set.intersection(*(set(one.usages) for one in lasting))
    found = [Growth(lasting[-1].names[p], _medians(second, p), _medians(last, p)) for p in always]
    return sorted(found)


def _medians(usages: Sequence[dict[Process, Usage]], process: Process) -> Usage:
    return Usage(*(statistics.median(column) for column in zip(*(one[process] for one in usages), strict=True)))
