"""The file of a search: read, checked, and made into the jobs of its trials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.pool_section import ExistingPool
from lightning_core.bundle.problems import BundleError
from lightning_core.core.jobs import OnMiss, OnNan
from lightning_core.core.targets import EpochTarget
from lightning_core.parts.search.search_file import SearchSpec

POOL = ExistingPool(4, "cpu", "the pool")
FILE = """\
deadline: 2h
model: {class_path: tests.tiny.Line, init_args: {pause: 0.1}}
data: tests.tiny.Points
devices: 2
weight: 3
search:
  metric: val_acc
  mode: max
  epochs: 20
  target: 0.9
  worth: 10m
  trials: 50
  at_once: 2
  sampler: random
  seed: 7
  space:
    model.init_args.lr: {float: [1e-4, 0.1], log: true}
    data.init_args.batch_size: {int: [8, 64], step: 8}
    optimizer.class_path: {choices: [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW]}
"""


def read(tmp_path: Path, text: str = FILE) -> SearchSpec:
    path = tmp_path / "night.yaml"
    path.write_text(text)
    return SearchSpec.from_file(path, POOL)


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(BundleError) as wrong:
        read(tmp_path, text)
    return [line.removeprefix(f"{tmp_path}/") for line in wrong.value.problems]


def test_a_search_is_read(tmp_path: Path) -> None:
    spec = read(tmp_path)
    assert (spec.name, spec.metric, spec.mode, spec.epochs) == ("night", "val_acc", "max", 20)
    assert (spec.target, spec.worth, spec.trials, spec.at_once, spec.sampler, spec.seed) == (
        0.9, 600.0, 50, 2, "random", 7,
    )  # fmt: skip
    assert [one.name for one in spec.space] == [
        "model.init_args.lr", "data.init_args.batch_size", "optimizer.class_path",
    ]  # fmt: skip
    assert spec.max_trials == 50
    assert spec.template.job.deadline == 7200.0


def test_a_trial_is_a_job_with_other_hyper_parameters(tmp_path: Path) -> None:
    spec = read(tmp_path)
    values = {"model.init_args.lr": 0.02, "data.init_args.batch_size": 16, "optimizer.class_path": "torch.optim.SGD"}
    trial = spec.trial(3, values, 600.0, 0.5)
    assert trial.config == {
        "model": {"class_path": "tests.tiny.Line", "init_args": {"pause": 0.1, "lr": 0.02}},
        "data": {"class_path": "tests.tiny.Points", "init_args": {"batch_size": 16}},
        "optimizer": {"class_path": "torch.optim.SGD"},
        "trainer": {"max_epochs": 20},
    }
    job = trial.job
    assert (job.name, job.deadline, job.weight, job.min_devices) == ("night-3", 600.0, 1.5, 2)
    assert job.parts == {"search": {"trial_of": "night"}}
    assert job.target == EpochTarget(20, metric="val_acc", mode="max")
    assert (job.on_miss, job.on_nan, trial.keep_best) == (OnMiss.STOP, OnNan.STOP, True)
    # Trials do not change each other, or the template.
    assert "lr" not in spec.template.config["model"]["init_args"]


def test_each_choice_and_both_ends_of_a_range_are_checked(tmp_path: Path) -> None:
    samples = read(tmp_path).samples()
    assert len({one.job.name for one in samples}) == 3
    assert [one.config["optimizer"]["class_path"].rpartition(".")[2] for one in samples] == ["SGD", "Adam", "AdamW"]
    assert [one.config["data"]["init_args"]["batch_size"] for one in samples] == [8, 64, 8]


def test_the_trials_of_a_search_make_a_bundle(tmp_path: Path) -> None:
    spec = read(tmp_path)
    again = BundleSpec.from_text(json.dumps(spec.bundle(spec.samples()).to_dict()), tmp_path, POOL)
    assert [one.job.target for one in again.jobs] == [spec.template.job.target] * 3


def test_a_grid_has_as_many_trials_as_points(tmp_path: Path) -> None:
    text = """\
deadline: 1h
model: tests.tiny.Line
search:
  metric: val_loss
  epochs: 5
  sampler: grid
  space:
    model.init_args.lr: {float: [0.1, 0.5], step: 0.2}
    model.init_args.bad_after: {int: [1, 3]}
    model.init_args.log: {choices: [a, b]}
