"""`lightning-core search`: what it prints and writes, and how it continues. In virtual time, without Ray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import optuna
import pytest

from lightning_core.bundle.pool_section import ExistingPool
from lightning_core.cli.main import main
from lightning_core.core.answers import State
from lightning_core.parts.search import pool_search
from lightning_core.pool.pool import Pool
from tests.parts.search.made_up_pool import RATE, MadeUpPool

SEARCH: dict[str, Any] = {"metric": "val_loss", "epochs": 10, "seed": 1, "space": {RATE: {"float": [0.05, 1.0]}}}


class Connected(MadeUpPool):
    """The pool to which commands connect."""

    folder = Path("/pool")

    def __enter__(self) -> Connected:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def as_existing(self) -> ExistingPool:
        return ExistingPool(2, "cpu", "the pool")

    def describe(self) -> str:
        return "the pool at /pool (2 cpu devices, triage)"


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Connected:
    made = Connected()
    monkeypatch.setattr(pool_search, "time", made.clock())
    monkeypatch.setattr(Pool, "connect", lambda where: cast(Pool, made))
    monkeypatch.chdir(tmp_path)
    return made


def write(**search: Any) -> None:
    Path("night.yaml").write_text(
        json.dumps({"deadline": "20s", "model": "tests.tiny.Line", "search": SEARCH | search})
    )


def test_a_search_says_what_it_finds(pool: Connected, capsys: pytest.CaptureFixture[str]) -> None:
    write()
    assert main(["search", "night.yaml", "--json", "found.json"]) == 0
    said = capsys.readouterr().out.splitlines()
    found = json.loads(Path("found.json").read_text())
    assert said[0] == "night: importing torch and Lightning to check the configs ..."
    assert said[1].startswith(
        "night: trials of 10 epochs, 2 at once, in the pool at /pool (2 cpu devices, triage), until"
    )
    assert f"  val_loss {found['value']:.4g}  {found['job']} after " in said[-6]
    assert said[-5].startswith(f"{len(pool.workers)} trials, {found['whole']} to the end, ")
    assert said[-4] == f"best val_loss: {found['value']:.6g}, of {found['job']}"
    assert said[-3] == f"  {RATE}: {found['params'][RATE]}"
    assert said[-2:] == [f"its model: /pool/jobs/{found['job']}/best.ckpt", "study: searches/night/study.db"]
    assert found["reached"]


def test_a_target_that_is_not_reached_is_told(pool: Connected, capsys: pytest.CaptureFixture[str]) -> None:
    write(target=0.001)
    assert main(["search", "night.yaml"]) == 3
    assert "; 0.001 was not reached" in capsys.readouterr().out


def test_an_interrupted_search_says_how_it_continues(pool: Connected, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    write()
    pool.at[8.0] = interrupt
    assert main(["search", "night.yaml", "--run-dir", "n", "--pool", "a pool", "--allow-import", "tests"]) == 130
    again = "lightning-core search night.yaml --run-dir n --pool 'a pool' --allow-import=tests"
    assert f"its trials wait in the pool; continue with: {again}\n" in capsys.readouterr().err
    assert main(["search", "night.yaml", "--run-dir", "n"]) == 0
    assert " trials so far" in capsys.readouterr().out
    assert {job.state for job in pool.jobs()} == {State.ENDED}


def test_a_search_that_was_edited_is_another_one(pool: Connected, capsys: pytest.CaptureFixture[str]) -> None:
    write(trials=1)
    assert main(["search", "night.yaml"]) == 0
    write(trials=2)  # what does not change the values may be changed
    assert main(["search", "night.yaml"]) == 0
    write(epochs=11)
    assert main(["search", "night.yaml"]) == 2
    assert "searches/night/study.db holds a search with another space, metric, number of epochs or config" in (
        capsys.readouterr().err
    )


def test_a_study_of_the_user_is_taken(pool: Connected, capsys: pytest.CaptureFixture[str]) -> None:
    """Its trials tell the sampler what is known; they are not trials of the search."""
    space: dict[str, Any] = {RATE: optuna.distributions.FloatDistribution(0.05, 1.0)}
    study = optuna.create_study(storage="sqlite:///mine.db", study_name="night", direction="minimize")
    for rate in (0.1, 0.3):
        study.add_trial(optuna.trial.create_trial(params={RATE: rate}, distributions=space, value=1.0 / rate))
    write()
    assert main(["search", "night.yaml", "--storage", "sqlite:///mine.db"]) == 0
    assert "study: sqlite:///mine.db" in capsys.readouterr().out
    assert len(optuna.load_study(storage="sqlite:///mine.db", study_name="night").trials) == len(pool.workers) + 2
    assert "night-2" in pool.workers
    assert "night-0" not in pool.workers
    assert not Path("searches").exists()


def test_problems_are_told_before_anything_is_submitted(pool: Connected, capsys: pytest.CaptureFixture[str]) -> None:
    write(epochs=1, sampler="annealing")
    assert main(["search", "night.yaml"]) == 2
    said = capsys.readouterr().err
    assert "search.epochs: must be at least 2" in said
    assert "search.sampler: 'annealing' is unknown; expected one of grid, random, tpe" in said
    assert not pool.workers
