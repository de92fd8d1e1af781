"""Nodes that are lost, or taken away with notice."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.promise("R10", "R11", "R12", "F5", "F18", "F20", "F21")
def test_a_lost_node_is_known_in_ten_seconds_and_one_that_was_taken_away_is_no_loss(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Its job waits with the reason until there is another node, and nobody else notices."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.faults.nodes", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        assert process.wait(300) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["lost"] < 10
    assert "its worker on device" in found["words"]
    assert "not ready in time (device" in found["unready"]
    assert "its node is gone" in found["unready"]
    assert found["other"] == 1
    assert found["taken"] < 10
    assert found["preempted"].startswith("its node was taken away")
    words = "a node lost: told after {lost:.1f} s; taken away: {taken:.1f} s"
    record_property("figure", words.format(**found))
