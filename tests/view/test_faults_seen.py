"""A fault as board, plain lines, `why` and report show it: what happened, what was lost, what was done."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.events import (
    Checkpoint,
    Close,
    DevicesUnavailable,
    Event,
    ExitCause,
    LaunchTimedOut,
    Report,
    Submit,
    Tick,
    WorkerExited,
    WorkersLost,
)
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.history.history import History
from lightning_core.report.page import page
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.view.board import Board
from lightning_core.view.progress import PlainView
from lightning_core.view.why import why
from tests.builders import job
from tests.driven import HOSTILE

SAVED = Checkpoint(80, "0" * 64)
DIED = "its process died"


class Told:
    """A scheduler, and a history that takes in the same events."""

    def __init__(self, job: Job, cause: ExitCause | None = None, detail: str = DIED) -> None:
        self.scheduler, self.history = Scheduler(Settings(policy="edf")), History(Settings(policy="edf"))
        self.take(Submit((job,)), 0.0)
        for number, batches in enumerate((0, 50, 100), 1):
            self.take(Report("a", 1, number, 1, batches, 0.1 * batches), float(number))
        if cause is not None:
            self.take(WorkerExited("a", 1, cause, detail, SAVED), 4.0)

    def take(self, event: Event, now: float) -> None:
        self.history.take(event, now, self.scheduler.handle(event, now), self.scheduler.accepted)

    def come_back(self, batches_at_start: int = 80) -> None:
        self.take(Tick(), 6.0)
        self.take(Report("a", 2, 1, 1, batches_at_start, 0.0, batches_at_start=batches_at_start), 7.0)
        self.take(Report("a", 2, 2, 9, batches_at_start + 20, 2.0, batches_at_start=batches_at_start), 9.0)

    @property
    def status(self) -> JobStatus:
        return self.scheduler.status()[-1]

    def board(self, width: int = 300) -> str:
        out = io.StringIO()
        now = self.history.last
        Console(file=out, width=width, color_system=None).print(Board(now, [self.status], "edf", 1))
        return out.getvalue()

    def plain(self) -> str:
        out = io.StringIO()
        PlainView(out).update(self.history.last, [self.status])
        return out.getvalue()

    def why(self) -> str:
        return "\n".join(why(self.history, "a"))

    def report(self) -> str:
        return re.sub("<[^>]+>", " ", page(self.history).partition("</style>")[2])


def test_a_recovering_job_is_shown_everywhere() -> None:
    told = Told(job(deadline=600.0), ExitCause.LOST)
    assert told.status.state is State.RECOVERING
    for text in (told.board(), told.plain()):
        assert "recovering" in text
        assert "its process died; it resumes from batch 80 and repeats 20 batches (2.0s of work)" in text
        assert "restart 1 after a pause of 1.1s" in text
    assert "1 recovering" in told.board()
    for text in (told.why(), told.report()):
        assert "20 batches (2.0s of work) to repeat" in text
        assert "resumes from batch 80 in 1.1s (restart 1)" in text


def test_the_cost_of_a_fault_is_still_shown_after_the_restart() -> None:
    told = Told(job(deadline=600.0), ExitCause.LOST)
    told.come_back()
    assert told.status.state is State.RUNNING
    for text in (told.board(), told.plain()):
        assert "restarted once, 20 batches (2.0s of work) repeated" in text
    for text in (told.why(), told.report()):
        assert "resumed from batch 80 after 3.0s (restart 1)" in text
        assert "1 fault, 20 batches (2.0s of work) repeated" in text
    assert "resumed from batch 80" in told.why()


def test_a_damaged_checkpoint_adds_to_the_cost() -> None:
    told = Told(job(deadline=600.0), ExitCause.LOST)
    told.come_back(batches_at_start=30)
    assert told.status.lost_batches == 70
    for text in (told.why(), told.report()):
        assert "70 batches (7.0s of work)" in text
        assert "resumed from batch 30" in text


@pytest.mark.parametrize(
    ("terms", "cause", "detail", "what", "done"),
    [
        ({}, ExitCause.PREEMPTED, "", "its node was preempted", "resumes from batch 80"),
        (
            {"retries": 1}, ExitCause.RAISED, "Traceback\nValueError: x", "its code raised ValueError: x",
            "(restart 1)",
        ),
        ({}, ExitCause.RAISED, "Traceback\nValueError: x", "its code raised ValueError: x", "not restarted"),
        ({}, ExitCause.UNUSABLE, "no module 'x'", "it cannot be built: no module 'x'", "not restarted"),
        ({}, ExitCause.BROKEN, "no module 'x'", "its worker can train no job: no module 'x'", "resumes from batch 80"),
        ({"restarts": 0}, ExitCause.LOST, "", "its worker died", "not restarted"),
        (
            {"can": frozenset({Capability.TIME_SLICE, Capability.HOLD})}, ExitCause.LOST, DIED, DIED,
            "not restarted",
        ),
    ],
)  # fmt: skip
@pytest.mark.promise("R10")
def test_each_cause_has_its_words(terms: dict[str, Any], cause: ExitCause, detail: str, what: str, done: str) -> None:
    told = Told(job(deadline=600.0, **terms), cause, detail)
    for text in (told.why(), told.report()):
        assert what in text.replace("&#x27;", "'")
        assert done in text
    if done == "not restarted":
        assert told.status.state is State.ENDED
        assert "repeat" not in told.why()


def test_a_launch_that_timed_out_is_shown_with_its_retry() -> None:
    told = Told(job(deadline=600.0))
    told.take(WorkerExited("a", 1, ExitCause.RELEASED, checkpoint=SAVED), 4.0)
    told.take(LaunchTimedOut("a", 2, "rank 1 of 2 missing: NO_RESOURCES"), 64.0)
    assert "its workers were not ready in time (rank 1 of 2 missing: NO_RESOURCES)" in told.board()
    for text in (told.why(), told.report()):
        assert "its workers were not ready in time: rank 1 of 2 missing: NO_RESOURCES" in text
        assert "retried in" in text


def test_a_pool_that_was_down_is_shown_and_a_job_that_had_saved_lost_nothing() -> None:
    killed, left = Told(job(deadline=600.0)), Told(job(deadline=600.0))
    left.take(WorkerExited("a", 1, ExitCause.RELEASED, checkpoint=Checkpoint(100, "1" * 64)), 4.0)
    for told in (killed, left):
        told.take(WorkersLost(), 100.0)
        assert "the pool was down" in told.report()
    assert [fault.batches for fault in killed.history.of("a").faults] == [100]
    assert "100 batches (10.0s of work) to repeat" in killed.why()
    assert left.history.of("a").faults == []
    assert "no decision for 96.0s" in left.report()


def test_a_run_that_was_stopped_in_order_had_no_fault() -> None:
    told = Told(job(deadline=600.0))
    told.take(Close("Ctrl-C"), 3.0)
    told.take(WorkerExited("a", 1, ExitCause.RELEASED, checkpoint=Checkpoint(100, "1" * 64)), 4.0)
    told.take(Tick(), 4.2)
    told.take(Tick(), 184.2)  # the scheduler that goes on wakes itself, before it is told
    told.take(WorkersLost(), 184.3)
    assert (told.history.gaps, told.history.of("a").faults) == ([], [])
    assert [(since, until) for since, until, _ in told.history.stops] == [(4.2, 184.2)]
    words = "stopped by Ctrl-C, resumed after 3m"
    assert words in told.why()
    assert words in told.report()
    assert "Stopped by Ctrl-C after 4.2s, resumed 3m later." in told.report()
    for text in (told.why(), told.report()):
        assert "was down" not in text
        assert "no decision for" not in text


def test_a_job_that_had_not_left_when_the_run_was_stopped_loses_what_it_had_not_saved() -> None:
    told = Told(job(deadline=600.0))
    told.take(Close("SIGTERM"), 3.0)
    told.take(WorkersLost(), 60.0)
    assert "stopped by SIGTERM before it had left; lost: 100 batches" in told.why()


def test_a_pool_that_was_killed_is_shown_once() -> None:
    told = Told(job(deadline=600.0))
    told.take(Tick(), 100.0)
    told.take(Tick(), 101.0)
    told.take(WorkersLost(), 101.5)
    assert len(told.history.gaps) == 1
    assert "no decision for 97.0s" in told.report()


def test_a_scheduler_that_did_not_answer_is_shown() -> None:
    told = Told(job(deadline=600.0))
    told.take(Tick(), 4.0)
    assert told.history.gaps == []
    told.take(Report("a", 1, 4, 1, 150, 15.0), 12.0)
    assert [(since, until) for since, until, _ in told.history.gaps] == [(4.0, 12.0)]
    assert "no decision for 8.0s" in told.report()
    assert "the scheduler did not answer for 8.0s" in told.why()


def test_a_device_without_a_worker_is_shown() -> None:
    told = Told(job(deadline=600.0), ExitCause.LOST)
    told.take(DevicesUnavailable((0,), "device 0: its node is gone"), 5.0)
    told.take(Tick(), 6.5)
    for text in (told.why(), told.report()):
        assert "device 0: its node is gone" in text
    assert "not back yet" in told.why()
    assert "waiting for a device" in told.board()
    told.take(DevicesUnavailable(()), 35.0)
    assert "back after 30.0s" in told.why()
    assert "the device for 30.0s" in told.report()


def test_devices_that_are_away_together_are_one_fault() -> None:
    told = Told(job(deadline=600.0), ExitCause.LOST)
    words = "device 0: its node is gone; device 1: no node provides it; device 2: no node provides it"
    told.take(DevicesUnavailable((0, 1, 2), words), 5.0)
    told.take(DevicesUnavailable((0,), "device 0: its node is gone"), 35.0)
    report = told.report()
    assert "devices 1, 2: no node provides it" in report
    assert "2 devices for 30.0s" in report
    assert "their jobs wait, then continue there" in report  # a pool of one device has no other place
    assert "device 0: its node is gone" in report
    assert report.count("jobs wait") == 2
    assert "device 2: no node provides it" in told.why()


def test_a_worker_that_starts_is_no_fault() -> None:
    told = Told(job(deadline=600.0))
    told.take(DevicesUnavailable((0,), "device 0: its worker is starting"), 5.0)
    told.take(DevicesUnavailable(()), 7.0)
    assert "Faults" not in told.report()
    assert "no worker available" not in told.why() + told.report()


def test_without_faults_none_are_shown() -> None:
    told = Told(job(deadline=600.0))
    assert "fault" not in told.why() + told.board() + told.plain()
    assert "Faults" not in told.report()


@pytest.mark.parametrize("words", HOSTILE)
@pytest.mark.promise("S8")
def test_text_of_a_dying_worker_cannot_control_the_terminal(words: str) -> None:
    told = Told(job(deadline=600.0, retries=1), ExitCause.RAISED, f"Traceback\n{words}")
    for text in (told.why(), told.board(), told.plain()):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\x80-\x9f\u202e]", text)
    html = page(told.history)
    assert "<script" not in html
    assert 'title=""onload' not in html


@pytest.mark.promise("R7", "F5")
def test_shown_faults_equal_those_that_the_scheduler_counted(tmp_path: Path) -> None:
    """In a run with many lost workers, journal and scheduler say the same."""
    cells = range(10, 4001, 10)
    jobs = [
        SimulatedJob(Job(name, 5000.0, BatchTarget(2000)), cells, [1.0 / n for n in cells], 8.0) for name in ("a", "b")
    ]
    losses = {"a": [30.0, 31.5, 60.0, 200.0], "b": [100.0, 300.0]}
    delays = Delays(start=2.0, release=1.0)
    path = tmp_path / "journal.db"
    outcome = Simulation(Settings(resident=2), jobs, delays, path, check=True, losses=losses, save_every=100).run()
    with Journal.open(path, read_only=True) as journal:
        history = History.read(journal)
    assert outcome.met == 2
    told = {status.name: status for status in outcome.summary.jobs}
    assert {name: len(history.of(name).faults) for name in told} == {name: s.restarts for name, s in told.items()}
    assert sum(status.restarts for status in told.values()) >= 4
    for name, status in told.items():
        faults = history.of(name).faults
        assert sum(fault.batches for fault in faults) == status.lost_batches
        assert all(fault.batches <= 100 + 8 for fault in faults)  # one interval, and what no report had told yet
        assert all(fault.work == pytest.approx(fault.batches / 8.0, abs=0.3) for fault in faults)
