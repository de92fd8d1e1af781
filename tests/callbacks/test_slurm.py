"""The end of a Slurm job: forecasts count with it, and Lightning saves and requeues the script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import torch

from lightning_core.agent import slurm
from lightning_core.agent.slurm import SlurmEnd, end_of
from lightning_core.callbacks import CoreCallback
from lightning_core.core.answers import Grant
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.server import discovery as connecting
from tests.callbacks.test_callback import fit
from tests.conftest import ROOT
from tests.faults.test_joining import Pool
from tests.waiting import until


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Put a fake command of Slurm on the path; return the file with its arguments."""

    def make(name: str, body: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        said = tmp_path / f"{name}.said"
        command = folder / name
        command.write_text(f'#!/bin/sh\necho "$SLURM_TIME_FORMAT $@" >> {said}\n{body}\n')
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return said

    return make


def script(pool: str = "local") -> CoreCallback:
    return CoreCallback("job", "60s", BatchTarget(10**9), pool=pool)


def test_squeue_is_asked_for_the_end(tool: Callable[[str, str], Path]) -> None:
    said = tool("squeue", "echo 2030-01-02T03:04:05")
    assert end_of("7") == datetime(2030, 1, 2, 3, 4, 5).timestamp()
    assert said.read_text().split() == ["standard", "-h", "-j", "7", "-o", "%e"]


@pytest.mark.parametrize("answer", ["N/A", "", "Unknown"])
def test_a_job_without_a_time_limit_has_no_end(tool: Callable[[str, str], Path], answer: str) -> None:
    tool("squeue", f"echo {answer}")
    assert end_of("7") is None


@pytest.mark.parametrize("body", ["exit 1", "echo soon", "sleep 30"])
def test_a_failing_squeue_is_warned_about_and_not_waited_for(
    tool: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    body: str,
) -> None:
    tool("squeue", body)
    monkeypatch.setattr(slurm, "SQUEUE_TIMEOUT", 0.3)
    monkeypatch.setattr(slurm, "SQUEUE_ATTEMPTS", 2)
    monkeypatch.setattr(slurm, "SQUEUE_RETRY_DELAY", 0.1)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    trainer = fit(script(), max_epochs=1)
    assert trainer.global_step == 16
    until(lambda: "the end of Slurm job 7 is unknown" in caplog.text)


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "-7", "1e300"])
def test_an_invalid_end_time_is_ignored(text: str) -> None:
    assert SlurmEnd({"SLURM_JOB_END_TIME": text}).at is None


def test_an_invalid_job_id_is_not_passed_to_squeue(tool: Callable[[str, str], Path]) -> None:
    said = tool("squeue", "echo 2030-01-02T03:04:05")
    assert SlurmEnd({"SLURM_JOB_ID": "7; rm"}).at is None
    time.sleep(0.2)
    assert not said.exists()


@pytest.mark.parametrize("requeue", [False, True])
def test_the_end_of_a_slurm_job_that_is_requeued_is_not_that_of_the_training(
    monkeypatch: pytest.MonkeyPatch, requeue: bool
) -> None:
    pool = Pool(Grant("job", 1, 1.0, (0,), Reason("fixed_share")))
    monkeypatch.setattr(connecting, "connect", lambda pool_: pool)
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time() + 100)))
    monkeypatch.setenv("LIGHTNING_CORE_REQUEUE", "yes" if requeue else "no")
    fit(script("auto"), max_steps=30, max_epochs=-1)
    horizon = pool.reports[-1].horizon
    assert horizon is not None
    if requeue:
        assert horizon.seconds is None
    else:
        assert horizon.seconds is not None
        assert 0 < horizon.seconds <= 100


TRAIN = """
import logging, sys, time
import lightning.pytorch as pl
from lightning_core import BatchTarget
from lightning_core.callbacks import CoreCallback
from tests.tiny import QUIET, Line, Points

class Told(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        sys.stdout.write(f"batch {trainer.global_step}\\n")  # in one piece: a line of a log may come between two
        sys.stdout.flush()

callback = CoreCallback("job", "60s", BatchTarget(10**9), pool="local")
trainer = pl.Trainer(max_epochs=-1, callbacks=[callback, Told()], default_root_dir=sys.argv[1], **QUIET)
trainer.fit(Line(pause=0.02), datamodule=Points())
"""
SLURM = {"JOB_ID": "7", "NTASKS": "1", "JOB_NAME": "train", "PROCID": "0", "LOCALID": "0", "NODEID": "0",
         "NODELIST": "localhost"}  # fmt: skip


@pytest.mark.nightly
def test_auto_requeue_works_and_the_deadline_is_kept(tool: Callable[[str, str], Path], tmp_path: Path) -> None:
    """A real signal, as Slurm sends it, a fake scontrol, and the job that Slurm starts again."""
    requeued = tool("scontrol", "exit 0")
    tool("squeue", "echo N/A")
    (tmp_path / "train.py").write_text(TRAIN)
    environment = {**os.environ, **{f"SLURM_{name}": value for name, value in SLURM.items()}}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path)]

    def run(until_batch: int) -> tuple[subprocess.Popen[str], list[str]]:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
        )
        lines = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("batch") and int(line.split()[1]) >= until_batch:
                break
        return process, lines

    first, lines = run(30)
    try:
        assert first.poll() is None, "".join(lines)
        first.send_signal(signal.SIGUSR1)
        until(requeued.exists, 60)
    finally:
        first.kill()
        first.communicate()
    assert requeued.read_text().split()[-2:] == ["requeue", "7"]
    checkpoint = torch.load(tmp_path / "hpc_ckpt_1.ckpt", weights_only=True)
    state = checkpoint["callbacks"]["CoreCallback"]
    assert state["job"] == "job"
    assert state["batches"][:2] == [10, 20]
    second, lines = run(checkpoint["global_step"] + 5)
    second.kill()
    second.communicate()
    said = "".join(lines)
    assert "resumed with its deadline" in said
    assert f"batch {checkpoint['global_step'] + 1}\n" in said
    assert "batch 1\n" not in said
