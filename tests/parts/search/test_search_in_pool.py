"""A search in a real pool of two devices, beside a job that must be on time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_core.core.answers import State, Verdict
from lightning_core.pool.pool import Pool
from lightning_core.storage.manifests import verify
from tests.conftest import ROOT
from tests.waiting import until

COMMAND = [sys.executable, "-m", "lightning_core.cli.main"]
SEARCH = {
    "deadline": "30s",
    "model": {"class_path": "tests.tiny.Line", "init_args": {"pause": 0.01}},
    "data": "tests.tiny.ValidatedPoints",
    "search": {
        "metric": "val_loss", "epochs": 12, "seed": 0,
        "space": {"model.init_args.lr": {"float": [1e-4, 0.5], "log": True}},
    },
}  # fmt: skip
URGENT = {
    "model": {"class_path": "tests.tiny.Line", "init_args": {"pause": 0.01}},
    "data": {"class_path": "tests.tiny.Points"},
    "deadline": "25s",
    "target": {"batches": 1000},
}


@pytest.mark.nightly
def test_a_search_shares_its_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS", "LIGHTNING_CORE_HOME"):
        monkeypatch.delenv(name, raising=False)
    Path("night.yaml").write_text(json.dumps(SEARCH))
    Path("urgent.yaml").write_text(json.dumps({"jobs": {"urgent": URGENT}}))
    Path("first.yaml").write_text(json.dumps({"jobs": {"first": URGENT | {"deadline": "5m", "target": "20 batches"}}}))
    folder = str(tmp_path / "pool")
    subprocess.run([*COMMAND, "up", "--devices", "2", "--folder", folder], check=True, timeout=180)
    try:
        with Pool.connect(folder) as pool:
            pool.submit("first.yaml")  # its workers have imported torch once it is met
            until(lambda: pool.status("first").state is State.ENDED, 180.0)
        search = [*COMMAND, "search", "night.yaml", "--pool", folder, "--json", "found.json"]
        with (
            subprocess.Popen(search, env={**os.environ, "OMP_NUM_THREADS": "1"}) as running,
            Pool.connect(folder) as pool,
        ):
            pool.submit("urgent.yaml")
            assert running.wait(180) == 0
            jobs = {job.name: job for job in pool.jobs()}
        found = json.loads(Path("found.json").read_text())
        trials = [job for name, job in jobs.items() if name.startswith("night-")]
        assert jobs["urgent"].verdict is Verdict.MET
        assert {job.state for job in trials} == {State.ENDED}
        assert len(trials) == found["trials"] > 5
        assert any(job.verdict is Verdict.MET for job in trials)
        best = jobs[found["job"]]
        assert best.watched is not None
        assert best.watched.best == found["value"] == min(job.watched.best for job in trials if job.watched)
        assert verify(Path(found["model"])).value == pytest.approx(found["value"])
    finally:
        subprocess.run([*COMMAND, "down", "--now", "--folder", folder], check=True, timeout=180)
