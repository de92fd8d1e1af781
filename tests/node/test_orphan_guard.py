"""A killed process takes the processes that it started with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_core.node.processes import started
from tests.conftest import ROOT
from tests.waiting import until

PARENT = """
import os, subprocess, sys
from lightning_core.node.orphan_guard import ended_with_us

os.environ["MARK"] = sys.argv[1]
with ended_with_us("MARK", sys.argv[1]):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    print(child.pid, flush=True)
    sys.stdin.read()
print("over", flush=True)
"""


@pytest.mark.parametrize("killed", [True, False])
def test_killing_a_process_ends_its_children(tmp_path: Path, killed: bool) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(folder)])
    words = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if killed:
            parent.kill()
            until(lambda: started(child) is None and not folder.exists())
        else:  # it ends its children itself
            parent.stdin.close()
            assert parent.stdout.readline() == "over\n"
            assert folder.exists()
            os.kill(child, signal.SIGKILL)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
