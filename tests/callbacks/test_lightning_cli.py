"""The callback in the YAML of a LightningCLI: the training is the same, and no time is taken for a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.cli import LightningCLI

from lightning_core.callbacks import CoreCallback
from tests.tiny import QUIET, Line, ValidatedPoints

TERMS = {"job": "a", "deadline": "1h", "target": "val_loss<=1e-9", "pool": "local", "hang": "10m"}


def config(folder: Path, **terms: Any) -> Path:
    """Write a configuration with the callback, or without it if it has no terms."""
    core = [{"class_path": "lightning_core.callbacks.CoreCallback", "init_args": TERMS | terms}] if terms else []
    trainer = {**QUIET, "max_epochs": 2, "callbacks": core, "default_root_dir": str(folder)}
    path = folder / "given.yaml"
    path.write_text(yaml.safe_dump({"seed_everything": 1, "trainer": trainer}))
    return path


def run(path: Path, *more: str) -> LightningCLI:
    return LightningCLI(Line, ValidatedPoints, args=["fit", "--config", str(path), *more])


def test_a_training_from_yaml_is_the_same(tmp_path: Path) -> None:
    weights = []
    for name, terms in (("without", {}), ("with", {"weight": 1.0}), ("again", None)):
        folder = tmp_path / name
        folder.mkdir()
        path = tmp_path / "with" / "config.yaml" if terms is None else config(folder, **terms)
        cli = run(path, "--trainer.default_root_dir", str(folder))
        trainer: Any = cli.trainer
        weights.append(torch.cat([weight.detach().flatten() for weight in cli.model.parameters()]))
        seen = [one for one in trainer.callbacks if isinstance(one, CoreCallback)]
        assert [core.forecast is not None for core in seen] == ([] if name == "without" else [True])
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("key", ["deadline", "hang"])
@pytest.mark.parametrize("text", ["18:00", "1:30:00"])
def test_a_time_without_quotes_is_refused(key: str, text: str, tmp_path: Path) -> None:
    path = config(tmp_path, **{key: "TEXT"})
    path.write_text(path.read_text().replace("TEXT", text))
    with pytest.raises(ValueError, match=f"{key}: YAML reads .*quote it, .*or give a unit, {yaml.safe_load(text)}s"):
        run(path)


def test_a_time_in_quotes_is_a_time(tmp_path: Path) -> None:
    path = config(tmp_path, deadline="23:59")
    cli = LightningCLI(Line, ValidatedPoints, run=False, args=["--config", str(path)])
    trainer: Any = cli.trainer
    [core] = [one for one in trainer.callbacks if isinstance(one, CoreCallback)]
    assert core._terms.deadline_text == "23:59"
