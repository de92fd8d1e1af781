"""The core without any part: ``lightning_core/parts`` is deleted in a copy, and nothing is registered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lightning_core.core.parts import GROUP
from tests.conftest import ROOT

# An editable installation would find the modules that the copy lacks.
BLOCK = 'import sys\nsys.modules["lightning_core.parts"] = None\n'
METADATA = "Metadata-Version: 2.1\nName: lightning-core-learning\nVersion: 0.1.0\n"
ROOMS = ("core", "scheduler", "policies", "controllers", "estimators", "planning", "storage", "view", "server",
         "bundle", "run", "simulation", "callbacks")  # fmt: skip
# What is used of a part, in the text of a test.
PARTS = ("lightning_core.parts", "tests.parts", "edge_cloud")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A copy of the library and its tests without its parts, whose metadata register none of them."""
    for name in ("lightning_core", "tests", "docs", "benchmarks", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "parts"))
    for place in (tmp_path, tmp_path / "lightning_core"):
        shutil.copytree(ROOT / "callbacks", place / "callbacks", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    metadata = tmp_path / "lightning_core_learning-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(METADATA)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
             for group, points in groups.items() if group != GROUP]  # fmt: skip
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.nightly
def test_the_core_works_and_its_tests_pass(bare: Path) -> None:
    files = [path for room in ROOMS for path in (bare / "tests" / room).rglob("test_*.py")]
    chosen = [str(path) for path in files if not any(name in path.read_text() for name in PARTS)]
    assert len(chosen) > 0.8 * len(files)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", "-m",
               "not (gpu or nightly or cluster or faults or stories)", *chosen]  # fmt: skip
    ran = subprocess.run(command, cwd=bare, env=os.environ | {"PYTHONPATH": str(bare)}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-4000:]


def test_a_command_says_that_no_part_is_there(bare: Path) -> None:
    """Policies are listed, and a market is refused as any unknown key is."""
    environment = os.environ | {"PYTHONPATH": str(bare)}
    jobs = "jobs: {a: {config: {model: x.Y}, deadline: 1m, target: 9 batches}}"
    (bare / "bundle.yaml").write_text(f"market: m.csv\n{jobs}")

    def said(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lightning_core", *words]
        return subprocess.run(command, cwd=bare, env=environment, capture_output=True, text=True)

    assert "triage" in said("policies").stdout
    assert "unknown key 'market'" in said("plan", "bundle.yaml").stderr
