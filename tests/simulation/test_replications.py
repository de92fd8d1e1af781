"""Many seeds of one bundle: means with their errors, each seed as if alone, and invalid options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_core.cli.main import main
from lightning_core.simulation.replications import Experiment, Figures, Mean, Replication, sums

BUNDLE = """
period: 1s
jobs:
  long: {deadline: 50s, target: {loss: 0.5}, work: 30s}
  short: {deadline: 20s, target: {loss: 0.5}, work: 10s, weight: 2}
  never: {deadline: 40s, target: {loss: 0.001}, curve: one.csv, throughput: 10}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "curves").mkdir()
    for name, power in (("one", 0.5), ("two", 1.0), ("three", 1.5)):
        rows = "".join(f"{s},{10 / s**power}\n" for s in range(1, 201))
        (tmp_path / "curves" / f"{name}.csv").write_text("step,loss\n" + rows)
    (tmp_path / "bundle.yaml").write_text(BUNDLE)


def done(*met: tuple[int, int]) -> list[Replication]:
    """Return replications in which fifo and triage met given numbers of targets."""
    return [
        Replication(seed, 4, {"fifo": Figures(a, float(a), 1), "triage": Figures(b, 2.0 * b, 3)})
        for seed, (a, b) in enumerate(met)
    ]


def test_means_have_standard_errors_and_differences_are_paired_by_seed() -> None:
    rows = sums(done((1, 2), (3, 4), (2, 3)))
    assert rows["fifo"].met == pytest.approx((2.0, 1 / 3**0.5))
    assert rows["fifo"].ahead == Mean(-1.0, 0.0)  # one fewer on every seed
    assert rows["triage"].ahead == Mean(0.0, 0.0)
    assert rows["triage"].weight.value == 6.0
    assert rows["fifo"].of_ceiling == 0.5
    assert sums(done((1, 2)))["fifo"].met == Mean(1.0, 0.0)


@pytest.mark.nightly
def test_each_seed_gives_the_same_result_as_alone(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "bundle.yaml", "--curves", "curves", "--policy", "fifo,edf,triage", "--shuffle"]
    assert main([*words, "--seed", "3", "--seeds", "4", "--json", "all.json"]) == 3
    told = capsys.readouterr().out
    body = json.loads(Path("all.json").read_text())
    assert [one["seed"] for one in body["seeds"]] == [3, 4, 5, 6]
    for one in body["seeds"]:
        seed = str(one["seed"])
        main([*words, "--seed", seed, "--run-dir", f"run-{seed}", "--json", "one.json"])
        alone = json.loads(Path("one.json").read_text())["policies"]
        assert {name: figures["met"] for name, figures in one["policies"].items()} == {
            name: figures["met"] for name, figures in alone.items()
        }
    means = {name: row["met"]["value"] for name, row in body["policies"].items()}
    assert means == {
        name: sum(one["policies"][name]["met"] for one in body["seeds"]) / 4 for name in ("fifo", "edf", "triage")
    }
    assert len({tuple(sorted(one["policies"]["fifo"].items())) for one in body["seeds"]}) > 1  # orders differ
    head, columns, *rows = told.splitlines()
    assert head.startswith("4 seeds from 3 on, mean ± standard error; at most")
    assert all(word in columns for word in ("policy", "met", "by weight", "of possible", "switches", "than triage"))
    assert [row.split()[0] for row in rows] == ["fifo", "edf", "triage"]
    assert f"{means['edf']:.2f} ± " in rows[1]
    assert "simulations" not in {path.name for path in Path().iterdir()}  # nothing but the JSON is written


def test_jobs_keep_the_order_of_the_file_by_default() -> None:
    plain = Experiment(Path("bundle.yaml"), Path("curves"), ["fifo"])
    assert {plain.play(seed).figures["fifo"].weight for seed in range(6)} == {1.0}  # long comes first, short is late
    mixed = Experiment(Path("bundle.yaml"), Path("curves"), ["fifo"], shuffle=True)
    assert max(mixed.play(seed).figures["fifo"].weight for seed in range(6)) >= 2.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seeds", "0"], "--seeds must be 1 to 10000, got 0"),
        (["--seeds", "3", "--run-dir", "out"], "--run-dir is for one seed; look at one of them with --seed N"),
        (["--seeds", "3", "--lose", "lnog=5s"], "--lose: no job 'lnog'; did you mean 'long'?"),
        (["--seeds", "3", "--policy", "nothing"], "policy must be one of"),
    ],
)
def test_invalid_options_are_refused(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "bundle.yaml", "--curves", "curves", *options]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert (told.out, Path("out").exists()) == ("", False)


def test_seeds_that_draw_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bundle.yaml").write_text("jobs: {a: {deadline: 9s, target: {loss: 5}, curve: curves/one.csv, throughput: 9}}")
    assert main(["simulate", "bundle.yaml", "--seeds", "3"]) == 2
    assert "every job names its recording, so that each seed is the same; add --shuffle" in capsys.readouterr().err
