"""Jobs with sharded models in live pools: they are saved in folders, moved, resized, and go back from NaN losses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from lightning.fabric.utilities.load import _load_distributed_checkpoint

from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import JobStatus, Verdict
from lightning_core.core.commands import Pause, Resume
from tests.builders import launched
from tests.cluster.test_cluster import Seen
from tests.conftest import ROOT
from tests.sharded import STRATEGIES

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]


def sharded(batches: int, strategy: str = "FSDP2", data: str = "NoisyPoints", **terms: Any) -> dict[str, Any]:
    init = {"pause": 0.01, **terms.pop("init", {})}
    package = "tests.sharded" if data == "ElasticPoints" else "tests.tiny"
    return launched(
        {"batches": batches}, model="tests.sharded.LiveNet", data=f"{package}.{data}", init=init,
        trainer={"strategy": STRATEGIES[strategy]}, **terms,
    )  # fmt: skip


def run(cluster: Cluster, folder: Path, watcher: Any = None, **jobs: Any) -> Any:
    content = {"pool": {"devices": 3}, "policy": "edf", "period": "0.5s", "jobs": jobs}
    return Bundle.from_dict(content, ROOT).run(run_dir=folder, cluster=cluster, watcher=watcher)


@pytest.mark.parametrize("strategy", ["FSDP2", "tensor parallel"])
def test_a_job_that_is_paused_resumes_from_its_shards(three: Cluster, tmp_path: Path, strategy: str) -> None:
    paused: list[int] = []

    def leave(now: float, jobs: list[JobStatus]) -> bool:
        if jobs[0].batches > 20 and not paused:
            paused.append(jobs[0].batches)
            three.tell(Pause("pair", release=True))
        return bool(paused)

    def back(now: float, jobs: list[JobStatus]) -> bool:
        if not (away := not jobs[0].devices):
            return False
        three.tell(Resume("pair"))
        return away

    summary = run(three, tmp_path, Seen(leave, back), pair=sharded(300, strategy, devices=2))
    [status] = summary.jobs
    assert (status.verdict, status.incarnation) == (Verdict.MET, 2)
    last = tmp_path / "jobs" / "pair" / "last.ckpt"
    assert torch.load(last / "meta.pt", weights_only=True)["global_step"] >= 300
    assert _load_distributed_checkpoint(last)["state_dict"]["body.0.weight"].shape == (8, 4)


def test_a_job_with_nan_losses_goes_back_to_its_last_shards(three: Cluster, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    job = sharded(200, init={"bad_from": 100, "mark": str(mark)}, devices=2, on_nan="restart", save_every="0.3s")
    [status] = run(three, tmp_path / "run", pair=job).jobs
    assert (status.verdict, status.incarnation) == (Verdict.MET, 2)
    assert mark.exists()


def test_a_job_is_resized_from_its_shards(three: Cluster, tmp_path: Path) -> None:
    """It trains on all devices while it is alone, and gives one to each job that comes."""
    jobs = {
        "wide": sharded(400, data="ElasticPoints", min_devices=1, max_devices=2, deadline="1h"),
        "urgent": launched({"batches": 100}, "40s", init={"pause": 0.02}, begin="6s", devices=2),
    }
    summary = run(three, tmp_path, **jobs)
    assert {status.verdict for status in summary.jobs} == {Verdict.MET}
    wide = next(status for status in summary.jobs if status.name == "wide")
    assert wide.incarnation > 1
