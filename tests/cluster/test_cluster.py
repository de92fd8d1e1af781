"""The whole loop: real Lightning jobs in warm Ray workers, one device, a scheduler in an actor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lightning_core.bundle.problems import BundleError
from lightning_core.bundle.python_form import Training
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.storage.manifests import verify
from tests import tiny
from tests.builders import launched
from tests.conftest import ROOT
from tests.waiting import until

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

# Of jobs that end otherwise, on however slow a machine.
DEADLINE = "10m"


def job(
    deadline: str = DEADLINE, target: dict[str, Any] | None = None, data: str = "Points", **init: Any
) -> dict[str, Any]:
    chosen = target or {"loss": 0.05}
    return launched(chosen, deadline, data=f"tests.tiny.{data}", init=init, cell=5, on_miss="stop")


def bundle(policy: str = "lara", **jobs: Any) -> Bundle:
    return Bundle.from_dict({"policy": policy, "period": "0.5s", "jobs": jobs}, ROOT)


def with_restarts(made: Bundle, job: str, restarts: int) -> Bundle:
    """Return a bundle whose job resumes at most a number of times."""
    specs = [replace(s, job=replace(s.job, restarts=restarts)) if s.job.name == job else s for s in made.jobs]
    return replace(made, jobs=tuple(specs))


def pid_of(actor: Any) -> int:
    """Return the id of an actor's process."""
    import ray

    pid: int = ray.get(actor.pid.remote(), timeout=2.0)
    return pid


class Seen:
    """A watcher that records statuses and acts, each time until an act has been done."""

    def __init__(self, *acts: Any) -> None:
        self.frames: list[tuple[float, list[JobStatus]]] = []
        self._acts = list(acts)

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        self.frames.append((now, jobs))
        if self._acts and self._acts[0](now, jobs):
            del self._acts[0]

    def close(self) -> None:
        """Do nothing."""


def test_jobs_meet_their_targets_in_turns_and_the_journal_replays(cluster: Cluster, tmp_path: Path) -> None:
    seen = Seen()
    made = bundle(
        a=job(pause=0.003), b=job(pause=0.003, target={"batches": 400}), c=job(deadline="3s", lr=1e-6, pause=0.003)
    )
    summary = made.run(run_dir=tmp_path, cluster=cluster, watcher=seen)
    verdicts = {j.name: j.verdict for j in summary.jobs}
    assert (verdicts["a"], verdicts["b"]) == (Verdict.MET, Verdict.MET)
    assert verdicts["c"] is Verdict.MISSED
    assert summary.exit_code == 3
    for _, jobs in seen.frames:
        assert sum(j.share for j in jobs) <= 1 + 1e-9
    body = json.loads((tmp_path / "summary.json").read_text())
    assert body["met"] == 2
    assert body["figures"]["device_use"] <= 1.05
    with Journal.open(tmp_path / "journal.db") as journal:
        assert replay(journal).digest == journal.digest
    kept = Bundle.from_file(tmp_path / "bundle.yaml").jobs
    assert all(spec.submitted is not None for spec in kept)
    assert tuple(replace(spec, submitted=None) for spec in kept) == made.jobs
    saved = torch.load(tmp_path / "jobs" / "b" / "last.ckpt", weights_only=True)
    assert saved["global_step"] >= 400


@pytest.mark.promise("R10", "F31")
def test_a_job_that_raises_ends_no_other_job(cluster: Cluster, tmp_path: Path) -> None:
    made = bundle("uniform", bad=job(raise_at=20), good=job(target={"batches": 100}))
    summary = made.run(run_dir=tmp_path, cluster=cluster)
    bad, good = summary.jobs
    assert (bad.verdict, str(bad.reason)) == (Verdict.CRASHED, "ValueError: this job was made to fail")
    assert "training_step" in bad.detail
    assert good.verdict is Verdict.MET
    assert summary.exit_code == 1


