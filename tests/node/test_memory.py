"""Memory of real processes, and what is read of the kernel."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightning_core.node.memory import proportional_set_size

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


def test_memory_is_counted_once_however_many_processes_share_it() -> None:
    before = proportional_set_size(os.getpid())
    with filled(SIZE) as memory:
        alone = proportional_set_size(os.getpid())
        assert alone - before == pytest.approx(SIZE, abs=SLACK)
        with forked(memory, writes=False):
            assert proportional_set_size(os.getpid()) == pytest.approx(alone, abs=SLACK)
        with forked(memory, writes=True):  # now it has pages of its own
            assert proportional_set_size(os.getpid()) == pytest.approx(alone + SIZE, abs=SLACK)
    assert proportional_set_size(os.getpid()) == pytest.approx(before, abs=SLACK)


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
