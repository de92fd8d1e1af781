"""Lightning in a script that a pool has launched: an unchanged one, and one with a CoreCallback of its own."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from lightning_core import autojoin
from lightning_core.agent.launched_script import LAUNCHED, ScriptTerms
from lightning_core.callbacks import CoreCallback
from lightning_core.core.commands import Cancel, Pause, Resume, SetTerms
from lightning_core.core.events import ExitCause, WorkerExited
from lightning_core.core.targets import BatchTarget
from lightning_core.storage.job_checkpoints import adopt, checkpoint_folder, find
from lightning_core.worker.assignment import Incarnation
from lightning_core.worker.relay import Relay, serving
from tests.socket_servers import socket_pool
from tests.tiny import QUIET, Net, NoisyPoints
from tests.waiting import until
from tests.worker.test_script_run import Stage, batches_of


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with socket_pool(tmp_path, {"policy": "uniform", "devices": 1, "period": 0.1}) as pool:
        yield Stage(pool, tmp_path)


@contextmanager
def launched(stage: Stage, monkeypatch: pytest.MonkeyPatch, incarnation: int = 1) -> Iterator[Path]:
    """Make this process the script of the job; its folder of checkpoints is yielded."""
    private = stage.pool.path.parent / str(incarnation)
    private.mkdir()
    relay = Relay(Incarnation("job", incarnation, "scheduler"), (0,), stage.forward)
    folder = checkpoint_folder(stage.home, incarnation)
    folder.mkdir(parents=True, exist_ok=True)
    found = find(folder)
    terms = ScriptTerms(
        "job", incarnation, stage.job.target.to_dict(), str(private / "relay"), str(folder),
        None if found is None else str(found.path), None, None, [0], 1, 60.0, "keep", 5, None, 600.0,
    )  # fmt: skip
    monkeypatch.setenv(LAUNCHED, str(terms.write(private)))
    monkeypatch.setenv("LIGHTNING_CORE_JOB", "job")
    with serving(relay, private / "relay"):
        yield folder


def trainer_of(own: bool, **more: Any) -> pl.Trainer:
    callbacks = [CoreCallback("other", "2h", "9 batches", pool="local")] if own else []
    return pl.Trainer(**{**QUIET, "max_epochs": -1, "callbacks": callbacks, **more})


def fit(trainer: pl.Trainer, path: Path | None = None) -> None:
    model = Net()
    model.pause = 0.003
    trainer.fit(model, datamodule=NoisyPoints(), ckpt_path=path)


@contextmanager
def soon(stage: Stage, tell: Callable[[], Any], batches: int = 5) -> Iterator[None]:
    """Tell the scheduler something once the job has trained some batches."""

    def wait() -> None:
        until(lambda: batches_of(stage) >= batches)
        stage.tell(tell())

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join()


@pytest.mark.promise("R7", "R8")
@pytest.mark.parametrize("own", [False, True])
def test_a_lightning_script_is_released_resumes_and_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, own: bool
) -> None:
    with launched(stage, monkeypatch) as folder, soon(stage, lambda: Pause("job", release=True)):
        with pytest.raises(SystemExit) as left:
            fit(trainer_of(own))
        assert left.value.code == 75
    found = find(folder)
    assert found is not None
    saved = torch.load(found.path, weights_only=True)["global_step"]
    assert saved == found.checkpoint.batches >= 5
    until(lambda: stage.status.batches == saved)
    stage.tell(WorkerExited("job", 1, ExitCause.RELEASED, checkpoint=found.checkpoint))
    stage.tell(Resume("job"))
    adopt(stage.home, 2, {found.checkpoint.sha256})
    with launched(stage, monkeypatch, 2) as folder:
        found = find(folder)
        assert found is not None
        meets = lambda: SetTerms("job", target=BatchTarget(saved + 20))  # noqa: E731
        with soon(stage, meets, saved + 5):
            trainer = trainer_of(own)
            fit(trainer, found.path)
        assert trainer.global_step >= saved + 20
        until(lambda: stage.status.verdict is not None)
        last = find(folder)
        assert last is not None
        assert last.checkpoint.batches == trainer.global_step
        caplog.clear()
        fit(trainer_of(own, max_epochs=1))  # another one in the same process is no part of the job
        assert "has trained its job already" in caplog.text
    assert "ignored, because" not in caplog.text


def test_a_script_whose_job_is_cancelled_leaves_by_the_code_of_an_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with launched(stage, monkeypatch) as folder, soon(stage, lambda: Cancel("job")):
        with pytest.raises(SystemExit) as left:
            fit(trainer_of(False))
        assert left.value.code == 0
        found = find(folder)  # it is saved as it was
        assert found is not None
        assert found.checkpoint.batches >= 5


def test_a_script_that_does_not_resume_is_told_how(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with launched(stage, monkeypatch), soon(stage, lambda: Cancel("job")):
        terms = ScriptTerms.read(Path(os.environ[LAUNCHED]))
        other = Path(os.environ[LAUNCHED]).with_name("again")
        other.mkdir()
        monkeypatch.setenv(LAUNCHED, str(replace(terms, resume="/some/last.ckpt").write(other)))
        with caplog.at_level(logging.WARNING), pytest.raises(SystemExit):
            fit(trainer_of(True))
    assert "pass ckpt_path=os.environ.get('LIGHTNING_CORE_RESUME') to fit" in caplog.text


def test_what_a_script_starts_makes_no_callback(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with launched(stage, monkeypatch):
        assert len(autojoin.callbacks()) == 1
        if (pid := os.fork()) == 0:
            os._exit(10 + len(autojoin.callbacks()))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 10


@pytest.mark.nightly
def test_a_whole_lightning_script_in_a_process_of_its_own(stage: Stage) -> None:
    with stage.running(config={"script": "-m tests.lightning_script"}) as exits:
        until(lambda: batches_of(stage) > 5)
        stage.tell(Pause("job", release=True))
    [left] = exits
    assert left.cause is ExitCause.RELEASED, left.detail
    assert left.checkpoint is not None
    assert "resumes from None" in stage.log
    assert "after fit" not in stage.log
    assert re.search(r"Traceback", stage.log) is None
