"""Jobs of a bundle that are scripts: what is refused before anything starts, and what they stand for."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.pool_section import ExistingPool
from lightning_core.bundle.problems import BundleError
from lightning_core.bundle.python_form import Training
from lightning_core.bundle.scripts import command_of, find_command, without_secrets
from lightning_core.core.jobs import Capability
from lightning_core.parts.search.search_file import SearchSpec
from lightning_core.run.differences import differences
from lightning_core.scheduler.settings import Settings

JOB = {"script": "train.py --lr 0.1", "target": {"loss": 0.1}, "deadline": "1h"}


def bundle(folder: Path, **changed: Any) -> BundleSpec:
    (folder / "train.py").touch()
    return BundleSpec.from_dict({"pool": {"devices": 4}, "jobs": {"a": {**JOB, **changed}}}, folder)


def problems(folder: Path, **changed: Any) -> list[str]:
    with pytest.raises(BundleError) as error:
        bundle(folder, **changed).check()
    return error.value.problems


def test_a_script_is_a_job_like_any_other(tmp_path: Path) -> None:
    made = bundle(tmp_path, retries=2, save_every="30s", hang="off", on_hold="suspend")
    made.check()
    [spec] = made.jobs
    assert (spec.script, spec.job.max_devices, spec.job.retries, spec.hang) == ("train.py --lr 0.1", 1, 2, None)
    assert Capability.RELEASE in spec.job.can
    assert spec.identified.model == "train.py"
    sent = spec.for_worker(made.folder)
    assert (sent["config"], sent["paths"][0]) == ({"script": "train.py --lr 0.1"}, str(tmp_path))
    assert BundleSpec.from_dict(made.to_dict(), tmp_path) == made


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"script": ""}, "jobs.a.script: must be a command, such as train.py --lr 0.1, got ''"),
        ({"script": 7}, "must be a command"),
        ({"script": ["train.py"]}, "must be a command"),
        ({"script": "train.py 'a"}, "must be words as a shell has them: No closing quotation"),
        ({"script": "''"}, "must begin with what is run"),
        ({"script": "-m"}, "-m must be followed by a module"),
        ({"script": "LR=0.1 train.py"}, "got the variable 'LR=0.1'; use env LR=0.1 ..."),
        ({"script": "train.py \0"}, "must not hold a NUL character"),
        ({"script": "train.py " + "x" * 9000}, "script must have at most 8,192 characters, got 9,009"),
        ({"script": "missing.py"}, "missing.py not found"),
        ({"script": "python missing.py"}, "missing.py not found"),
        ({"script": "./run.sh"}, "run.sh not found"),
        ({"script": "no-such-program"}, "no program 'no-such-program' on this machine's PATH"),
        ({"script": "train"}, "no program 'train' on this machine's PATH; train.py is there"),
        ({"script": "./train.py.d/x"}, "x not found"),
        ({"model": "mine.Net"}, "jobs.a.model: is for a job that Lightning trains from its config"),
        ({"data": "mine.Data"}, "jobs.a.data: is for a job that Lightning trains"),
        ({"trainer": {"max_epochs": 1}}, "jobs.a.trainer: is for a job that Lightning trains"),
        ({"config": "a.yaml"}, "jobs.a.config: is for a job that Lightning trains"),
        ({"seed_everything": 1}, "jobs.a.seed_everything: is for a job that Lightning trains"),
        ({"ckpt_path": "a.ckpt"}, "a script may be given a file to begin with"),
        ({"keep_best": True}, "a script keeps what it likes"),
        ({"devices": 2}, "jobs.a.devices: a script trains on one device, which its worker has; got 2"),
        ({"min_devices": 1, "max_devices": 3}, "jobs.a.max_devices: a script trains on one device"),
    ],
)
def test_what_is_wrong_with_a_script_is_said_before_anything_starts(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    found = problems(tmp_path, **changed)
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and run everything")
def test_a_script_that_may_not_be_read(tmp_path: Path) -> None:
    made = bundle(tmp_path)
    (tmp_path / "train.py").chmod(0)
    with pytest.raises(BundleError, match=r"train.py may not be read"):
        made.check()


def test_a_program_that_may_not_be_run_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run.sh").touch()
    assert "run.sh may not be run; chmod +x would allow it" in problems(tmp_path, script="./run.sh")[0]
    (tmp_path / "folder.py").mkdir()
    assert "folder.py is no file" in problems(tmp_path, script="folder.py")[0]


def test_limits_of_imports_are_none_for_a_script(tmp_path: Path) -> None:
    words = "jobs.a.script: a script imports what it likes, which allow_import cannot limit: remove one of them"
    with pytest.raises(BundleError, match=words):
        bundle(tmp_path).importing_only(["mine"])
    with pytest.raises(BundleError, match=words):
        BundleSpec.from_dict({"allow_import": ["mine"], "jobs": {"a": JOB}}, tmp_path)


def test_the_commands_that_scripts_stand_for(tmp_path: Path) -> None:
    for name in ("train.py", "sub/train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "run.sh").touch(0o755)
    python = sys.executable
    for script, command in (
        ("train.py --name 'a b'", [python, "train.py", "--name", "a b"]),
        ("sub/train.py", [python, "sub/train.py"]),
        ("python -X dev train.py", [python, "-X", "dev", "train.py"]),
        ("-m package.train --lr 1", [python, "-m", "package.train", "--lr", "1"]),
        ("./run.sh --fast", [f"{tmp_path}/run.sh", "--fast"]),
    ):
        assert command_of(script, tmp_path) == command
    assert command_of("env A=1 python", tmp_path)[0].endswith("/env")
    assert command_of("pytest -q", tmp_path)[0] == str(Path(python).with_name("pytest"))


def test_a_script_is_looked_up_where_the_bundle_was_submitted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is resumed has a copy of its bundle in a folder of its own."""
    made = replace(bundle(tmp_path), folder=tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    made.check()
    assert find_command("train.py", [tmp_path / "run", tmp_path])[1] == tmp_path
    assert find_command("python", [tmp_path / "run", tmp_path])[1] == tmp_path / "run"


def test_a_bundle_of_scripts_is_checked_without_torch(tmp_path: Path) -> None:
    """It takes milliseconds, and no class is imported."""
    code = (
        "import sys; from lightning_core.bundle.bundle_file import BundleSpec;"
        f"BundleSpec.from_dict({{'jobs': {{'a': {JOB!r}}}}}, {str(tmp_path)!r}).check();"
        "assert not {'torch', 'lightning', 'ray'} & set(sys.modules)"
    )
    (tmp_path / "train.py").touch()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_script_in_python(tmp_path: Path) -> None:
    spec = Training("a", "1h", "loss<=0.1", script="train.py --lr 0.1").read(Settings(), tmp_path)
    assert (spec.script, spec.job.deadline) == ("train.py --lr 0.1", 3600.0)
    with pytest.raises(BundleError, match=r"model is missing .*; or script, for a loop of your own"):
        Training("a", "1h", "loss<=0.1").read(Settings(), tmp_path)
    with pytest.raises(BundleError, match=r"jobs\.a\.model: is for a job that Lightning trains"):
        Training("a", "1h", "loss<=0.1", script="train.py", model="mine.Net").read(Settings(), tmp_path)


def test_a_search_needs_a_config(tmp_path: Path) -> None:
    terms = "search: {metric: loss, mode: min, epochs: 1, space: {model.init_args.lr: [1]}}"
    (tmp_path / "s.yaml").write_text(f"script: train.py\ndeadline: 1h\n{terms}\n")
    with pytest.raises(BundleError, match="script: is for a job; a search gives hyper-parameters to a config"):
        SearchSpec.from_file(tmp_path / "s.yaml", ExistingPool(1, "cpu", "the pool", ()))


def test_secrets_of_a_script_are_not_shown(tmp_path: Path) -> None:
    old = bundle(tmp_path, script="train.py --lr 0.1 --api-key abc")
    [spec] = old.jobs
    new = replace(old, jobs=(replace(spec, config={"script": "train.py --lr 0.2 --api-key def"}),))
    assert differences(old, new) == [
        "jobs.a.script: train.py --lr 0.1 --api-key ... -> train.py --lr 0.2 --api-key ..."
    ]
    assert without_secrets("env HF_TOKEN=abc train.py --tokens 3") == "env HF_TOKEN=... train.py --tokens 3"
