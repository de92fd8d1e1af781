"""A run that was interrupted resumes: after Ctrl-C, after a power cut, with its bundle unchanged or edited."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.codec import decode_event
from lightning_core.core.events import Report
from lightning_core.storage.journals.journal import Journal
from tests.builders import launched
from tests.conftest import ROOT
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]  # three cold starts of Ray: a minute and a half


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "lightning_core.cli.main", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LIGHTNING_CORE_HOME": str(folder)}
    return subprocess.Popen(line, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def progress(run_dir: Path) -> dict[str, Report]:
    """Return the last report of each job that the journal has now."""
    try:
        with Journal.open(run_dir / "journal.db", read_only=True) as journal:
            events = [decode_event(entry.event) for entry in journal.entries()]
    except Exception:  # it is not there yet
        return {}
    return {event.job: event for event in events if isinstance(event, Report)}


def while_running(process: subprocess.Popen[str], condition: Callable[[], Any]) -> None:
    """Wait until a condition holds, which must be before the process ends."""

    def holds() -> Any:
        found = condition()
        assert found or process.poll() is None, process.communicate()[0]
        return found

    until(holds)


@pytest.mark.promise("R14", "F24")
def test_a_run_resumes_after_ctrl_c_and_after_a_power_cut(tmp_path: Path) -> None:
    bundle = {
        "policy": "fifo",
        "jobs": {
            name: launched({"batches": batches}, init={"pause": 0.01, "lr": 0.05})
            for name, batches in (("short", 50), ("long", 700))
        },
    }
    (tmp_path / "b.yaml").write_text(json.dumps(bundle))
    run_dir = tmp_path / "run"
    first = command(tmp_path, "run", "b.yaml", "--run-dir", "run")
    while_running(first, lambda: (said := progress(run_dir)) and "long" in said and said["long"].batches > 100)
    first.send_signal(signal.SIGINT)
    out, _ = first.communicate(timeout=300)
    assert first.returncode == 130, out
    assert f"run --resume {run_dir}" in out
    saved = progress(run_dir)["long"].batches
    [use] = re.findall(r"1 of 2 met in .*; the device was busy (\d+) % of it", out)
    assert 0 < int(use) <= 100
    assert json.loads((run_dir / "summary.json").read_text())["jobs"]["short"]["verdict"] == "met"

    bundle["jobs"]["long"]["model"]["init_args"]["lr"] = 0.01  # type: ignore[index]
    (tmp_path / "b.yaml").write_text(json.dumps(bundle))
    refused = command(tmp_path, "run", "--resume", "run")
    out, _ = refused.communicate(timeout=300)
    assert refused.returncode == 2
    assert "jobs.long.model.init_args.lr: 0.05 -> 0.01" in out
    assert "--accept-changes" in out

    second = command(tmp_path, "run", "--resume", "run", "--accept-changes")
    while_running(
        second, lambda: progress(run_dir)["long"].incarnation > 1 and progress(run_dir)["long"].batches > saved
    )
    assert (
        progress(run_dir)["long"].batches_at_start >= saved - 1
    )  # it left at the end of an epoch, with all of its work
    second.kill()
    second.wait()

    third = command(tmp_path, "run", "--resume", "run")
    out, _ = third.communicate(timeout=300)
    assert third.returncode == 0, out
    body = json.loads((run_dir / "summary.json").read_text())
    assert {name: job["verdict"] for name, job in body["jobs"].items()} == {"short": "met", "long": "met"}
    assert progress(run_dir)["short"].incarnation == 1
    assert progress(run_dir)["long"].batches_at_start >= saved - 1
    report = (run_dir / "report.html").read_text()
    assert "Stopped by Ctrl-C after" in report  # the orderly end was no fault, the power cut was one
    assert report.count("the pool was down") >= 1
    assert 0 < body["figures"]["device_use"] <= 1
    assert body["figures"]["down_s"] > 0
    again = command(tmp_path, "run", "--resume", "run")
    out, _ = again.communicate(timeout=300)
    assert (again.returncode, "all its jobs have ended" in out) == (0, True)


def test_a_script_is_one_job_over_down_and_up_and_stops_when_it_is_cancelled(tmp_path: Path) -> None:
    def done(*words: str) -> str:
        process = command(tmp_path, *words)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, out
        return out

    def jobs() -> list[dict[str, Any]]:
        return list(json.loads(done("status", "--json", "--all"))["jobs"])

    done("up")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LIGHTNING_CORE_HOME": str(tmp_path)}
    line = [sys.executable, "-m", "tests.script", "a", "1h", "1000000"]
    script = subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until(lambda: [job for job in jobs() if job["batches"] > 20])
        done("down")
        done("up")
        [job] = until(lambda: [job for job in jobs() if job["state"] == "running" and job["incarnation"] == 2])
        assert (job["name"], job["restarts"]) == ("a", 0)
        done("cancel", "a")
        done("down")
        out, _ = script.communicate(timeout=60)
        assert script.returncode == 0, out
        assert out.count("cancelled") == 2, out  # "a: cancelled: cancelled by ann"
    finally:
        script.kill()
