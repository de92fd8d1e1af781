"""Failpoints do what they are told, where and when they are told, and nothing otherwise."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from lightning_core.storage import failpoints
from lightning_core.storage.failpoints import FailpointError, Failure, reach, read


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(failpoints, "_failures", read(request.param))
    monkeypatch.setattr(failpoints, "_passes", {})


def test_failpoints_are_read_from_the_environment() -> None:
    assert read("") == {}
    assert read("a.b:crash@3,c:raise,d:sleep=1.5@2") == {
        "a.b": Failure("crash", 0.0, 3), "c": Failure("raise"), "d": Failure("sleep", 1.5, 2)
    }  # fmt: skip


@pytest.mark.parametrize("text", ["a", "a:", "a:explode", "a:sleep", "a:crash=3", "a:sleep=x", "a:crash@x"])
def test_an_invalid_variable_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"failpoint|could not convert|invalid literal"):
        read(text)


@pytest.mark.parametrize("planned", ["here:raise@2"], indirect=True)
def test_a_failpoint_acts_at_its_occurrence(planned: None) -> None:
    reach("here")
    reach("elsewhere")
    with pytest.raises(FailpointError, match="at here"):
        reach("here")
    reach("here")


@pytest.mark.parametrize("planned", ["here:sleep=0.05"], indirect=True)
def test_a_failpoint_can_sleep(planned: None) -> None:
    began = time.monotonic()
    reach("here")
    assert time.monotonic() - began >= 0.05


def test_a_crash_failpoint_kills_the_process() -> None:
    code = (
        "from lightning_core.storage.failpoints import reach; reach('here'); print('once', flush=True); reach('here')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"LC_FAILPOINT": "here:crash@2"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (-9, "once\n")
