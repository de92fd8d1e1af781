"""Jobs that are over leave the table: what a pool has trained before costs no round anything."""

from __future__ import annotations

import pytest

from lightning_core.core.answers import End, Grant, Verdict
from lightning_core.core.commands import Cancel, Pause, Resume
from lightning_core.core.events import ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.targets import BatchTarget
from lightning_core.policies import POLICIES
from lightning_core.policies.classic import Fifo
from lightning_core.scheduler import past_jobs
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.testing.checks import saved_and_restored
from tests.builders import job


def trained(scheduler: Scheduler, name: str, now: float, number: int = 1) -> End:
    """Let a job train to its end, and its worker leave."""
    scheduler.handle(Submit((job(name, 100.0, 10),)), now)
    incarnation = scheduler.incarnation(name)
    answers = scheduler.handle(Report(name, incarnation, number=1, version=1, batches=10, busy=1.0), now + 1.0)
    [end] = [answer for answer in answers if isinstance(answer, End)]
    scheduler.handle(WorkerExited(name, incarnation, ExitCause.DONE), now + 1.5)
    return end


def months(scheduler: Scheduler, jobs: int, every: float = 2.0) -> float:
    """Let jobs come and go, one after another; return the time of the last end."""
    for k in range(jobs):
        trained(scheduler, f"job-{k}", every * k)
    return every * jobs


def test_what_is_over_leaves_the_table_and_stays_in_the_status() -> None:
    scheduler = Scheduler(Settings(policy="triage"))
    scheduler.handle(Submit((Job("long", 1e6, BatchTarget(10**6)),)), 0.0)
    months(scheduler, 200)
    assert len(scheduler._table) <= 2 * past_jobs.MIN_LEAVING
    names = ["long", *(f"job-{k}" for k in range(200))]
    assert [status.name for status in scheduler.status()] == scheduler.names() == names
    assert [status.verdict for status in scheduler.status()] == [None, *[Verdict.MET] * 200]
    assert scheduler.names(active=True) == ["long"]
    assert scheduler.last("job-0").finished_at == 1.0


def test_a_job_stays_until_its_worker_has_left_or_must_have() -> None:
    scheduler = Scheduler(Settings(policy="fifo"))
    for k in range(past_jobs.MIN_LEAVING + 1):
        scheduler.handle(Submit((job(f"job-{k}", 100.0, 10),)), 0.0)
        scheduler.handle(Report(f"job-{k}", 1, number=1, version=1, batches=10, busy=1.0), 1.0)
    scheduler.handle(Tick(), 2.0)
    assert len(scheduler._table) == past_jobs.MIN_LEAVING + 1
    scheduler.handle(WorkerExited("job-0", 1, ExitCause.DONE), 3.0)
    assert scheduler._table.last_report[0] == 0
    scheduler.handle(Tick(), 1.0 + past_jobs.SETTLE)
    assert len(scheduler._table) == 0


def test_late_messages_of_past_jobs_are_answered() -> None:
    scheduler = Scheduler(Settings(policy="fifo"))
    end = trained(scheduler, "first", 0.0)
    now = months(scheduler, 100)
    assert scheduler._table.row_of.get("first") is None
    late = Report("first", 1, number=2, version=1, batches=10, busy=1.0)
    assert scheduler.answers_to_no_op(late, now) == scheduler.handle(late, now) == [end]
    stale = Report("first", 7, number=2, version=1, batches=10, busy=1.0)
    [other] = scheduler.handle(stale, now)
    assert isinstance(other, End)
    assert other.reason.code == "superseded"
    for event in (Cancel("first"), Pause("first"), Resume("first"), WorkerExited("first", 1, ExitCause.LOST)):
        assert scheduler.answers_to_no_op(event, now) == scheduler.handle(event, now) == []
    with pytest.raises(ValueError, match="not paused"):
        scheduler.check_command(Resume("first"), now)
    with pytest.raises(ValueError, match="no job 'stranger'"):
        scheduler.check_command(Cancel("stranger"), now)


