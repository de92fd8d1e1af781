"""The examples run, small; the digit models are of some size, and able to learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import lightning.pytorch as pl
import pytest
import torch

from examples import demo, train
from examples.digits import MODELS, Digits
from lightning_core.launch.bundle import Bundle
from tests.conftest import ROOT
from tests.tiny import QUIET

if TYPE_CHECKING:
    from lightning_core.launch.cluster import Cluster

STEPS = {"vit": 300, "lstm": 1400, "cnn": 250, "resnet_narrow": 100, "resnet_wide": 60}
# Nightly: they need as long as the others together.
LONG = ("lstm", "vit")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in LONG)) for name in sorted(MODELS)]
)
def test_a_digit_model_reads_nine_of_ten(name: str) -> None:
    torch.set_num_threads(1)
    pl.seed_everything(1, verbose=False)
    model, data = MODELS[name](), Digits()
    assert sum(p.numel() for p in model.parameters()) >= 50_000
    trainer = pl.Trainer(max_steps=STEPS[name], max_epochs=-1, **QUIET)
    trainer.fit(model, data)
    [result] = trainer.test(model, data, verbose=False)
    assert result["test_accuracy"] > 0.9


def test_the_plain_script_ends_when_its_loss_is_low_enough() -> None:
    trainer = train.main(["--loss", "1.5", "--deadline", "60s", "--pool", "local"])
    assert 10 <= trainer.global_step < 1000


@pytest.mark.cluster
def test_the_bundle(cluster: Cluster, tmp_path: Path) -> None:
    summary = Bundle.from_file(ROOT / "examples" / "digits" / "bundle.yaml").run(run_dir=tmp_path, cluster=cluster)
    assert {job.name for job in summary.jobs} == {"cnn", "lstm"}
    assert all(job.batches > 100 for job in summary.jobs)


@pytest.mark.cluster
def test_the_demo(local_ray: None, tmp_path: Path) -> None:
    words = ["--model", "cnn", "lstm", "--policy", "fifo", "guarded_edf", "--seconds", "3", "--run-dir", str(tmp_path)]
    figures = demo.main(words)
    assert set(figures) == {"ceiling", "met_fifo", "met_guarded_edf"}
    assert figures["met_fifo"] <= 2