def test_a_job_that_cannot_be_built_crashes_alone(cluster: Cluster, tmp_path: Path) -> None:
    broken = {**job(), "model": {"class_path": "tests.tiny.NoArguments"}}
    summary = bundle("fifo", broken=broken, good=job(target={"batches": 50})).run(run_dir=tmp_path, cluster=cluster)
    assert [j.verdict for j in summary.jobs] == [Verdict.CRASHED, Verdict.MET]
    assert "cannot be built" in str(summary.jobs[0].reason)


def test_a_worker_that_dies_is_noticed_and_replaced(cluster: Cluster, tmp_path: Path) -> None:
    made = with_restarts(bundle("uniform", dead=job(die_at=20), good=job(target={"batches": 100})), "dead", 1)
    summary = made.run(run_dir=tmp_path / "first", cluster=cluster)
    assert [j.verdict for j in summary.jobs] == [Verdict.CRASHED, Verdict.MET]
    assert "the worker's process died" in str(summary.jobs[0].reason)
    assert summary.jobs[0].incarnation == 2
    again = bundle("fifo", good=job(target={"batches": 50})).run(run_dir=tmp_path / "second", cluster=cluster)
    assert again.exit_code == 0


@pytest.mark.promise("F11")
def test_an_error_about_an_unlogged_metric_lists_the_logged_ones(cluster: Cluster, tmp_path: Path) -> None:
    made = bundle(a=job(target={"metric": "vall_loss", "at_most": 0.1}, data="ValidatedPoints"))
    [status] = made.run(run_dir=tmp_path, cluster=cluster).jobs
    assert status.verdict is Verdict.CRASHED
    assert "'vall_loss' was never logged; logged so far: val_loss" in str(status.reason)


def test_bad_losses_are_shown(cluster: Cluster, tmp_path: Path) -> None:
    [status] = bundle(a=job(bad_after=10)).run(run_dir=tmp_path, cluster=cluster).jobs
    assert status.verdict is Verdict.MET
    assert status.rejected == 3


@pytest.mark.promise("R2", "F1")
def test_a_killed_scheduler_restarts_while_training_continues(cluster: Cluster, tmp_path: Path) -> None:
    """SIGKILL: it answers again within 10 s, training goes on meanwhile, and the journal replays over the gap."""
    import ray

    killed: dict[str, float] = {}

    def kill(now: float, jobs: list[JobStatus]) -> bool:
        if now < 2.0:
            return False
        pid = pid_of(cluster.scheduler)
        killed["batches"] = sum(j.batches for j in jobs)
        os.kill(pid, signal.SIGKILL)
        killed["at"] = time.monotonic()

        def is_back() -> bool:
            try:
                return pid_of(cluster.scheduler) != pid
            except ray.exceptions.RayError:
                return False

        until(is_back)
        killed["back"] = time.monotonic()
        return True

    seen = Seen(kill)
    made = bundle("uniform", a=job(pause=0.005, target={"batches": 700}), b=job(pause=0.005, target={"batches": 700}))
    summary = made.run(run_dir=tmp_path, cluster=cluster, watcher=seen)
    assert killed["back"] - killed["at"] < 10
    assert summary.exit_code == 0
    assert [(job.incarnation, job.restarts) for job in summary.jobs] == [(1, 0)] * 2
    with Journal.open(tmp_path / "journal.db") as journal:
        again = replay(journal)
        assert again.digest == journal.digest
        assert again.scheduler.names(active=True) == []


