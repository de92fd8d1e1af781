"""``lightning-core place``: its output, pictures and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from lightning_core.bundle.problems import BundleError
from lightning_core.parts.edge_cloud.day_plan import MOVE_PRICE
from lightning_core.parts.edge_cloud.demands_file import read_arrivals, read_demands
from lightning_core.parts.edge_cloud.placement import SampleNeeds
from tests.cli.test_cli import Said
from tests.conftest import ROOT

DAY = ROOT / "examples" / "day.yaml"


def test_the_example_s_day_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, where = tmp_path / "day.png", tmp_path / "day.json"
    said = Said(capsys, "place", "plan", str(DAY), "--baselines", "--picture", str(picture), "--json", str(where))
    assert said.code == 0
    lines = said.out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["location", "harbour", "station", "campus", "cloud"]
    rows = {line.split("  ")[0]: line.split()[-1] for line in lines if line.startswith(("plan", "one "))}
    assert float(rows["plan"]) <= min(float(rows["one period at a time"]), float(rows["one task at a time"]))
    assert picture.read_bytes().startswith(b"\x89PNG")
    body = json.loads(where.read_text())
    cameras = [task for task in body["tasks"] if task["job"] == "cameras"]
    assert len(cameras) == 8
    assert all(
        choice is None or choice["location"] != "cloud" for task in cameras for choice in task["served"].values()
    )


def test_unserved_tasks_are_explained_and_the_rest_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = yaml.safe_load(DAY.read_text())
    body["jobs"]["cameras"]["tasks"] = [2, 40, 4]
    path = tmp_path / "day.yaml"
    path.write_text(yaml.safe_dump(body))
    said = Said(capsys, "place", "plan", str(path))
    assert said.code == 3
    assert "tasks cannot be served in day" in said.out
    assert "more v100 at the edge would be needed" in said.out
    assert "the plan that serves the most" in said.out


def test_the_minimum_mean_accuracy_is_reached_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "place", "plan", str(DAY), "--cost", "1", "--accuracy", "0", "--mean-accuracy", "0.85")
    assert said.code == 0
    plan = next(line.split() for line in said.out.splitlines() if line.startswith("plan"))
    assert float(plan[2]) >= 0.85
    said = Said(capsys, "place", "plan", str(DAY), "--mean-accuracy", "0.99")
    assert (said.code, "at most 0.9000" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("periods", "day", "periods: expected a list of names, got 'day'"),
        ("gpus", {"v100": "dear"}, "gpus.v100: must be a number, got 'dear'"),
        ("levels", {"fp32": {"accuracy": 0.9}}, "levels.fp32: throughput is missing"),
        ("nodes", {"harbour": {"gpus": {"v100": 1}, "colour": 1}}, "nodes.harbour.colour: unknown key 'colour'"),
        (
            "jobs",
            {"a": {"tasks": [1, 2.5, 1], "rate": 1, "sample": 1}},
            "jobs.a.tasks: must be a list of whole numbers",
        ),
        ("jobs", {"a": {"tasks": [1, 2], "rate": 1, "sample": 1}}, "job a: tasks must be 3 numbers"),
        (
            "jobs",
            {"a": {"tasks": [1, 2, 1], "rate": 1, "sample": 1, "moves": 1}},
            "jobs.a.moves: must be true or false",
        ),
        (
            "jobs",
            {"a": {"tasks": [1, 2, 1], "rate": [1, 2], "sample": 1}},
            "jobs.a: rate must have one entry per period, 3, got 2",
        ),
        (
            "jobs",
            {"a": {"tasks": [1, 2, 1], "rate": 1, "sample": [1, "big", 1]}},
            "jobs.a.sample: must be a number, got 'big'",
        ),
        (
            "jobs",
            {"a": {"tasks": [1, 2, 1], "rate": 1, "sample": 1, "levels": {"mixed": {"rate": 1}}}},
            "jobs.a.levels: mixed must be a mapping of sample, aggregation, processing, got 'rate'",
        ),
        (
            "jobs",
            {"a": {"tasks": [1, 2, 1], "rate": 1, "sample": 1, "levels": {"half": {"sample": 1}}}},
            "job a: levels must be of fp32, mixed, got 'half'",
        ),
        ("window", "soon", "window: duration must be such as"),
        ("cloud", {"delay": -1}, "cloud: delay must be at least 0"),
        ("epochs", True, "epochs: must be a number, got True"),
        ("colour", 1, "unknown key 'colour'"),
    ],
)
def test_wrong_demands_are_refused(part: str, value: object, words: str, tmp_path: Path) -> None:
    body = yaml.safe_load(DAY.read_text())
    body[part] = value
    path = tmp_path / "day.yaml"
    path.write_text(yaml.safe_dump(body))
    with pytest.raises(BundleError) as refused:
        read_demands(path)
    assert words in str(refused.value)


def test_rates_of_the_file_may_be_by_period_and_arrivals_are_relative_to_them(tmp_path: Path) -> None:
    body = yaml.safe_load(DAY.read_text())
    body["jobs"] = {
        "a": {"tasks": [1, 1, 1], "rate": [5, 20, 10], "sample": 0.4},
        "b": {
            "tasks": [1, 1, 1], "rate": 8, "sample": [0.4, 0.8, 0.4], "processing": [1, 1, 2],
            "levels": {"mixed": {"processing": 0.5, "sample": [0.2, 0.4, 0.2]}},
        },
    }  # fmt: skip
    path, arrivals = tmp_path / "day.yaml", tmp_path / "arrivals.csv"
    path.write_text(yaml.safe_dump(body))
    demands = read_demands(path)
    assert demands.jobs["a"].rate == (5.0, 20.0, 10.0)
    assert demands.jobs["b"].processing == (1.0, 1.0, 2.0)
    assert demands.jobs["b"].levels == {"mixed": SampleNeeds((0.2, 0.4, 0.2), None, 0.5)}
    arrivals.write_text("a,b\n5,8\n5,4\n20,8\n40,8\n10,8\n5,8\n")
    found = {name: values.tolist() for name, values in read_arrivals(arrivals, demands).items()}
    assert found == {"a": [1.0, 1.0, 1.0, 2.0, 1.0, 0.5], "b": [1.0, 0.5, 1.0, 1.0, 1.0, 1.0]}


def test_every_problem_of_the_demands_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "day.yaml"
    path.write_text("periods: [a]\ngpus: {v: x}\nlevels: 3\n")
    with pytest.raises(BundleError) as refused:
        read_demands(path)
    assert len(refused.value.problems) == 3
    assert f"{path}:2:" in str(refused.value)
    path.write_text("[1]")
    with pytest.raises(BundleError, match="expected a mapping of periods, gpus"):
        read_demands(path)


def test_a_day_with_surges_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, figures = tmp_path / "loads.svg", tmp_path / "day.json"
    said = Said(
        capsys, "place", "simulate", str(DAY), "--steps", "8", "--picture", str(picture), "--json", str(figures)
    )
    assert said.code == 0
    assert "<svg" in picture.read_text()
    body = json.loads(figures.read_text())
    assert list(body) == ["as planned", "persistence", "autoregression", "trend", "perfect"]
    assert body["as planned"]["served"] < body["persistence"]["served"] <= body["perfect"]["served"] <= 1
    assert body["as planned"]["moves"] == 0 < body["perfect"]["cost"] - body["as planned"]["cost"]
    rows = {line.split("  ")[0]: line.split() for line in said.out.splitlines()}
    assert rows["persistence"][-3:] == ["1.00"] * 3


def test_a_day_is_simulated_with_the_planner_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By default the period is planned anew where there is no room, which serves more."""

    def simulated(*words: str) -> dict[str, float]:
        figures = tmp_path / "day.json"
        assert Said(capsys, "place", "simulate", str(DAY), *words, "--json", str(figures)).code == 0
        found: dict[str, float] = json.loads(figures.read_text())["perfect"]
        figures.unlink()
        return found

    default, heuristic = simulated(), simulated("--reconfigure", "heuristic")
    assert default == simulated("--reconfigure", "replan") == simulated("--move-price", f"{MOVE_PRICE}")
    assert default["served"] > heuristic["served"]
    said = Said(capsys, "place", "simulate", str(DAY), "--move-price", "-1")
    assert (said.code, "move_price must be at least 0, got -1.0" in said.err) == (2, True)


def test_arrivals_can_be_read_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, figures = tmp_path / "day.csv", tmp_path / "day.json"
    path.write_text("cameras,buses,meters,shops\n" + "15,15,5,15\n" * 6)
    said = Said(capsys, "place", "simulate", str(DAY), "--arrivals", str(path), "--json", str(figures))
    assert (said.code, json.loads(figures.read_text())["as planned"]["served"]) == (0, 1.0)
    path.write_text("cameras,buses,meters,shops\n15,15,5,15\n15,x,5,15\n15,15,0,15\n15,15,5\n")
    said = Said(capsys, "place", "simulate", str(DAY), "--arrivals", str(path))
    assert said.code == 2
    assert [line.partition(str(path))[2] for line in said.err.splitlines()] == [
        ": must be as many rows for each of 3 periods, got 4",
        ":3: expected 4 positive numbers, got '15,x,5,15'",
        ":4: expected 4 positive numbers, got '15,15,0,15'",
        ":5: expected 4 positive numbers, got '15,15,5'",
    ]
    path.write_text("cameras,buses\n15,15\n")
    said = Said(capsys, "place", "simulate", str(DAY), "--arrivals", str(path))
    assert "expected a column for each of cameras, buses, meters, shops, got cameras, buses" in said.err
