"""The README's section on bundles, line by line, with Ctrl-C in between: in a running pool, and in its own."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_core.history.history import History
from lightning_core.storage.journals.journal import Journal
from tests.cluster.test_pool import Shell, batches
from tests.conftest import ROOT
from tests.waiting import until

pytestmark = pytest.mark.cluster

JOB = {
    "seed_everything": 1,
    "model": {"class_path": "tests.tiny.Line", "init_args": {"pause": 0.01, "lr": 0.05}},
    "data": {"class_path": "tests.tiny.Points"},
    "trainer": {"logger": False},
    "deadline": "10m",
}


def lines() -> list[list[str]]:
    """Return the commands of the section, without their comments."""
    section = (ROOT / "README.md").read_text().split("## A bundle of jobs")[1].split("\n## ")[0]
    found = [shlex.split(line, comments=True)[1:] for line in re.findall(r"^lightning-core .*$", section, re.MULTILINE)]
    assert [words[0] for words in found] == ["plan", "run", "run", "report", "why", "replay"]
    return found


@pytest.fixture(params=["in a pool", pytest.param("alone", marks=pytest.mark.nightly)])
def shell(request: pytest.FixtureRequest, pool_shell: Shell, tmp_path: Path) -> Shell:
    if request.param == "alone":
        return Shell(tmp_path)
    if not pool_shell.is_up():
        pool_shell.up()
    return pool_shell


def batches_in(run_dir: Path, job: str) -> int:
    """Return the progress of a job by the journal of a run; 0 if there is none."""
    try:
        with Journal.open(run_dir / "journal.db", read_only=True) as journal:
            progress = History.read(journal).of(job).progress
        return progress[-1].batches if progress else 0
    except Exception:  # it is being created
        return 0


def test_the_readme_s_commands_on_a_bundle_run(shell: Shell) -> None:
    plan, run, resume, report, why, replay = lines()
    jobs = {name: JOB | {"target": {"batches": many}} for name, many in (("cnn", 60), ("vit", 1000))}
    (shell.home / "bundle.yaml").write_text(json.dumps({"policy": "fifo", "jobs": jobs}))
    in_pool = shell.is_up()
    run_dir = shell.home / "runs" / "monday"

    assert "cnn, vit: of unknown work; all fit if each takes at most " in shell.command(*plan)
    command = [sys.executable, "-m", "lightning_core.cli.main", *run]
    begun = subprocess.Popen(
        command, env=shell.env, cwd=shell.home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if in_pool:
        until(lambda: (run_dir / "pool.json").exists() and batches(shell, "vit") > 30)
        shell.command(*report)  # while it runs
        assert batches_in(run_dir, "vit") > 0
    else:
        until(lambda: batches_in(run_dir, "vit") > 30, 90)
    begun.send_signal(signal.SIGINT)
    said, _ = begun.communicate(timeout=300)
    assert begun.returncode == 130, said
    assert f"lightning-core run --resume {run_dir}" in said
    [use] = re.findall(r"of 2 met in .*; the device was busy (\d+) % of it", said)
    assert 0 <= int(use) <= 100
    assert "ended after" not in said

    assert "2 of 2 met" in shell.command(*resume)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert {name: job["verdict"] for name, job in summary["jobs"].items()} == {"vit": "met", "cnn": "met"}
    assert summary["figures"]["device_use"] <= 1
    for name in jobs:
        assert "Seed set to 1" in (run_dir / "jobs" / name / "log.txt").read_text()
        assert list((run_dir / "jobs" / name / "checkpoints").rglob("*.ckpt"))
        assert (run_dir / "jobs" / name / "spec.json").exists()
    (run_dir / "report.html").unlink()
    shell.command(*report)
    page = (run_dir / "report.html").read_text()
    assert ("stopped by" in page or "Stopped by" in page) is not in_pool  # the pool's jobs are unaffected
    assert "the pool was down" not in page
    assert "target met" in shell.command(*why)
    assert '"identical": true' in shell.command(*replay)
    assert "all its jobs have ended" in shell.command(*resume)
    if in_pool:
        shell.command("down")
        assert "target met" in shell.command(*why)
        assert '"identical": true' in shell.command(*replay)
