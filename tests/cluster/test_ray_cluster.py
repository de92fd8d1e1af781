"""The Ray of a run starts again where a busy machine did not let it start in time."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_core.cluster import ray_cluster
from tests.waiting import PATIENCE

LATE = "The current node timed out during startup. This could happen because the GCS has become overloaded."


class SlowRay:
    """In place of Ray's start: it leaves a server behind and fails, the first times."""

    def __init__(self, why: str, failures: int) -> None:
        self.why, self.failures, self.servers = why, failures, []  # type: ignore[var-annotated]

    def init(self, _temp_dir: str, **_: Any) -> None:
        if len(self.servers) < self.failures:
            words = [sys.executable, "-c", "import time; time.sleep(600)", _temp_dir]
            self.servers.append(subprocess.Popen(words))
            raise Exception(self.why)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> SlowRay:
    made = SlowRay(*request.param)
    monkeypatch.setattr("ray.init", made.init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setattr(ray_cluster, "has_token", lambda: True)
    return made


@pytest.mark.parametrize("slow", [(LATE, ray_cluster.TRIES - 1)], indirect=True)
def test_a_ray_that_is_late_is_ended_and_started_again(
    slow: SlowRay, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ray_cluster.start_local_ray(tmp_path)
    assert [one.wait(PATIENCE) for one in slow.servers] == [-9] * (ray_cluster.TRIES - 1)
    assert caplog.messages == [f"Ray is started again: {LATE}"] * (ray_cluster.TRIES - 1)


@pytest.mark.parametrize(
    ("slow", "tries"), [((LATE, 9), ray_cluster.TRIES), (("no room on the disk", 9), 1)], indirect=["slow"]
)
def test_a_ray_that_never_starts_says_why(slow: SlowRay, tries: int, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=slow.why):
        ray_cluster.start_local_ray(tmp_path)
    assert len(slow.servers) == tries
    for one in slow.servers:
        one.kill()
        one.wait(PATIENCE)