@pytest.mark.nightly
def test_a_restarted_pool_manager_finds_its_workers(cluster: Cluster, tmp_path: Path) -> None:
    import ray

    def kill(now: float, jobs: list[JobStatus]) -> bool:
        if now < 1.0:
            return False
        os.kill(pid_of(cluster.pool_manager), signal.SIGKILL)
        return True

    made = bundle(
        "uniform",
        a=job(pause=0.005, target={"batches": 400}),
        b=job(pause=0.005, target={"batches": 400}),
        dead=job(pause=0.005, target={"batches": 10**6}, die_at=300),
    )
    made = with_restarts(made, "dead", 0)
    before = ray.get(cluster.pool_manager.pids.remote())
    summary = made.run(run_dir=tmp_path / "first", cluster=cluster, watcher=Seen(kill))
    assert [j.verdict for j in summary.jobs] == [Verdict.MET, Verdict.MET, Verdict.CRASHED]
    again = bundle("fifo", a=job(target={"batches": 50})).run(run_dir=tmp_path / "second", cluster=cluster)
    assert again.exit_code == 0
    after = ray.get(cluster.pool_manager.pids.remote())
    assert len(set(before) & set(after)) == 2  # all but the one that died


@pytest.mark.promise("R2")
def test_the_scheduler_s_process_imports_neither_torch_nor_lightning() -> None:
    code = (
        "import sys, lightning_core.server.ray_actor;"
        "bad = {'torch', 'lightning', 'filterpy', 'statsmodels'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.nightly  # tests/scheduler/test_allocation.py holds the same without workers
def test_more_jobs_than_fit_in_memory_come_in_as_others_end(cluster: Cluster, tmp_path: Path) -> None:
    names = ("a", "b", "c", "d", "e")
    seen = Seen()
    made = bundle("fifo", **{name: job(pause=0.003, target={"batches": 60}) for name in names})
    summary = made.run(run_dir=tmp_path, cluster=cluster, watcher=seen)
    assert [j.verdict for j in summary.jobs] == [Verdict.MET] * 5
    assert max(sum(bool(j.devices) for j in jobs) for _, jobs in seen.frames) == 3


def test_more_devices_than_exist_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    made = Bundle.from_dict({"pool": {"devices": 2}, "jobs": {"a": job()}}, ROOT)
    with pytest.raises(BundleError, match="the bundle shares 2 devices, the cluster has 1"):
        made.run(run_dir=tmp_path, cluster=cluster)


def test_a_run_does_not_overwrite_another(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "something").write_text("mine")
    with pytest.raises(BundleError, match="is not empty"):
        bundle(a=job()).run(run_dir=tmp_path, cluster=cluster)


def test_a_watcher_sees_the_states_of_jobs(cluster: Cluster, tmp_path: Path) -> None:
    seen = Seen()
    made = bundle("fifo", a=job(pause=0.01, target={"batches": 150}), b=job(pause=0.01, target={"batches": 50}))
    made.run(run_dir=tmp_path, cluster=cluster, watcher=seen)
    states = [tuple(j.state for j in jobs) for _, jobs in seen.frames]
    assert (State.RUNNING, State.QUEUED) in states
    assert states[-1] == (State.ENDED, State.ENDED)


def test_the_best_model_is_kept_in_the_job_folder_and_the_summary_has_its_path(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Of jobs that are written in Python, with classes."""
    more: Any = {"data": tiny.Points, "trainer": {"logger": False}, "cell": 5, "seed_everything": 1}
    made = Bundle([
        Training("a", DEADLINE, "loss<=0.05", model=partial(tiny.Line, pause=0.01), keep_best=True, **more),
        Training("b", DEADLINE, "40 batches", model=tiny.Line, **more),
    ], Settings(policy="lara", period=0.5), folder=ROOT)  # fmt: skip
    summary = cluster.run(made, tmp_path / "run")
    place = tmp_path / "run" / "jobs" / "a" / "best.ckpt"
    manifest = verify(place)
    assert manifest.value is not None
    assert manifest.value <= 0.05
    written = json.loads((tmp_path / "run" / "summary.json").read_text())["jobs"]
    assert written["a"]["best_model"] == str(place)
    assert "best_model" not in written["b"]
    assert summary.met == 2
    assert f"is in {place}" in (place.parent / "log.txt").read_text()
