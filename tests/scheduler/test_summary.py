"""What a run leaves in summary.json, and how its command exits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_core.core.events import ExitCause, Report, Submit, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import Summary

SETTINGS = Settings("lara", {"order": "edf"}, devices=2)


def ran() -> Scheduler:
    """A job that met its target at 15 s, and one that trains at 20 s; both were submitted at 5 s."""
    scheduler = Scheduler(SETTINGS)
    scheduler.handle(Submit((Job("met", 60.0, BatchTarget(100)), Job("trains", 60.0, BatchTarget(100)))), 5.0)
    scheduler.handle(Report("met", 1, 1, 1, 100, 9.0, rejected=2), 15.0)
    scheduler.handle(Report("trains", 1, 1, 1, 40, 7.0), 20.0)
    return scheduler


def test_a_run_says_how_its_jobs_ended_and_what_they_took(tmp_path: Path) -> None:
    best = tmp_path / "jobs" / "met" / "best.ckpt"
    best.parent.mkdir(parents=True)
    best.touch()
    summary = Summary.of(SETTINGS, 25.0, ran().status(), tmp_path, down=4.0)
    told = json.loads(summary.to_json())
    assert (told["policy"], told["met"]) == ("lara:order=edf", 1)
    assert told["jobs"]["met"] == {
        "verdict": "met", "finished_at": 15.0, "metric": "batches", "value": 100, "best": 100, "loss": None,
        "batches": 100, "reason": "target met with 50.0s to spare", "target": "100 batches", "deadline": 60.0,
        "busy": 9.0, "device_seconds": 9.0, "kind": "",
        "rejected_losses": 2, "restarts": 0, "lost_batches": 0, "fault": None, "best_model": str(best),
    }  # fmt: skip
    assert (told["jobs"]["trains"]["finished_at"], "best_model" in told["jobs"]["trains"]) == (None, False)
    assert told["figures"] == {
        "jobs": 2, "met": 1, "wall_s": 20.0, "busy_s": 16.0, "device_s": 16.0, "down_s": 4.0, "device_use": 0.5,
        "rejected_losses": 2, "restarts": 0, "lost_batches": 0,
    }  # fmt: skip
    assert Summary.of(Settings("edf"), 25.0, [], tmp_path).to_dict()["policy"] == "edf"
    assert Summary.of(Settings("edf"), 25.0, [], tmp_path).wall == 25.0


@pytest.mark.parametrize(
    ("interrupted", "lost", "code"), [(None, False, 3), (2, False, 130), (2, True, 130), (None, True, 70)]
)
def test_a_command_exits_as_its_run_ended(interrupted: int | None, lost: bool, code: int, tmp_path: Path) -> None:
    assert Summary.of(SETTINGS, 25.0, ran().status(), tmp_path, interrupted, lost=lost).exit_code == code


def test_a_command_exits_by_the_worst_of_its_jobs(tmp_path: Path) -> None:
    scheduler = ran()
    met = [one for one in scheduler.status() if one.name == "met"]
    assert Summary.of(SETTINGS, 25.0, met, tmp_path).exit_code == 0
    scheduler.handle(WorkerExited("trains", 1, ExitCause.RAISED, "ValueError: x"), 21.0)
    crashed = Summary.of(SETTINGS, 25.0, scheduler.status(), tmp_path)
    assert crashed.exit_code == 1
    assert crashed.to_dict()["jobs"]["trains"]["traceback"] == "ValueError: x"
