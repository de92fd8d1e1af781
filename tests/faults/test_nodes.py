"""Nodes that are lost, or preempted with notice."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.promise("R7", "R10", "R11", "F5", "F20", "F21")
def test_a_lost_node_is_noticed_within_ten_seconds_and_a_preemption_is_no_failure(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The most urgent job gets the remaining device; the other one waits with a reason until there is another node."""
    found = run_story("tests.faults.nodes", tmp_path)
    assert found["lost"] < 10
    assert "its worker on device" in found["words"]
    assert found["restarts"] == {"a": 1, "b": 0}
    assert found["left"] < 10
    assert found["b"] == [0, 0]
    assert found["taken"] < 10
    assert found["preempted"].startswith("its node was preempted")
    words = (
        "a node lost: told after {lost:.1f} s; with notice: left after {left:.1f} s, unheard: told after {taken:.1f} s"
    )
    record_property("figure", words.format(**found))


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("nsenter"), reason="only root can cut a line")
@pytest.mark.promise("R5", "R11", "F23")
def test_a_node_that_is_cut_off_is_fenced(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """A node that is cut off for a moment loses no job; after a longer time its job resumes once."""
    found = run_story("tests.faults.links", tmp_path, "unshare", "--net")
    assert set(found["blink"].values()) == {1}
    assert found["known"] < 10
    assert "has not answered" in found["words"]
    assert found["behind"]  # it trained on, cut off
    assert found["other"] == 1
    assert set(found["incarnations"].values()) == {1, 2}
    words = "cut off: told after {known:.1f} s; the old worker left {gone:.1f} s after the line was there again"
    record_property("figure", words.format(**found))


def run_story(module: str, folder: Path, *before: str, story: str = "", seconds: float = 300.0) -> dict[str, Any]:
    """Run a story in processes of its own; return what it found.

    Args:
        module: Module of the story.
        folder: Its folder.
        before: Words before the command.
        story: Name of the story, if the module has several.
        seconds: Seconds that it may take.
    """
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }  # fmt: skip
    command = [*before, sys.executable, "-m", module, str(folder), *filter(None, [story])]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        assert process.wait(seconds) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found
