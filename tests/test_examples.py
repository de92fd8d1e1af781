"""Small runs of the examples; the digit models are not trivial, and able to learn."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import lightning.pytorch as pl
import pytest
import torch

from examples import demo
from examples.digits import MODELS, Digits
from lightning_core.cluster.bundle import Bundle
from tests.conftest import ROOT
from tests.examples import day_and_night
from tests.tiny import QUIET

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

STEPS = {"vit": 300, "lstm": 1400, "cnn": 250, "resnet_narrow": 100, "resnet_wide": 60}


@pytest.mark.parametrize("name", day_and_night(sorted(MODELS), ["cnn"]))
def test_a_digit_model_recognises_nine_of_ten_digits(name: str) -> None:
    torch.set_num_threads(1)
    pl.seed_everything(1, verbose=False)
    model, data = MODELS[name](), Digits()
    assert sum(p.numel() for p in model.parameters()) >= 50_000
    trainer = pl.Trainer(max_steps=STEPS[name], max_epochs=-1, **QUIET)
    trainer.fit(model, data)
    [result] = trainer.test(model, data, verbose=False)
    assert result["test_accuracy"] > 0.9


@pytest.mark.nightly
@pytest.mark.cluster
def test_the_bundle_runs(cluster: Cluster, tmp_path: Path) -> None:
    summary = Bundle.from_file(ROOT / "examples" / "digits" / "bundle.yaml").run(run_dir=tmp_path, cluster=cluster)
    assert {job.name for job in summary.jobs} == {"cnn", "lstm"}
    assert all(job.batches > 100 for job in summary.jobs)


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_language_model_is_trained_on_nodes_that_come_and_go(tmp_path: Path) -> None:
    """Two spot nodes for five intervals of twenty seconds, none for eight: it ends in time, and has learned."""
    pytest.importorskip("peft", reason="make setup-lora")
    run = tmp_path / "run"
    words = ["examples/spot_lora.py", "--interval", "20", "--batches", "300", "--run-dir", str(run)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=420)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 met" in done.stdout
    [(taught, untaught)] = re.findall(r"test snippets: ([0-9.]+)%, before training ([0-9.]+)%", done.stdout)
    assert float(taught) > float(untaught) + 15
    ledger = json.loads((run / "ledger.json").read_text())
    assert sum(row["batches"] for row in ledger["intervals"]) == 300
    assert any(row["spot"] for row in ledger["intervals"])
    assert all(row["spot"] == 0 for row in ledger["intervals"][5:13])
    assert ledger["cost"] < ledger["on_demand_cost"]
    assert (run / "intervals.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly
@pytest.mark.cluster
def test_the_demo_runs(local_ray: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--training",
        "cnn-quick",
        "lstm-quick",
        "--policy",
        "fifo",
        "triage",
        "--seconds",
        "3",
        "--seed",
        "2",
    ]
    figures = demo.main([*words, "--run-dir", str(tmp_path / "runs"), "--json", str(tmp_path / "demo.json")])
    assert set(figures) == {"ceiling", "met_all at once", "met_fifo", "met_triage"}
    written = json.loads((tmp_path / "demo.json").read_text())
    assert written["figures"] == figures
    assert [row["seed"] for row in written["seeds"]] == [2]
    for key, value in figures.items():
        assert value == sum(row[key] for row in written["seeds"]) <= 2
    told = capsys.readouterr().out
    assert re.search(r"^ +job +needs +has +all at once +fifo +triage$", told, re.MULTILINE)
    assert re.search(r"^ +met +of \d +\d +\d +\d$", told, re.MULTILINE)
    assert told.endswith(f"\n{demo.meaning(figures)}\n")
    assert (tmp_path / "runs" / "seed-2" / "triage" / "journal.db").exists()


def test_the_demo_refuses_an_unknown_policy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--policy", "triag"])
    assert "policy must be one of" in capsys.readouterr().err
