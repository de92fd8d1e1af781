"""Memory of real processes, and what is read of the kernel."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightning_core.node.memory import RECENT, MemoryKills, free_on_host, proportional_set_size
from tests.conftest import ROOT

MB = 10**6
SIZE = 200 * MB
# Figures of the kernel that may lag, and what else the process does.
SLACK = 10 * MB


@contextmanager
def filled(size: int) -> Iterator[mmap.mmap]:
    """Private memory of this process, all of whose pages are there."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1
        yield memory


@contextmanager
def forked(memory: mmap.mmap, *, writes: bool) -> Iterator[int]:
    """A child that shares the memory of this process, or has written to all of it."""
    ready, tell = os.pipe()
    wait, end = os.pipe()
    if (child := os.fork()) == 0:
        os.close(end)
        if writes:
            for page in range(0, len(memory), mmap.PAGESIZE):
                memory[page] = 2
        os.write(tell, b"x")
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    os.read(ready, 1)
    try:
        yield child
    finally:
        for descriptor in (end, ready, tell):
            os.close(descriptor)
        os.waitpid(child, 0)


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def sizes() -> list[int]:
    """Return the size of this process before, with memory, with a child that shares it, one that writes, and after."""
    found = [proportional_set_size(os.getpid())]
    with filled(SIZE) as memory:
        found.append(proportional_set_size(os.getpid()))
        for writes in (False, True):
            with forked(memory, writes=writes):
                found.append(proportional_set_size(os.getpid()))
    return [*found, proportional_set_size(os.getpid())]


def test_memory_is_counted_once_however_many_processes_share_it() -> None:
    """In a process of its own: this one is large, and pages that it touches beside a child are copied."""
    code = "from tests.node.test_memory import sizes; print(*sizes())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    before, *found = map(int, done.stdout.split())
    # The child that writes has pages of its own.
    assert [size - before for size in found] == pytest.approx([SIZE, SIZE, 2 * SIZE, 0], abs=SLACK)


def process(root: Path, pid: int, parent: int, pss: int | None) -> None:
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (a) S {parent} {'0 ' * 17}5 0\n")
    if pss is not None:
        (folder / "smaps_rollup").write_text(
            f"1000-2000 ---p 0 0:0 0 [rollup]\nRss: 99 kB\nPss: {pss} kB\nPss_Anon: 1 kB\n"
        )


def test_descendants_count_and_others_do_not(tmp_path: Path) -> None:
    for pid, parent, pss in ((7, 1, 10), (8, 7, 5), (9, 8, 3), (10, 7, None), (11, 1, 1000)):
        process(tmp_path, pid, parent, pss)
    assert proportional_set_size(7, tmp_path) == 18 * 1024
    with pytest.raises(OSError, match="smaps_rollup"):
        proportional_set_size(10, tmp_path)
    (tmp_path / "proc/7/smaps_rollup").write_text("Rss: 1 kB\n")
    with pytest.raises(OSError, match="has no line 'Pss:'"):
        proportional_set_size(7, tmp_path)


class Node:
    """Files of a node whose processes are in the memory cgroup ``/a/b``."""

    now = 100.0

    def __init__(self, root: Path, version: int, counted_in: str = "a/b") -> None:
        self.root = root
        point, kind, name = ("m", "cgroup", "memory") if version == 1 else ("u", "cgroup2", "")
        self.file = root / point / counted_in / ("memory.oom_control" if version == 1 else "memory.events")
        (root / point / "a/b").mkdir(parents=True)
        process(root, 7, 1, None)
        (root / "proc/7/cgroup").write_text(f"3:cpu:/\n2:{name}:/a/b\n")
        (root / "proc/self").mkdir()
        (root / "proc/self/mountinfo").write_text(f"30 1 0:3 / /{point} rw - {kind} none rw,{name}\n")
        self.kill(0)
        self.use(0.5)

    def kill(self, count: int) -> None:
        self.file.write_text(f"under_oom 0\noom 9\noom_kill {count}\noom_group_kill 9\n")

    def use(self, fraction: float) -> None:
        text = f"MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: {1000 * (1 - fraction):.0f} kB\n"
        (self.root / "proc/meminfo").write_text(text)

    def kills(self) -> MemoryKills:
        return MemoryKills(7, self.root, lambda: self.now)


KILLED = (True, "the kernel killed its process for memory")


@pytest.mark.promise("F28")
@pytest.mark.parametrize(("version", "counted_in"), [(1, "a/b"), (2, "a/b"), (2, "a")])
def test_a_kill_for_memory_is_known_for_some_seconds(version: int, counted_in: str, tmp_path: Path) -> None:
    node = Node(tmp_path, version, counted_in)
    node.kill(3)  # of earlier jobs
    kills = node.kills()
    assert kills.why_died() == (False, "")
    node.kill(4)
    assert kills.why_died() == KILLED  # without a look in between
    for _ in range(int(RECENT)):
        node.now += 1.0
        kills.look()
    assert kills.why_died() == KILLED
    for _ in range(3):
        node.now += 1.0
        kills.look()
    assert kills.why_died() == (False, "")  # what dies now died of something else


@pytest.mark.promise("F28")
def test_a_full_node_is_a_suspicion_for_some_seconds(tmp_path: Path) -> None:
    node = Node(tmp_path, 2)
    node.use(0.97)
    kills = node.kills()
    node.use(0.4)  # the process that died had it
    suspected = (False, "suspected: out of memory, 97% of its node's was in use")
    assert kills.why_died() == suspected
    node.now += RECENT + 1
    kills.look()
    node.now += RECENT + 1
    assert kills.why_died() == (False, "")


@pytest.mark.parametrize("missing", ["proc/7/cgroup", "proc/self/mountinfo", "u/a/b/memory.events", "proc/meminfo"])
def test_where_the_kernel_says_nothing_nothing_is_claimed(missing: str, tmp_path: Path) -> None:
    node = Node(tmp_path, 2)
    (tmp_path / missing).unlink()
    assert node.kills().why_died() == (False, "")


def test_host_memory_is_what_machine_and_cgroup_leave(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n",
        "proc/7/cgroup": "0::/pod/box\n",
        "proc/self/mountinfo": "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/pod/box/memory.max": "max\n",
        "sys/fs/cgroup/pod/box/memory.current": "100\n",
        "sys/fs/cgroup/pod/memory.max": "6000000\n",
        "sys/fs/cgroup/pod/memory.current": "2000000\n",
        "sys/fs/cgroup/pod/memory.stat": "anon 5\ninactive_file 500000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_on_host(tmp_path, 7) == 4_500_000
    (tmp_path / "sys/fs/cgroup/pod/memory.max").write_text("max\n")
    assert free_on_host(tmp_path, 7) == 8000 * 1024
    assert 0 < free_on_host() < 1e14
