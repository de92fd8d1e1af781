"""The recipes for Slurm: they parse, and on a real Slurm an array that is requeued keeps its promise."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from examples.slurm import local_slurm
from tests.conftest import ROOT
from tests.waiting import until

RECIPES = sorted((ROOT / "examples/slurm").glob("*.sbatch"))
VARIABLES = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
TRAIN = """
import lightning.pytorch as pl
from tests.tiny import QUIET, Line, Points

class Told(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        print("batch", trainer.global_step, flush=True)

pl.Trainer(max_epochs=-1, callbacks=[Told()], **QUIET).fit(Line(pause=0.05), datamodule=Points())
"""


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_are_scripts_that_bash_and_shellcheck_read(recipe: Path) -> None:
    subprocess.run(["bash", "-n", recipe], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--shell=bash", recipe], check=True)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_options_of_a_recipe_come_before_its_first_command(recipe: Path) -> None:
    """Slurm reads no ``#SBATCH`` behind the first command."""
    lines = recipe.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.strip() and not line.startswith("#"))
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH ")]
    assert len(options) >= 4
    assert max(options) < first


BUNDLE = """
pool: {devices: 4, kind: cpu}
jobs:
  pair: {devices: 2, deadline: 1h, target: {batches: 1500}, MODEL}
  single: {deadline: 1h, target: {batches: 1500}, MODEL}
""".replace(
    "MODEL",
    "model: {class_path: tests.tiny.Line, init_args: {pause: 0.05}}, data: {class_path: tests.tiny.Points}, "
    "trainer: {logger: false}",
)
needs_slurm = pytest.mark.skipif(
    bool(local_slurm.missing()), reason=f"Slurm is not installed: {local_slurm.missing()} not found"
)


def changed(recipe: str, changes: dict[str, str]) -> str:
    """Return a recipe in which lines are changed as a user would: each line that begins so, to its new text."""
    text = (ROOT / "examples/slurm" / recipe).read_text()
    for begin, line in changes.items():
        text, count = re.subn(rf"^{re.escape(begin)}.*$", line, text, flags=re.MULTILINE)
        assert count == 1, begin
    return text


@pytest.mark.nightly
@needs_slurm
def test_a_requeued_array_goes_on_from_its_checkpoints_with_its_deadlines() -> None:
    recipe = changed("array.sbatch", {"targets=": 'targets=("1500 batches" "1500 batches")'})
    with TemporaryDirectory(prefix="slurm-") as name, local_slurm.slurm(Path(name)) as slurm:
        work = Path(name) / "work"
        work.mkdir()
        (work / "train.py").write_text(TRAIN)
        (work / "array.sbatch").write_text(recipe)
        variables = {**VARIABLES, "LIGHTNING_CORE_POOL": "local"}
        variables["PATH"] = f"{Path(sys.executable).parent}:{slurm.environment['PATH']}"
        said = slurm.ask("sbatch", "--parsable", "--array=0-1", "--time=2", "array.sbatch", folder=work, **variables)
        logs = [work / f"trainings-{number}.log" for number in range(2)]
        until(lambda: slurm.is_over(said), 500)
        for log, job in zip(logs, ("small", "medium"), strict=True):
            text = log.read_text()
            assert "DUE TO JOB REQUEUE" in text
            assert f"{job}: resumed with its deadline" in text
            assert f"lightning_core: {job}: met" in text
            assert "time limit" not in text  # the end of an allocation is not that of the training
            batches = [int(number) for number in re.findall(r"^batch (\d+)$", text, flags=re.MULTILINE)]
            assert batches.count(1) == 1  # no allocation but the first began anew
            assert set(batches) >= set(range(1, 1501))


@pytest.mark.nightly
@needs_slurm
def test_a_pool_on_the_nodes_of_an_allocation_is_requeued_and_resumed() -> None:
    recipe = changed(
        "pool.sbatch", {"devices=": """devices='{"device": 2}'""", "#SBATCH --gpus-per-node": "# no GPUs here"}
    )
    with TemporaryDirectory(prefix="slurm-") as name, local_slurm.slurm(Path(name)) as slurm:
        work = Path(name) / "work"
        work.mkdir()
        (work / "bundle.yaml").write_text(BUNDLE)
        (work / "pool.sbatch").write_text(recipe)
        variables = {**VARIABLES, "PATH": f"{Path(sys.executable).parent}:{slurm.environment['PATH']}"}
        options = ("--parsable", "--time=3", "--signal=B:USR1@60")
        said = slurm.ask("sbatch", *options, "pool.sbatch", "bundle.yaml", folder=work, **variables)
        until(lambda: slurm.is_over(said), 900)
        text = (work / f"pool-{said}.log").read_text()
        assert "DUE TO JOB REQUEUE" in text
        summary = json.loads((work / f"runs/pool-{said}/summary.json").read_text())
        figures = summary["figures"]
        assert (figures["met"], figures["restarts"], figures["lost_batches"]) == (2, 0, 0)  # saved, not lost
        assert figures["down_s"] > 0
        assert [job["deadline"] for job in summary["jobs"].values()] == [3600.0, 3600.0]
        assert not (work / f"runs/token-{said}").exists()