def test_versions_and_incarnations_of_a_past_name_only_grow() -> None:
    scheduler = Scheduler(Settings(policy="fifo"))
    end = trained(scheduler, "again", 0.0)
    now = months(scheduler, 100)
    [grant] = scheduler.handle(Submit((job("again", 100.0, 10),)), now)
    assert isinstance(grant, Grant)
    assert grant.version == end.version + 1
    assert scheduler.incarnation("again") == 2
    assert [status.name for status in scheduler.status()].count("again") == 2
    assert scheduler.names()[-1] == "again"
    assert len(scheduler.names()) == 101
    scheduler = saved_and_restored(
        scheduler, Scheduler(scheduler.settings), ("answers", "accepted", "_status", "rounds")
    )
    assert scheduler.incarnation("again") == 2


def test_the_oldest_are_forgotten_and_no_incarnation_comes_again() -> None:
    scheduler = Scheduler(Settings(policy="fifo", remember=50))
    for k in range(3):
        trained(scheduler, "nightly", 10.0 * k)
    months(scheduler, 300, every=past_jobs.REMEMBERED_FOR / 20)
    remembered = scheduler.names()
    assert "nightly" not in remembered
    assert remembered[-1] == "job-299"
    assert 50 <= len(remembered) <= 50 + 20 + 2 * past_jobs.MIN_LEAVING
    with pytest.raises(KeyError, match="nightly"):
        scheduler.last("nightly")
    now = past_jobs.REMEMBERED_FOR * 20
    [answer] = scheduler.handle(Report("nightly", 3, number=9, version=1, batches=10, busy=1.0), now)
    assert isinstance(answer, End)
    assert answer.reason.code == "unknown_job"
    scheduler = saved_and_restored(
        scheduler, Scheduler(scheduler.settings), ("answers", "accepted", "_status", "rounds")
    )
    scheduler.handle(Submit((job("nightly", 100.0, 10),)), now)
    assert scheduler.incarnation("nightly") > 3
    assert scheduler.handle(Report("nightly", 3, number=9, version=1, batches=9, busy=1.0), now) != []
    assert scheduler.last("nightly").batches == 0


def test_jobs_of_the_last_day_are_remembered_however_many() -> None:
    scheduler = Scheduler(Settings(policy="fifo"))
    months(scheduler, scheduler.settings.remember + 200)
    assert len(scheduler.names()) == scheduler.settings.remember + 200


def test_jobs_that_were_submitted_together_are_remembered_until_the_last_of_them_is_old() -> None:
    """The person who submitted them is told of all of them, however long that takes."""
    scheduler = Scheduler(Settings(policy="fifo", remember=50))
    together = [Job(f"run-{k}", 1e9, BatchTarget(10)) for k in range(100)]
    scheduler.handle(Submit(tuple(together)), 0.0)
    for number, one in enumerate(together):
        now = number * past_jobs.REMEMBERED_FOR / 10
        trained(scheduler, f"other-{number}", now)
        scheduler.handle(Report(one.name, 1, number=1, version=1, batches=10, busy=1.0), now)
        scheduler.handle(WorkerExited(one.name, 1, ExitCause.DONE), now + 1.5)
    verdicts = {status.name: status.verdict for status in scheduler.status()}
    assert [verdicts.get(one.name) for one in together] == [Verdict.MET] * 100
    assert "other-1" not in verdicts
    for number in range(100, 200):
        trained(scheduler, f"other-{number}", number * past_jobs.REMEMBERED_FOR / 10)
    assert not {one.name for one in together} & set(scheduler.names())


def test_a_policy_that_cannot_let_rows_go_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counts(Fifo):
        """Remembers something by row, and has no keep()."""

        STATE = ("seen",)

        def __init__(self) -> None:
            self.seen: dict[int, int] = {}

        def plan(self, jobs: JobView, now: float) -> Plan:
            self.seen |= dict.fromkeys(jobs.row.tolist(), 1)
            return super().plan(jobs, now)

    monkeypatch.setitem(POLICIES, "counts", Counts)
    scheduler = Scheduler(Settings(policy="counts"))
    months(scheduler, 100)
    assert len(scheduler._table) == 100