"""
    spec = read(tmp_path, text)
    assert spec.max_trials == 18
    assert spec.space[0].grid == pytest.approx((0.1, 0.3, 0.5))
    assert spec.space[1].grid == (1, 2, 3)
    [problem] = problems(tmp_path, text.replace("{float: [0.1, 0.5], step: 0.2}", "{float: [0.1, 0.5]}"))
    assert problem == (
        "night.yaml:8:5: search.space.model.init_args.lr: needs choices, or whole numbers or a step, at most 1000 "
        "values, for the sampler grid"
    )
    many = text.replace("step: 0.2", "step: 0.001").replace("[1, 3]", "[1, 30]")
    assert problems(tmp_path, many) == [
        "night.yaml:6:3: search.sampler: grid must have at most 10,000 points, got 24,060"
    ]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("deadline: 2h\n", "", "night.yaml: deadline is missing: when the search ends"),
        (
            "deadline: 2h",
            "target: {loss: 1}\ndeadline: 2h",
            "night.yaml:1:1: target: is for a job; the goal of a search",
        ),
        ("deadline: 2h", "on_miss: hold\ndeadline: 2h", "night.yaml:1:1: on_miss: is for a job"),
        ("weight: 3", "wieght: 3", "night.yaml:5:1: wieght: unknown key 'wieght'; did you mean 'weight'?"),
        ("mode: max", "mode: best", "night.yaml:8:3: search.mode: 'best' is unknown; expected one of max, min"),
        ("mode: max", "mood: max", "night.yaml:8:3: search.mood: unknown key 'mood'; did you mean 'mode'?"),
        ("metric: val_acc", "metric: loss", "night.yaml:7:3: search.metric: must be the name under which it is logged"),
        ("  metric: val_acc\n", "", "night.yaml:6:1: search: metric is missing; expected one such as val_loss"),
        ("epochs: 20", "epochs: 1", "night.yaml:9:3: search.epochs: must be at least 2"),
        ("epochs: 20", "epochs: 0", "night.yaml:9:3: search.epochs: must be at least 2"),
        ("trials: 50", "trials: 0", "night.yaml:12:3: search.trials: must be a whole number from 1 to 1000000, got 0"),
        ("seed: 7", "seed: -1", "night.yaml:15:3: search.seed: must be a whole number from 0 to 2**32 - 1, got -1"),
        ("sampler: random", "sampler: tpf", "search.sampler: 'tpf' is unknown; did you mean 'tpe'?"),
        ("target: 0.9", "target: .inf", "night.yaml:10:3: search.target: must be finite"),
        ("worth: 10m", "worth: 0", "night.yaml:11:3: search.worth: duration must be positive, got 0"),
        ("worth: 10m", "worth: a lot", "night.yaml:11:3: search.worth: duration must be such as '90s'"),
        (
            "{float: [1e-4, 0.1], log: true}",
            "0.1",
            "night.yaml:17:5: search.space.model.init_args.lr: expected {float:",
        ),
        ("[1e-4, 0.1]", "[0.1, 1e-4]", "must have a low end below its high end, got [0.1, '1e-4']"),
        ("[1e-4, 0.1]", "[0, 0.1]", "lr.float: must be above 0 where log is true, got 0"),
        ("[1e-4, 0.1], log", "[1e-4, 0.1], logs", "lr.logs: unknown key 'logs'; did you mean 'log'?"),
        ("[1e-4, 0.1]", "[1e-4]", "lr.float: must be [LOW, HIGH], got ['1e-4']"),
        ("[8, 64], step", "[8.5, 64], step", "batch_size.int: must be whole numbers, got [8.5, 64]"),
        ("step: 8", "step: 0", "batch_size.step: must be a positive whole number, got 0"),
        ("step: 8", "step: 8, log: true", "batch_size.step: is for a range without log; remove one of them"),
        ("torch.optim.SGD, torch.optim.Adam,", "", "optimizer.class_path.choices: must be a list of 2 to 1000 values"),
        ("torch.optim.Adam,", "torch.optim.SGD,", "optimizer.class_path.choices: must differ from each other"),
        (
            "optimizer.class_path",
            "optimizers.class_path",
            "optimizers.class_path: must begin with a section of the config",
        ),
        ("optimizer.class_path", "trainer.devices", "trainer.devices: is set by the launcher; remove it"),
        ("optimizer.class_path", "trainer.max_epochs", "trainer.max_epochs: is set by the search"),
        ("optimizer.class_path", "trainer.strategy", "trainer.strategy: is the same in all trials; set it there"),
        ("optimizer.class_path", "model.class_path.x", "model.class_path.x: leads through a value of the config"),
        (
            "devices: 2",
            "trainer: {max_epochs: 9}",
            "night.yaml:4:11: trainer.max_epochs: must be search.epochs, 20, or not",
        ),
        ("devices: 2", "devices: 9", "night.yaml:4:1: devices: must be at most the pool's 4"),
        ("devices: 2", f"name: {'a' * 60}", "night.yaml:4:1: name: must have at most 51 characters, got 60"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, before: str, after: str, words: str) -> None:
    assert before in FILE
    found = problems(tmp_path, FILE.replace(before, after))
    assert any(words in line for line in found), found


@pytest.mark.parametrize("text", ["deadline: 2h\nmodel: a.B\ntarget: {epochs: 3}\n", "- search\n"])
def test_a_file_without_a_search_is_refused(tmp_path: Path, text: str) -> None:
    [line] = problems(tmp_path, text)
    assert "expected a job with the key search; `lightning-core run` takes files without it" in line


def test_what_may_be_imported_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, f"allow_import: [tests, torch]\n{FILE}").allow_import == ("tests", "torch")
    found: Any = problems(tmp_path, f"allow_import: [torch]\n{FILE}")
    assert any("tests.tiny.Line" in line for line in found), found
