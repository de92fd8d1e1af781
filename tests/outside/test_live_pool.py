"""The outside package in a pool that is up, over a kill of the scheduler."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.node.processes import is_alive
from lightning_core.pool import Pool
from lightning_core.server.discovery import read_head
from tests.cluster.test_pool import Shell, batches
from tests.waiting import until

from .conftest import install

pytestmark = pytest.mark.cluster

POOL = """
pool: {devices: 1, resident: 2, controllers: {quiet: {spares: spared}}}
policy: {class_path: quiet_nights.HeaviestFirst, init_args: {}}
estimator: straight_line
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    made.env["PYTHONPATH"] += f"{os.pathsep}{install(tmp_path / 'site')}"
    (tmp_path / "pool.yaml").write_text(POOL)
    made.command("up", "--config", str(tmp_path / "pool.yaml"))
    yield made
    head = read_head(made.folder)
    if head is not None and is_alive(head):
        made.command("down", "--now")


def test_a_package_in_a_pool_whose_scheduler_is_killed(shell: Shell) -> None:
    shell.submit("heavy", "spared", weight=2, target="200 halvings of 2.0", deadline="20m")
    until(lambda: batches(shell, "heavy") > 10 or batches(shell, "spared") > 10)
    assert shell.command("night", "100000").strip() == "it is night"
    until(lambda: shell.jobs()["heavy"].paused and shell.jobs()["spared"].share == 1.0)
    before = shell.jobs()
    with Pool.connect(str(shell.folder)) as pool:
        pid = pool.about()["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: pool.about()["pid"] != pid)
    after = shell.jobs()
    assert [(job.paused, job.share, str(job.target)) for job in after.values()] == [
        (job.paused, job.share, str(job.target)) for job in before.values()
    ]
    assert "halvings" in shell.command("status")
    assert "it is night for" in shell.command("why", "heavy")
    shell.command("down", "--now")
    shell.command("report", str(shell.folder), "--out", str(shell.home / "report.html"))
    assert "What became of them" in (shell.home / "report.html").read_text()
