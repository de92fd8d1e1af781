"""The provisioner on the real SkyPilot: its API server with a cloud of processes, for each story in a process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytest.importorskip("sky", reason="make setup-skypilot")


@pytest.mark.nightly
@pytest.mark.parametrize("story", ["conforms", "checked", "survives", "trains"])
def test_skypilot(story: str) -> None:
    with tempfile.TemporaryDirectory(prefix="lc-", ignore_cleanup_errors=True) as folder:
        words = [sys.executable, "-m", "tests.parts.market.skypilot_stories", story, folder]
        said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=3000)
        log = Path(folder) / "server.log"
        assert said.returncode == 0, said.stdout + said.stderr + (log.read_text()[-5000:] if log.exists() else "")
