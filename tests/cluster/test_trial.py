"""`plan --try`: jobs train for a moment, the plan rests on what they showed, and nothing of it is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_core.cluster.bundle import Bundle
from lightning_core.cluster.trial import TrialReport, try_jobs
from lightning_core.run.bundle_plan import FAR, plan_bundle
from tests.builders import launched
from tests.conftest import ROOT
from tests.tiny import Line

PAUSE = 0.004


def job(target: dict[str, Any], folder: Path, deadline: str | None = "10m", **init: Any) -> dict[str, Any]:
    saves = {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": {"dirpath": str(folder / "best")},
    }
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": str(folder)}}
    trainer = {
        "default_root_dir": str(folder), "callbacks": [saves], "enable_checkpointing": True, "logger": logger,
    }  # fmt: skip
    return launched(target, deadline, model=f"tests.tiny.{Line.__name__}", init=init, trainer=trainer, cell=5)


@pytest.mark.cluster
def test_a_trial_trains_each_job_for_a_moment_and_leaves_nothing(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users"
    users.mkdir()
    monkeypatch.chdir(users)
    bundle = Bundle.from_dict(
        {
            "on_verdict": {"command": ["touch", str(users / "told")]},
            "jobs": {
                "long": job({"batches": 100_000}, users, pause=PAUSE),
                "short": job({"loss": 0.05}, users, deadline="20m", pause=PAUSE),
                "whenever": job({"batches": 5}, users, deadline=None),
                "broken": job({"batches": 5}, users, raise_at=1),
            },
        },
        ROOT,
    )
    told: list[list[str]] = []
    tried = try_jobs(bundle, 1.0, lambda names: told.append(list(names)))
    assert told == [["long"], ["short"], ["broken"]]
    assert list(users.iterdir()) == []
    low, likely, high = tried["long"].work or (0, 0, 0)
    assert 1.0 <= tried["long"].busy < 10.0
    assert low < likely < high
    assert likely == pytest.approx(100_000 * tried["long"].busy / tried["long"].batches, rel=0.2)
    assert tried["short"].remark == "met its target"
    assert tried["broken"].work is None
    assert "trial ended" in tried["broken"].remark
    lines, fits = plan_bundle(bundle, tried=tried)
    assert any(line.startswith("short: needs ") and line.endswith("met its target)") for line in lines)
    assert fits == (likely < 600.0)


def test_a_plan_with_trials_states_their_doubt() -> None:
    given = {"model": {"class_path": "mine.Vit"}, "target": "loss<=0.1", "deadline": "10m"}
    bundle = Bundle.from_dict({"jobs": dict.fromkeys(("sure", "doubtful", "hopeless", "brief", "new"), given)})
    tried = {
        "sure": TrialReport(3000, 20.0, (60.0, 60.0, 60.0)),
        "doubtful": TrialReport(90, 20.0, (90.0, 120.0, float("inf"))),
        "hopeless": TrialReport(90, 20.0, (600.0, FAR * 601.0, float("inf"))),
        "brief": TrialReport(2, 20.0, None, "too short for a forecast"),
    }
    lines, fits = plan_bundle(bundle, tried=tried)
    assert not fits
    assert lines[:5] == [
        "all 2 fit, 7m to spare; 1 not forecast to reach its target",
        "sure: needs 60s of 10m (tried for 20.0s: 150 batches/s)",
        "doubtful: needs 2m of 10m (tried for 20.0s: 4.5 batches/s; at least 90s)",
        "hopeless: not forecast to reach its target within 10 times its deadline "
        "(tried for 20.0s: 4.5 batches/s; at least 10m)",
        "brief: tried for 20.0s: 0.1 batches/s; too short for a forecast",
    ]
    assert lines[5] == "brief, new: of unknown work; all fit if each takes at most 3m30s"
    assert lines[-1] == "if each tried job takes as long as in its bad case: 1 of 2 fit"
