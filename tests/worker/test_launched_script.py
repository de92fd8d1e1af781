"""The contract of a worker with the script that it starts: what it is told, which process it is, how it saves."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_core.agent.launched_script import LAUNCHED, LaunchedScript, ScriptTerms, launched_script
from lightning_core.core.jobs import OnHold
from lightning_core.core.targets import LossTarget
from lightning_core.storage.job_checkpoints import FILE, find
from lightning_core.storage.job_specs import MIN_TRAINING_PER_SAVE
from lightning_core.storage.manifests import CorruptCheckpointError

TERMS = ScriptTerms(
    "job", 3, LossTarget("loss", 0.1).to_dict(), "/nowhere/socket", "/nowhere/checkpoints/3", None, "/nowhere/turn",
    [0, 1], [1], 2, 300.0, "keep", 10, None, 60.0,
)  # fmt: skip


def told(folder: Path, **changed: Any) -> dict[str, str]:
    """Write terms as a worker does; return the environment of the script."""
    return {LAUNCHED: str(replace(TERMS, folder=str(folder / "checkpoints" / "3"), **changed).write(folder))}


def script(folder: Path, **changed: Any) -> LaunchedScript:
    made = launched_script(told(folder, **changed))
    assert made is not None
    return made


def test_a_script_finds_what_its_worker_has_written(tmp_path: Path) -> None:
    made = script(tmp_path, resume="/some/file", suspender="/some/socket")
    assert (made.job, made.incarnation, made.target, made.devices) == ("job", 3, LossTarget("loss", 0.1), (1,))
    assert (made.cores, made.hang, made.on_hold, made.every, made.save_every) == (2, 300.0, OnHold.KEEP, 10, 60.0)
    assert (made.resume_path, made.suspender) == (Path("/some/file"), Path("/some/socket"))
    assert made.last_checkpoint is None
    with pytest.raises(ConnectionError):
        made.client().job_forecast("job")
    lock = made.device_lock()
    assert lock is not None
    lock.close()
    other = tmp_path / "other"
    other.mkdir()
    assert script(other, arbiter=None).device_lock() is None


def test_the_terms_are_for_their_user_alone(tmp_path: Path) -> None:
    path = Path(told(tmp_path)[LAUNCHED])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        told(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"job": 3}', None])
def test_what_cannot_be_read_makes_no_job_and_no_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "launched.json"
    if content is not None:
        path.write_text(content)
    assert launched_script({LAUNCHED: str(path)}) is None
    assert launched_script({LAUNCHED: str(tmp_path / "gone" / "launched.json")}) is None
    assert launched_script({}) is None


CHILD = "from lightning_core.agent.launched_script import launched_script as one; print(one() is not None)"


def test_one_process_is_the_job_and_what_it_starts_is_not(tmp_path: Path) -> None:
    environment = told(tmp_path)
    first = launched_script(environment)
    assert first is not None
    assert launched_script(environment) is first
    if (pid := os.fork()) == 0:  # as a worker of a DataLoader
        os._exit(10 if launched_script(environment) is None else 11)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 10
    started = subprocess.run(
        [sys.executable, "-c", CHILD], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert started.stdout.strip() == "False"


def test_a_process_that_follows_the_one_that_was_the_job_is_the_job(tmp_path: Path) -> None:
    """As where a shell script starts a program, and after it the training."""
    environment = told(tmp_path)
    if (pid := os.fork()) == 0:
        os._exit(10 if launched_script(environment) is not None else 11)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 10
    assert launched_script(environment) is not None


def test_what_was_saved_is_to_be_reported_and_found(tmp_path: Path) -> None:
    made = script(tmp_path)
    with made.saving(12) as path:
        path.write_text("after 12")
    assert made.last_checkpoint is not None
    assert made.last_checkpoint.batches == 12
    found = find(made.folder)
    assert found is not None
    assert found.checkpoint == made.last_checkpoint
    own = tmp_path / "checkpoint-500"
    own.mkdir()
    (own / "model.bin").write_text("after 500")
    made.saved(own, 500)
    assert made.last_checkpoint.batches == 500
    found = find(made.folder)
    assert found is not None
    assert (found.path / "model.bin").read_text() == "after 500"


def test_a_full_disk_fails_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = script(tmp_path, save_every=1e-9)
    with made.saving(1) as path:
        path.write_text("after 1")
    before = made.last_checkpoint
    made._next = 0.0
    assert made.due()
    for error in (OSError(28, "No space left on device"), RuntimeError("PytorchStreamWriter failed writing file")):
        with made.saving(2) as path:
            path.write_text("half")
            raise error
        assert made.fails
        assert not made.due()
        assert not made.may_save()
    made.saved(tmp_path / "not there", 3)
    assert made.last_checkpoint == before
    assert caplog.text.count("could not be saved") == 1
    made._not_before = 0.0
    with made.saving(4) as path:
        path.write_text("after 4")
    assert not made.fails
    assert "could be saved again" in caplog.text


def test_errors_of_what_is_saved_are_the_scripts(tmp_path: Path) -> None:
    made = script(tmp_path)
    with pytest.raises(AttributeError), made.saving(1) as path:
        path.write_text(made.no_such_thing)  # type: ignore[attr-defined]
    with pytest.raises(CorruptCheckpointError, match="save a copy instead"), made.saving(1) as path:
        path.symlink_to(tmp_path)
    assert not (made.folder / FILE).exists()


def test_periodic_checkpoints_take_little_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    made = LaunchedScript(replace(TERMS, folder=str(tmp_path), save_every=60.0))
    assert not made.due()
    now = 161.0
    assert made.due()
    with made.saving(1) as path:
        path.write_text("after 1")
        now += 10.0
    now += MIN_TRAINING_PER_SAVE * 10.0 - 1
    assert not made.due()
    now += 1.0
    assert made.due()
