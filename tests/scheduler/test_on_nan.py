"""Launched jobs whose losses become NaN, or whose Trainer ends them: in a pool, on real workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import Verdict
from lightning_core.history.history import History
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.view.why import why
from tests.builders import launched
from tests.conftest import ROOT
from tests.tiny import Line

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster


class Diverges(Line):
    """Its weights become NaN after some steps; if a file is named, only in the incarnation that creates it."""

    def __init__(self, after: int, once: str = "") -> None:
        super().__init__(pause=0.01)
        self.after = after
        self.marker = Path(once) if once else None
        self.restarted = self.marker is not None and self.marker.exists()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.steps == self.after and not self.restarted:
            if self.marker is not None:
                self.marker.touch()
            with torch.no_grad():
                self.layer.weight.fill_(torch.nan)
        return loss


def job(on_nan: str, target: dict[str, Any], model: dict[str, Any], **trainer: Any) -> dict[str, Any]:
    terms: dict[str, Any] = {"cell": 5, "on_miss": "stop", "on_nan": on_nan, "save_every": "0.5s"}
    return launched(target, "60s", trainer=trainer, **terms) | {"model": model}


@pytest.mark.nightly
def test_on_nan_restarts_or_stops_jobs_on_real_workers(cluster: Cluster, tmp_path: Path) -> None:
    diverges = "tests.scheduler.test_on_nan.Diverges"
    once = {"class_path": diverges, "init_args": {"after": 200, "once": str(tmp_path / "marker")}}
    made = Bundle.from_dict(
        {
            "policy": "uniform",
            "jobs": {
                "back": job("restart", {"batches": 500}, model=once),
                "stop": job("stop", {"loss": 1e-9}, model={"class_path": diverges, "init_args": {"after": 60}}),
                "short": job("continue", {"loss": 1e-9}, model={"class_path": "tests.tiny.Line"}, max_epochs=3),
            },
        },
        ROOT,
    )
    run = tmp_path / "run"
    back, stop, short = made.run(run_dir=run, cluster=cluster).jobs

    assert (back.verdict, back.restarts) == (Verdict.MET, 1)
    assert str(back.fault).startswith("its losses were NaN or infinite from batch 201 on; it resumes from batch ")
    assert back.checkpoint_batches is not None
    start = int(str(back.fault).partition("from batch ")[2].partition("it resumes from batch ")[2].partition(" ")[0])
    assert 0 < start < 200
    state = torch.load(run / "jobs" / "back" / "last.ckpt", weights_only=True)["state_dict"]
    assert all(bool(torch.isfinite(values).all()) for values in state.values())

    assert stop.verdict is Verdict.CRASHED
    assert str(stop.reason).startswith("stopped: its losses were NaN or infinite from batch 61 on: best ")
    assert short.verdict is Verdict.MISSED
    assert str(short.reason).startswith("its training ended at max_epochs=3: best ")

    for status in (back, stop, short):
        said = (run / "jobs" / status.name / "log.txt").read_text().splitlines()
        assert f"lightning_core: {status.name}: {status.verdict}: {status.reason}" in said
    with Journal.open(run / "journal.db", read_only=True) as journal:
        replay(journal)
        story = "\n".join(why(History.read(journal), "back"))
    assert "its losses have been NaN or infinite since batch 201" in story
    assert f"resumed from batch {start}" in story
