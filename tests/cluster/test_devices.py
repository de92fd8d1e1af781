"""Live pools of several devices: whole devices in turns, jobs of several devices, and jobs that come and go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import End, Grant, JobStatus, State, Verdict
from lightning_core.core.codec import decode_answers
from lightning_core.core.commands import SetDeadline, SetTerms
from lightning_core.core.targets import BatchTarget
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.builders import launched
from tests.cluster.test_cluster import Seen
from tests.conftest import ROOT

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster


def job(batches: int, deadline: str = "10m", pause: float = 0.005, **terms: Any) -> dict[str, Any]:
    return launched({"batches": batches}, deadline, init={"pause": pause}, on_miss="stop", **terms)


def run(cluster: Cluster, folder: Path, policy: str, devices: int, watcher: Any = None, **jobs: Any) -> Any:
    content = {"pool": {"devices": devices}, "policy": policy, "period": "0.5s", "jobs": jobs}
    return Bundle.from_dict(content, ROOT).run(run_dir=folder, cluster=cluster, watcher=watcher)


@pytest.mark.nightly
def test_eight_jobs_share_four_devices(four: Cluster, tmp_path: Path) -> None:
    jobs = {f"job{k}": job(100 + 20 * k, deadline=f"{600 + k}s") for k in range(8)}
    summary = run(four, tmp_path, "edf", 4, **jobs)
    assert [status.verdict for status in summary.jobs] == [Verdict.MET] * 8

    held: dict[str, Grant] = {}
    ended: set[str] = set()
    granted = available = before = 0.0
    with Journal.open(tmp_path / "journal.db") as journal:
        assert replay(journal).digest == journal.digest
        for entry in journal.entries():
            if len(ended) <= 4:  # as long as there is a job for every device
                granted += sum(g.share * len(g.devices) for g in held.values()) * (entry.now - before)
                available += 4 * (entry.now - before) if held else 0.0
            before = entry.now
            for answer in decode_answers(entry.answers):
                if isinstance(answer, Grant):
                    held[answer.job] = answer
                elif isinstance(answer, End):
                    held.pop(answer.job, None)
                    ended.add(answer.job)
            owners = [device for g in held.values() if g.share == 1 for device in g.devices]
            assert len(owners) == len(set(owners))
            for device in range(4):
                assert sum(g.share for g in held.values() if device in g.devices) <= 1 + 1e-9
    assert granted >= 0.9 * available > 0


def test_a_job_of_two_devices_trains_as_one(three: Cluster, tmp_path: Path) -> None:
    """Two ranks over gloo: each batch is a step of both; beside it a job of one device."""
    summary = run(three, tmp_path, "edf", 3, pair=job(80, devices=2), single=job(80))
    assert {status.name: status.verdict for status in summary.jobs} == {"pair": Verdict.MET, "single": Verdict.MET}
    saved = torch.load(tmp_path / "jobs" / "pair" / "last.ckpt", weights_only=True)
    assert saved["global_step"] >= 80
    assert (tmp_path / "jobs" / "pair" / "log-1.txt").exists()
    with Journal.open(tmp_path / "journal.db") as journal:
        grants = [a for e in journal.entries() for a in decode_answers(e.answers) if isinstance(a, Grant)]
    assert {len(g.devices) for g in grants if g.job == "pair" and g.share} == {2}


def test_an_urgent_job_takes_the_place_of_one_that_can_wait(three: Cluster, tmp_path: Path) -> None:
    """One slot: the job that waits is saved and leaves, and comes back when the urgent one has ended."""

    def hurry(now: float, jobs: list[JobStatus]) -> bool:
        if jobs[0].batches > 0:
            three.tell(SetDeadline("urgent", 600.0))
        return jobs[0].batches > 0

    def end(now: float, jobs: list[JobStatus]) -> bool:
        if jobs[1].state is State.ENDED:
            three.tell(SetTerms("patient", target=BatchTarget(jobs[0].batches + 50)))
        return jobs[1].state is State.ENDED

    jobs = {"patient": job(10**6, deadline="10h", pause=0.01), "urgent": job(50, deadline="11h")}
    summary = run(three, tmp_path, "edf", 1, Seen(hurry, end), **jobs)
    assert [status.verdict for status in summary.jobs] == [Verdict.MET] * 2
    assert [status.incarnation for status in summary.jobs] == [2, 1]
    assert summary.jobs[0].finished_at > summary.jobs[1].finished_at
