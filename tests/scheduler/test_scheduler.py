"""The scheduler: events in, directives out; the test holds the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import Answer, Directive, End, Grant, State, Verdict, VerdictChanged
from lightning_core.core.commands import Cancel, SetDeadline
from lightning_core.core.events import Cell, ExitCause, Horizon, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Capability, Job, OnMiss
from lightning_core.core.names import listed
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.estimators import ESTIMATORS
from lightning_core.policies import POLICIES
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.examples import examples


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler(Settings(policy="edf"))
    yield made
    made.check()


def batches(name: str, deadline: float = 100.0, n: int = 100) -> Job:
    """Return a job that is stopped at its deadline."""
    return Job(name, deadline, BatchTarget(n), on_miss=OnMiss.STOP)


def loss(name: str, deadline: float = 100.0, at_most: float = 0.1) -> Job:
    return Job(name, deadline, LossTarget("loss", at_most), on_miss=OnMiss.STOP)


def directives(answers: Sequence[Answer]) -> list[Directive]:
    """Return the directives, without notifications."""
    return [answer for answer in answers if isinstance(answer, Grant | End)]


def notices(answers: Sequence[Answer]) -> list[tuple[str, str, str]]:
    """Return the notifications with their reasons."""
    return [(a.job, str(a.verdict), str(a.reason)) for a in answers if isinstance(a, VerdictChanged)]


def cells(first: int, last: int, value: float = 1.0) -> tuple[Cell, ...]:
    return tuple(Cell(n, 10 * n, value) for n in range(first, last + 1))


def report(job: str, number: int, batches: int = 0, busy: float = 0.0, version: int = 99, **more: object) -> Report:
    return Report(job, 1, number, version, batches, busy, **more)  # type: ignore[arg-type]


def test_the_earliest_deadline_gets_the_device_and_the_other_is_held(scheduler: Scheduler) -> None:
    grants = scheduler.handle(Submit((batches("late", 90), batches("soon", 50))), 0.0)
    assert [(g.job, g.version, g.share) for g in grants if isinstance(g, Grant)] == [
        ("late", 1, 0.0),  # no share of the device, but a worker slot on it
        ("soon", 1, 1.0),
    ]
    held = scheduler.directive("late")
    assert isinstance(held, Grant)
    assert held.share == 0.0
    assert str(held.reason) == "queued behind 1 job"


def test_meeting_the_target_ends_the_job_and_frees_the_device_at_once(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((batches("a", 50), batches("b", 90))), 0.0)
    answer = scheduler.handle(report("a", 1, batches=100, busy=4.0), 5.0)
    assert [type(d) for d in answer] == [End, Grant]
    assert (answer[0].job, answer[1].job) == ("a", "b")
    assert isinstance(answer[0], End)
    assert answer[0].verdict is Verdict.MET
    assert str(answer[0].reason) == "target met with 45.0s to spare"


def test_a_loss_target_is_met_by_the_mean_of_the_window_and_not_by_one_lucky_cell(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((loss("a", at_most=0.5),)), 0.0)
    scheduler.handle(report("a", 1, 40, 1.0, cells=(*cells(1, 3), Cell(4, 40, 0.01))), 1.0)
    assert scheduler.status()[0].state is State.RUNNING
    [end] = scheduler.handle(report("a", 2, 90, 2.0, cells=cells(5, 9, 0.4)), 2.0)
    assert isinstance(end, End)
    assert end.verdict is Verdict.MET


@pytest.mark.promise("F33")
def test_a_report_under_an_old_grant_is_answered_with_the_newest(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((batches("a", 90),)), 0.0)
    scheduler.handle(Submit((batches("b", 50),)), 1.0)
    [answer] = scheduler.handle(report("a", 1, batches=5, busy=0.1, version=1), 1.5)
    assert isinstance(answer, Grant)
    assert (answer.version, answer.share) == (2, 0.0)
    assert scheduler.handle(report("a", 2, batches=5, busy=0.1, version=2), 1.6) == []


def test_deadlines_end_jobs_and_the_scheduler_asks_to_be_woken_for_them(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((batches("a", 0.4), batches("b", 90))), 0.0)
    assert scheduler.wakeup() == 0.4
    answer = scheduler.handle(Tick(), 0.4)
    assert isinstance(answer[0], End)
    assert (answer[0].job, answer[0].verdict) == ("a", Verdict.MISSED)
    assert answer[1].job == "b"
    assert scheduler.wakeup() == pytest.approx(1.4)


@pytest.mark.parametrize(("now", "verdict"), [(50.0, Verdict.MET), (50.1, Verdict.MISSED)])
def test_a_target_reached_after_the_deadline_is_missed(scheduler: Scheduler, now: float, verdict: Verdict) -> None:
    scheduler.handle(Submit((batches("a", 50),)), 0.0)
    [end] = scheduler.handle(report("a", 1, batches=100, busy=4.0), now)
    assert isinstance(end, End)
    assert end.verdict is verdict


def test_a_missed_job_says_that_it_had_been_given_up(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((batches("a", 10, n=1000),)), 0.0)
    scheduler.handle(report("a", 1, batches=10, busy=1.0), 1.0)
    scheduler.handle(Tick(), 1.5)
    status = scheduler.status()[0]
    assert status.verdict is Verdict.INFEASIBLE
    assert str(status.reason) == "needs more than 85s alone on its devices and has 8.5s"  # 99 s, 5 % faster
    [end] = directives(scheduler.handle(Tick(), 10.0))
    assert isinstance(end, End)
    assert (end.verdict, end.reason.code) == (Verdict.MISSED, "never_feasible_batches_more")


def test_a_late_job_that_is_given_more_time_is_no_longer_late() -> None:
    scheduler = Scheduler(Settings("edf"))
    scheduler.handle(Submit((Job("a", 10.0, BatchTarget(100), on_miss=OnMiss.CONTINUE),)), 0.0)
    assert [(name, verdict) for name, verdict, _ in notices(scheduler.handle(Tick(), 10.0))] == [("a", "missed")]
    assert scheduler.last("a").verdict is Verdict.MISSED
    scheduler.handle(SetDeadline("a", 100.0), 11.0)
    assert scheduler.last("a").verdict is None
    scheduler.handle(report("a", 1, batches=50, busy=5.0), 12.0)
    scheduler.handle(Tick(), 13.0)
    assert scheduler.last("a").verdict is Verdict.FEASIBLE


def test_of_a_job_without_a_curve_the_work_is_what_its_training_or_its_user_says() -> None:
    scheduler = Scheduler(Settings("edf"))
    told = Job(
        "told", 100.0, LossTarget("loss", 0.1), work=60.0, can=frozenset(Capability), sizes=(1,), throughputs=(2.0,)
    )
    scheduler.handle(Submit((loss("a"), told)), 0.0)
    assert np.isnan(scheduler.forecast_work("a")).all()
    assert np.sqrt(np.prod(scheduler.forecast_work("told")[9:11])) == pytest.approx(120.0)
    scheduler.handle(report("a", 1, batches=1, busy=0.1, horizon=Horizon(500, "max_steps")), 1.0)
    assert scheduler.forecast_work("a").tolist() == [500.0] * 20
    scheduler.handle(report("told", 1, batches=1, busy=0.1, horizon=Horizon(90, "max_steps")), 1.0)
    assert scheduler.forecast_work("told").max() == 90.0


@pytest.mark.parametrize(
    ("done", "verdict", "words"),
    [
        (0, None, "too early to tell"),
        (60, Verdict.FEASIBLE, "on time with 4.0s to spare"),
        (30, Verdict.INFEASIBLE, "needs at least 6.6s alone on its devices and has 6.0s"),
    ],
)
def test_verdicts_of_known_work(scheduler: Scheduler, done: int, verdict: Verdict | None, words: str) -> None:
    scheduler.handle(Submit((batches("a", 10, n=100),)), 0.0)
    scheduler.handle(report("a", 1, batches=done, busy=done / 10), 4.0)
    scheduler.handle(Tick(), 4.0 if done != 60 else 2.0)
    status = scheduler.status()[0]
    assert status.verdict == verdict
    if done == 60:
        assert status.finish == pytest.approx((7.8, 8.0, 8.2), abs=0.02)  # the throughput varies by 5 %
        assert str(status.reason) == "on time with 2.0s to spare"
    else:
        assert str(status.reason) == words


def test_at_risk_is_late_behind_others_but_not_alone(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((batches("first", 9, n=80), batches("second", 10, n=50))), 0.0)
    for name in ("first", "second"):
        scheduler.handle(report(name, 1, batches=1, busy=0.1), 0.0)
    scheduler.handle(Tick(), 1.0)
    second = scheduler.status()[1]
    assert second.verdict is Verdict.AT_RISK
    assert str(second.reason) == "forecast to finish 3.8s late"


def test_no_verdict_on_a_loss_curve_before_it_has_shown_enough() -> None:
    scheduler = Scheduler(Settings(policy="fifo", estimator="log_time", judge_after=6))
    scheduler.handle(Submit((loss("a", at_most=0.01),)), 0.0)
    falling = [Cell(n, 10 * n, 1.0 / n) for n in range(1, 9)]
    scheduler.handle(report("a", 1, 50, 0.5, cells=tuple(falling[:5])), 0.5)
    scheduler.handle(Tick(), 1.0)
    assert scheduler.status()[0].verdict is None
    scheduler.handle(report("a", 2, 80, 0.8, cells=tuple(falling)), 1.2)
    scheduler.handle(Tick(), 2.0)
    status = scheduler.status()[0]
    assert status.verdict is Verdict.FEASIBLE  # the law says 0.01 at 1,000 batches: 9.2 s more
    assert status.finish is not None
    assert status.finish[1] == pytest.approx(2.0 + 9.2, abs=0.01)


@pytest.mark.parametrize(
    ("deadline", "verdict"),
    [(2.8, Verdict.INFEASIBLE), (50.0, Verdict.AT_RISK)],  # a loss that stands still may drop yet
)
def test_a_flat_curve_says_why_and_is_infeasible_once_too_late_for_a_drop(deadline: float, verdict: Verdict) -> None:
    scheduler = Scheduler(Settings(policy="fifo"))
    scheduler.handle(Submit((Job("a", deadline, LossTarget("loss", 1e-3)),)), 0.0)
    scheduler.handle(report("a", 1, 200, 2.0, cells=cells(1, 20)), 2.0)
    scheduler.handle(Tick(), 2.5)
    status = scheduler.status()[0]
    assert status.verdict is verdict
    assert str(status.reason) == "loss is not falling towards the target"
    assert status.finish is None


def test_a_crash_takes_only_its_own_job_and_keeps_the_traceback(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((batches("a", 50), batches("b", 90))), 0.0)
    answer = scheduler.handle(WorkerExited("a", 1, ExitCause.RAISED, detail="Traceback\n  ...\nKeyError: 'x'"), 1.0)
    assert isinstance(answer[0], End)
    assert (answer[0].verdict, str(answer[0].reason)) == (Verdict.CRASHED, "KeyError: 'x'")
    assert answer[1].job == "b"
    assert scheduler.status()[0].detail.startswith("Traceback")


def test_a_training_that_ends_by_itself_has_missed(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((batches("a"),)), 0.0)
    [end] = scheduler.handle(WorkerExited("a", 1), 1.0)
    assert isinstance(end, End)
    assert (end.verdict, end.reason.code) == (Verdict.MISSED, "training_ended")
    assert scheduler.handle(WorkerExited("a", 1), 2.0) == []
    assert scheduler.wakeup() is None


def test_a_cancelled_job_ends(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((batches("a"),)), 0.0)
    [end] = scheduler.handle(Cancel("a"), 1.0)
    assert isinstance(end, End)
    assert end.verdict is Verdict.CANCELLED
    assert scheduler.handle(Cancel("a"), 2.0) == []
    assert scheduler.handle(Cancel("stranger"), 2.0) == []


@pytest.mark.promise("F14")
def test_reports_of_unknown_jobs_are_answered_and_not_kept(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((batches("a"),)), 0.0)
    [unknown] = scheduler.handle(report("b", 1, batches=100), 1.0)
    [stale] = scheduler.handle(Report("a", 2, 1, 0, 100, 1.0), 1.0)
    assert isinstance(unknown, End)
    assert isinstance(stale, End)
    assert (unknown.reason.code, stale.reason.code) == ("unknown_job", "superseded")
    assert scheduler.handle(WorkerExited("a", 7), 1.0) == []
    assert scheduler.names() == scheduler.names(active=True) == ["a"]
    assert scheduler.status()[0].batches == 0


@pytest.mark.promise("F16")
def test_submitting_twice_changes_nothing(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((batches("a", 50),)), 0.0)
    before = scheduler.directive("a")
    assert scheduler.handle(Submit((batches("a", 70),)), 10.0) == [before]
    assert scheduler.status()[0].deadline == 50
    assert scheduler.directive("stranger") is None


@pytest.mark.promise("F9")
def test_time_does_not_go_backwards(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((batches("a", 50),)), 10.0)
    scheduler.handle(Submit((batches("b", 50),)), 5.0)
    assert [job.submitted_at for job in scheduler.status()] == [10.0, 10.0]


@pytest.mark.promise("R15", "F10")
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e301])
def test_bad_losses_are_ignored_and_counted(scheduler: Scheduler, bad: float) -> None:
    scheduler.handle(Submit((loss("a", at_most=0.5),)), 0.0)
    good = cells(1, 4)
    scheduler.handle(report("a", 1, 60, 1.0, cells=(*good, Cell(5, 50, bad), Cell(6, 60, 1.0)), rejected=3), 1.0)
    status = scheduler.status()[0]
    assert (status.cells, status.rejected, status.loss) == (5, 4, 1.0)


def test_batches_before_a_resume_do_not_count_as_throughput(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((batches("a", n=200_000),)), 0.0)
    scheduler.handle(report("a", 1, batches=0, busy=0.0), 0.1)
    scheduler.handle(report("a", 2, batches=100_010, busy=1.0, batches_at_start=100_000), 1.1)
    assert scheduler.status()[0].throughput == pytest.approx(10.0)


def test_cells_ahead_of_a_missing_one_wait_for_it(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((loss("a"),)), 0.0)
    scheduler.handle(report("a", 1, cells=cells(3, 4, 3.0)), 1.0)
    assert scheduler.status()[0].cells == 0
    scheduler.handle(report("a", 2, cells=cells(1, 2, 1.0)), 2.0)
    assert (scheduler.status()[0].cells, scheduler.status()[0].loss) == (4, 2.0)


_SENT = [
    Report("a", 1, n, 0, 20 * n, 0.5 * n, tuple(Cell(k, 10 * k, 1.0 / k) for k in range(1, 2 * n + 1)))
    for n in range(1, 8)
]


@pytest.mark.promise("R16", "F12")
@given(order=st.lists(st.sampled_from(range(len(_SENT))), min_size=1, max_size=30))
@settings(max_examples=examples(60), deadline=None)
def test_duplicates_losses_and_reordering_leave_the_same_estimate(order: list[int]) -> None:
    """Cells are numbered and progress is cumulative: the order of arrival does not matter."""
    messy, tidy = (Scheduler(Settings(policy="fifo")) for _ in range(2))
    for made in (messy, tidy):
        made.handle(Submit((loss("a", at_most=1e-6),)), 0.0)
    for at in order:
        messy.handle(_SENT[at], 1.0)
    # A later report may arrive first; an older one does not take its progress back.
    tidy.handle(_SENT[max(order)], 1.0)
    for made in (messy, tidy):
        made.handle(Tick(), 2.0)
        made.check()
    a, b = messy.status()[0], tidy.status()[0]
    assert (a.cells, a.loss, a.batches) == (b.cells, b.loss, b.batches)
    assert a.busy == pytest.approx(b.busy)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"policy": "best"}, f"policy must be one of {listed(sorted(POLICIES))}, got 'best'$"),
        ({"policy": "Traige"}, "policy must be one of .*, ... and [0-9]+ more, got 'Traige'; did you mean 'triage'"),
        ({"policy": "triage", "policy_args": {"levle": 1}}, "triage: unknown argument 'levle'; did you mean 'level'"),
        ({"policy": "fifo", "policy_args": {"levle": 1}}, "fifo: unknown argument 'levle'; it takes none"),
        (
            {"estimator": "leastsquares"},
            "estimator must be .*, got 'leastsquares'; did you mean 'least_squares'",
        ),
        ({"policy": "lara", "policy_args": {"speed": 1}}, "policy lara: .*speed"),
        ({"policy": "lara", "policy_args": {"order": "lifo"}}, "order must be one of share, edf, got 'lifo'"),
        ({"policy": "lara", "policy_args": {"explore": -1}}, "explore must be at least 0 cells, got -1"),
        ({"policy": "fixed", "policy_args": {"shares": [0.9, 1.2]}}, "shares must be above 0 and at most 1"),
        ({"estimator": "oracle"}, f"estimator must be one of {', '.join(sorted(ESTIMATORS))}, got 'oracle'"),
        ({"policy": "lara", "estimator_args": {"gamma": 1.5}}, "gamma must be above 0 and at most 1, got 1.5"),
        ({"estimator": "log_time", "estimator_args": {"power": -1}}, "power must be at least 0"),
        ({"estimator_args": {"gamma": 0.9}}, "estimator posterior: .*gamma"),
        ({"estimator_args": {"min_cells": 2}}, "min_cells must be at least 3 cells, got 2"),
        ({"period": 0.0}, "period must be positive, got 0.0"),
        ({"window": 0}, "window must be at least 1 cell, got 0"),
        ({"judge_after": -1}, "judge_after must be at least 0 cells, got -1"),
        ({"devices": 0}, "devices must be at least 1, got 0"),
        ({"devices": 4, "resident": 3}, r"resident must be at least one job per device \(4\), got 3"),
        ({"keep_ended": 3599.0}, "keep_ended must be at least 3600 seconds, got 3599.0"),
        ({"stay": -1.0}, "stay must be at least 0 seconds, got -1.0"),
    ],
)
def test_wrong_settings_name_the_rule_and_the_value(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("deadline", [0.0, -1.0, float("nan"), -float("inf")])
def test_a_deadline_must_be_positive(deadline: float) -> None:
    with pytest.raises(ValueError, match="deadline must be positive, got"):
        Job("a", deadline, BatchTarget(1))


@pytest.mark.parametrize("at_most", [float("nan"), float("inf"), -1e301])
def test_a_target_loss_must_be_finite(at_most: float) -> None:
    with pytest.raises(ValueError, match="target loss must be finite, got"):
        LossTarget("loss", at_most)


def test_invalid_settings_and_jobs_are_refused() -> None:
    with pytest.raises(ValueError, match="target batches must be a whole number of at least 1, got 0"):
        BatchTarget(0)
    with pytest.raises(ValueError, match="name"):
        Job("", 1.0, BatchTarget(1))
    with pytest.raises(ValueError, match="name"):
        LossTarget("", 1.0)


@pytest.mark.parametrize(
    ("column", "value", "story"),
    [
        ("share", 0.9, "grant and table differ"),
        ("share", -0.1, "share outside 0 to 1"),
        ("active", False, "neither active nor ended"),
        ("paused", True, "trains, and is paused or held"),
        ("size", 2, "for 2 devices"),
        ("placed", False, "placed"),
        ("deadline", 0.5, "a deadline is slept over"),
        ("batches", 100, "met but not ended"),
    ],
)
def test_check_finds_broken_invariants(column: str, value: float, story: str) -> None:
    scheduler = Scheduler(Settings(policy="uniform"))
    scheduler.handle(Submit((batches("a"), batches("b"))), 0.0)
    scheduler.check()
    getattr(scheduler._table, column)[0] = value
    with pytest.raises(AssertionError, match=story):
        scheduler.check()


@pytest.mark.parametrize(("share", "story"), [(1.0, "oversold"), (0.0, "too many jobs are resident")])
def test_check_finds_a_device_that_is_oversold_or_overcrowded(share: float, story: str) -> None:
    scheduler = Scheduler(Settings(policy="fifo", devices=2, resident=2))
    scheduler.handle(Submit((batches("a"), batches("b"))), 0.0)
    table = scheduler._table
    for row, name in enumerate("ab"):
        table.home[row], table.share[row] = (0,), share
        table.directives[row] = Grant(name, 1, share, (0,), Reason("first_in_line"))
    with pytest.raises(AssertionError, match=story):
        scheduler.check()


def test_a_thousand_jobs_grow_the_table() -> None:
    scheduler = Scheduler(Settings(policy="lara"))
    scheduler.handle(Submit(tuple(loss(f"job{k}", 10.0 + k) for k in range(1000))), 0.0)
    scheduler.check()
    assert len(scheduler.status()) == 1000
