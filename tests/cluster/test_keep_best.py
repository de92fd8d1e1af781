"""The best model is kept during training, complete at every moment, and its path is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from lightning_core.callbacks import CoreCallback
from lightning_core.callbacks.checkpointing import best_model
from lightning_core.callbacks.checkpointing.best_model import BestModelSaver
from lightning_core.core.events import Submit
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, LossTarget, Target
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import Summary
from lightning_core.storage.manifests import Manifest, read_manifest, verify
from lightning_core.view.job_entry import job_entry
from tests.callbacks.test_callback import fit
from tests.conftest import ROOT
from tests.tiny import Line, ValidatedPoints


class Bumpy(pl.LightningModule):
    """A metric with the values of the test, and a weight that counts the evaluations."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = values
        self.line = Line()
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.mse_loss(self.line.layer(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.trainer.sanity_checking and batch_idx == 0:
            self.count += 1
        index = max(int(self.count) - 1, 0)
        self.log("acc", self.values[min(index, len(self.values) - 1)])

    def configure_optimizers(self) -> Any:
        return self.line.configure_optimizers()


def kept(path: Path) -> tuple[Manifest, float]:
    """Return the manifest of a valid file, and the number of evaluations that its model has seen."""
    manifest = verify(path)
    return manifest, float(torch.load(path, weights_only=True)["state_dict"]["count"])


def bumpy(values: list[float], folder: Path, target: Target, **more: Any) -> CoreCallback:
    script = CoreCallback("job", "60s", target, pool="local", keep_best=folder)
    fit(script, Bumpy(values), ValidatedPoints(), **{"max_epochs": len(values), **more})  # type: ignore[arg-type]
    return script


def test_the_model_of_the_best_evaluation_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = bumpy([0.1, 0.5, 0.3, 0.4, 0.2], tmp_path, LossTarget("acc", at_least=0.9))
    manifest, seen = kept(tmp_path / "job-best.ckpt")
    assert script.best_model_path == str(tmp_path / "job-best.ckpt")
    assert manifest.value == pytest.approx(0.5)
    assert (manifest.batches, seen) == (32, 2.0)
    words = f"job: the best model (acc 0.5) after 32 batches is in {tmp_path / 'job-best.ckpt'}"
    assert words in capsys.readouterr().out
    assert script.best_model_path in script._repr_html_()


def test_the_model_that_met_the_target_is_kept(tmp_path: Path) -> None:
    script = bumpy([0.1, 0.95, 0.5], tmp_path, LossTarget("acc", at_least=0.9), max_epochs=-1)
    manifest, seen = kept(Path(script.best_model_path))
    assert manifest.value == pytest.approx(0.95)
    assert (manifest.batches, seen) == (32, 2.0)


def test_a_resumed_training_must_beat_the_earlier_best_and_a_new_one_need_not(tmp_path: Path) -> None:
    target = LossTarget("acc", at_least=0.9)
    first = CoreCallback("job", "60s", target, pool="local", keep_best=tmp_path)
    trainer = fit(first, Bumpy([0.1, 0.5]), ValidatedPoints(), max_epochs=2)  # type: ignore[arg-type]
    trainer.save_checkpoint(tmp_path / "script.ckpt", weights_only=False)
    again = CoreCallback("job", "60s", target, pool="local", keep_best=tmp_path)
    values = [0.1, 0.5, 0.4, 0.45]
    fit(again, Bumpy(values), ValidatedPoints(), max_epochs=4, ckpt_path=tmp_path / "script.ckpt")  # type: ignore[arg-type]
    assert kept(tmp_path / "job-best.ckpt")[0].value == pytest.approx(0.5)
    assert again.best_model_path == str(tmp_path / "job-best.ckpt")
    bumpy([0.2], tmp_path, target)
    assert kept(tmp_path / "job-best.ckpt")[0].value == pytest.approx(0.2)


def test_the_mean_over_the_window_of_a_loss_decides(tmp_path: Path) -> None:
    script = CoreCallback("job", "60s", LossTarget("loss", 0.05), pool="local", keep_best=tmp_path)
    fit(script, Line(pause=0.001), max_epochs=-1)
    manifest = verify(Path(script.best_model_path))
    assert manifest.value is not None
    assert manifest.value <= 0.05


def test_the_model_that_met_a_batch_target_is_kept(tmp_path: Path) -> None:
    script = CoreCallback("job", "60s", BatchTarget(60), pool="local", keep_best=tmp_path)
    fit(script, Line(pause=0.001), max_epochs=-1)
    assert verify(Path(script.best_model_path)).batches == 60


def test_without_a_folder_the_best_model_lies_below_the_root_and_only_on_request(tmp_path: Path) -> None:
    script = CoreCallback("job", "60s", BatchTarget(16), pool="local", keep_best=True)
    fit(script, default_root_dir=tmp_path, max_epochs=2)
    assert script.best_model_path == str(tmp_path / "lightning-core" / "job-best.ckpt")
    # Where the package is installed editable, a folder of its name beside the script would be imported in its place.
    assert PathFinder.find_spec("lightning_core", [str(tmp_path)]) is None
    plain = CoreCallback("job", "60s", BatchTarget(16), pool="local")
    fit(plain, default_root_dir=tmp_path / "plain", max_epochs=2)
    assert plain.best_model_path == ""
    assert not (tmp_path / "plain").exists()


def test_an_unwritable_folder_does_not_stop_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    script = CoreCallback("job", "60s", BatchTarget(16), pool="local", keep_best=tmp_path / "file")
    trainer = fit(script, max_epochs=2)
    assert trainer.global_step >= 16
    assert script.best_model_path == ""
    assert "cannot be saved" in caplog.text


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_saves_of_batch_losses_take_at_most_a_fiftieth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(best_model, "time", clock)
    checkpoints: list[float] = []

    def write(trainer: Any, place: Path, io: Any, *, value: float, asynchronous: bool) -> None:
        checkpoints.append(clock.now)
        clock.now += 0.1  # what a save takes

    monkeypatch.setattr(best_model, "write", write)
    pool_manager = BestModelSaver("job", tmp_path / "best.ckpt", LossTarget("loss", 1e-9), resumed=False)
    for batch in range(1, 10_001):
        clock.now += 0.01
        pool_manager.see(1.0 / batch, evaluated=False)
        if pool_manager.wanted is not None:
            pool_manager.save(None)
    assert 15 <= len(checkpoints) <= 21  # in 100 s of training
    pool_manager.see(0.0, evaluated=False)
    for _ in range(4):
        pool_manager.see(0.0, evaluated=False)
    assert pool_manager.wanted == 0.0  # it has met, which is not the time to save


def test_a_manifest_with_a_null_value_is_damaged(tmp_path: Path) -> None:
    script = CoreCallback("job", "60s", BatchTarget(16), pool="local", keep_best=tmp_path)
    fit(script, max_epochs=2)
    note = tmp_path / "job-best.ckpt.json"
    assert read_manifest(tmp_path / "job-best.ckpt") is not None
    note.write_text(note.read_text().replace('"value": ', '"value": "x", "was": '))
    with pytest.raises(ValueError, match="damaged"):
        read_manifest(tmp_path / "job-best.ckpt")


RANKS = """
import sys
import lightning.pytorch as pl
from lightning_core import LossTarget
from lightning_core.callbacks import CoreCallback
from tests.tiny import QUIET, Line, Points, ValidatedPoints

if __name__ == "__main__":
    for metric, data in (("val_loss", ValidatedPoints()), ("loss", Points())):
        target = LossTarget(metric, 0.01)
        callback = CoreCallback(metric, "60s", target, pool="local", keep_best=sys.argv[1])
        trainer = pl.Trainer(max_epochs=30, callbacks=[callback], **{**QUIET, "devices": 2, "strategy": "ddp"})
        trainer.fit(Line(pause=0.005), datamodule=data)
"""


@pytest.mark.nightly
def test_several_processes_keep_the_best_model_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for metric in ("val_loss", "loss"):
        manifest = verify(tmp_path / f"{metric}-best.ckpt")
        assert manifest.value is not None
        assert manifest.value < 1.0
        assert done.stdout.count(f"{metric}: the best model ({metric} ") == 1
    assert "returned no loss" not in done.stderr + done.stdout


def test_the_path_of_the_best_model_is_machine_readable(tmp_path: Path) -> None:
    scheduler = Scheduler(Settings())
    scheduler.handle(Submit((Job("a", 60.0, BatchTarget(9)),)), 0.0)
    [status] = scheduler.status()
    summary = Summary.of(Settings(), 1.0, [status], tmp_path)
    assert "best_model" not in job_entry(status, tmp_path) | summary.to_dict()["jobs"]["a"]
    place = tmp_path / "jobs" / "a" / "best.ckpt"
    place.parent.mkdir(parents=True)
    place.touch()
    assert job_entry(status, tmp_path)["best_model"] == str(place)
    assert summary.to_dict()["jobs"]["a"]["best_model"] == str(place)
