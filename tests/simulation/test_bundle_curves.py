"""The shipped curves: complete, in agreement with their index, and made by code that still works."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.recording import RUNS
from benchmarks.recording.packages import Package
from benchmarks.recording.record_curves import COLUMNS, chosen, record_into
from lightning_core.simulation.recorded_curves import SHIPPED as CURVES


def read(folder: Path) -> dict[str, tuple[dict[str, str], list[int], list[float]]]:
    """Return the row of the index, the steps and the losses of each file, by file name."""
    with (folder / "index.csv").open(newline="") as opened:
        index = {row["file"]: row for row in csv.DictReader(opened)}
    found = {}
    for file, about in index.items():
        with (folder / file).open(newline="") as opened:
            header, *rows = csv.reader(opened)
        scheduled = about["method"].endswith((" cosine", " step"))
        assert header == ["step", "loss"] + scheduled * ["lr"], file
        found[file] = (about, [int(row[0]) for row in rows], [float(row[1]) for row in rows])
    return found


def check(about: dict[str, str], steps: list[int], losses: list[float]) -> None:
    """Check that a CSV agrees with its row of the index, and can be replayed."""
    assert tuple(about) == COLUMNS
    assert [len(steps), steps[0], steps[-1]] == [int(about[key]) for key in ("rows", "first_step", "last_step")]
    assert all(a < b for a, b in pairwise(steps))
    assert about["value"] == f"mean of {steps[0]} consecutive mini-batch training losses"
    assert all(0 < loss < math.inf for loss in losses)
    assert 0 < float(about["sec_per_step"]) < 1


def test_the_shipped_curves_agree_with_their_index() -> None:
    shipped = read(CURVES)
    assert set(shipped) == {file.name for file in CURVES.glob("*.csv")} - {"index.csv"}
    for about, steps, losses in shipped.values():
        check(about, steps, losses)
        assert 300 <= len(steps) <= 1000
        assert 2000 <= steps[-1] <= 20_000


def test_the_shipped_curves_are_varied_and_small() -> None:
    shipped = read(CURVES)
    assert {file.removesuffix(".csv") for file in shipped} == set(RUNS)
    assert len(shipped) >= 24
    assert len({about["task"] for about, _, _ in shipped.values()}) >= 6
    assert len({about["domain"] for about, _, _ in shipped.values()}) >= 4
    assert sum(file.stat().st_size for file in CURVES.iterdir()) <= 600_000
    # Most learn, and a few are included because they do not.
    learned = [sum(losses[-20:]) < 0.8 * sum(losses[:20]) for _, _, losses in shipped.values()]
    assert sum(learned) / len(learned) > 0.6
    assert not all(learned)


def test_a_recorded_run_is_reproduced(tmp_path: Path) -> None:
    names = ("digits__linear_sgd_lr0.1", "digits__cnn_adam_lr0.001_step")
    short = [replace(RUNS[name], rows=5, mean_of=8) for name in names]
    record_into(tmp_path, short[:1], tmp_path, seed=1)
    record_into(tmp_path, short[1:], tmp_path, seed=1)
    recorded = read(tmp_path)
    assert list(recorded) == sorted(f"{run.name}.csv" for run in short)
    for about, steps, losses in recorded.values():
        check(about, steps, losses)
        assert steps == [8, 16, 24, 32, 40]
    losses = recorded["digits__linear_sgd_lr0.1.csv"][2]
    assert losses[-1] < 0.9 * losses[0]  # it was trained
    with (tmp_path / f"{names[1]}.csv").open(newline="") as opened:
        assert [row["lr"] for row in csv.DictReader(opened)] == ["0.001", "0.001", "0.0001", "1e-05", "1e-05"]
    # The same seed makes the same losses.
    record_into(tmp_path / "again", short[:1], tmp_path, seed=1)
    assert read(tmp_path / "again")["digits__linear_sgd_lr0.1.csv"][2] == losses


def test_an_unknown_run_is_refused() -> None:
    with pytest.raises(ValueError, match="no run or task is called digit; tasks are digits"):
        chosen(["digit"])


def test_a_missing_data_set_is_an_error_that_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # a path without apt-get
    with pytest.raises(FileNotFoundError, match="run `apt-get download dataset-fashion-mnist` elsewhere"):
        record_into(tmp_path / "out", chosen(["fashion_mnist"]), tmp_path / "data", seed=1)


def test_existing_files_are_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    inside = tmp_path / "unpacked" / "deep" / "one.txt"
    inside.parent.mkdir(parents=True)
    inside.write_text("here")
    assert Package("nothing", "debian").files(tmp_path, "one.txt") == [inside]
