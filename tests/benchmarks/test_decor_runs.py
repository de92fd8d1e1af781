"""What the live runs under ``decor`` measure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.live.decor_runs import _used


@pytest.mark.parametrize(
    ("mounted", "file", "text"),
    [("cpuacct", "cpuacct.usage", "2500000000\n"), ("", "cpu.stat", "usage_usec 2500000\nuser_usec 1\n")],
)
def test_only_groups_of_the_runs_own_processes_count(tmp_path: Path, mounted: str, file: str, text: str) -> None:
    def start(pid: int, parent: int, seconds: str) -> None:
        group = tmp_path / "sys/fs/cgroup" / mounted / f"lightning_core-{pid}-5"
        for folder in (tmp_path / "proc" / str(pid), group):
            folder.mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "stat").write_text(f"{pid} (a) S {parent} {'0 ' * 17}5 0\n")
        (group / file).write_text(seconds)

    me = os.getpid()
    for stranger in range(me + 1, me + 6):  # whatever the order in which folders are listed
        start(stranger, 1, text.replace("25", "99"))
    assert _used(tmp_path) is None
    start(me + 11, me, text)
    assert _used(tmp_path) == pytest.approx(2.5)
