"""No more jobs stay on a device than fit into its memory: real processes, and what the kernel says that they have."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import Verdict
from lightning_core.history.history import History
from lightning_core.node.memory import proportional_set_size
from lightning_core.storage.journals.journal import Journal
from tests.cluster.test_cluster import job
from tests.conftest import ROOT
from tests.faults.soak import WORKER, titled

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

MB = 2**20
HEAVY = 300


def heavy(megabytes: int = HEAVY, batches: int = 60) -> dict[str, Any]:
    return {
        **job(target={"batches": batches}),
        "model": {"class_path": "tests.tiny.Heavy", "init_args": {"megabytes": megabytes, "pause": 0.02}},
    }


def bundle(device_memory: int | None, kind: str = "cpu", /, **jobs: Any) -> Bundle:
    content = {"pool": {"kind": kind}, "policy": "uniform", "period": "0.5s", "jobs": jobs}
    made = Bundle.from_dict(content, ROOT)
    return replace(made, settings=replace(made.settings, device_memory=device_memory))


def of_workers() -> int:
    """Return the memory that all workers have, bytes."""
    total = 0
    for pid in titled(os.getpid(), WORKER)():
        with suppress(OSError):  # it has just ended
            total += proportional_set_size(pid)
    return total


def of_gpu() -> int:
    """Return the memory that is taken on the GPU, bytes."""
    free, total = torch.cuda.mem_get_info()
    return total - free


class Watch:
    """Most memory that has been taken, above what was at the beginning; bytes."""

    def __init__(self, taken: Callable[[], int]) -> None:
        self._taken, self._before, self.most = taken, taken(), 0

    def look(self) -> None:
        self.most = max(self.most, self._taken() - self._before)


@contextmanager
def watched(taken: Callable[[], int] = of_workers) -> Iterator[Watch]:
    """Look at the memory all the time."""
    watch, over = Watch(taken), threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            watch.look()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


@pytest.mark.nightly
def test_no_more_jobs_stay_on_a_device_than_fit(cluster: Cluster, tmp_path: Path) -> None:
    jobs = {name: heavy() for name in "abc"}
    with watched() as free:
        summary = bundle(None, **jobs).run(run_dir=tmp_path / "free", cluster=cluster)
    assert {one.verdict for one in summary.jobs} == {Verdict.MET}
    peaks = [one.memory for one in summary.jobs if one.memory is not None]
    assert len(peaks) == 3
    assert all(peak > HEAVY * MB for peak in peaks)
    assert free.most > 2.5 * HEAVY * MB  # all three at once

    # The peak of each is measured in its trial, and two of them do not fit.
    with watched() as limited:
        summary = bundle(int(1.5 * max(peaks)), **jobs).run(run_dir=tmp_path / "limited", cluster=cluster)
    assert {one.verdict for one in summary.jobs} == {Verdict.MET}
    assert limited.most < 1.5 * HEAVY * MB  # one at a time
    reasons = _grant_reasons(tmp_path / "limited")
    assert "alone on its device until it is known how much memory it needs" in reasons


@pytest.mark.gpu
def test_no_more_jobs_stay_on_a_gpu_than_fit(gpu_cluster: Cluster, tmp_path: Path) -> None:
    """Three jobs of which only one fits are there one at a time, by what the driver says is taken."""
    size, batches = 4000, 150
    if of_gpu() + 5 * size * MB > torch.cuda.mem_get_info()[1]:
        pytest.skip(f"needs {5 * size} MB of free memory on the GPU")
    jobs = {name: heavy(size, batches) for name in "abc"}
    with watched(of_gpu) as free:
        summary = bundle(None, "gpu", **jobs).run(run_dir=tmp_path / "free", cluster=gpu_cluster)
    assert {one.verdict for one in summary.jobs} == {Verdict.MET}
    assert all(size * MB < (one.memory or 0) < 1.1 * size * MB for one in summary.jobs)
    assert free.most > 3 * size * MB
    with watched(of_gpu) as limited:
        summary = bundle(int(1.5 * size * MB), "gpu", **jobs).run(run_dir=tmp_path / "limited", cluster=gpu_cluster)
    assert {one.verdict for one in summary.jobs} == {Verdict.MET}
    assert limited.most < 1.5 * size * MB, (free.most, limited.most)


def _grant_reasons(run_dir: Path) -> set[str]:
    with Journal.open(run_dir / "journal.db", read_only=True) as journal:
        return {str(held.reason) for job in History.read(journal).jobs for held in job.grants}
