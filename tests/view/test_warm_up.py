"""Output while a run or a pool starts."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

from lightning_core.view.warm_up import WarmingView
from tests.conftest import ROOT


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_is_rewritten() -> None:
    stream = Terminal()
    shown = WarmingView(stream)
    for warm in (0, 0, 1, 2, 2):
        shown(warm, 2)
    importing = "importing torch and Lightning ..."
    lines = [f"0 of 2 workers warm, {importing}", f"1 of 2 workers warm, {importing}", "2 of 2 workers warm\n"]
    assert stream.getvalue() == "\r\x1b[K".join(lines)


def test_run_prints_what_it_does_before_torch_is_imported(tmp_path: Path) -> None:
    job = {"model": {"class_path": "tests.tiny.Line"}, "deadline": "9s", "target": {"batches": 1}}
    path = tmp_path / "b.yaml"
    path.write_text(json.dumps({"jobs": {"a": job}}))
    (tmp_path / "torch.py").write_text("raise ImportError('this is not torch')\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    line = [sys.executable, "-m", "lightning_core.cli.main", "run", str(path), "--own"]
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout == "1 job under triage; importing torch and Lightning to check the configs ...\n"
    assert done.returncode != 0


def test_ray_can_be_started_without_its_autoscaler_and_its_reader_of_logs() -> None:
    from ray.scripts.scripts import start

    options = {name for option in start.params for name in option.opts}
    assert {"--no-monitor", "--include-log-monitor"} <= options
