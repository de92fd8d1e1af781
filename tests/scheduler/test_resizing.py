"""Live resizing: when a deadline moves, and when a worker dies during a resize; and shares of a CPU."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import pytest
import ray

from benchmarks.live.numbered_training import SAMPLES
from benchmarks.live.numbered_training import seen_samples as seen
from benchmarks.live.resize import LOOSE, TIGHT
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import Grant, JobStatus, Verdict
from lightning_core.core.codec import decode_answers, decode_event
from lightning_core.core.commands import Cancel, Pause, SetDeadline
from lightning_core.node.cpu_quota import open_quota
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.builders import numbered
from tests.conftest import ROOT
from tests.waiting import join, until

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

PERIOD = 0.5


class Mortal(pl.Callback):
    """Its process dies the first time that a training begins on two devices."""

    def __init__(self, folder: str) -> None:
        self.marker = Path(folder) / "died"

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size == 2 and trainer.global_rank == 1 and not self.marker.exists():
            self.marker.touch()
            os._exit(1)


def job(folder: Path, *callbacks: dict[str, Any], **terms: Any) -> dict[str, Any]:
    deadline = terms.pop("deadline", f"{LOOSE:.0f}s")
    return numbered(folder, deadline, 10**6, 0.005, *callbacks, **terms)


class Run:
    """A bundle that runs while the test looks at it and steers it."""

    def __init__(self, cluster: Cluster, folder: Path, devices: int, **jobs: dict[str, Any]) -> None:
        policy = {"name": "decor", "alpha": 1.0, "min_dwell": 1.0}
        content = {"pool": {"devices": devices}, "policy": policy, "period": f"{PERIOD}s", "jobs": jobs}
        self.bundle = Bundle.from_dict(content, ROOT)
        self.cluster, self.folder = cluster, folder
        self.cluster.scheduler = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.summary = self.bundle.run(run_dir=self.folder, cluster=self.cluster)

    def tell(self, event: object) -> None:
        ray.get(self.cluster.scheduler.event.remote(event))  # type: ignore[union-attr]  # it runs

    def jobs(self) -> dict[str, JobStatus]:
        if self.cluster.scheduler is None:
            return {}
        return {job.name: job for job in ray.get(self.cluster.scheduler.status.remote())[1]}

    def until(self, holds: Callable[[dict[str, JobStatus]], object]) -> None:
        until(lambda: (jobs := self.jobs()) and holds(jobs))

    def end(self) -> None:
        for spec in self.bundle.jobs:
            self.tell(Cancel(spec.job.name))
        join(self._thread)

    def grants(self, name: str) -> list[tuple[float, Grant]]:
        with Journal.open(self.folder / "journal.db", read_only=True) as journal:
            assert replay(journal).digest == journal.digest
            story = [(entry.now, decode_answers(entry.answers)) for entry in journal.entries()]
        return [(now, a) for now, answers in story for a in answers if isinstance(a, Grant) and a.job == name]

    def deadlines(self) -> list[tuple[float, float]]:
        """Return each change of a deadline, and the scheduler time at which it was accepted."""
        with Journal.open(self.folder / "journal.db", read_only=True) as journal:
            events = [(entry.now, decode_event(entry.event)) for entry in journal.entries()]
        return [(now, event.deadline) for now, event in events if isinstance(event, SetDeadline)]


@pytest.mark.nightly
def test_a_moved_deadline_resizes_jobs_within_two_periods(four: Cluster, tmp_path: Path) -> None:
    """Another job trains on the device meanwhile; every sample of every epoch is seen once."""
    jobs = {"a": job(tmp_path / "a", min_devices=1, max_devices=2), "b": job(tmp_path / "b")}
    run = Run(four, tmp_path / "run", 2, **jobs)
    run.until(lambda jobs: jobs["a"].batches > 50 and len(jobs["a"].devices) == 1 and jobs["b"].batches > 20)
    for deadline, devices in ((TIGHT, 2), (LOOSE, 1), (TIGHT, 2)):
        time.sleep(1.2)
        run.tell(Pause("b"))
        before = run.jobs()["a"].batches
        run.tell(SetDeadline("a", deadline))
        run.until(lambda jobs, n=devices: len(jobs["a"].devices) == n)  # type: ignore[misc]
        run.until(lambda jobs, done=before: jobs["a"].batches > done + 60)  # type: ignore[misc]
    run.end()
    grants = run.grants("a")
    for at, deadline in run.deadlines():
        devices = 1 if deadline == LOOSE else 2
        change = next(now for now, grant in grants if now >= at and len(grant.devices) == devices and grant.share)
        assert change - at <= 2 * PERIOD + 0.1
    epochs: dict[int, list[int]] = {}
    for (epoch, _), numbers in sorted(seen(tmp_path / "a").items()):
        epochs.setdefault(epoch, []).extend(numbers)
    assert len(epochs) > 1
    for epoch in sorted(epochs)[:-1]:
        assert sorted(epochs[epoch]) == list(range(SAMPLES))


@pytest.mark.nightly
@pytest.mark.promise("F32")
def test_a_worker_lost_in_a_resize_restores_the_last_good_size(four: Cluster, tmp_path: Path) -> None:
    mortal = {"class_path": "tests.scheduler.test_resizing.Mortal", "init_args": {"folder": str(tmp_path)}}
    run = Run(four, tmp_path / "run", 2, a=job(tmp_path / "a", mortal, min_devices=1, max_devices=2, deadline="80s"))
    run.until(lambda jobs: jobs["a"].fault is not None)  # on two devices from the beginning: there is no good number
    run.until(lambda jobs: jobs["a"].batches > 50)
    run.tell(SetDeadline("a", LOOSE))
    run.until(lambda jobs: len(jobs["a"].devices) == 1 and jobs["a"].checkpoint_batches)
    before = run.jobs()["a"].batches
    run.until(lambda jobs: jobs["a"].batches > before + 60)
    (tmp_path / "died").unlink()
    run.tell(SetDeadline("a", TIGHT))
    run.until(lambda jobs: jobs["a"].restarts == 2)
    lost = run.jobs()["a"].batches
    run.until(lambda jobs: jobs["a"].batches > lost + 60)
    status = run.jobs()["a"]
    run.end()
    assert len(status.devices) == 1
    assert "the last change of their number failed" in str(status.grant_reason)
    assert status.lost_batches < 100
    assert run.grants("a")[-1][1].devices == status.devices


def test_a_share_of_a_cpu_is_kept_to_and_meets_the_deadline(cluster: Cluster, tmp_path: Path) -> None:
    spec = {
        "model": {"class_path": "tests.script.Busy", "init_args": {"milliseconds": 10.0}},
        "data": {"class_path": "tests.tiny.Points"},
        "trainer": {"logger": False},
        "deadline": "20s",
        "target": {"batches": 250},
    }
    policy = {"name": "decor", "alpha": 0.7}  # six seconds before the deadline: the machine may be busy
    bundle = Bundle.from_dict({"policy": policy, "jobs": {"half": spec}}, ROOT)
    summary = bundle.run(run_dir=tmp_path, cluster=cluster)
    [status] = summary.jobs
    assert status.verdict is Verdict.MET
    assert status.finished_at is not None
    assert 10.0 < status.finished_at < 20.0  # and not as soon as it could
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        answers = [a for entry in journal.entries() for a in decode_answers(entry.answers)]
    parts = [answer.share for answer in answers if isinstance(answer, Grant) and answer.capped]
    assert parts
    assert all(part == pytest.approx(round(part / 0.05) * 0.05) for part in parts)
    log = (tmp_path / "jobs" / "half" / "log.txt").read_text()
    quota = open_quota()
    if quota is not None:
        quota.close()
        workers = ray.get(cluster.pool_manager.pids.remote())
        left = [path.name for path in Path("/sys/fs/cgroup").glob("**/lightning_core-*")]
        assert not [name for name in left if int(name.split("-")[1]) in workers]
    assert ("pauses between batches instead" in log) == (quota is None)
