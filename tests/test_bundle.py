"""Bundle files: what is read, and the words for what is wrong; nothing has started by then."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_core.launch.bundle import Bundle, parse_policy
from lightning_core.launch.loading import BundleError
from lightning_core.types import BatchTarget, LossTarget
from tests.conftest import ROOT

MODEL = {"class_path": "tests.tiny.Line"}


def job(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "deadline": "90s", "target": {"loss": 0.1}, **more}


def bundle(**jobs: Any) -> dict[str, Any]:
    return {"jobs": jobs or {"a": job()}}


def test_a_file_with_everything(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("fit:\n  model: {class_path: tests.tiny.Line, init_args: {lr: 1e-3}}\n")
    (tmp_path / "b.yaml").write_text(
        textwrap.dedent("""
        policy: {name: lara, order: edf, explore: 5}
        estimator: {name: least_squares, gamma: 0.9}
        period: 2s
        pool: {devices: 1, kind: cpu}
        jobs:
          a: {config: a.yaml, deadline: 1h30m, target: {loss: 1e-3}, cell: 5}
          b: {model: {class_path: tests.tiny.Line}, deadline: 90s, target: {batches: 20}}
          c: {model: {class_path: tests.tiny.Line}, deadline: 0.5s, target: {metric: val_loss, at_most: 2}}
        """)
    )
    read = Bundle.from_file(tmp_path / "b.yaml")
    assert [spec.job.target for spec in read.jobs] == [
        LossTarget("loss", 0.001),
        BatchTarget(20),
        LossTarget("val_loss", 2.0),
    ]
    assert [spec.job.deadline for spec in read.jobs] == [5400.0, 90.0, 0.5]
    assert [spec.cell for spec in read.jobs] == [5, 10, 10]
    assert (read.settings.policy, read.settings.policy_args) == ("lara", {"order": "edf", "explore": 5})
    assert (read.settings.estimator_args, read.settings.period) == ({"gamma": 0.9}, 2.0)
    assert Bundle.from_dict(yaml.safe_load(yaml.safe_dump(read.to_dict())), tmp_path) == read
    read.check()


def test_policies_by_name() -> None:
    assert parse_policy("lara:order=edf,explore=5") == {"name": "lara", "order": "edf", "explore": 5}
    read = Bundle.from_dict(bundle()).with_policy("lara:order=edf")
    assert read.settings.policy_args == {"order": "edf"}
    with pytest.raises(ValueError, match="NAME:KEY=VALUE"):
        parse_policy("lara:order")
    with pytest.raises(ValueError, match="policy must be one of"):
        read.with_policy("best")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "expected a mapping with 'jobs', got list"),
        ({}, "jobs: expected a mapping of at least one job, got None"),
        ({"jobs": {}}, "jobs: expected a mapping of at least one job"),
        ({"jobs": {"a": None}}, "jobs.a: expected a mapping with deadline, target and a config, got None"),
        ({**bundle(), "polcy": "edf"}, "top level: unknown key 'polcy'; did you mean 'policy'?"),
        ({**bundle(), "policy": "best"}, "policy must be one of edf, fifo, fixed, lara, uniform, got 'best'"),
        ({**bundle(), "policy": ["edf"]}, "expected a name or a mapping with 'name'"),
        ({**bundle(), "period": 1}, "duration must be a string"),
        ({**bundle(), "pool": {"devices": 2}}, "pool.devices: this version shares one device, got 2"),
        ({**bundle(), "pool": {"kind": "tpu"}}, "pool.kind must be cpu or gpu, got 'tpu'"),
        ({**bundle(), "pool": 1}, "pool: expected a mapping, got 1"),
        (bundle(**{"../x": job()}), "jobs: a name has letters, digits"),
        (bundle(**{"x" * 64: job()}), "at most 63"),
        (bundle(a=job(dealine="9s")), "jobs.a: unknown key 'dealine'; did you mean 'deadline'?"),
        (bundle(a=job(deadline=750)), "jobs.a.deadline: duration must be a string with units .* got 750"),
        (bundle(a=job(deadline="0s")), "jobs.a.deadline: duration must be positive, got '0s'"),
        (bundle(a=job(deadline="-5s")), "jobs.a.deadline: duration must be"),
        (bundle(a=job(deadline=None)), "jobs.a.deadline: duration must be .* got None"),
        (bundle(a=job(target=None)), r"jobs.a.target: expected \{loss: E\}"),
        (bundle(a=job(target={"loss": 0})), "jobs.a.target: target loss must be positive and finite, got 0"),
        (bundle(a=job(target={"loss": float("nan")})), "must be positive and finite, got nan"),
        (bundle(a=job(target={"loss": "low"})), "jobs.a.target: expected a number, got 'low'"),
        (bundle(a=job(target={"loss": True})), "jobs.a.target: expected a number, got True"),
        (bundle(a=job(target={"batches": 1.5})), "jobs.a.target: expected a whole number, got 1.5"),
        (bundle(a=job(target={"batches": 0})), "target batches must be positive, got 0"),
        (bundle(a=job(target={"lose": 1})), "unknown key 'lose'; did you mean 'loss'?"),
        (bundle(a=job(target={"loss": 1, "batches": 2})), "got batches, loss"),
        (bundle(a=job(cell=0)), "jobs.a.cell: must be a whole number of batches, at least 1, got 0"),
        (bundle(a=job(trainer={"devices": 4})), "jobs.a.trainer.devices: is set by the launcher; remove it"),
        (bundle(a={k: v for k, v in job().items() if k != "model"}), "jobs.a: model is missing"),
        (bundle(a=job(config="a.yaml")), "jobs.a: either config or model, not both"),
        (bundle(a={"config": "no.yaml", "deadline": "9s", "target": {"loss": 1}}), "no.yaml: not found"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(content: Any, words: str) -> None:
    with pytest.raises(BundleError, match=words):
        Bundle.from_dict(content)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(BundleError) as caught:
        Bundle.from_dict({**bundle(a=job(deadline="0s", target={"loss": -1}), b=job(cell=-1)), "polcy": 1})
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "file is empty"),
        ("jobs: [", r"b.yaml:1:8: "),
        ("a: b: c", r"b.yaml:1:5: mapping values are not allowed"),
        ("jobs:\n  a: {deadline: 9s}\n  a: {deadline: 8s}\n", r"b.yaml:3:3: duplicate key 'a' \(first on line 2\)"),
        ("jobs: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "b.yaml").write_text(text)
    with pytest.raises(BundleError, match=words):
        Bundle.from_file(tmp_path / "b.yaml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="not found"):
        Bundle.from_file(tmp_path / "b.yaml")
    with pytest.raises(BundleError, match="cannot be read"):
        Bundle.from_file(tmp_path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model": {"class_path": "no.such.Model"}}, "jobs.a.model.class_path: 'no.such.Model' does not import"),
        ({"model": {"class_path": "tests.tiny.Lime"}}, "no 'Lime'; did you mean 'Line'"),
        ({"model": {"class_path": 3}}, "must be the dotted path of a class, got 3"),
        ({"model": {"class_path": "tests.tiny.QUIET"}}, "is not a class"),
        ({"model": {"class_path": "tests.tiny.Points"}}, "jobs.a: "),
        ({"model": {"class_path": "tests.tiny.Line", "init_args": {"rl": 1}}}, "rl"),
        ({"model": {"class_path": "tests.tiny.Line", "init_args": {"lr": "fast"}}}, "lr"),
        ({"trainer": {"max_epoch": 3}}, "max_epoch"),
        ({"seed_everything": "yes"}, "seed_everything: expected a number or a bool, got 'yes'"),
        ({"trainer": {"callbacks": [{"class_path": "no.Callback"}]}}, r"jobs.a.trainer.callbacks\[0\].class_path"),
    ],
)
def test_configs_are_checked_before_anything_starts(config: dict[str, Any], words: str) -> None:
    with pytest.raises(BundleError, match=words):
        Bundle.from_dict(bundle(a=job(**config))).check()


def test_checking_leaves_the_random_state_alone() -> None:
    import torch

    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    Bundle.from_dict(bundle(a=job(seed_everything=1))).check()
    assert torch.rand(1) == expected


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("jobs: {}", [], "error: b.yaml: jobs: expected a mapping of at least one job"),
        ("jobs: {a: 1}", ["--policy", "best"], "error: b.yaml: jobs.a: expected a mapping"),
        ("{GOOD}", ["--policy", "best"], "policy must be one of"),
        ("{GOOD}", ["--json", "no/such/folder.json"], "is not a folder"),
        ("{GOOD}", ["--run-dir", "."], "is not empty"),
    ],
)
def test_the_command_line_answers_bad_input_with_2(tmp_path: Path, text: str, arguments: list[str], words: str) -> None:
    (tmp_path / "b.yaml").write_text(text.replace("{GOOD}", json.dumps(bundle())))
    command = [sys.executable, "-m", "lightning_core.cli", "run", "b.yaml", *arguments]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=env)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_replay_of_nothing_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lightning_core.cli import main

    assert main(["replay", str(tmp_path)]) == 2
    assert "no journal here" in capsys.readouterr().err
