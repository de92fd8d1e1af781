"""Steps that hang while their process answers: told, then given up by the process, and restarted a few times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.answers import End, State, Verdict
from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.events import Checkpoint, ExitCause, Report, Tick, WorkerExited
from lightning_core.core.reported import Hang
from lightning_core.scheduler.retry_budgets import MAX_HANGS
from tests.scheduler.test_alerts import SCRIPT, Told, alerts, job, save

WORDS = "no step for 10m; the longest took 3.0s"


def hung(told: Told, hang: Hang | None, after: float = 1.0) -> list[str]:
    """Report no progress and a step that hangs, as the thread of a process does that still answers."""
    told.number += 1
    status = told.status
    return alerts(
        told.take(Report("a", told.incarnation, told.number, 99, status.batches, status.busy, hang=hang), after)
    )


def give_up(told: Told, checkpoint: Checkpoint | None = None) -> list[Any]:
    """Let the process give itself up and its job restart; return the ends among the answers."""
    left = WorkerExited("a", told.incarnation, ExitCause.HUNG, f"Traceback ...\n{WORDS}", checkpoint)
    ends = [answer for answer in told.take(left, 300.0) if isinstance(answer, End)]
    told.incarnation, told.number = told.incarnation + 1, 0
    return ends


@pytest.mark.promise("F27")
def test_a_hang_is_told_once_and_a_step_clears_it(tmp_path: Path) -> None:
    told = Told(tmp_path, job(), stall=None)
    told.report()
    said = [words for _ in range(5) for words in hung(told, Hang(300.0, 3.0))]
    assert said == ["no step for 5m; the longest took 3.0s; it is given up after twice as long"]
    assert str(told.status.alert) == said[0]
    told.report()
    assert told.status.alert is None
    assert said[0] in told.why()


@pytest.mark.promise("F27")
def test_a_script_that_hangs_is_only_told_about(tmp_path: Path) -> None:
    told = Told(tmp_path, job(can=SCRIPT))
    told.report()
    assert hung(told, Hang(3000.0)) == ["no step for 50m since the start"]
    assert told.status.state is State.RUNNING


def test_a_hang_is_not_reported_as_a_stall_too(tmp_path: Path) -> None:
    told = Told(tmp_path, job())
    for _ in range(20):
        told.report()
    assert len(hung(told, Hang(30.0, 1.0))) == 1
    assert [words for _ in range(100) for words in alerts(told.take(Tick(), 1.0))] == []


@pytest.mark.promise("F27", "R10")
def test_a_job_that_was_given_up_resumes_with_the_cause_and_without_the_alert(tmp_path: Path) -> None:
    told = Told(tmp_path, job(restarts=0, retries=0))
    told.report(checkpoint=save(8))
    hung(told, Hang(300.0, 3.0))
    assert give_up(told) == []  # neither the budget of lost workers nor that of errors
    assert told.status.state is State.RECOVERING
    assert told.status.alert is None
    assert str(told.status.fault) == f"{WORDS}; it resumes from batch 8 and repeats 2 batches"
    told.take(Tick(), 10.0)
    [placed] = told.scheduler.placements()
    assert (placed.incarnation, placed.hangs) == (2, 1)
    told.report(batches_at_start=8)
    assert told.status.lost_batches == 2
    assert f"{WORDS}; lost: 2 batches" in told.why()  # which replays strictly


@pytest.mark.promise("F27", "R10")
def test_the_budget_is_for_hangs_without_a_newer_checkpoint_in_between(tmp_path: Path) -> None:
    told = Told(tmp_path, job())
    told.report(checkpoint=save(10))
    for _ in range(MAX_HANGS):
        assert give_up(told) == []
    told.report(checkpoint=save(20), batches_at_start=10)
    told.take(Tick(), 100.0)
    assert told.scheduler.placements()[0].hangs == 0  # it has come further
    for _ in range(MAX_HANGS):
        assert give_up(told) == []
    [end] = give_up(told)
    assert end.verdict is Verdict.CRASHED
    assert str(end.reason) == f"{WORDS}; retry limit reached ({MAX_HANGS})"


def test_another_fault_in_between_starts_the_count_anew(tmp_path: Path) -> None:
    told = Told(tmp_path, job())
    told.report()
    give_up(told)
    told.take(WorkerExited("a", told.incarnation, ExitCause.LOST, "its process died"))
    told.take(Tick(), 100.0)
    assert told.scheduler.placements()[0].hangs == 0


def test_hangs_round_trip_and_hostile_numbers_change_nothing(tmp_path: Path) -> None:
    report = Report("a", 1, 1, 1, 9, 1.0, hang=Hang(300.0, 3.0))
    assert decode_event(encode_event(report)) == report
    told = Told(tmp_path, job())
    told.report()
    for hostile in (Hang(-1.0), Hang(1e300), Hang(1.0, -1.0)):
        assert hung(told, hostile) == []
