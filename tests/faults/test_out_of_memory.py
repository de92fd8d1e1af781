"""A job that really runs out of memory, by its limit or the kernel: the cause is told, and it comes back alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lightning_core.core.answers import Verdict
from lightning_core.history.history import History
from lightning_core.history.moments import Holding
from lightning_core.node.cgroups import folder_of, memberships, write
from lightning_core.storage.journals.journal import Journal
from tests.conftest import ROOT
from tests.faults.thirst import THIRSTY_BATCH, bundle

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

TRIAL = "alone on its device until it is known how much memory it needs"
# Time by which two events of a journal may be apart that belong together, seconds.
TOGETHER = 0.2


def check(run: Path, words: str) -> None:
    """Check what a run has made of the job that ran out of memory, and of the other one."""
    with Journal.open(run / "journal.db", read_only=True) as journal:
        history = History.read(journal)
    thirsty, other = sorted(history.jobs, key=lambda job: job.job.name != "thirsty")
    assert [job.verdict for job in (thirsty, other)] == [Verdict.MET, Verdict.MET]
    [fault] = thirsty.faults
    assert words in fault.what
    assert other.faults == []
    # The other one leaves for it, is held until it has come further than before, and goes on.
    [trial] = [number for number, held in enumerate(thirsty.grants) if str(held.reason) == TRIAL]
    begin, end = (thirsty.grants[number].time for number in (trial, trial + 1))
    assert _share(other.grants, 0.5 * (begin + end)) == 0
    assert max(point.batches for point in thirsty.progress if point.time <= end + TOGETHER) >= THIRSTY_BATCH
    assert _share(other.grants, end + TOGETHER) > 0


def _share(grants: Sequence[Holding], time: float) -> float:
    return [held.share for held in grants if held.time <= time][-1]


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.promise("F28")
@pytest.mark.parametrize(("how", "words"), [("python", "OOM: MemoryError"), ("torch", "OOM: RuntimeError: ")])
def test_a_job_that_is_refused_memory_comes_back_alone(cluster: Cluster, tmp_path: Path, how: str, words: str) -> None:
    summary = bundle(tmp_path, how).run(run_dir=tmp_path / "run", cluster=cluster)
    check(tmp_path / "run", words)
    assert all(job.memory_needed and job.memory_needed == job.memory for job in summary.jobs)


@pytest.mark.gpu
def test_a_job_that_is_refused_memory_of_its_gpu_comes_back_alone(gpu_cluster: Cluster, tmp_path: Path) -> None:
    bundle(tmp_path, "cuda").run(run_dir=tmp_path / "run", cluster=gpu_cluster)
    check(tmp_path / "run", "OOM: OutOfMemoryError: CUDA out of memory")


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory cgroup of our own, below that of this process."""
    groups = memberships(Path("/"), os.getpid())
    hierarchy = next((name for name in groups if "memory" in name.split(",")), "")
    try:
        ours = folder_of(Path("/"), hierarchy, Path(groups[hierarchy]))
        if not hierarchy:
            write(ours / "cgroup.subtree_control", "+memory")
        made = ours / f"lc-thirst-{os.getpid()}"
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup that limits memory can be made: {error}")
    yield made
    until = time.monotonic() + 20.0
    while made.exists() and time.monotonic() < until:  # its last processes are ending
        with suppress(OSError):
            made.rmdir()
        time.sleep(0.2)


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.promise("F28")
def test_a_job_that_the_kernel_kills_for_memory_comes_back_alone(group: Path, tmp_path: Path) -> None:
    enter = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
    command = ["sh", "-c", enter, "sh", sys.executable, "-m", "tests.faults.thirst", str(tmp_path), str(group)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    counted = next(file for name in ("memory.oom_control", "memory.events") if (file := group / name).exists())
    assert "oom_kill 1\n" in counted.read_text()
    check(tmp_path / "run", "OOM: the kernel killed its process for memory")
